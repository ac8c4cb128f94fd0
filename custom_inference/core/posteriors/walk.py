"""Posteriors of Gaussian walks: chains whose precision matrices are tridiagonal.

J (T, T) of a chain has the diagonal d_t and -c beside it. Elimination from the first slice on gives the pivots

    p_1 = d_1,  p_t = d_t - c^2 / p_{t-1};    log |J| = sum_t log p_t
    J x = y:    z_t = (y_t + c z_{t-1}) / p_t,  x_T = z_T,  x_t = z_t + c / p_t x_{t+1}      (Thomas' algorithm)

and with them, backwards, what a Kalman smoother gives (Rauch, Tung & Striebel): given x_{t+1} the mean of x_t is linear
in it with the slope c / p_t and the variance 1 / p_t, so that

    var_T = 1 / p_T,    cov_{t,t+1} = c / p_t var_{t+1},    var_t = 1 / p_t + (c / p_t)^2 var_{t+1}

All chains at once: the time is the first axis, what is behind it any shape.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from custom_inference.core.posteriors.protocol import ContinuousPosterior, normal_quantiles


class Tridiagonal(NamedTuple):
    """Precision matrices by their elimination: pivot (T, ...) and slope c / p_t (T, ...), the last without meaning."""

    pivot: Tensor
    slope: Tensor

    @classmethod
    def of(cls, diagonal: Tensor, coupling: Tensor) -> Tridiagonal:
        """Factorise the matrix with diagonal d (T, ...) whose neighbours are coupled by c (...)."""
        pivot, slope = torch.empty_like(diagonal), torch.empty_like(diagonal)
        pivot[0] = diagonal[0]
        for t in range(1, len(diagonal)):
            torch.div(coupling, pivot[t - 1], out=slope[t - 1])
            torch.addcmul(diagonal[t], slope[t - 1], coupling, value=-1, out=pivot[t])
        slope[-1] = 0
        return cls(pivot, slope)

    @property
    def log_det(self) -> Tensor:
        """log |J|, (...)."""
        return self.pivot.log().sum(0)

    def solve(self, right: Tensor) -> Tensor:
        """J^-1 y, (T, ...)."""
        found = right.clone()
        for t in range(1, len(found)):
            found[t].addcmul_(self.slope[t - 1], found[t - 1])
        found.div_(self.pivot)
        for t in range(len(found) - 2, -1, -1):
            found[t].addcmul_(self.slope[t], found[t + 1])
        return found

    def variances(self) -> tuple[Tensor, Tensor]:
        """Return the variance of every step (T, ...), and the covariances of neighbours (T - 1, ...)."""
        variance = self.pivot.reciprocal()
        for t in range(len(variance) - 2, -1, -1):
            variance[t].addcmul_(self.slope[t].square(), variance[t + 1])
        return variance, self.slope[:-1] * variance[1:]

    def draw_deviations(self, noise: Tensor) -> Tensor:
        """Deviations (..., T, *) with this precision from standard normal ``noise`` of that shape, T before the chains'
        own axes."""
        axis = -self.pivot.ndim
        found = (noise * self.pivot.rsqrt()).movedim(axis, 0)
        for t in range(len(found) - 2, -1, -1):
            found[t].add_(self.slope[t] * found[t + 1])
        return found.movedim(0, axis)


@dataclass(frozen=True)
class WalkPosterior(ContinuousPosterior):
    """q(b_kv) = Normal(location_kv, J_kv^-1) of chains b_kv (T,): location (T, K, V), the diagonal of their precision
    matrices (T, K, V), and what couples neighbours, (K, V): minus the entries beside the diagonal."""

    location: Annotated[Tensor, "nmk"]
    diagonal: Annotated[Tensor, "nmk", "positive"]
    coupling: Annotated[Tensor, "mk"]

    @property
    def mean(self) -> Tensor:
        return self.location

    @cached_property
    def eliminated(self) -> Tridiagonal:
        return Tridiagonal.of(self.diagonal, self.coupling)

    @property
    def variance(self) -> Tensor:
        """The variance of every logit, (T, K, V)."""
        return self.eliminated.variances()[0]

    def quantiles(self, levels: Sequence[float]) -> Tensor:
        return normal_quantiles(self.mean, self.variance, levels)

    def sample(self, num_samples: int = 1, *, seed: int = 0) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        shape = (num_samples, *self.location.shape)
        noise = torch.randn(shape, generator=generator, dtype=self.location.dtype).to(self.location)
        return self.location + self.eliminated.draw_deviations(noise)

    def log_prob(self, local: Tensor) -> Tensor:
        """Return the log density of all chains together, (1,)."""
        off = local - self.location
        between = (self.coupling * off[..., 1:, :, :] * off[..., :-1, :, :]).sum((-3, -2, -1))
        quadratic = (self.diagonal * off.square()).sum((-3, -2, -1)) - 2 * between
        constant = self.eliminated.log_det.sum() - self.location.numel() * math.log(2 * math.pi)
        return ((constant - quadratic) / 2).reshape(*quadratic.shape, 1)
