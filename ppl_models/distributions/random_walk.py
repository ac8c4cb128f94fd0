"""Gaussian random walks of whole arrays."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from ppl_models.distributions.basic import Law, Shape


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
