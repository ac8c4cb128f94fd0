"""Posteriors over local latents with a density: memberships on the simplex and real-valued scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pyro.distributions as dist
import torch
from torch import Tensor

from custom_inference.core.posteriors.protocol import Layout, LocalPosterior, draw_slots, seeded
from ppl_models import MethodError


class ContinuousPosterior(LocalPosterior):
    """q(s_n) of every row n with a density; there is no table of values."""

    def table(self) -> tuple[Tensor, Tensor]:
        raise MethodError("a continuous latent has no table of values; use sample and log_prob")


@dataclass(frozen=True)
class PointPosterior(ContinuousPosterior):
    """All mass on one value a row (N, K): what joint point estimates (maximum a posteriori) come with."""

    layout: ClassVar[Layout] = {"value": "*"}

    value: Tensor

    @property
    def mean(self) -> Tensor:
        return self.value

    @property
    def mode(self) -> Tensor:
        return self.value

    def sample(self, num_samples: int = 1, *, seed: int = 0) -> Tensor:
        return self.value.expand(num_samples, *self.value.shape)

    def log_prob(self, local: Tensor) -> Tensor:
        """Infinite at the point (a density), -inf elsewhere."""
        at = (local == self.value).all(-1)
        return torch.where(at, torch.inf, -torch.inf).to(self.value)

    def rows(self, index: Tensor | slice) -> PointPosterior:
        return PointPosterior(self.value[index])


@dataclass(frozen=True)
class DirichletPosterior(ContinuousPosterior):
    """q(s_n) = Dirichlet(concentration_n), (N, K)."""

    layout: ClassVar[Layout] = {"concentration": "*"}

    concentration: Tensor

    @property
    def mean(self) -> Tensor:
        return self.concentration / self.concentration.sum(-1, keepdim=True)

    @property
    def mode(self) -> Tensor:
        return dirichlet_mode(self.concentration)

    def sample(self, num_samples: int = 1, *, seed: int = 0) -> Tensor:
        return sample_dirichlet(self.concentration.expand(num_samples, *self.concentration.shape), seed)

    def log_prob(self, local: Tensor) -> Tensor:
        return dist.Dirichlet(self.concentration, validate_args=False).log_prob(_inside(local))

    def rows(self, index: Tensor | slice) -> DirichletPosterior:
        return DirichletPosterior(self.concentration[index])


@dataclass(frozen=True)
class GammaPosterior(ContinuousPosterior):
    """q(s_nj) = Gamma(shape_nj, rate_nj) for every element, (N, K): of rates."""

    layout: ClassVar[Layout] = {"shape": "*", "rate": "*"}

    shape: Tensor
    rate: Tensor

    @property
    def mean(self) -> Tensor:
        return self.shape / self.rate

    @property
    def mode(self) -> Tensor:
        """(shape - 1) / rate, 0 where the density is highest there."""
        return (self.shape - 1).clamp_min(0) / self.rate

    def sample(self, num_samples: int = 1, *, seed: int = 0) -> Tensor:
        with seeded(seed):
            gamma = dist.Gamma(self.shape.cpu(), self.rate.cpu(), validate_args=False)
            return gamma.sample(torch.Size([num_samples])).to(self.shape)

    def elements(self, local: Tensor) -> Tensor:
        """log q of every element, (N, K)."""
        return dist.Gamma(self.shape, self.rate, validate_args=False).log_prob(_inside(local))

    def log_prob(self, local: Tensor) -> Tensor:
        return self.elements(local).sum(-1)

    def rows(self, index: Tensor | slice) -> GammaPosterior:
        return GammaPosterior(self.shape[index], self.rate[index])


@dataclass(frozen=True)
class BetaPosterior(ContinuousPosterior):
    """q(s_nj) = Beta(on_nj, off_nj) for every element, (N, K): of probabilities."""

    layout: ClassVar[Layout] = {"on": "*", "off": "*"}

    on: Tensor
    off: Tensor

    @property
    def mean(self) -> Tensor:
        return self.on / (self.on + self.off)

    @property
    def mode(self) -> Tensor:
        """(on - 1) / (on + off - 2); where a density is highest at an edge, that edge; the mean where at both."""
        above, below = (self.on - 1).clamp_min(0), (self.off - 1).clamp_min(0)
        total = above + below
        return torch.where(total > 0, above / total.clamp_min(torch.finfo(above.dtype).tiny), self.mean)

    def sample(self, num_samples: int = 1, *, seed: int = 0) -> Tensor:
        pair = torch.stack([self.on, self.off], -1)
        return sample_dirichlet(pair.expand(num_samples, *pair.shape), seed)[..., 0]

    def elements(self, local: Tensor) -> Tensor:
        """log q of every element, (N, K)."""
        edge = torch.finfo(local.dtype).eps
        return dist.Beta(self.on, self.off, validate_args=False).log_prob(local.clamp(edge, 1 - edge))

    def log_prob(self, local: Tensor) -> Tensor:
        return self.elements(local).sum(-1)

    def rows(self, index: Tensor | slice) -> BetaPosterior:
        return BetaPosterior(self.on[index], self.off[index])


@dataclass(frozen=True)
class SymmetricGammaPosterior(GammaPosterior):
    """Gammas of a symmetric matrix (K, K), whose entries a <= b are independent; the others repeat them."""

    def sample(self, num_samples: int = 1, *, seed: int = 0) -> Tensor:
        return mirrored(super().sample(num_samples, seed=seed))

    def log_prob(self, local: Tensor) -> Tensor:
        """Of the entries of each row from the diagonal on, (K,)."""
        return torch.triu(self.elements(local)).sum(-1)

    def rows(self, index: Tensor | slice) -> GammaPosterior:
        """The distributions of some rows' entries, not all of which are independent of each other."""
        return GammaPosterior(self.shape[index], self.rate[index])


