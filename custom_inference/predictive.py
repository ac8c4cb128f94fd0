"""New rows, posterior predictive copies, and reconstructions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyro
import torch
from pyro import poutine
from torch import Tensor

from custom_inference._isolation import default_dtype, isolated
from ppl_models import MethodError, Model
from ppl_models._errors import unknown_name

if TYPE_CHECKING:
    from custom_inference.fit import Fit


def sample_rows(model: Model, params: Mapping[str, Tensor], num_rows: int, *, seed: int = 0) -> dict[str, Tensor]:
    """Run the model forward at ``params``: local and observed site -> (num_rows, ...)."""
    if num_rows < 1:
        raise MethodError(f"num_rows = {num_rows}, expected at least 1")
    like = next(iter(params.values()))
    with isolated(seed), default_dtype(like.dtype):
        program = pyro.condition(model, data=dict(params))
        trace = poutine.trace(program).get_trace(num_rows=num_rows)
    sites = (model.local_site, model.observed_site)
    nodes: Any = trace.nodes
    return {site: nodes[site]["value"] for site in sites}


def feature_mean(model: Model, params: Mapping[str, Tensor], local: Tensor) -> Tensor:
    """E[x_nj | local latents], (N, D) for a local site (N, ...): the mean of the program's observed site."""
    # The program also draws an x, which is not used: it must not be drawn from the caller's random state.
    with isolated(0), default_dtype(local.dtype):
        program = pyro.condition(model, data={**params, model.local_site: local})
        trace = poutine.trace(program).get_trace(num_rows=len(local))
    site: Any = trace.nodes[model.observed_site]
    return site["fn"].mean


def posterior_predictive(fit: Fit, num_samples: int = 100, *, seed: int = 0) -> Tensor:
    """x copies drawn from p(x | s, params) with s from the fit's local posterior, (num_samples, N, D)."""
    source = fit.posterior.sample(num_samples, seed=seed)
    generator = torch.Generator(device=source.device).manual_seed(seed)
    mean = torch.stack([feature_mean(fit.model, fit.params, one) for one in source])
    return torch.bernoulli(mean, generator=generator)


def reconstruct(fit: Fit, x: Any = None, *, mask: Any = None, how: str = "mode") -> Tensor:
    """P(x_nj = 1) at the most probable code ("mode"), or averaged over the posterior of the code ("mean")."""
    if how not in ("mode", "mean"):
        raise MethodError(unknown_name("kind of reconstruction", how, ("mode", "mean")))
    posterior = fit.local_posterior(x, mask=mask).posterior
    if how == "mode":
        return feature_mean(fit.model, fit.params, posterior.mode)
    # Averaging over draws covers every family of posteriors with one rule.
    draws = posterior.sample(200, seed=fit.seed)
    return torch.stack([feature_mean(fit.model, fit.params, one) for one in draws]).mean(0)


def reconstruction_error(fit: Fit, x: Any = None, *, seed: int = 0) -> float:
    """Proportion of entries in which a copy sampled at the most probable codes differs from x (000, 4.4)."""
    data = fit.data if x is None else fit._as_data(x, None)
    generator = torch.Generator(device=data.x.device).manual_seed(seed)
    copy = torch.bernoulli(reconstruct(fit, x), generator=generator)
    differs = (copy != data.x).to(copy)
    return float(differs.mean() if data.mask is None else (differs * data.mask).sum() / data.mask.sum())
