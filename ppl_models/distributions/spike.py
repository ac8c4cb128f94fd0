"""A spike at 0 and a slab: what is exactly 0 with some probability, and a Gamma variable otherwise."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints
from torch.distributions.utils import broadcast_all

from ppl_models.distributions.basic import Law, Shape

Numbers = float | Tensor


class _NonnegativeWithAtom(constraints.Constraint):
    """Numbers of at least 0, of which 0 itself has a probability: no density that gradients could follow."""

    has_atom: ClassVar[bool] = True
    lower_bound: ClassVar[float] = 0.0

    def check(self, value: Tensor) -> Tensor:
        return value >= 0


#: The support of :class:`SpikeGamma`.
nonnegative_with_atom = _NonnegativeWithAtom()


class SpikeGamma(Law):
    """z = 0 with probability ``spike``, otherwise z ~ Gamma(concentration, rate) (Murphy 2012, eq. 27.17).

    ``log_prob`` is log spike at 0 and the log density log(1 - spike) + log Gamma(z) elsewhere: with respect to the sum
    of a unit mass at 0 and length.
    """

    arg_constraints: ClassVar[Any] = {
        "spike": constraints.unit_interval,
        "concentration": constraints.positive,
        "rate": constraints.positive,
    }
    support: ClassVar[Any] = nonnegative_with_atom

    def __init__(
        self,
        spike: float | Tensor,
        concentration: float | Tensor,
        rate: float | Tensor,
        validate_args: bool | None = None,
    ):
        self.spike, self.concentration, self.rate = broadcast_all(spike, concentration, rate)
        super().__init__(self.spike.shape, torch.Size(), validate_args=validate_args)

    @property
    def _slab(self) -> Any:
        return dist.Gamma(self.concentration, self.rate, validate_args=False)

    @property
    def mean(self) -> Tensor:
        return (1 - self.spike) * self.concentration / self.rate

    @property
    def variance(self) -> Tensor:
        square = (1 - self.spike) * self.concentration * (1 + self.concentration) / self.rate.square()
        return square - self.mean.square()

    def expand(self, batch_shape: Shape, _instance: Self | None = None) -> Self:
        parts = (part.expand(batch_shape) for part in (self.spike, self.concentration, self.rate))
        return type(self)(*parts, validate_args=False)

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        with torch.no_grad():
            slab = self._slab.sample(sample_shape)
            return torch.where(torch.rand_like(slab) < self.spike, torch.zeros_like(slab), slab)

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        on = value > 0
        slab = torch.log1p(-self.spike) + self._slab.log_prob(torch.where(on, value, torch.ones_like(value)))
        return torch.where(on, slab, self.spike.log())
