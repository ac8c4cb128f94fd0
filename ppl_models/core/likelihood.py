"""Likelihoods of one entry given its natural parameter, and their quadratic bounds.

:mod:`ppl_models.likelihoods` has them. The quadratic bounds, whose expectations under Gaussians have closed forms:
Jaakkola & Jordan, *Bayesian parameter estimation via variational methods* (2000), for log-odds; Bouchard,
*Efficient bounds for the softmax function* (2007), who extends it to vectors of logits; Boehning, *Multinomial logistic
regression algorithm* (1992), whose curvature is fixed.
"""

from __future__ import annotations

import abc
import math
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

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

    def expectation(self, mean: Tensor, variance: Tensor) -> Tensor:
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

    def expectation(self, mean: Tensor, variance: Tensor) -> Tensor:
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


def softmax_and_log_sum(logits: Tensor) -> tuple[Tensor, Tensor]:
    """softmax(a) and log sum_c exp(a_c) over the last axis, by one exponential an entry; of few categories torch's
    softmax alone takes four times as long. Weights that are not normal numbers are 0: processors take ten times as long
    for each product with one."""
    least = torch.finfo(logits.dtype).tiny * logits.shape[-1]  # divided by the total it is a normal number
    peak = logits.amax(-1, keepdim=True)
    weight = torch.threshold((logits - peak).clamp(min=math.log(least) - 1).exp(), least, 0.0)
    total = weight.sum(-1, keepdim=True)
    return weight / total, (peak + total.log()).squeeze(-1)


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


class Likelihood(abc.ABC):
    """p(x | eta) of one entry x, whatever shape tensors of entries have."""

    #: What x holds, as ``Model.data_kind`` says it.
    kind: ClassVar[str]
    #: Whether eta is one number an entry, or a vector, its last axis.
    is_vector: ClassVar[bool] = False
    #: What is said of entries that are not :meth:`valid` ("5 entries ..."), and what is expected instead.
    refusal: ClassVar[tuple[str, str]]

    @abc.abstractmethod
    def valid(self, x: Tensor) -> Tensor:
        """Whether entries have positive probability, bool."""

    @abc.abstractmethod
    def distribution(self, eta: Tensor) -> Any:
        """Return the Pyro distribution with natural parameter ``eta``."""

    @abc.abstractmethod
    def mean(self, eta: Tensor) -> Tensor:
        """E[x | eta]; of categories, in place of x, E of its indicators: their probabilities."""

    @abc.abstractmethod
    def log_prob(self, x: Tensor, eta: Tensor) -> Tensor:
        """log p(x | eta)."""

    def expected_log_prob(self, x: Tensor, mean: Tensor, variance: Tensor, *, nodes: int = NODES) -> Tensor:
        """E[log p(x | eta)] under eta ~ N(mean, variance), components independent; by Gauss-Hermite quadrature."""
        node, weight = (part.to(mean) for part in hermite(nodes))
        return self.log_prob(x.unsqueeze(-1), mean.unsqueeze(-1) + variance.sqrt().unsqueeze(-1) * node) @ weight


class ExponentialFamily(Likelihood):
    """log p(x | eta) = (T(x) . eta - A(eta)) / phi + log h(x)."""

    #: phi.
    dispersion: float = 1.0
    #: C, of a vector eta.
    num_categories: int

    def statistic(self, x: Tensor) -> Tensor:
        """T(x): by default x."""
        return x

    def log_base(self, x: Tensor) -> Tensor:
        """log h(x): by default 0."""
        return torch.zeros_like(x)

    @abc.abstractmethod
    def log_normaliser(self, eta: Tensor) -> Tensor:
        """A(eta). Its gradient is ``mean``."""

    @abc.abstractmethod
    def curvature(self, eta: Tensor) -> Tensor:
        """A''(eta), of a vector the Hessian (..., C, C)."""

    @abc.abstractmethod
    def natural(self, mean: Tensor) -> Tensor:
        """eta from what ``mean`` gives: of counts of n draws from the probabilities, their mean over n. Finite at the
        edges, which are moved inwards by rounding."""

    @abc.abstractmethod
    def with_mean(self, mean: Tensor) -> Any:
        """The Pyro distribution of what ``natural`` takes: of a mixture, whose means mix and whose eta do not."""

    def log_prob(self, x: Tensor, eta: Tensor) -> Tensor:
        product = self.statistic(x) * eta
        linear = product.sum(-1) if self.is_vector else product
        return (linear - self.log_normaliser(eta)) / self.dispersion + self.log_base(x)