@dataclass(frozen=True)
class SymmetricBetaPosterior(BetaPosterior):
    """Betas of a symmetric matrix (K, K), whose entries a <= b are independent; the others repeat them."""

    def sample(self, num_samples: int = 1, *, seed: int = 0) -> Tensor:
        return mirrored(super().sample(num_samples, seed=seed))

    def log_prob(self, local: Tensor) -> Tensor:
        """Of the entries of each row from the diagonal on, (K,)."""
        return torch.triu(self.elements(local)).sum(-1)

    def rows(self, index: Tensor | slice) -> BetaPosterior:
        """The distributions of some rows' entries, not all of which are independent of each other."""
        return BetaPosterior(self.on[index], self.off[index])


@dataclass(frozen=True)
class DirichletMixture(ContinuousPosterior):
    """q(s_n) = sum_m w_nm Dirichlet(concentration_m): log_weight (N, M) normalised, concentration (M, K) shared.

    The exact posterior of a membership under an aspect model has this form.
    """

    layout: ClassVar[Layout] = {"log_weight": "nm", "concentration": "mk"}

    log_weight: Tensor
    concentration: Tensor

    @property
    def mean(self) -> Tensor:
        return self.log_weight.exp() @ DirichletPosterior(self.concentration).mean

    @property
    def mode(self) -> Tensor:
        """The mode of the heaviest component: a good point of high density, not the exact maximum."""
        return dirichlet_mode(self.concentration)[self.log_weight.argmax(-1)]

    def sample(self, num_samples: int = 1, *, seed: int = 0) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        slot = draw_slots(self.log_weight, num_samples, generator)
        # Not the same seed again: the draw would then depend on the slot.
        return sample_dirichlet(self.concentration[slot.T], int(torch.randint(2**62, (), generator=generator)))

    def log_prob(self, local: Tensor) -> Tensor:
        each = dist.Dirichlet(self.concentration, validate_args=False).log_prob(_inside(local)[..., None, :])
        return (self.log_weight + each).logsumexp(-1)

    def rows(self, index: Tensor | slice) -> DirichletMixture:
        return DirichletMixture(self.log_weight[index], self.concentration)


@dataclass(frozen=True)
class GaussianPosterior(ContinuousPosterior):
    """q(s_n) = Normal(mean_n, covariance_n): mean (N, K), covariance (N, K, K)."""

    layout: ClassVar[Layout] = {"location": "*", "covariance": "*k"}

    location: Tensor
    covariance: Tensor

    @property
    def mean(self) -> Tensor:
        return self.location

    @property
    def mode(self) -> Tensor:
        return self.location

    def sample(self, num_samples: int = 1, *, seed: int = 0) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        shape = (num_samples, *self.location.shape)
        noise = torch.randn(shape, generator=generator, dtype=self.location.dtype).to(self.location)
        root = torch.linalg.cholesky(self.covariance)
        return self.location + (root @ noise.unsqueeze(-1)).squeeze(-1)

    def log_prob(self, local: Tensor) -> Tensor:
        normal = dist.MultivariateNormal(self.location, covariance_matrix=self.covariance, validate_args=False)
        return normal.log_prob(local)

    def rows(self, index: Tensor | slice) -> GaussianPosterior:
        return GaussianPosterior(self.location[index], self.covariance[index])


def dirichlet_mode(concentration: Tensor) -> Tensor:
    """(alpha - 1) / sum(alpha - 1) with what is below 1 at the edge; the mean where every alpha is at most 1."""
    above = (concentration - 1).clamp_min(0)
    total = above.sum(-1, keepdim=True)
    mean = concentration / concentration.sum(-1, keepdim=True)
    return torch.where(total > 0, above / total.clamp_min(torch.finfo(above.dtype).tiny), mean)


def sample_dirichlet(concentration: Tensor, seed: int) -> Tensor:
    """One draw for every row of concentrations (..., K), from its own random state."""
    with seeded(seed):
        return dist.Dirichlet(concentration.cpu(), validate_args=False).sample().to(concentration)


def mirrored(value: Tensor) -> Tensor:
    """Matrices (..., K, K) with what is right of the diagonal also on its left."""
    upper = torch.triu(value)
    return upper + torch.triu(value, 1).transpose(-1, -2)


def _inside(local: Tensor) -> Tensor:
    """Off the faces of the simplex, where a density may be 0 or infinite and its logarithm is not a number."""
    return local.clamp_min(torch.finfo(local.dtype).tiny)
