"""Gamma priors of rates; statistics are events and exposure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from custom_inference.families.conjugate.pair import NOTHING, TINY, Pair, array, basis_shift, conjugate_prior
from ppl_models import Model
from ppl_models.distributions import Flat


@dataclass(frozen=True)
class Gamma(Pair):
    """The law Gamma(shape, rate): density proportional to lambda^(shape - 1) exp(-rate lambda); flat where (1, 0)."""

    shape: Tensor
    rate: Tensor

    @classmethod
    def of(cls, model: Model, site: str, like: Tensor) -> Self:
        """Read a Gamma prior, an Exponential one (1, rate), or a flat one (1, 0).

        Raises PriorError for any other prior.
        """
        prior = model.priors[site]
        one = torch.ones((), dtype=like.dtype, device=like.device)
        if isinstance(prior, Flat):
            return cls(one, torch.zeros_like(one))
        if isinstance(prior, torch.distributions.Exponential):
            return cls(one, prior.rate.to(like))
        prior = conjugate_prior(model, site, torch.distributions.Gamma)
        return cls(prior.concentration.to(like), prior.rate.to(like))

    @property
    def powers(self) -> Tensor:
        """The powers of lambda in the density, in the basis of the mode."""
        return self.shape - basis_shift(self.shape)

    def update(self, events: Tensor, exposure: Tensor) -> Self:
        """Return the posterior."""
        return type(self)(self.shape + events, self.rate + exposure)

    def mode(self, events: Tensor, exposure: Tensor, *, floor: float) -> Tensor:
        """Maximise events log lambda - exposure lambda + log prior in lambda, at least ``floor``.

        Without exposure, and under a flat prior, everything is a maximum, and the prior has no mean: it is the rate of
        all entries of the column together, or of everything.
        """
        total = (exposure + self.rate).clamp(min=torch.finfo(events.dtype).tiny)
        mode = (events + self.powers) / total
        nothing = exposure + self.rate <= NOTHING
        if bool(nothing.any()):
            mode = torch.where(nothing, _overall_rate(events, exposure), mode)
        return mode.clamp(min=floor)

    @property
    def mean(self) -> Tensor:
        return self.shape / self.rate

    def expected(self) -> tuple[Tensor, Tensor]:
        """Compute E[log lambda] and E[lambda]."""
        return torch.digamma(self.shape) - torch.log(self.rate), self.mean

    def log_density(self, value: Tensor) -> Tensor:
        """Compute the log density of every element, in the basis of the mode; 0 for a flat prior."""
        powers = torch.xlogy(self.powers, value) - self.rate * value
        return powers + torch.where(self.rate > 0, torch.xlogy(self.shape, self.rate) - torch.lgamma(self.shape), 0.0)

    def kl(self, other: Gamma) -> Tensor:
        """Compute KL(self || other) of every element."""
        found = (self.shape - other.shape) * torch.digamma(self.shape) - torch.lgamma(self.shape)
        found = found + torch.lgamma(other.shape) + other.shape * (torch.log(self.rate) - torch.log(other.rate))
        return found + self.shape * (other.rate / self.rate - 1)

    def log_marginal(self, events: Tensor, exposure: Tensor) -> Tensor:
        """Compute the log of the integral of lambda^events exp(-exposure lambda) under this prior, of every element. A
        flat prior, which has no such integral to compare by, counts as one of a tenth of a row."""
        shape, rate = self.shape, torch.where(self.rate > 0, self.rate, 0.1)
        gained = torch.lgamma(shape + events) - torch.lgamma(shape)
        return gained + shape * torch.log(rate) - (shape + events) * torch.log(rate + exposure)

    def draw(self, generator: np.random.Generator) -> Tensor:
        """Draw every element, in double precision, above 0."""
        return torch.as_tensor((generator.standard_gamma(array(self.shape)) / array(self.rate)).clip(TINY))


def _overall_rate(events: Tensor, exposure: Tensor) -> Tensor:
    """Return the rate of each column's entries together, of everything where a column has no exposure, or else 1."""
    exposure = exposure.expand_as(events)
    every = events.sum() / exposure.sum() if float(exposure.sum()) > NOTHING else torch.ones_like(events.sum())
    if events.ndim < 2:
        return every
    column = exposure.sum(-2, keepdim=True)
    return torch.where(column > NOTHING, events.sum(-2, keepdim=True) / column, every)
