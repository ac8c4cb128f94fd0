"""Normal laws in their own units: priors of numbers that come on the data's scale, whatever that is."""

from __future__ import annotations

from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import biject_to, constraints, transform_to
from torch.distributions.transforms import AffineTransform


class InUnits(constraints.Constraint):
    """The real numbers, whose unconstrained coordinate is (value - loc) / scale."""

    def __init__(self, loc: Tensor, scale: Tensor):
        self.loc, self.scale = loc, scale
        super().__init__()

    def check(self, value: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return torch.isfinite(value)


class ScaledNormal(dist.Normal):
    """Normal(loc, scale), whose unconstrained coordinates are standard normal under it.

    Gradient steps, step sizes and random starts are then the same for a weight of 0.01 and one of 10,000 that differ in
    the units of their data alone; of a Normal itself the coordinates are the values.
    """

    @property
    def support(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        return InUnits(self.loc, self.scale)


def _coordinates(support: InUnits) -> AffineTransform:
    return AffineTransform(support.loc, support.scale)


biject_to.register(InUnits, _coordinates)
transform_to.register(InUnits, _coordinates)
