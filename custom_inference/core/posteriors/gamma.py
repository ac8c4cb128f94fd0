"""Posteriors over vectors of Gamma variables that are not independent: mixtures, exact ones and those of draws."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from custom_inference.core.posteriors.continuous import GammaPosterior
from custom_inference.core.posteriors.dirichlet import DirichletMixture, inside
from custom_inference.core.posteriors.protocol import ContinuousPosterior, draw_slots


@dataclass(frozen=True)
class GammaMixture(ContinuousPosterior):
    """q(s_n): s_nk = t_n p_nk / rate_nk, t_n ~ Gamma(total_n, 1) and p_n ~ sum_m w_nm Dirichlet(concentration_m).

    log_weight (N, M) normalised, concentration (M, K), total (N,), rate (N, K). With sum_k concentration_mk = total_n
    the mixture is one of independent Gammas: the exact posterior of sums of Poisson rates.
    """

    log_weight: Annotated[Tensor, "nm", "log_weights"]
    concentration: Annotated[Tensor, "mk", "nonnegative"]
    total: Annotated[Tensor, "n", "positive"]
    rate: Annotated[Tensor, "*", "positive"]

    @property
    def _shares(self) -> DirichletMixture:
        return DirichletMixture(self.log_weight, self.concentration)

    @property
    def mean(self) -> Tensor:
        return self.total.unsqueeze(-1) * self._shares.mean / self.rate

    @property
    def variance(self) -> Tensor:
        """E[t^2] E[p^2] - (E[t] E[p])^2, over the squares of the rates."""
        total, mean = self.total.unsqueeze(-1), self._shares.mean
        square = total * (total + 1) * (self._shares.variance + mean.square())
        return (square - (total * mean).square()) / self.rate.square()

    @property
    def mode(self) -> Tensor:
        """The mode of the heaviest component's proportions: a point of high density, not the exact maximum."""
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
class GammaTerms(ContinuousPosterior):
    """q(s_n) = sum_m w_nm prod_k Gamma(shape_nmk, rate_nmk): log_weight (N, M) normalised, shape and rate (N, M, K).

    Where a shape is 0 all mass is on s_nk = 0: of latents that are exactly 0 with some probability. Draws of a sampler
    are such terms, of equal weights: their conditional posteriors have the smaller Monte Carlo error (Rao-Blackwell).
    """

    log_weight: Annotated[Tensor, "nm", "log_weights"]
    shape: Annotated[Tensor, "nmk", "nonnegative"]
    rate: Annotated[Tensor, "nmk", "positive"]

    @classmethod
    def of_draws(cls, shape: Tensor, rate: Tensor) -> GammaTerms:
        """Make an equal mixture of the gamma posteriors of each draw, (S, N, K)."""
        equal = torch.full(shape.shape[:2], -math.log(len(shape)), dtype=shape.dtype, device=shape.device)
        return cls(equal.T.contiguous(), *(part.transpose(0, 1).contiguous() for part in (shape, rate)))

    @property
    def mean(self) -> Tensor:
        return (self.log_weight.exp().unsqueeze(-1) * self.shape / self.rate).sum(1)

    @property
    def variance(self) -> Tensor:
        within, mean = self.shape / self.rate.square(), self.shape / self.rate
        square = within + (mean - self.mean.unsqueeze(1)).square()
        return (self.log_weight.exp().unsqueeze(-1) * square).sum(1)

    @property
    def mode(self) -> Tensor:
        """The mode of the heaviest term: a point of high density, not the exact maximum."""
        shape, rate = self._pick(self.log_weight.argmax(-1, keepdim=True).T)
        least = torch.where(shape > 0, torch.finfo(shape.dtype).eps, 0.0)
        return torch.maximum((shape - 1).clamp(min=0) / rate, least)[0]

    def _pick(self, slot: Tensor) -> tuple[Tensor, Tensor]:
        """Shapes and rates of terms (S, N), (S, N, K)."""
        rows = torch.arange(slot.shape[1], device=slot.device)
        return self.shape[rows, slot], self.rate[rows, slot]

    def sample(self, num_samples: int = 1, *, seed: int = 0) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        shape, rate = self._pick(draw_slots(self.log_weight, num_samples, generator).T)
        on = shape > 0
        drawn = GammaPosterior(torch.where(on, shape, torch.ones_like(shape)), rate).sample(1, seed=seed + 1)[0]
        return torch.where(on, drawn, torch.zeros_like(drawn))

    def log_prob(self, local: Tensor) -> Tensor:
        """Return the log density of positive values, and the log probability of values that are 0."""
        value, on = local.unsqueeze(-2), self.shape > 0
        positive = value > 0
        shape = torch.where(on, self.shape, torch.ones_like(self.shape))
        density = GammaPosterior(shape, self.rate).elements(value.expand_as(shape))
        each = torch.where(on & positive, density, torch.where(on == positive, 0.0, -torch.inf).to(density))
        return (self.log_weight + each.sum(-1)).logsumexp(-1)
