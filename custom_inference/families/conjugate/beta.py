"""Beta priors of probabilities; statistics are successes and trials."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from custom_inference.families.conjugate.pair import NOTHING, Pair, array, conjugate_prior, without_mode
from ppl_models import Model
from ppl_models.core.priors import is_flat

#: Probabilities are kept this far from 0 and 1 (leak > 0 is needed wherever log(1 - e^{-theta_0}) is divided by).
FLOOR = 1e-6


@dataclass(frozen=True)
class Beta(Pair):
    """The distribution Beta(on, off): density proportional to p^(on - 1) (1 - p)^(off - 1)."""

    on: Tensor
    off: Tensor

    @classmethod
    def of(cls, model: Model, site: str, like: Tensor) -> Self:
        """Read a Beta prior, whatever its concentrations; a flat one is Beta(1, 1).

        Raises PriorError for any other prior.
        """
        if is_flat(model.priors[site]):
            one = torch.ones_like(like[..., :1] if like.ndim else like)
            return cls(one, one.clone())
        prior = conjugate_prior(model, site, torch.distributions.Beta)
        return cls(prior.concentration1.to(like), prior.concentration0.to(like))

    @classmethod
    def with_mode(cls, model: Model, site: str, like: Tensor) -> Self:
        """Read a Beta prior. Raises PriorError for any other, and for concentrations below 1, where the mode is a pole
        on the boundary and not a stationary point."""
        found = cls.of(model, site, like)
        if any(bool((part < 1).any()) for part in found):
            raise without_mode("Beta", site)
        return found

    def update(self, successes: Tensor, trials: Tensor) -> Self:
        """Return the posterior."""
        return type(self)(self.on + successes, self.off + (trials - successes).clamp(min=0))

    def mode(self, successes: Tensor, trials: Tensor, *, floor: float) -> Tensor:
        """Maximise the likelihood of so many successes and the prior in p, clamped into [floor, 1 - floor].

        Without trials, and under a flat prior, everything is a maximum: it is one half, the prior's mean.
        """
        count = trials + self.on + self.off - 2
        mode = (successes + self.on - 1) / count.clamp(min=torch.finfo(successes.dtype).tiny)
        return torch.where(count <= NOTHING, self.mean, mode).clamp(floor, 1 - floor)

    @property
    def mean(self) -> Tensor:
        return self.on / (self.on + self.off)

    def expected(self) -> tuple[Tensor, Tensor]:
        """Compute E[log p] and E[log(1 - p)]."""
        both = torch.digamma(self.on + self.off)
        return torch.digamma(self.on) - both, torch.digamma(self.off) - both

    def log_density(self, value: Tensor) -> Tensor:
        """Compute the log density of every element; 0 under a flat prior."""
        return torch.xlogy(self.on - 1, value) + torch.xlogy(self.off - 1, 1 - value) - self._log_normaliser()

    def kl(self, other: Beta) -> Tensor:
        """Compute KL(self || other) of every element."""
        on, off = self.expected()
        normalisers = other._log_normaliser() - self._log_normaliser()
        return normalisers + (self.on - other.on) * on + (self.off - other.off) * off

    def log_marginal(self, successes: Tensor, trials: Tensor) -> Tensor:
        """Compute the log of the integral of p^on (1 - p)^off under this prior, of every element."""
        return self.update(successes, trials)._log_normaliser() - self._log_normaliser()

    def draw(self, generator: np.random.Generator) -> Tensor:
        """Draw every element, in double precision, off 0 and 1."""
        return interior(torch.as_tensor(generator.beta(array(self.on), array(self.off))))

    def _log_normaliser(self) -> Tensor:
        return torch.lgamma(self.on) + torch.lgamma(self.off) - torch.lgamma(self.on + self.off)


def interior(probability: Tensor) -> Tensor:
    """Move probabilities off 0 and 1 by rounding, as the programs' Bernoulli distributions do: nothing meets inf - inf
    or 0 * inf."""
    edge = torch.finfo(probability.dtype).eps
    return probability.clamp(edge, 1 - edge)
