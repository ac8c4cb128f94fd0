"""What is predicted of further rows: means, with how uncertain they are."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ppl_models import MethodError


class Prediction(NamedTuple):
    """mean of what is predicted; sd: of what is not known of its mean; spread: of itself, with its noise.

    draws: (S, ...) from its predictive distribution, whose quantiles intervals are; of classes their numbers.
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
