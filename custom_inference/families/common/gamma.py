"""Closed-form updates of rates under Gamma priors, and what Gamma posteriors of them need.

Gamma(a, b) has density proportional to lambda^(a - 1) exp(-b lambda). With a < 1 it is unbounded at 0 and has no mode;
as a density of log lambda it has a factor lambda more. As with proportions (``dirichlet``), steps take the maximum in
the basis of lambda where a >= 1, so that flat priors give maximum likelihood, and else in that of log lambda.
"""

from __future__ import annotations

import torch
from torch import Tensor

from custom_inference.families.common.priors import basis_shift, conjugate_prior
from ppl_models import Model
from ppl_models.distributions import Flat

#: Shape and rate (a, b), broadcastable to the site.
GammaParameters = tuple[Tensor, Tensor]


def gamma_prior(model: Model, site: str, like: Tensor) -> GammaParameters:
    """Return (a, b) of a Gamma prior, an Exponential one (1, b), or a flat one (1, 0). Raises :class:`MethodError` for
    any other prior."""
    prior = model.priors[site]
    one = torch.ones((), dtype=like.dtype, device=like.device)
    if isinstance(prior, Flat):
        return one, torch.zeros_like(one)
    if isinstance(prior, torch.distributions.Exponential):
        return one, prior.rate.to(like)
    prior = conjugate_prior(model, site, torch.distributions.Gamma)
    return prior.concentration.to(like), prior.rate.to(like)


def gamma_mode(events: Tensor, exposure: Tensor, prior: GammaParameters, *, floor: float) -> Tensor:
    """Maximise events log lambda - exposure lambda + log prior in lambda, at least ``floor``; see the module on the
    basis."""
    shape, rate = prior
    total = (exposure + rate).clamp(min=torch.finfo(events.dtype).tiny)
    # Neither events nor exposure: every rate is a maximum.
    return torch.where(exposure + rate > 0, (events + shape - basis_shift(shape)) / total, 0.0).clamp(min=floor)


def gamma_log_density(value: Tensor, prior: GammaParameters) -> Tensor:
    """Sum the log prior density in the basis of :func:`gamma_mode`; 0 for a flat prior."""
    shape, rate = (part.expand_as(value) for part in prior)
    powers = torch.xlogy(shape - basis_shift(shape), value) - rate * value
    proper = torch.where(rate > 0, torch.xlogy(shape, rate) - torch.lgamma(shape), 0.0)
    return (powers + proper).sum()


def expected_log_gamma(shape: Tensor, rate: Tensor) -> Tensor:
    """Compute E[log lambda] under Gamma(shape, rate)."""
    return torch.digamma(shape) - torch.log(rate)


def gamma_log_marginal(events: Tensor, exposure: Tensor, prior: GammaParameters) -> Tensor:
    """Compute the log of the integral of lambda^events exp(-exposure lambda) Gamma(lambda; prior), of every element. A
    flat prior, which has no such integral to compare by, counts as one of a tenth of a row."""
    shape, rate = prior
    rate = torch.where(rate > 0, rate, 0.1)
    gained = torch.lgamma(shape + events) - torch.lgamma(shape)
    return gained + shape * torch.log(rate) - (shape + events) * torch.log(rate + exposure)


def gamma_divergence(posterior: GammaParameters, prior: GammaParameters) -> Tensor:
    """Compute KL(Gamma(posterior) || Gamma(prior)) of every element."""
    (shape, rate), (shape0, rate0) = posterior, prior
    found = (shape - shape0) * torch.digamma(shape) - torch.lgamma(shape) + torch.lgamma(shape0)
    return found + shape0 * (torch.log(rate) - torch.log(rate0)) + shape * (rate0 / rate - 1)
