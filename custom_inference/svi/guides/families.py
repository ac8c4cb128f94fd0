"""Families for continuous local latents, as maps from unconstrained parameters to distributions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints

from custom_inference.svi.guides.dirichlet import GuideDirichlet
from ppl_models import Data, MethodError, Model

#: Keeps concentrations and scales off zero, where densities have no finite gradient.
_EDGE = 1e-3
#: Logarithms of concentrations are kept within: draws at far larger ones are constants to rounding.
LOG_CONCENTRATION = (-7.0, 20.0)


class ContinuousFamily(NamedTuple):
    """num_outputs: K -> unconstrained parameters a row; distribution: (..., P) -> the distribution of the row.

    start: the unconstrained parameters of every row that learning starts around, (N, 1) or (N, P).
    analytic: whether divergences from the priors are taken in closed form.
    """

    num_outputs: Callable[[int], int]
    distribution: Callable[[Tensor], Any]
    start: Callable[[Data], Tensor]
    analytic: bool = False


def _dirichlet(raw: Tensor) -> Any:
    return dist.Dirichlet(torch.nn.functional.softplus(raw + 1.0) + _EDGE)


def _log_dirichlet(raw: Tensor) -> Any:
    return GuideDirichlet(raw.clamp(*LOG_CONCENTRATION).exp(), validate_args=False)


def _normal(raw: Tensor) -> Any:
    location, scale = raw.chunk(2, -1)
    return dist.Normal(location, torch.nn.functional.softplus(scale) + _EDGE).to_event(1)


def continuous_family(model: Model, data: Data) -> ContinuousFamily:
    """Dirichlet for latents on the simplex, independent normals for real ones.

    The concentrations of documents' proportions grow with the number of tokens, from the prior's on: they are learned
    by their logarithms, from alpha + L_n / K.
    """
    support, size = model.sites[model.local_site].support, model.local_shape[0]
    if support is constraints.simplex:
        if "num_tokens" in model.given(data):
            return ContinuousFamily(lambda size: size, _log_dirichlet, lambda data: _log_share(model, data, size), True)
        return ContinuousFamily(lambda size: size, _dirichlet, _zeros)
    if support is constraints.real:
        return ContinuousFamily(lambda size: 2 * size, _normal, _zeros)
    raise MethodError(f"no guide for a local latent '{model.local_site}' with support {support}")


def _zeros(data: Data) -> Tensor:
    return torch.zeros(len(data), 1).to(data.x.values() if data.is_sparse else data.x)


def _log_share(model: Model, data: Data, size: int) -> Tensor:
    like = _zeros(data)
    prior: Any = model.prior(model.local_site, like=like)
    alpha = getattr(prior, "concentration", torch.ones(size).to(like))
    return torch.log(alpha + model.given(data)["num_tokens"].to(like).unsqueeze(-1) / size)
