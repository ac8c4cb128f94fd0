"""Posteriors of probabilities: independent Betas, of the entries of a symmetric matrix where that is what they are."""

from __future__ import annotations

from dataclasses import dataclass

import pyro.distributions as dist
import torch
from torch import Tensor

from custom_inference.posterior.continuous import ContinuousPosterior


@dataclass(frozen=True)
class BetaPosterior(ContinuousPosterior):
    """q(p) = prod Beta(p_ab | first_ab, second_ab) over every element, (...)."""

    first: Tensor
    second: Tensor

    @property
    def mean(self) -> Tensor:
        return self.first / (self.first + self.second)

    @property
    def mode(self) -> Tensor:
        """(first - 1) / (first + second - 2), with what is below 1 at the edge; the mean where both are at most 1."""
        above, below = (self.first - 1).clamp_min(0), (self.second - 1).clamp_min(0)
        total = above + below
        return torch.where(total > 0, above / total.clamp_min(torch.finfo(total.dtype).tiny), self.mean)

    def sample(self, num_samples: int = 1, *, seed: int = 0) -> Tensor:
        with torch.random.fork_rng(devices=[] if self.first.device.type == "cpu" else [self.first.device]):
            torch.manual_seed(seed)
            return dist.Beta(self.first, self.second, validate_args=False).sample(torch.Size([num_samples]))

    def log_prob(self, local: Tensor) -> Tensor:
        """Summed over the last axis."""
        return self.each_log_prob(local).sum(-1)

    def each_log_prob(self, local: Tensor) -> Tensor:
        """Of every element, off 0 and 1 by rounding."""
        edge = torch.finfo(local.dtype)
        inside = local.clamp(edge.tiny, 1 - edge.eps / 2)
        return dist.Beta(self.first, self.second, validate_args=False).log_prob(inside)

    def rows(self, index: Tensor | slice) -> BetaPosterior:
        return type(self)(self.first[index], self.second[index])


@dataclass(frozen=True)
class SymmetricBetaPosterior(BetaPosterior):
    """Of a symmetric matrix (K, K): its entries a <= b are independent, the others their mirror images."""

    def sample(self, num_samples: int = 1, *, seed: int = 0) -> Tensor:
        drawn = super().sample(num_samples, seed=seed)
        return drawn.triu() + drawn.triu(1).mT

    def log_prob(self, local: Tensor) -> Tensor:
        """Summed over the entries a <= b of each row."""
        return self.each_log_prob(local).triu().sum(-1)
