"""Posteriors over latents with a density: real-valued scores, rates and probabilities, and single points."""

from __future__ import annotations

import abc
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import pyro.distributions as dist
import torch
from scipy.special import gammaincinv
from torch import Tensor

from custom_inference.core.isolation import torch_seeded
from custom_inference.core.posteriors.dirichlet import DirichletPosterior, inside
from custom_inference.core.posteriors.nodes import standard_nodes
from custom_inference.core.posteriors.protocol import (
    ContinuousPosterior,
    WeightedValues,
    beta_quantiles,
    draw_slots,
    normal_quantiles,
)


@dataclass(frozen=True)
class _OneValue(ContinuousPosterior):
    """All mass on one value a row, (N, K)."""

    value: Annotated[Tensor, "*"]

    @property
    def mean(self) -> Tensor:
        return self.value

    @property
    def variance(self) -> Tensor:
        return torch.zeros_like(self.value)

    def sample(self, num_samples: int = 1, *, seed: int = 0) -> Tensor:
        return self.value.expand(num_samples, *self.value.shape)

    def weigh_values(self, number: int, *, seed: int = 0) -> WeightedValues:
        return WeightedValues(self.value.unsqueeze(1), torch.ones(len(self.value), 1).to(self.value), False)


@dataclass(frozen=True)
class PointPosterior(_OneValue):
    """Posterior with all mass on one value per row (N, K), from joint point estimates (maximum a posteriori)."""

    is_point = True

    def log_prob(self, local: Tensor) -> Tensor:
        """Infinite at the point (a density), -inf elsewhere."""
        at = (local == self.value).all(-1)
        return torch.where(at, torch.inf, -torch.inf).to(self.value)


@dataclass(frozen=True)
class KnownPosterior(_OneValue):
    """Posterior of latents that are functions of what is given: their values (N, K); log q is that of a point mass."""

    def log_prob(self, local: Tensor) -> Tensor:
        """0 at the point, up to rounding, -inf elsewhere."""
        near = (local - self.value).abs() <= torch.finfo(self.value.dtype).eps ** 0.5
        return torch.where(near.all(-1), 0.0, -torch.inf).to(self.value)


@dataclass(frozen=True)
class GaussianPosterior(ContinuousPosterior):
    """q(s_n) = Normal(mean_n, covariance_n): mean (N, K), covariance (N, K, K)."""

    location: Annotated[Tensor, "*"]
    covariance: Annotated[Tensor, "*k", "covariances"]

    @property
    def mean(self) -> Tensor:
        return self.location

    @property
    def variance(self) -> Tensor:
        return self.covariance.diagonal(dim1=-2, dim2=-1)

    def quantiles(self, levels: Sequence[float]) -> Tensor:
        return normal_quantiles(self.mean, self.variance, levels)

    def sample(self, num_samples: int = 1, *, seed: int = 0) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        shape = (num_samples, *self.location.shape)
        noise = torch.randn(shape, generator=generator, dtype=self.location.dtype).to(self.location)
        root = torch.linalg.cholesky(self.covariance)
        return self.location + (root @ noise.unsqueeze(-1)).squeeze(-1)

    def weigh_values(self, number: int, *, seed: int = 0) -> WeightedValues:
        nodes = standard_nodes(self.location.shape[-1], number, fine=True).to(self.location)
        value = self.location.unsqueeze(1) + nodes.place @ torch.linalg.cholesky(self.covariance).mT
        return WeightedValues(value, nodes.log_weight.exp().expand(value.shape[:2]), nodes.drawn)

    def log_prob(self, local: Tensor) -> Tensor:
        normal = dist.MultivariateNormal(self.location, covariance_matrix=self.covariance, validate_args=False)
        return normal.log_prob(local)


@dataclass(frozen=True)
class GaussianMixturePosterior(ContinuousPosterior):
    """q(s_n) = sum_e w_ne Normal(location_ne, covariance_ne): log_weight (N, E) normalised, location (N, E, K),
    covariance (N, E, K, K)."""

    log_weight: Annotated[Tensor, "ne", "log_weights"]
    location: Annotated[Tensor, "nek"]
    covariance: Annotated[Tensor, "nekk", "covariances"]

    @property
    def mean(self) -> Tensor:
        return (self.log_weight.exp().unsqueeze(-1) * self.location).sum(-2)

    @property
    def variance(self) -> Tensor:
        square = self.covariance.diagonal(dim1=-2, dim2=-1) + (self.location - self.mean.unsqueeze(-2)).square()
        return (self.log_weight.exp().unsqueeze(-1) * square).sum(-2)

    @property
    def mode(self) -> Tensor:
        """The mean of the heaviest component: a good point of high density, not the exact maximum."""
        return self.location[torch.arange(len(self.location)), self.log_weight.argmax(-1)]

    def sample(self, num_samples: int = 1, *, seed: int = 0) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        slot, every = draw_slots(self.log_weight, num_samples, generator).T, torch.arange(len(self.location))
        shape = (num_samples, len(self.location), self.location.shape[-1])
        noise = torch.randn(shape, generator=generator, dtype=self.location.dtype).to(self.location)
        root = torch.linalg.cholesky(self.covariance)[every, slot]
        return self.location[every, slot] + (root @ noise.unsqueeze(-1)).squeeze(-1)

    def log_prob(self, local: Tensor) -> Tensor:
        normal = dist.MultivariateNormal(self.location, covariance_matrix=self.covariance, validate_args=False)
        return (self.log_weight + normal.log_prob(local.unsqueeze(-2))).logsumexp(-1)

    def weigh_values(self, number: int, *, seed: int = 0) -> WeightedValues:
        """Return the nodes of each of its normals."""
        flat = GaussianPosterior(self.location.flatten(0, 1), self.covariance.flatten(0, 1))
        found = flat.weigh_values(number, seed=seed)
        rows = len(self.location)
        weight = self.log_weight.exp().unsqueeze(-1) * found.weight.reshape(*self.log_weight.shape, -1)
        return WeightedValues(found.value.reshape(rows, -1, self.location.shape[-1]), weight.flatten(1), found.drawn)


