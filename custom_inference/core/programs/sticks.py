"""Real numbers that stand for points of a simplex, precise near all of its faces."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributions import IndependentTransform, StickBreakingTransform, biject_to, constraints
from torch.nn.functional import logsigmoid


class PreciseSticks(StickBreakingTransform):
    """The coordinates of ``biject_to(simplex)`` without their rounding.

    Those take what is left of the stick as 1 less what is broken off, which is 0 to the precision of numbers from 36
    on: there a density falls otherwise than it does, and points near a corner, which sparse Dirichlet distributions
    draw often, are mapped to numbers as far away as 700. Here what is left is a product, and a sum of what is behind.
    """

    def _offset(self, x: Tensor) -> Tensor:
        return torch.arange(x.shape[-1], 0, -1).to(x).log()

    def _logarithms(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The logarithms of the shares that are broken off and left at each break, (..., K - 1), and before it."""
        shifted = x - self._offset(x)
        left = logsigmoid(-shifted).cumsum(-1)
        return logsigmoid(shifted), torch.cat([torch.zeros_like(left[..., :1]), left], -1)

    def _call(self, x: Tensor) -> Tensor:
        broken, left = self._logarithms(x)
        return torch.cat([left[..., :-1] + broken, left[..., -1:]], -1).exp()

    def _inverse(self, y: Tensor) -> Tensor:
        behind = y.flip(-1).cumsum(-1).flip(-1)[..., 1:]
        tiny = torch.finfo(y.dtype).tiny
        logit = y[..., :-1].clamp_min(tiny).log() - behind.clamp_min(tiny).log()
        return logit + self._offset(logit)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        broken, left = self._logarithms(x)
        return (broken + left[..., 1:]).sum(-1)


def bijection_to(support: constraints.Constraint) -> Any:
    """Return the map from real numbers onto a support."""
    found: Any = biject_to(support)
    if type(found) is StickBreakingTransform:
        return PreciseSticks()
    if type(getattr(found, "base_transform", None)) is StickBreakingTransform:
        return IndependentTransform(PreciseSticks(), found.reinterpreted_batch_ndims)
    return found
