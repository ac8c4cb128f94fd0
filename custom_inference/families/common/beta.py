"""Closed-form updates of probabilities under Beta priors."""

from __future__ import annotations

import torch
from torch import Tensor

from custom_inference.core.engine import Params
from custom_inference.families.common.priors import conjugate_prior
from ppl_models import Model, PriorError
from ppl_models.core.priors import is_flat

#: Probabilities are kept this far from 0 and 1 (leak > 0 is needed wherever log(1 - e^{-theta_0}) is divided by).
FLOOR = 1e-6


def interior(probability: Tensor) -> Tensor:
    """Move probabilities off 0 and 1 by rounding, as the programs' Bernoulli distributions do: nothing meets inf - inf
    or 0 * inf."""
    edge = torch.finfo(probability.dtype).eps
    return probability.clamp(edge, 1 - edge)


def beta_prior(model: Model, site: str, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return (a, b) of a Beta prior, whatever they are, broadcastable to the site. Raises :class:`MethodError` for any
    other prior."""
    if is_flat(model.priors[site]):
        one = torch.ones_like(like[..., :1] if like.ndim else like)
        return one, one.clone()
    prior = conjugate_prior(model, site, torch.distributions.Beta)
    return prior.concentration1.to(like), prior.concentration0.to(like)


def beta_parameters(model: Model, site: str, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return (a, b) of a Beta prior, broadcastable to the site. Raises :class:`MethodError` for any other prior, and
    for a < 1 or b < 1, where the mode is a pole on the boundary and not a stationary point."""
    a, b = beta_prior(model, site, like)
    if bool((a < 1).any() or (b < 1).any()):
        raise PriorError(
            f"the Beta prior of '{site}' has a concentration below 1, so its density is unbounded at the edge and "
            "has no maximum a posteriori; use NUTS, or concentrations of at least 1"
        )
    return a, b


def beta_divergence(posterior: tuple[Tensor, Tensor], prior: tuple[Tensor, Tensor]) -> Tensor:
    """Compute KL(Beta(posterior) || Beta(prior)) of every element."""
    (a, b), (a0, b0) = posterior, prior
    both = torch.digamma(a + b)
    normalisers = _log_beta(a0, b0) - _log_beta(a, b)
    return normalisers + (a - a0) * (torch.digamma(a) - both) + (b - b0) * (torch.digamma(b) - both)


def beta_log_density(value: Tensor, prior: tuple[Tensor, Tensor]) -> Tensor:
    """Compute log Beta(value; prior) of every element; 0 under a flat one."""
    a, b = prior
    return torch.xlogy(a - 1, value) + torch.xlogy(b - 1, 1 - value) - _log_beta(a, b)


def beta_log_marginal(on: Tensor, off: Tensor, prior: tuple[Tensor, Tensor]) -> Tensor:
    """Compute the log of the integral of p^on (1 - p)^off Beta(p; prior), of every element."""
    a, b = prior
    return _log_beta(a + on, b + off) - _log_beta(a, b)


def _log_beta(a: Tensor, b: Tensor) -> Tensor:
    return torch.lgamma(a) + torch.lgamma(b) - torch.lgamma(a + b)


def beta_mode(on: Tensor, total: Tensor, prior: tuple[Tensor, Tensor], *, floor: float) -> Tensor:
    """Maximise on log p + (total - on) log(1 - p) + log Beta(p; a, b) in p, clamped into [floor, 1 - floor].

    Where nothing was counted and the prior is flat every p is a maximum: 0.5 would be as good as any, but a
    link that nothing supports is shut, so the floor is returned.
    """
    a, b = prior
    count = total + a + b - 2
    mode = (on + a - 1) / count.clamp(min=torch.finfo(on.dtype).tiny)
    return mode.clamp(floor, 1 - floor)


def prior_mode(model: Model, params: Params, source_total: Tensor, num_rows: int) -> Tensor:
    """Compute pi_i = (sum_n E[s_ni] + a - 1) / (N + a + b - 2) (000, Fig. 2, and 003, with a Beta prior)."""
    like = params["source_prior"]
    total = torch.full_like(like, num_rows)
    return beta_mode(source_total, total, beta_parameters(model, "source_prior", like), floor=FLOOR)


def logit_jitter(
    value: float, shape: tuple[int, ...], spread: float, generator: torch.Generator, like: Tensor
) -> Tensor:
    """Draw probabilities around ``value``, spread on the logit scale."""
    noise = torch.randn(shape, generator=generator, dtype=torch.float64).to(like)
    return torch.sigmoid(torch.logit(torch.tensor(value, dtype=like.dtype, device=like.device)) + spread * noise)
