"""Modes of standard deviations of Gaussian noise, under the priors that have one in closed form or as a single root."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from pyro.distributions import InverseGamma
from torch import Tensor
from torch.distributions import LogNormal

from custom_inference.core.optimize.newton import decreasing_root
from ppl_models import Model, PriorError
from ppl_models.core.priors import is_flat

#: What engines say of the priors of their scales, beside flat ones.
SCALE_PRIORS: Mapping[str, tuple[type, ...]] = {"scale": (LogNormal, InverseGamma)}


def require_scale_prior(model: Model, site: str = "scale") -> None:
    """Raise PriorError for priors other than LogNormal, InverseGamma or flat ones."""
    prior = model.priors[site]
    if not is_flat(prior) and not isinstance(prior, SCALE_PRIORS["scale"]):
        wanted = f"a LogNormal or InverseGamma prior for '{site}', not {type(prior).__name__}"
        raise PriorError(f"closed-form steps need {wanted}; use SVI or NUTS for it")


def scale_mode(model: Model, scale: Tensor, s: dict[str, Tensor], residual: Tensor, *, site: str = "scale") -> Tensor:
    """Maximise over sigma -M log sigma - R / (2 sigma^2) + log p(sigma), R summed over features if sigma is shared.

    Flat: sigma^2 = R / M. InverseGamma(a, b) on sigma: (M + a + 1) sigma^2 - b sigma - R = 0. LogNormal(m, t): the root
    in u = log sigma of R e^{-2u} = M + 1 + (u - m) / t^2. Kept above 1e-5 of the data's root mean square (in single
    precision 4 sqrt(eps)): the terms of a row's log joint are of order 1 / sigma^2 and cancel, so below that the bound
    is nothing but rounding.
    """
    count, floor = s["observed"], scale_floor(s, scale.dtype)
    if scale.ndim == 0:
        count, residual = count.sum(), residual.sum()
    prior: Any = model.priors[site]
    if is_flat(prior):
        found = (residual / count.clamp(min=1)).sqrt()
    elif isinstance(prior, InverseGamma):
        a, b = prior.concentration.to(scale), prior.rate.to(scale)
        total = count + a + 1
        found = (b + (b.square() + 4 * total * residual).sqrt()) / (2 * total)
    else:
        loc, spread = prior.loc.to(scale), prior.scale.to(scale)

        def derivative(u: Tensor) -> tuple[Tensor, Tensor]:
            fit = residual * torch.exp(-2 * u)
            return fit - (count + 1) - (u - loc) / spread.square(), -2 * fit - spread.square().reciprocal()

        low = floor.log().expand_as(residual)
        free = 0.5 * (residual / (count + 1)).clamp(min=torch.finfo(residual.dtype).tiny).log()
        high = torch.maximum(torch.maximum(free, loc.expand_as(free)), low)
        return decreasing_root(derivative, low, high, torch.maximum(free, low), tolerance=1e-12).exp()
    return torch.maximum(found, floor)


def scale_floor(s: dict[str, Tensor], dtype: torch.dtype) -> Tensor:
    """Return the least sigma of :func:`scale_mode`, from sums of squares and numbers of entries."""
    floor = (max(16 * torch.finfo(dtype).eps, 1e-10) * s["square"].sum() / s["observed"].sum()).sqrt()
    return floor.clamp(min=torch.finfo(dtype).tiny ** 0.5)
