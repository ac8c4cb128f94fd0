"""Normal priors in closed-form updates."""

from __future__ import annotations

import torch
from torch import Tensor

from ppl_models import MethodError, Model
from ppl_models.distributions import Flat


def normal_parameters(model: Model, site: str, shape: tuple[int, ...], like: Tensor) -> tuple[Tensor, Tensor]:
    """(mean, precision) of a Normal prior, each of ``shape``; precision 0 where the prior is flat.

    Raises :class:`MethodError` for any other prior.
    """
    prior = model.priors[site]
    if isinstance(prior, Flat):
        return like.new_zeros(shape), like.new_zeros(shape)
    if not isinstance(prior, torch.distributions.Normal):
        name = type(prior).__name__
        raise MethodError(f"closed-form steps need a Normal prior for '{site}', not {name}; use SVI or NUTS for it")
    return prior.loc.to(like).expand(shape), prior.scale.to(like).pow(-2).expand(shape)
