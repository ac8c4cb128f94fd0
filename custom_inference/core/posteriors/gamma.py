"""Posteriors over vectors of Gamma variables that are not independent: mixtures, exact ones and those of draws."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from custom_inference.core.posteriors.continuous import GammaPosterior
from custom_inference.core.posteriors.dirichlet import DirichletMixture, inside
from custom_inference.core.posteriors.protocol import ContinuousPosterior


@dataclass(frozen=True)
class GammaMixture(ContinuousPosterior):
    """q(s_n): s_nk = t_n p_nk / rate_nk, t_n ~ Gamma(total_n, 1) and p_n ~ sum_m w_nm Dirichlet(concentration_m).

    log_weight (N, M) normalised, concentration (M, K), total (N,), rate (N, K). With sum_k concentration_mk = total_n
    the mixture is one of independent Gammas: the exact posterior of sums of Poisson rates.
    """

    log_weight: Annotated[Tensor, "nm"]
    concentration: Annotated[Tensor, "mk"]
    total: Annotated[Tensor, "n"]
    rate: Annotated[Tensor, "*"]

    @property
    def _shares(self) -> DirichletMixture:
        return DirichletMixture(self.log_weight, self.concentration)

    @property
    def mean(self) -> Tensor:
        return self.total.unsqueeze(-1) * self._shares.mean / self.rate

    @property
    def mode(self) -> Tensor:
        """That of the heaviest component's proportions: a point of high density, not the exact maximum."""
        share = self._shares.mode.clamp(min=torch.finfo(self.rate.dtype).eps)
        return self.total.unsqueeze(-1) * share / self.rate

    def sample(self, num_samples: int = 1, *, seed: int = 0) -> Tensor:
        share = self._shares.sample(num_samples, seed=seed)
        one = torch.ones_like(self.total)
        total = GammaPosterior(self.total, one).sample(num_samples, seed=seed + 1)
        return total.unsqueeze(-1) * share / self.rate

    def log_prob(self, local: Tensor) -> Tensor:
        scaled = inside(local) * self.rate
        total = scaled.sum(-1)
        share = self._shares.log_prob(scaled / total.unsqueeze(-1))
        gamma = torch.xlogy(self.total - 1, total) - total - torch.lgamma(self.total)
        volume = self.rate.log().sum(-1) - (self.rate.shape[-1] - 1) * total.log()
        return share + gamma + volume


@dataclass(frozen=True)
class GammaDraws(ContinuousPosterior):
    """q(s_n) = 1/S sum_s prod_k Gamma(shape_snk, rate_snk), (S, N, K): the conditional posterior of each draw."""

    shape: Annotated[Tensor, "s*"]
    rate: Annotated[Tensor, "s*"]

    @property
    def mean(self) -> Tensor:
        return (self.shape / self.rate).mean(0)

    @property
    def mode(self) -> Tensor:
        """The mode of the last draw: a point of high density, not the exact maximum."""
        return GammaPosterior(self.shape[-1], self.rate[-1]).mode.clamp(min=torch.finfo(self.shape.dtype).eps)

    def sample(self, num_samples: int = 1, *, seed: int = 0) -> Tensor:
        size, rows, _ = self.shape.shape
        generator = torch.Generator().manual_seed(seed)
        slot = torch.randint(size, (num_samples, rows), generator=generator)
        chosen = (part[slot, torch.arange(rows)] for part in (self.shape, self.rate))
        return GammaPosterior(*chosen).sample(1, seed=seed + 1)[0]

    def log_prob(self, local: Tensor) -> Tensor:
        each = GammaPosterior(self.shape, self.rate).log_prob(local)
        return each.logsumexp(0) - math.log(len(self.shape))
