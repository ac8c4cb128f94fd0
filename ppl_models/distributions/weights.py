"""Laws of weights: numbers that are exactly 0 with some probability, and signs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import constraints
from torch.distributions.utils import broadcast_all

from ppl_models.distributions.basic import Law, Shape


class Hurdle(Law):
    """x = 0 with probability 1 - ``probs``, otherwise x is drawn from ``base``: an edge that has a weight.

    base: of single real numbers, for which 0 has no probability. ``log_prob`` is log(1 - probs) at 0 and the log
    density log probs + log base(x) elsewhere: with respect to the sum of a unit mass at 0 and length.
    """

    arg_constraints: ClassVar[Any] = {"base": constraints.dependent, "probs": constraints.unit_interval}

    def __init__(self, base: TorchDistribution, probs: float | Tensor, validate_args: bool | None = None):
        like = base.mean
        _, self.probs = broadcast_all(like, torch.as_tensor(probs).to(like))
        self.base = base.expand(self.probs.shape)
        super().__init__(self.probs.shape, torch.Size(), validate_args=validate_args)

    @property
    def support(self) -> Any:
        """The numbers that ``base`` may be; 0 is taken beside them."""
        return self.base.support

    @property
    def mean(self) -> Tensor:
        return self.probs * self.base.mean

    @property
    def variance(self) -> Tensor:
        return self.probs * (self.base.variance + self.base.mean.square()) - self.mean.square()

    def expand(self, batch_shape: Shape, _instance: Self | None = None) -> Self:
        return type(self)(
            self.base.expand(torch.Size(batch_shape)), self.probs.expand(batch_shape), validate_args=False
        )

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        with torch.no_grad():
            weight = self.base.sample(torch.Size(sample_shape))
            return torch.where(torch.rand_like(weight) < self.probs, weight, torch.zeros_like(weight))

    def log_prob(self, value: Tensor) -> Tensor:
        present = value != 0
        weight = torch.where(present, value, self.base.mean.detach())  # where the density has a slope, too
        return torch.where(present, self.probs.log() + self.base.log_prob(weight), torch.log1p(-self.probs))


class Signs(Law):
    """-1, 0 or 1 with the probabilities ``probs`` (..., 3) in this order: edges of foes and of friends."""

    arg_constraints: ClassVar[Any] = {"probs": constraints.simplex}
    support: ClassVar[Any] = constraints.integer_interval(-1, 1)
    own_axes: ClassVar[Mapping[str, int]] = {"probs": 1}

    def __init__(self, probs: Tensor, validate_args: bool | None = None):
        self.probs = probs
        super().__init__(probs.shape[:-1], torch.Size(), validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        return self.probs[..., 2] - self.probs[..., 0]

    @property
    def variance(self) -> Tensor:
        return self.probs[..., 2] + self.probs[..., 0] - self.mean.square()

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        with torch.no_grad():
            kind = torch.distributions.Categorical(self.probs, validate_args=False).sample(torch.Size(sample_shape))
            return (kind - 1).to(self.probs)

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        return torch.distributions.Categorical(self.probs, validate_args=False).log_prob(value + 1)
