"""What is predicted of further rows: means, with how uncertain they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ppl_models import MethodError


class Prediction(NamedTuple):
    """mean of what is predicted; sd: of what is not known of its mean; spread: of itself, with its noise.

    draws: (S, ...) from its predictive distribution, whose quantiles intervals are; of classes their numbers; of edges
        and cells that are 0 or 1 those of their probability, which intervals are then of.
    """

    mean: Tensor
    sd: Tensor
    spread: Tensor
    draws: Tensor

    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """Return the central interval: of counts, and of what is 0 or 1, the smallest ends that hold so much.

        Raises MethodError for classes, which have no order.
        """
        if not 0 < level < 1:
            raise MethodError(f"level = {level}, expected between 0 and 1")
        if self.draws.shape[1:] != self.mean.shape:
            raise MethodError("an interval of classes, which have no order; expected their probabilities, mean")
        ends = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=self.draws.dtype, device=self.draws.device)
        low, high = (
            torch.quantile(self.draws, end, dim=0, interpolation=how)
            for end, how in zip(ends, ("lower", "higher"), strict=True)
        )
        return low, high


class Mixture:
    """Mixtures over draws of the globals and, given these, over terms of weights (n, G): what they expect, and draws.

    draws: from each of the mixtures; 0: the means are all that is asked for.
    """

    def __init__(self, draws: int = 0):
        self._draws, self._number = draws, 0
        self._moments = torch.zeros(())
        self._drawn: list[Tensor] = []

    def add(self, law: Callable[[Tensor], Any], parts: Sequence[tuple[Tensor, Tensor, Tensor]]) -> None:
        """Add what one draw says: of rows at these places (n,) the weights (n, G), and eta (n, G, ...) of the law."""
        order = torch.cat([places for places, *_ in parts]).argsort()
        moments, drawn = [], []
        for _, weight, eta in parts:
            given = law(eta)
            numbers = given.batch_shape == eta.shape  # else classes, the last axis of eta
            expected = [given.mean if numbers else given.probs]
            if self._draws:
                mean = expected[0]
                expected += [mean.square(), given.variance if numbers else mean * (1 - mean)]
                chosen = torch.multinomial(weight, self._draws, replacement=True)
                chosen = chosen.reshape(*chosen.shape, *[1] * (eta.ndim - 2)).expand(-1, -1, *eta.shape[2:])
                drawn.append(law(eta.gather(1, chosen)).sample().transpose(0, 1))
            wide = weight.reshape(*weight.shape, *[1] * (eta.ndim - 2))
            moments.append(torch.stack([(wide * value).sum(1) for value in expected]))
        self._moments, self._number = self._moments + torch.cat(moments, 1)[:, order], self._number + 1
        if drawn:
            self._drawn.append(torch.cat(drawn, 1)[:, order])

    def result(self, like: Tensor) -> Prediction | Tensor:
        """Return what all of them say together: the means, or, with draws, a prediction."""
        moments = (self._moments / self._number).to(like)
        if not self._draws:
            return moments[0]
        first, second, noise = moments
        variance = (second - first.square()).clamp(min=0)
        return Prediction(first, variance.sqrt(), (variance + noise).sqrt(), torch.cat(self._drawn).to(like))
