"""Conjugate priors that stand in for others in one M step, matched to them at the current iterate.

An M step maximises Q(theta) + log p(theta). Where the prior p of a site is not conjugate, log p is replaced by the log
density of a conjugate s with the same derivative at the present value theta', and the engine's closed form does the
rest. A fixed point of this is a stationary point of the objective itself, whatever s: there Q' + (log s)' = Q' +
(log p)' = 0. What is left free is how much s bends, which decides how far a step goes; by default as much as p does:

    g = (log p)'(theta'), c = -(log p)''(theta'), each conjugate family less its own constant terms:
    Beta(1 + a, 1 + b)   a = u theta', b = v (1 - theta'),   u - v = g,   u / theta' + v / (1 - theta') = c
    Gamma(1 + a, b)      a = theta' (g + b),   (g + b) / theta' = c
    Normal(m, 1 / t)     m = theta' + g / t,   t = c, or the secant slope of (log p)' to the prior's centre if that is
                         more (of Laplace and Student's t the bound of iteratively reweighted least squares)
    LogNormal(m, 1 / t)  in u = log theta:     m = u' + (1 + theta' g) / t,   t = -(theta'^2 (log p)'' + theta' g)
    Dirichlet(1 + a)     a_k = theta'_k (g_k + l):  l moves no point of the simplex, and bends s

with a, b, t and g_k + l kept at least 0 by more bending. ``tightness`` is added to it: pseudo-counts (a precision) at
theta', by which the driver shortens a step that lowered the objective, as a proximal term does.

A known value is a conjugate prior with nearly all its mass there.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor, distributions
from torch.distributions import Distribution, constraints
from torch.distributions.constraints import Constraint

from ppl_models import Model
from ppl_models.core.sites import of_element
from ppl_models.distributions import InverseWishart, Symmetric

#: Pseudo-counts, or the precision, of a value that is known.
_CERTAIN = 1e8
#: Draws of a prior from which its conjugate stand-in for searches is matched.
_DRAWS = 4000
_TINY = 1e-10


def _beta(value: Tensor, gradient: Tensor, bend: Tensor, tightness: float, centre: Tensor) -> Any:
    del centre
    value = value.clamp(_TINY, 1 - _TINY)
    v = torch.maximum((bend - gradient / value) * value * (1 - value), (-gradient).clamp(min=0)) + tightness
    return dist.Beta(1 + value * (gradient + v).clamp(min=0), 1 + (1 - value) * v)


def _gamma(value: Tensor, gradient: Tensor, bend: Tensor, tightness: float, centre: Tensor) -> Any:
    del centre
    value = value.clamp(min=_TINY)
    rate = torch.maximum(bend * value - gradient, (-gradient).clamp(min=0)) + tightness
    return dist.Gamma(1 + value * (gradient + rate).clamp(min=0), rate.clamp(min=1e-12))


def _normal(value: Tensor, gradient: Tensor, bend: Tensor, tightness: float, centre: Tensor) -> Any:
    away = value - centre
    secant = torch.where(gradient * away < 0, -gradient / away, gradient.abs())
    precision = torch.maximum(bend, secant).clamp(1e-10, 1e10) + tightness
    return dist.Normal(value + gradient / precision, precision.rsqrt())


def _log_normal(value: Tensor, gradient: Tensor, bend: Tensor, tightness: float, centre: Tensor) -> Any:
    del centre
    value = value.clamp(min=_TINY)
    slope = 1 + value * gradient
    precision = torch.maximum(value.square() * bend - value * gradient, slope.abs()).clamp(min=1e-6) + tightness
    return dist.LogNormal(value.log() + slope / precision, precision.rsqrt())


def _dirichlet(value: Tensor, gradient: Tensor, bend: Tensor, tightness: float, centre: Tensor) -> Any:
    del centre
    value = value.clamp(min=_TINY)
    least = -gradient.amin(-1, keepdim=True)
    alike = (value * (bend * value - gradient)).sum(-1, keepdim=True)
    return dist.Dirichlet(1 + value * (gradient + torch.maximum(least, alike) + tightness).clamp(min=0))


def _inverse_wishart(value: Tensor, gradient: Tensor, bend: Tensor, tightness: float, centre: Tensor) -> Any:
    """Psi = c S + 2 S G S, df = c - K - 1 has the gradient G at S; c is the least with which the mode stays near."""
    del bend, centre
    size, slope = value.shape[-1], value @ ((gradient + gradient.mT) / 2) @ value
    factor = torch.linalg.cholesky(value)
    relative = torch.linalg.eigvalsh(factor.mT @ ((gradient + gradient.mT) / 2) @ factor)
    strength = 2 * size + 1 + 2 * tightness - 4 * relative.min().clamp(max=0)
    scale = strength * value + 2 * slope
    return InverseWishart(strength - size - 1, (scale + scale.mT) / 2)


#: Conjugate family -> the member that is matched at a value.
MATCHED: dict[type, Callable[..., Any]] = {
    distributions.Beta: _beta,
    distributions.Gamma: _gamma,
    distributions.Normal: _normal,
    distributions.LogNormal: _log_normal,
    distributions.Dirichlet: _dirichlet,
    InverseWishart: _inverse_wishart,
}


def certain(kind: type, value: Tensor) -> Any:
    """Return the member of a family with nearly all of its mass on a known value."""
    zero = torch.zeros_like(value)
    return MATCHED[kind](value, zero, zero, _CERTAIN, value)


def alike(kind: type, prior: Distribution) -> Any:
    """Return the member of a family with about the mean and spread of a prior, for starts, which need not be exact."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's Wishart warns of singular draws
            draws = prior.sample(torch.Size([_DRAWS])).double()
    if kind is InverseWishart:
        spread = draws.diagonal(dim1=-2, dim2=-1).sqrt()
        typical, together = spread.median(0).values, (draws / spread.unsqueeze(-1) / spread.unsqueeze(-2)).mean(0)
        size = len(typical)
        return InverseWishart(size + 2.0, (2 * size + 3) * typical.unsqueeze(-1) * together * typical)
    middle = draws.median(0).values
    low, high = torch.quantile(draws[:1000], torch.tensor([0.25, 0.75], dtype=draws.dtype), dim=0)
    spread = ((high - low) / 1.349).clamp(min=1e-6)
    if kind is distributions.Normal:
        return dist.Normal(middle, spread)
    if kind is distributions.LogNormal:
        return dist.LogNormal(
            middle.clamp(min=_TINY).log(), (high / low.clamp(min=_TINY)).log().clamp(1e-3, 50) / 1.349
        )
    if kind is distributions.Gamma:
        shape = (middle / spread).square().clamp(min=1)
        return dist.Gamma(shape, shape / middle.clamp(min=_TINY))
    mean = draws.mean(0)
    strength = (mean * (1 - mean) / draws.var(0).clamp(min=1e-9) - 1).clamp(min=0, max=1e6)
    if kind is distributions.Beta:
        return dist.Beta((mean * strength).clamp(min=1), ((1 - mean) * strength).clamp(min=1))
    return dist.Dirichlet((mean * strength.mean(-1, keepdim=True)).clamp(min=1))


