"""Families for continuous local latents, as maps from unconstrained parameters to distributions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints

from ppl_models import MethodError, Model
from ppl_models._model import support_of

#: Keeps concentrations and scales off zero, where densities have no finite gradient.
_EDGE = 1e-3


class ContinuousFamily(NamedTuple):
    """num_outputs: K -> unconstrained parameters a row; distribution: (..., P) -> the distribution of the row."""

    num_outputs: Callable[[int], int]
    distribution: Callable[[Tensor], Any]


def _dirichlet(raw: Tensor) -> Any:
    return dist.Dirichlet(torch.nn.functional.softplus(raw + 1.0) + _EDGE)


def _normal(raw: Tensor) -> Any:
    location, scale = raw.chunk(2, -1)
    return dist.Normal(location, torch.nn.functional.softplus(scale) + _EDGE).to_event(1)


def continuous_family(model: Model) -> ContinuousFamily:
    """Dirichlet for latents on the simplex, independent normals for real ones."""
    support = support_of(model.prior(model.local_site))
    if support is constraints.simplex:
        return ContinuousFamily(lambda size: size, _dirichlet)
    if support is constraints.real:
        return ContinuousFamily(lambda size: 2 * size, _normal)
    raise MethodError(f"no guide for a local latent '{model.local_site}' with support {support}")
