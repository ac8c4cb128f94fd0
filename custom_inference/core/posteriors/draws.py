"""Posteriors over local latents that a sampler gives: equal mixtures over its draws."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from custom_inference.core.posteriors.continuous import ContinuousPosterior, DirichletPosterior
from custom_inference.core.posteriors.protocol import Layout


@dataclass(frozen=True)
class DirichletDraws(ContinuousPosterior):
    """q(s_n) = 1/S sum_s Dirichlet(concentration_sn): concentration (S, N, K), the conditional posterior of each draw.

    Averaging the conditionals, rather than draws from them, has the smaller Monte Carlo error (Rao-Blackwell).
    """

    layout: ClassVar[Layout] = {"concentration": "s*"}

    concentration: Tensor

    @property
    def mean(self) -> Tensor:
        total = self.concentration.sum(-1, keepdim=True)
        return (self.concentration / total).mean(0)

    @property
    def mode(self) -> Tensor:
        """The mode of the draw whose own mode is the most probable: a point of high density, not the exact maximum."""
        modes = torch.stack([DirichletPosterior(one).mode for one in self.concentration])
        density = torch.stack([self.log_prob(one) for one in modes])
        best = density.nan_to_num(nan=-torch.inf).argmax(0)
        return modes[best, torch.arange(modes.shape[1], device=modes.device)]

    def sample(self, num_samples: int = 1, *, seed: int = 0) -> Tensor:
        size, rows, _ = self.concentration.shape
        like = self.concentration
        generator = torch.Generator().manual_seed(seed)
        slot = torch.randint(size, (num_samples, rows), generator=generator)
        chosen = like[slot, torch.arange(rows)]
        # Not the same seed again: the draw would then depend on the slot.
        inner = int(torch.randint(2**62, (), generator=generator))
        return DirichletPosterior(chosen).sample(1, seed=inner)[0]

    def log_prob(self, local: Tensor) -> Tensor:
        each = DirichletPosterior(self.concentration).log_prob(local.expand(self.concentration.shape))
        return each.logsumexp(0) - math.log(len(self.concentration))

    def rows(self, index: Tensor | slice) -> DirichletDraws:
        return DirichletDraws(self.concentration[:, index])
