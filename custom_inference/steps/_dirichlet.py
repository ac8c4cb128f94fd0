"""Closed-form updates of proportions under Dirichlet priors."""

from __future__ import annotations

import torch
from torch import Tensor

from ppl_models import MethodError, Model


def dirichlet_concentration(model: Model, site: str, like: Tensor) -> Tensor:
    """The concentration of a Dirichlet prior, broadcastable to the site.

    Raises :class:`MethodError` for any other prior, and for concentrations below 1, where the density is unbounded at
    the edge and has no mode.
    """
    prior = model.priors[site]
    if not isinstance(prior, torch.distributions.Dirichlet):
        name = type(prior).__name__
        raise MethodError(f"closed-form steps need a Dirichlet prior for '{site}', not {name}; use SVI or NUTS for it")
    concentration = prior.concentration.to(like)
    if bool((concentration < 1).any()):
        raise MethodError(
            f"the Dirichlet prior of '{site}' has a concentration below 1, so its density is unbounded at the edge and "
            "has no maximum a posteriori; use NUTS, or concentrations of at least 1"
        )
    return concentration


def dirichlet_mode(counts: Tensor, concentration: Tensor, *, floor: float) -> Tensor:
    """argmax of sum_k counts_k log p_k + log Dirichlet(p; concentration), kept ``floor`` off the edges."""
    weight = counts + concentration - 1
    # Uniform where nothing was counted: every point is a maximum there.
    weight = torch.where(weight.sum(-1, keepdim=True) > 0, weight, torch.ones_like(weight))
    share = (weight / weight.sum(-1, keepdim=True)).clamp(min=floor)
    return share / share.sum(-1, keepdim=True)
