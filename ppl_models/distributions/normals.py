"""Normal laws in their own units, priors of numbers that come on the data's scale, whatever that is; and Gaussian
random walks of whole arrays."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import numpy as np
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import Distribution, biject_to, constraints, transform_to
from torch.distributions.transforms import AffineTransform

from ppl_models.distributions.basic import Law, Shape


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


class GaussianRandomWalk(Law):
    """b (T, R, C): b_1 ~ first, b_t ~ Normal(b_{t-1}, step_variance) element by element.

    first: the distribution of the first step, with batch shape (..., R, C). step_variance:, (...,), positive.
    """

    support: ClassVar[Any] = constraints.independent(constraints.real, 3)
    has_rsample = True

    def __init__(self, first: Distribution, step_variance: Tensor, num_steps: int):
        self.first, self.step_variance, self.num_steps = first, step_variance, num_steps
        shape = first.batch_shape
        batch = torch.Size(np.broadcast_shapes(shape[:-2], step_variance.shape))
        super().__init__(batch, torch.Size((num_steps, *shape[-2:])), validate_args=False)

    def expand(self, batch_shape: Shape, _instance: Self | None = None) -> Self:
        batch = torch.Size(batch_shape)
        first = self.first.expand(batch + self.event_shape[1:])
        return type(self)(first, self.step_variance.expand(batch), self.num_steps)

    @property
    def mean(self) -> Tensor:
        """The mean of the first step, which all steps share."""
        first = self.first.mean.expand(self.batch_shape + self.event_shape[1:])
        return first.unsqueeze(-3).expand(self.batch_shape + self.event_shape)

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        shape = self._extended_shape(sample_shape)
        first = self.first.expand(self.batch_shape + self.event_shape[1:]).rsample(torch.Size(sample_shape))
        noise = torch.randn((*shape[:-3], shape[-3] - 1, *shape[-2:]), dtype=first.dtype, device=first.device)
        steps = noise * self.step_variance.sqrt()[..., None, None, None]
        return torch.cat([first.unsqueeze(-3), steps], -3).cumsum(-3)

    def log_prob(self, value: Tensor) -> Tensor:
        start = self.first.log_prob(value[..., 0, :, :]).sum((-2, -1))
        scale = self.step_variance.sqrt()[..., None, None, None]
        steps = torch.distributions.Normal(torch.zeros_like(scale), scale, validate_args=False)
        return start + steps.log_prob(value.diff(dim=-3)).sum((-3, -2, -1))
