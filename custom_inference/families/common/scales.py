"""Values of sites on unconstrained scales u: logits, logarithms, and of simplexes logits up to a shift.

There the likelihood given discrete latents is an exponential family in few statistics, and so are the conjugate priors:
p^a (1 - p)^b of probabilities, r^a exp(-b r) of rates, prod_k p_k^(a_k) of simplexes, as densities of u.
"""

from __future__ import annotations

import abc
from typing import Any, ClassVar

import numpy as np
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints

#: What is matched to draws is no more certain than so many observations.
_MOST = 1e4
_TINY, _EDGE = torch.finfo(torch.float64).tiny, torch.finfo(torch.float64).eps
Parameters = tuple[Tensor, ...]


class Scale(abc.ABC):
    """Values of one support on an unconstrained scale u, with what of them is linear in the statistics."""

    #: The kind of conjugate prior; and all priors under which samplers integrate the site out.
    kind: ClassVar[Any]
    conjugate: ClassVar[tuple[type[Any], ...]]
    #: Whether values are bounded, and whether u is known up to a shift alone.
    bounded: ClassVar[bool] = True
    shifts: ClassVar[bool] = False
    #: Powers of the features in dv / du.
    jacobian: ClassVar[tuple[float, ...]]

    @abc.abstractmethod
    def value(self, u: Tensor) -> Tensor: ...

    @abc.abstractmethod
    def unconstrain(self, value: Tensor) -> Tensor: ...

    @abc.abstractmethod
    def features(self, u: Tensor) -> Parameters:
        """Return what the statistics multiply in log p(q, x | value)."""

    @abc.abstractmethod
    def draw(self, parameters: Parameters, generator: np.random.Generator) -> Tensor:
        """Return u of a draw from the conjugate law with these parameters."""

    @abc.abstractmethod
    def moments(self, parameters: Parameters) -> tuple[Tensor, Tensor]:
        """Return mean and standard deviation of every u under it."""

    @abc.abstractmethod
    def match_moments(self, draws: Tensor) -> Parameters:
        """Return parameters of about the moments of these draws (S, ...)."""


class ProbabilityScale(Scale):
    """Probabilities on the logit scale; statistics are successes and failures."""

    kind = dist.Beta
    conjugate = (torch.distributions.Beta,)
    jacobian = (1.0, 1.0)

    def value(self, u: Tensor) -> Tensor:
        return torch.sigmoid(u).clamp(_TINY, 1 - _EDGE)

    def unconstrain(self, value: Tensor) -> Tensor:
        return torch.logit(value.clamp(_TINY, 1 - _EDGE))

    def features(self, u: Tensor) -> Parameters:
        return torch.nn.functional.logsigmoid(u), torch.nn.functional.logsigmoid(-u)

    def draw(self, parameters: Parameters, generator: np.random.Generator) -> Tensor:
        return _log_gamma(parameters[0], generator) - _log_gamma(parameters[1], generator)

    def moments(self, parameters: Parameters) -> tuple[Tensor, Tensor]:
        (first, spread), (second, other) = (_log_moments(one) for one in parameters)
        return first - second, torch.hypot(spread, other)

    def match_moments(self, draws: Tensor) -> Parameters:
        mean = draws.mean(0).clamp(1e-6, 1 - 1e-6)
        total = (mean * (1 - mean) / _variance(draws) - 1).clamp(0.1, _MOST)
        return mean * total, (1 - mean) * total


class RateScale(Scale):
    """Rates on the log scale; statistics are events and exposure."""

    kind = dist.Gamma
    conjugate = (torch.distributions.Gamma, torch.distributions.Exponential)
    jacobian = (1.0, 0.0)
    bounded = False

    def value(self, u: Tensor) -> Tensor:
        return torch.exp(u.clamp(-690, 690))

    def unconstrain(self, value: Tensor) -> Tensor:
        return torch.log(value.clamp(min=_TINY))

    def features(self, u: Tensor) -> Parameters:
        return u, -self.value(u)

    def draw(self, parameters: Parameters, generator: np.random.Generator) -> Tensor:
        return _log_gamma(parameters[0], generator) - torch.log(parameters[1])

    def moments(self, parameters: Parameters) -> tuple[Tensor, Tensor]:
        mean, spread = _log_moments(parameters[0])
        return mean - torch.log(parameters[1]), spread

    def match_moments(self, draws: Tensor) -> Parameters:
        """Match the moments of the logarithms: the moments of the rates themselves may be infinite."""
        logs = self.unconstrain(draws)
        variance = _variance(logs).clamp(min=1 / _MOST)
        shape = (1 + torch.sqrt(1 + 2 * variance)) / (2 * variance)  # trigamma(a) is about 1 / a + 1 / (2 a^2)
        return shape, torch.exp(torch.digamma(shape) - logs.mean(0))


class SimplexScale(Scale):
    """Logits, up to a shift; statistics are counts."""

    kind = dist.Dirichlet
    conjugate = (torch.distributions.Dirichlet,)
    jacobian = (1.0,)
    shifts = True

    def value(self, u: Tensor) -> Tensor:
        return torch.softmax(u, -1).clamp(min=_TINY)

    def unconstrain(self, value: Tensor) -> Tensor:
        return torch.log(value.clamp(min=_TINY))

    def features(self, u: Tensor) -> Parameters:
        return (torch.log_softmax(u, -1),)

    def draw(self, parameters: Parameters, generator: np.random.Generator) -> Tensor:
        return _log_gamma(parameters[0], generator)

    def moments(self, parameters: Parameters) -> tuple[Tensor, Tensor]:
        return _log_moments(parameters[0])

    def match_moments(self, draws: Tensor) -> Parameters:
        mean = draws.mean(0).clamp(min=1e-9)
        spread = (mean * (1 - mean)).sum(-1, keepdim=True)
        total = spread / _variance(draws).sum(-1, keepdim=True) - 1
        return (mean * total.clamp(0.1 * mean.shape[-1], _MOST * mean.shape[-1]),)


SCALES: tuple[tuple[Any, Scale], ...] = (
    (constraints.unit_interval, ProbabilityScale()),
    (constraints.positive, RateScale()),
    (constraints.simplex, SimplexScale()),
)


def _variance(draws: Tensor) -> Tensor:
    return draws.var(0, correction=0).clamp(min=1e-12)


def _log_gamma(shape: Tensor, generator: np.random.Generator) -> Tensor:
    """Draw logarithms of Gamma(a, 1) variables, of any a: Gamma(a) = Gamma(a + 1) U^(1 / a)."""
    shape = shape.double()
    more, uniform = generator.standard_gamma(shape.numpy() + 1), generator.random(tuple(shape.shape))
    return torch.log(torch.as_tensor(more)) + torch.log1p(-torch.as_tensor(uniform)) / shape


def _log_moments(shape: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation of the logarithm of a Gamma(a, 1) variable."""
    return torch.digamma(shape), torch.polygamma(1, shape).sqrt()