def inside(value: Tensor, support: Constraint) -> Tensor:
    """Clamp values into the interval of a prior, off its ends by a millionth of its length."""
    support = of_element(support)
    lower, upper = getattr(support, "lower_bound", None), getattr(support, "upper_bound", None)
    if lower is not None and upper is not None:
        low, high = (torch.as_tensor(end).to(value) for end in (lower, upper))
        margin = 1e-6 * (high - low)
        return torch.minimum(torch.maximum(value, low + margin), high - margin)
    if lower is not None:
        low = torch.as_tensor(lower).to(value)
        return torch.maximum(value, low + torch.finfo(value.dtype).tiny + 1e-12 * low.abs())
    if upper is not None:
        return torch.minimum(value, torch.as_tensor(upper).to(value))
    return value


def slopes_of(model: Model, sites: list[str], values: dict[str, Tensor]) -> dict[str, tuple[Tensor, Tensor]]:
    """Return the gradient and the negative second derivative of the model's log prior with respect to each site."""
    with torch.enable_grad():
        leaves = {s: v.detach().double().requires_grad_(s in sites) for s, v in values.items()}
        total = model.log_prior({site: _interior(model, site, leaf) for site, leaf in leaves.items()})
        if not total.requires_grad:
            return {site: (torch.zeros_like(values[site]), torch.zeros_like(values[site])) for site in sites}
        first = torch.autograd.grad(total, [leaves[s] for s in sites], create_graph=True, materialize_grads=True)
        found = {}
        for site, slope in zip(sites, first, strict=True):
            bend = torch.zeros_like(slope)
            if slope.requires_grad:
                bend = -torch.autograd.grad(slope.sum(), leaves[site], retain_graph=True, materialize_grads=True)[0]
            if isinstance(model.prior(site, values=values), Symmetric):  # stated for one half of the matrix
                slope, bend = (part + part.transpose(0, 1) - _diagonal(part) for part in (slope, bend))
            like = values[site]
            found[site] = tuple(torch.nan_to_num(part.detach(), 0.0, 1e12, -1e12).to(like) for part in (slope, bend))
    return found


def _diagonal(matrix: Tensor) -> Tensor:
    eye = torch.eye(len(matrix)).to(matrix)
    return matrix * eye.reshape(*eye.shape, *[1] * (matrix.ndim - 2))


def _interior(model: Model, site: str, value: Tensor) -> Tensor:
    """Move values off the ends of the unit interval and of the simplex, where densities and slopes may be infinite."""
    if model.supports[site] in (constraints.unit_interval, constraints.simplex):
        return value.clamp(1e-8, 1 - 1e-8)
    return value


def centre_of(model: Model, site: str, values: dict[str, Tensor]) -> Tensor:
    """Return the centre of the prior: its mean, or 0 where it has none."""
    try:
        mean = model.prior(site, values=values).mean
    except (NotImplementedError, AttributeError):
        mean = torch.zeros(())
    return torch.nan_to_num(mean, 0.0, 0.0, 0.0).to(values[site])
