"""Likelihoods of one entry given its natural parameter, shared by mixtures, factor models, PMF and RBMs.

An exponential family in its canonical form, with dispersion phi (1 but for the Gaussian's variance):

    log p(x | eta) = (T(x) . eta - A(eta)) / phi + log h(x),   E[T(x)] = grad A(eta),   Cov[T(x)] = phi hess A(eta)

    Bernoulli, Binomial       eta the log-odds                 A = n log(1 + e^eta)
    Poisson                   eta the log rate                 A = e^eta
    Gaussian                  eta the mean                     A = eta^2 / 2
    Categorical, Multinomial  eta (C,) unnormalised logits     A = n log sum_c e^eta_c

and Ordinal, the cumulative logit, which is none. McCullagh & Nelder, *Generalized Linear Models* (1989), chapters 2
and 5; Murphy, *Machine Learning: a Probabilistic Perspective* (2012), section 9.2.

Of log-odds and logits there are quadratic lower bounds on log p(x | eta), see :mod:`ppl_models.core.likelihood`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from ppl_models.core.likelihood import (
    NODES,
    ExponentialFamily,
    Likelihood,
    Quadratic,
    VectorQuadratic,
    expected_log_sum_exp,
    jaakkola_curvature,
    log_two_cosh_half,
)


class _Counts(ExponentialFamily):
    """Whole numbers of at least 0."""

    kind: ClassVar[str] = "counts"
    refusal: ClassVar[tuple[str, str]] = ("are no counts", "whole numbers of at least 0, at most 2^53; NaN for missing")

    def valid(self, x: Tensor) -> Tensor:
        return (x >= 0) & (x == x.round()) & (x <= 2.0**53)


def _log(mean: Tensor) -> Tensor:
    return torch.log(mean.clamp(min=torch.finfo(mean.dtype).tiny))


class _Logistic(ExponentialFamily):
    """Numbers of successes in ``total`` draws."""

    total: int

    def mean(self, eta: Tensor) -> Tensor:
        return self.total * torch.sigmoid(eta)

    def log_normaliser(self, eta: Tensor) -> Tensor:
        return -self.total * logsigmoid(-eta)

    def curvature(self, eta: Tensor) -> Tensor:
        return self.total * torch.sigmoid(eta) * torch.sigmoid(-eta)

    def natural(self, mean: Tensor) -> Tensor:
        return torch.logit(mean, eps=torch.finfo(mean.dtype).eps)

    def jaakkola(self, x: Tensor, xi: Tensor) -> Quadratic:
        """Touches log p(x | eta) at eta = +-xi; best in expectation at xi^2 = E[eta^2]."""
        rate = self.total * jaakkola_curvature(xi)
        touch = 0.5 * rate * xi.square() - self.total * log_two_cosh_half(xi)
        return Quadratic(touch + self.log_base(x), x - self.total / 2, rate)

    def bohning(self, x: Tensor, at: Tensor) -> Quadratic:
        """Touches log p(x | eta) at ``at``; its curvature is the largest that A has, total / 4."""
        mean, rate = self.mean(at), torch.full_like(at, self.total / 4)
        constant = mean * at - self.log_normaliser(at) - 0.5 * rate * at.square()
        return Quadratic(constant + self.log_base(x), x - mean + rate * at, rate)


@dataclass(frozen=True)
class Bernoulli(_Logistic):
    """x in {0, 1} with log-odds eta."""

    total: ClassVar[int] = 1
    kind: ClassVar[str] = "binary"
    refusal = ("are neither 0 nor 1", "0, 1, or NaN for missing; binarise first, e.g. x > threshold")

    def valid(self, x: Tensor) -> Tensor:
        return (x == 0) | (x == 1)

    def distribution(self, eta: Tensor) -> Any:
        return dist.Bernoulli(logits=eta)

    def with_mean(self, mean: Tensor) -> Any:
        return dist.Bernoulli(mean)


@dataclass(frozen=True)
class Binomial(_Logistic):
    """x of ``total`` draws, each with log-odds eta."""

    total: int

    kind: ClassVar[str] = "counts"

    @property
    def refusal(self) -> tuple[str, str]:
        expected = f"counts of total_count = {self.total} draws an entry, or NaN for missing"
        return f"are not whole numbers from 0 to {self.total}", expected

    def valid(self, x: Tensor) -> Tensor:
        return (x >= 0) & (x <= self.total) & (x == x.round())

    def distribution(self, eta: Tensor) -> Any:
        return dist.Binomial(self.total, logits=eta)

    def with_mean(self, mean: Tensor) -> Any:
        return dist.Binomial(self.total, mean)

    def log_base(self, x: Tensor) -> Tensor:
        return math.lgamma(self.total + 1) - torch.lgamma(x + 1) - torch.lgamma(self.total - x + 1)


@dataclass(frozen=True)
class Poisson(_Counts):
    """Counts of events with log rate eta."""

    def distribution(self, eta: Tensor) -> Any:
        return dist.Poisson(eta.exp())

    def mean(self, eta: Tensor) -> Tensor:
        return eta.exp()

    log_normaliser = curvature = mean

    def log_base(self, x: Tensor) -> Tensor:
        return -torch.lgamma(x + 1)

    def natural(self, mean: Tensor) -> Tensor:
        return _log(mean)

    def with_mean(self, mean: Tensor) -> Any:
        return dist.Poisson(mean)

    def expected_log_prob(self, x: Tensor, mean: Tensor, variance: Tensor, *, nodes: int = NODES) -> Tensor:
        """x m - exp(m + v / 2) - log x!, the mean of a lognormal variable."""
        return x * mean - torch.exp(mean + variance / 2) + self.log_base(x)


@dataclass(frozen=True)
class PoissonDivergence(Poisson):
    """Numbers of at least 0, whole or not, by what they lose at a mean: log p(x | eta) is Poisson's formula.

    With y = e^eta it is -D(x, y) and a constant of x, D(x, y) = x log(x / y) - x + y the generalised Kullback-Leibler
    divergence. Of whole numbers it is Poisson's probability; of others nothing that adds up to 1.
    """

    refusal: ClassVar[tuple[str, str]] = ("are below 0 or infinite", "numbers of at least 0; NaN for missing")

    def valid(self, x: Tensor) -> Tensor:
        return (x >= 0) & ~torch.isinf(x)

    def distribution(self, eta: Tensor) -> Any:
        return self.with_mean(eta.exp())

    def with_mean(self, mean: Tensor) -> Any:
        return dist.Poisson(mean, validate_args=False)


@dataclass(frozen=True)
class Gaussian(ExponentialFamily):
    """Real numbers with mean eta and a known standard deviation ``scale``."""

    scale: float = 1.0

    kind: ClassVar[str] = "real"
    refusal: ClassVar[tuple[str, str]] = ("are infinite", "finite numbers; NaN for missing")

    @property
    def dispersion(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.scale**2

    def valid(self, x: Tensor) -> Tensor:
        return torch.isfinite(x)

    def distribution(self, eta: Tensor) -> Any:
        return dist.Normal(eta, self.scale)

    def with_mean(self, mean: Tensor) -> Any:
        return self.distribution(mean)

    def mean(self, eta: Tensor) -> Tensor:
        return eta

    def natural(self, mean: Tensor) -> Tensor:
        return mean

    def log_normaliser(self, eta: Tensor) -> Tensor:
        return eta.square() / 2

    def curvature(self, eta: Tensor) -> Tensor:
        return torch.ones_like(eta)

    def log_base(self, x: Tensor) -> Tensor:
        return -0.5 * x.square() / self.dispersion - 0.5 * math.log(2 * math.pi * self.dispersion)

    def expected_log_prob(self, x: Tensor, mean: Tensor, variance: Tensor, *, nodes: int = NODES) -> Tensor:
        """log N(x; m, scale^2) - v / (2 scale^2)."""
        return self.log_prob(x, mean) - variance / (2 * self.dispersion)


class _Softmax(ExponentialFamily):
    """Numbers of draws of each of C categories, ``total`` in all."""

    total: int
    is_vector: ClassVar[bool] = True

    def mean(self, eta: Tensor) -> Tensor:
        return self.total * torch.softmax(eta, -1)

    def log_normaliser(self, eta: Tensor) -> Tensor:
        return self.total * eta.logsumexp(-1)

    def curvature(self, eta: Tensor) -> Tensor:
        probability = torch.softmax(eta, -1)
        return self.total * (torch.diag_embed(probability) - probability.unsqueeze(-1) * probability.unsqueeze(-2))

    def natural(self, mean: Tensor) -> Tensor:
        return _log(mean)

    def expected_log_prob(self, x: Tensor, mean: Tensor, variance: Tensor, *, nodes: int = NODES) -> Tensor:
        linear = (self.statistic(x) * mean).sum(-1) + self.log_base(x)
        return linear - self.total * expected_log_sum_exp(mean, variance, nodes=nodes)

    def bohning(self, x: Tensor, at: Tensor) -> VectorQuadratic:
        """Touches log p(x | eta) at ``at``; curvature total (I - 1 1' / C) / 2, no smaller than A's anywhere."""
        size = at.shape[-1]
        matrix = (self.total / 2 * (torch.eye(size) - 1 / size)).to(at)
        mean, turned = self.mean(at), at @ matrix
        constant = ((mean - turned / 2) * at).sum(-1) - self.log_normaliser(at) + self.log_base(x)
        return VectorQuadratic(constant, self.statistic(x) - mean + turned, matrix.expand(*at.shape, size))

    def jaakkola(self, x: Tensor, xi: Tensor, centre: Tensor) -> VectorQuadratic:
        """Bouchard's: log sum_c e^eta_c <= a + sum_c log(1 + e^(eta_c - a)) for any ``centre`` a (...), and Jaakkola's
        bound on every term at xi (..., C), |eta_c - a| where it is best."""
        rate, size, shift = jaakkola_curvature(xi), xi.shape[-1], centre.unsqueeze(-1)
        terms = (0.5 * rate * (xi.square() - shift.square()) - log_two_cosh_half(xi)).sum(-1)
        constant = self.total * (terms + (size / 2 - 1) * centre) + self.log_base(x)
        slope = self.statistic(x) - self.total * (0.5 - rate * shift)
        return VectorQuadratic(constant, slope, torch.diag_embed(self.total * rate))


@dataclass(frozen=True)
class Categorical(_Softmax):
    """One of the categories 0..C-1 with logits eta (C,); x is its number."""

    num_categories: int

    total: ClassVar[int] = 1
    kind: ClassVar[str] = "categories"

    @property
    def refusal(self) -> tuple[str, str]:
        last = self.num_categories - 1
        expected = f"whole numbers 0 to {last}, or NaN for missing; categories are counted from 0"
        return f"are none of the {self.num_categories} categories", expected

    def valid(self, x: Tensor) -> Tensor:
        return (x >= 0) & (x < self.num_categories) & (x == x.round())

    def distribution(self, eta: Tensor) -> Any:
        return dist.Categorical(logits=eta)

    def with_mean(self, mean: Tensor) -> Any:
        return dist.Categorical(mean)

    def statistic(self, x: Tensor) -> Tensor:
        """The indicators of the categories, (..., C)."""
        numbers = torch.arange(self.num_categories, device=x.device)
        return (x.unsqueeze(-1) == numbers).to(x if x.is_floating_point() else torch.get_default_dtype())


@dataclass(frozen=True)
class Multinomial(_Softmax, _Counts):
    """Numbers x (V,) of ``total`` tokens of each of V words with logits eta (V,); each is :meth:`valid` by itself.

    coefficient: whether p is that of the numbers, or of the tokens in their order: log h(x) = log(total! / prod_v x_v!)
        or 0.
    """

    total: int
    coefficient: bool = True

    kind: ClassVar[str] = "documents"

    def distribution(self, eta: Tensor) -> Any:
        return dist.Multinomial(self.total, logits=eta)

    def with_mean(self, mean: Tensor) -> Any:
        return dist.Multinomial(self.total, mean)

    def log_base(self, x: Tensor) -> Tensor:
        if not self.coefficient:
            return torch.zeros_like(x[..., 0])
        return torch.lgamma(x.sum(-1) + 1) - torch.lgamma(x + 1).sum(-1)


@dataclass(frozen=True)
class Ordinal(Likelihood):
    """One of the ordered categories 0..C-1: P(x <= c | eta) = sigmoid(cut_c - eta), cuts increasing, C - 1 of them.

    With a = cut_(x-1) - eta, b = cut_x - eta: P(x) = sigmoid(b) - sigmoid(a) = sigmoid(b) sigmoid(-a) (1 - e^(a - b)),
    whose logarithm has no cancellation and is concave in eta (McCullagh, *Regression models for ordinal data*, 1980).
    """

    cuts: tuple[float, ...]

    kind: ClassVar[str] = "categories"

    @property
    def refusal(self) -> tuple[str, str]:
        return Categorical(len(self.cuts) + 1).refusal

    def valid(self, x: Tensor) -> Tensor:
        return Categorical(len(self.cuts) + 1).valid(x)

    def distribution(self, eta: Tensor) -> Any:
        return dist.Categorical(logits=self._all(eta))

    def mean(self, eta: Tensor) -> Tensor:
        return self._all(eta).exp()

    def log_prob(self, x: Tensor, eta: Tensor) -> Tensor:
        x, eta = torch.broadcast_tensors(x, eta)
        return self._all(eta).gather(-1, x.long().unsqueeze(-1)).squeeze(-1)

    def _all(self, eta: Tensor) -> Tensor:
        """log P of every category, (..., C)."""
        cuts = torch.tensor(self.cuts, dtype=eta.dtype, device=eta.device)
        above, zero = cuts - eta.unsqueeze(-1), eta.new_zeros(1).expand(*eta.shape, 1)
        gap = torch.cat([zero, torch.log(-torch.expm1(cuts[:-1] - cuts[1:])).expand(*eta.shape, -1), zero], -1)
        below = torch.cat([zero, logsigmoid(-above)], -1)  # log P(x > c - 1)
        return below + torch.cat([logsigmoid(above), zero], -1) + (gap if len(cuts) else 0.0)
