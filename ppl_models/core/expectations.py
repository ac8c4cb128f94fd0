"""Expectations under Gaussians, and quadratic bounds on likelihoods, whose expectations have closed forms.

The bounds: Jaakkola & Jordan, *Bayesian parameter estimation via variational methods* (2000), for log-odds; Bouchard,
*Efficient bounds for the softmax function* (2007), who extends it to vectors of logits; Boehning, *Multinomial logistic
regression algorithm* (1992), whose curvature is fixed. :mod:`ppl_models.likelihoods` has them.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

#: Nodes of the Gauss-Hermite rule: within 1e-7 of the integral for standard deviations of eta up to 2, 1e-4 up to 6.
NODES = 64


class Quadratic(NamedTuple):
    """constant + slope eta - curvature eta^2 / 2 of every entry: a lower bound on log p(x | eta)."""

    constant: Tensor
    slope: Tensor
    curvature: Tensor

    def __call__(self, eta: Tensor) -> Tensor:
        return self.constant + self.slope * eta - 0.5 * self.curvature * eta.square()

    def expected(self, mean: Tensor, variance: Tensor) -> Tensor:
        """Under eta ~ N(mean, variance)."""
        return self(mean) - 0.5 * self.curvature * variance


class VectorQuadratic(NamedTuple):
    """constant + slope . eta - eta' curvature eta / 2: the same for a vector eta (..., C); curvature (..., C, C)."""

    constant: Tensor
    slope: Tensor
    curvature: Tensor

    def __call__(self, eta: Tensor) -> Tensor:
        turned = (self.curvature @ eta.unsqueeze(-1)).squeeze(-1)
        return self.constant + (self.slope * eta).sum(-1) - 0.5 * (eta * turned).sum(-1)

    def expected(self, mean: Tensor, variance: Tensor) -> Tensor:
        """Under independent eta_c ~ N(mean_c, variance_c)."""
        return self(mean) - 0.5 * (self.curvature.diagonal(dim1=-2, dim2=-1) * variance).sum(-1)


def jaakkola_curvature(xi: Tensor) -> Tensor:
    """c(xi) = tanh(xi / 2) / (2 xi), 1/4 at 0; for xi >= 0."""
    # Off 0 by so little that tanh(xi / 2) / (2 xi) is 1/4 to rounding there.
    safe = xi.clamp(min=torch.finfo(xi.dtype).eps ** 0.5)
    return (torch.tanh(safe / 2) / safe).mul_(0.5)


def log_two_cosh_half(xi: Tensor) -> Tensor:
    """log(2 cosh(xi / 2)), for xi >= 0."""
    return softplus(-xi).add_(xi, alpha=0.5)


def expected_log_sum_exp(mean: Tensor, variance: Tensor, *, nodes: int = NODES) -> Tensor:
    """E[log sum_c e^eta_c] under independent eta_c ~ N(mean_c, variance_c), (..., C) -> (...).

    log S = int (e^-t - e^(-t S)) dt / t (Frullani), so that with t = e^u it is one integral over u of
    e^(-e^u) - prod_c E[exp(-e^(u + eta_c))]: a trapezoidal rule, which converges faster than any power of its step, of
    products of Gauss-Hermite rules. Any number of categories takes the same number of nodes each.
    """
    node, weight = (part.to(mean) for part in hermite(nodes))
    highest, spread = mean.max(-1, keepdim=True).values, float(variance.max().sqrt())
    moved = (mean - highest).unsqueeze(-1) + variance.sqrt().unsqueeze(-1) * node
    left, right, step = -36.0 - 8 * spread - math.log(mean.shape[-1]), 5.0 + 8 * spread, 0.25
    total = torch.zeros_like(mean[..., 0])
    for u in torch.arange(left, right, step, dtype=torch.float64).tolist():
        below = (torch.exp(-torch.exp(moved + u)) @ weight).prod(-1)
        total += step * (math.exp(-math.exp(u)) - below)
    return total + highest.squeeze(-1)


@lru_cache(maxsize=8)
def hermite(nodes: int) -> tuple[Tensor, Tensor]:
    """Nodes and weights of E[f(z)], z ~ N(0, 1)."""
    node, weight = np.polynomial.hermite_e.hermegauss(nodes)
    return torch.tensor(node), torch.tensor(weight / weight.sum())
