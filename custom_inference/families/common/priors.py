"""Priors that have closed-form updates, and the basis that their modes are taken in."""

from __future__ import annotations

import math
from typing import Any, TypeVar

import torch
from torch import Tensor

from ppl_models import Model, PriorError
from ppl_models.distributions import Flat

Prior = TypeVar("Prior", bound=torch.distributions.Distribution)


def conjugate_prior(model: Model, site: str, kind: type[Prior]) -> Prior:
    """Return the prior of a site. Raises :class:`PriorError` where it is of another kind."""
    prior = model.priors[site]
    if not isinstance(prior, kind):
        needed = f"{'an' if kind.__name__[0] in 'AEIOU' else 'a'} {kind.__name__} prior for '{site}'"
        raise PriorError(f"closed-form steps need {needed}, not {type(prior).__name__}; use SVI or NUTS for it")
    return prior


def normal_parameters(model: Model, site: str, shape: tuple[int, ...], like: Tensor) -> tuple[Tensor, Tensor]:
    """Return (mean, precision) of a Normal prior, each of ``shape``; precision 0 where the prior is flat."""
    if isinstance(model.priors[site], Flat):
        return like.new_zeros(shape), like.new_zeros(shape)
    prior = conjugate_prior(model, site, torch.distributions.Normal)
    return prior.loc.to(like).expand(shape), prior.scale.to(like).pow(-2).expand(shape)


def log_constant_of(precision: Tensor) -> Tensor:
    """Compute what the log density of independent Normal(m, 1 / precision) has beside its squares, summed over the last
    axis; nothing of flat ones, whose precision is 0."""
    proper = precision > 0
    return 0.5 * torch.where(proper, torch.log(precision.where(proper, 1.0) / (2 * math.pi)), 0.0).sum(-1)


def log_density_within(prior: Any, value: Tensor) -> float:
    """Sum log p(value), -inf outside of the support."""
    inside = bool(prior.support.check(value).all())
    return float(prior.log_prob(value).sum()) if inside else -math.inf


def basis_shift(concentration: Tensor) -> float:
    """Return what a prior's concentrations (shapes) are lowered by in exponents: 1, where the mode is that of its own
    density; 0 where some are below 1, and it is taken in the softmax basis (of a rate, that of its logarithm)."""
    return 0.0 if bool((concentration < 1).any()) else 1.0