class ElementwisePosterior(ContinuousPosterior):
    """A density for every element, (N, K), independent of the others."""

    @abc.abstractmethod
    def elements(self, local: Tensor) -> Tensor:
        """log q of every element, (N, K)."""

    def log_prob(self, local: Tensor) -> Tensor:
        return self.elements(local).sum(-1)


class _Symmetric(ElementwisePosterior):
    """Posterior of a symmetric matrix (K, K) whose entries a <= b are independent; the others repeat them."""

    @classmethod
    @functools.cache
    def layout(cls) -> dict[str, str]:
        return dict.fromkeys(super().layout(), "kk")

    def sample(self, num_samples: int = 1, *, seed: int = 0) -> Tensor:
        return mirror(super().sample(num_samples, seed=seed))

    def log_prob(self, local: Tensor) -> Tensor:
        """Sum the log densities of each row's entries from the diagonal on, (K,)."""
        return torch.triu(self.elements(local)).sum(-1)


@dataclass(frozen=True)
class GammaPosterior(ElementwisePosterior):
    """q(s_nj) = Gamma(shape_nj, rate_nj) for every element, (N, K): of rates."""

    shape: Annotated[Tensor, "*", "nonnegative"]
    rate: Annotated[Tensor, "*", "positive"]

    @property
    def mean(self) -> Tensor:
        return self.shape / self.rate

    @property
    def variance(self) -> Tensor:
        return self.shape / self.rate.square()

    def quantiles(self, levels: Sequence[float]) -> Tensor:
        """Return those of Gamma(shape, 1) over the rate; 0 where the shape is 0, at which all mass is."""
        shape = self.shape.detach().double().cpu().numpy()
        unit = np.stack([np.where(shape > 0, gammaincinv(np.where(shape > 0, shape, 1), one), 0) for one in levels])
        return torch.as_tensor(unit).to(self.shape) / self.rate

    @property
    def mode(self) -> Tensor:
        """(shape - 1) / rate, 0 where the density is highest there."""
        return (self.shape - 1).clamp_min(0) / self.rate

    def sample(self, num_samples: int = 1, *, seed: int = 0) -> Tensor:
        with torch_seeded(seed):
            gamma = dist.Gamma(self.shape.cpu(), self.rate.cpu(), validate_args=False)
            return gamma.sample(torch.Size([num_samples])).to(self.shape)

    def elements(self, local: Tensor) -> Tensor:
        return dist.Gamma(self.shape, self.rate, validate_args=False).log_prob(inside(local))

    def rows(self, index: Tensor | slice) -> GammaPosterior:
        """Return the distributions of some rows' entries; those of a symmetric matrix are not all independent."""
        return GammaPosterior(**self._of_rows(index))


@dataclass(frozen=True)
class BetaPosterior(ElementwisePosterior):
    """q(s_nj) = Beta(on_nj, off_nj) for every element, (N, K): of probabilities."""

    on: Annotated[Tensor, "*", "positive"]
    off: Annotated[Tensor, "*", "positive"]

    @property
    def mean(self) -> Tensor:
        return self.on / (self.on + self.off)

    @property
    def variance(self) -> Tensor:
        return self._pair.variance[..., 0]

    def quantiles(self, levels: Sequence[float]) -> Tensor:
        return beta_quantiles(self.on, self.off, levels)

    @property
    def mode(self) -> Tensor:
        """(on - 1) / (on + off - 2); where a density is highest at an edge, that edge; the mean where at both."""
        return self._pair.mode[..., 0]

    def sample(self, num_samples: int = 1, *, seed: int = 0) -> Tensor:
        return self._pair.sample(num_samples, seed=seed)[..., 0]

    @property
    def _pair(self) -> DirichletPosterior:
        """The posterior of each probability and its complement, (N, K, 2)."""
        return DirichletPosterior(torch.stack([self.on, self.off], -1))

    def elements(self, local: Tensor) -> Tensor:
        edge = torch.finfo(local.dtype).eps
        return dist.Beta(self.on, self.off, validate_args=False).log_prob(local.clamp(edge, 1 - edge))

    def rows(self, index: Tensor | slice) -> BetaPosterior:
        """Return the distributions of some rows' entries; those of a symmetric matrix are not all independent."""
        return BetaPosterior(**self._of_rows(index))


@dataclass(frozen=True)
class SymmetricGammaPosterior(_Symmetric, GammaPosterior):
    """Gammas of a symmetric matrix (K, K), whose entries a <= b are independent; the others repeat them."""


@dataclass(frozen=True)
class SymmetricBetaPosterior(_Symmetric, BetaPosterior):
    """Betas of a symmetric matrix (K, K), whose entries a <= b are independent; the others repeat them."""


def mirror(value: Tensor) -> Tensor:
    """Matrices (..., K, K) with what is right of the diagonal also on its left."""
    return torch.triu(value) + torch.triu(value, 1).transpose(-1, -2)
