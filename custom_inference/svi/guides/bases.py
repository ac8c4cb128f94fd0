"""Bases in which priors whose densities are unbounded at an edge have a mode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import Distribution

from ppl_models import Model


class SoftmaxBasis(dist.Dirichlet):
    """A Dirichlet prior by its density in the softmax basis a, p = softmax(a): proportional to prod_v p_v^gamma_v.

    MacKay, *Choice of basis for Laplace approximation* (1998). In the simplex basis, prod_v p_v^(gamma_v - 1), the
    density is unbounded at the edge wherever a gamma_v is below 1, and has no maximum.
    """

    #: What every entry has as further powers, which models of padded simplexes read.
    powers = 1.0

    def log_prob(self, value: Tensor) -> Tensor:
        return super().log_prob(value) + value.log().sum(-1)


class LogitBasis(dist.Beta):
    """A Beta prior by its density in the logit basis, likewise."""

    def log_prob(self, value: Tensor) -> Tensor:
        return super().log_prob(value) + value.log() + torch.log1p(-value)


class LogBasis(dist.Gamma):
    """A Gamma prior by its density in the logarithmic basis, likewise."""

    def log_prob(self, value: Tensor) -> Tensor:
        return super().log_prob(value) + value.log()


#: Kind of prior -> its density in a basis where it has a mode.
_BASES: dict[type[Any], type[Any]] = {
    torch.distributions.Dirichlet: SoftmaxBasis,
    torch.distributions.Beta: LogitBasis,
    torch.distributions.Gamma: LogBasis,
}


def _kind_of(prior: Distribution | None) -> type[Any] | None:
    return next((kind for kind in _BASES if isinstance(prior, kind)), None)


def is_unbounded(prior: Distribution | None) -> bool:
    """Whether a Dirichlet, Beta or Gamma has a concentration below 1: its density is infinite at an edge."""
    kind = _kind_of(prior)
    names = [] if kind is None else [name for name in kind.arg_constraints if name.startswith("concentration")]
    return any(bool((getattr(prior, name) < 1).any()) for name in names)


def with_modes(model: Model, sites: Sequence[str]) -> Model:
    """The model with every unbounded prior of ``sites`` in a basis where it has a mode."""
    changed = {}
    for site in sites:
        prior = model.priors.get(site)
        kind = _kind_of(prior)
        if kind is not None and is_unbounded(prior):
            changed[site] = _BASES[kind](**{name: getattr(prior, name) for name in kind.arg_constraints})
    return model.with_priors(**changed) if changed else model
