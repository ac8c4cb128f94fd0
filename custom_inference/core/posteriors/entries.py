"""Posteriors over globals whose entries are real numbers, or have any prior of single numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.distributions import ExpTransform, MultivariateNormal, Normal, SigmoidTransform

from custom_inference.core.posteriors.continuous import ElementwisePosterior
from custom_inference.core.posteriors.protocol import ContinuousPosterior, normal_quantiles

#: Nodes of integrals over one normal.
_NODES = 41


@dataclass(frozen=True)
class NormalPosterior(ElementwisePosterior):
    """Normal(location, scale^2) of every entry, independent of the others."""

    location: Annotated[Tensor, "*"]
    scale: Annotated[Tensor, "*", "positive"]

    @property
    def mean(self) -> Tensor:
        return self.location

    @property
    def variance(self) -> Tensor:
        return self.scale.square()

    def quantiles(self, levels: Sequence[float]) -> Tensor:
        return normal_quantiles(self.mean, self.variance, levels)

    def sample(self, num_samples: int = 1, *, seed: int = 0) -> Tensor:
        return self.location + self.scale * _draw_noise((num_samples, *self.location.shape), self.location, seed)

    def elements(self, local: Tensor) -> Tensor:
        return Normal(self.location, self.scale, validate_args=False).log_prob(local)


class MappedNormalPosterior(ElementwisePosterior):
    """Normal(location, scale^2) of a function of every entry, independent of the others."""

    location: Tensor
    scale: Tensor
    #: From the real line to the entries.
    transform: ClassVar[Any]

    @property
    def mean(self) -> Tensor:
        return self._integrate(1)

    @property
    def variance(self) -> Tensor:
        return (self._integrate(2) - self.mean.square()).clamp(min=0)

    def _integrate(self, power: int) -> Tensor:
        """Return the mean of a power of the entries, by Gauss-Hermite quadrature."""
        node, weight = (torch.as_tensor(part).to(self.location) for part in np.polynomial.hermite_e.hermegauss(_NODES))
        value = self.transform(self.location.unsqueeze(-1) + self.scale.unsqueeze(-1) * node) ** power
        return value @ weight / weight.sum()

    def quantiles(self, levels: Sequence[float]) -> Tensor:
        return self.transform(normal_quantiles(self.location, self.scale.square(), levels))

    def sample(self, num_samples: int = 1, *, seed: int = 0) -> Tensor:
        noise = _draw_noise((num_samples, *self.location.shape), self.location, seed)
        return self.transform(self.location + self.scale * noise)

    def elements(self, local: Tensor) -> Tensor:
        free = self.transform.inv(local)
        volume = self.transform.log_abs_det_jacobian(free, local)
        return Normal(self.location, self.scale, validate_args=False).log_prob(free) - volume


@dataclass(frozen=True)
class LogNormalPosterior(MappedNormalPosterior):
    """A normal of the logarithm of every entry."""

    location: Annotated[Tensor, "*"]
    scale: Annotated[Tensor, "*", "positive"]

    transform = ExpTransform()


@dataclass(frozen=True)
class LogitNormalPosterior(MappedNormalPosterior):
    """A normal of the logit of every entry."""

    location: Annotated[Tensor, "*"]
    scale: Annotated[Tensor, "*", "positive"]

    transform = SigmoidTransform()


@dataclass(frozen=True)
class JointNormalPosterior(ContinuousPosterior):
    """One normal of all entries of a site together: covariance (M, M) of its M entries in order."""

    joint = True

    location: Annotated[Tensor, "*"]
    covariance: Annotated[Tensor, "mm", "covariances"]

    def __post_init__(self) -> None:
        if len(self.covariance) != self.location.numel():
            shape = tuple(self.covariance.shape)
            raise ValueError(f"a covariance of shape {shape} of {self.location.numel()} entries")

    @property
    def mean(self) -> Tensor:
        return self.location

    @property
    def variance(self) -> Tensor:
        return self.covariance.diagonal().reshape(self.location.shape)

    def quantiles(self, levels: Sequence[float]) -> Tensor:
        return normal_quantiles(self.mean, self.variance, levels)

    def sample(self, num_samples: int = 1, *, seed: int = 0) -> Tensor:
        noise = _draw_noise((num_samples, len(self.covariance)), self.location, seed)
        return self.location + (noise @ torch.linalg.cholesky(self.covariance).mT).reshape(-1, *self.location.shape)

    def log_prob(self, local: Tensor) -> Tensor:
        """Return the log density of all entries together, (1,)."""
        normal = MultivariateNormal(self.location.reshape(-1), self.covariance, validate_args=False)
        return normal.log_prob(local.reshape(-1)).reshape(1)


@dataclass(frozen=True)
class GridPosterior(ElementwisePosterior):
    """A density of every entry that is known at points: value (..., G) in rising order, log_density (..., G) there,
    taken as linear between them, and log_weight (..., G), the probabilities of what is nearest to each."""

    value: Annotated[Tensor, "*g"]
    log_density: Annotated[Tensor, "*g"]
    log_weight: Annotated[Tensor, "*g", "log_weights"]

    def expect(self, values: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the means of what a function has at the points, (..., G)."""
        return (self.log_weight.exp() * values).sum(-1)

    @property
    def mean(self) -> Tensor:
        return self.expect(self.value)

    @property
    def variance(self) -> Tensor:
        return self.expect((self.value - self.mean.unsqueeze(-1)).square())

    @property
    def mode(self) -> Tensor:
        return self.value.gather(-1, self.log_density.argmax(-1, keepdim=True))[..., 0]

    def quantiles(self, levels: Sequence[float]) -> Tensor:
        wanted = torch.as_tensor(list(levels)).to(self.value)
        return self._invert(wanted.expand(*self.mean.shape, -1)).movedim(-1, 0)

    def sample(self, num_samples: int = 1, *, seed: int = 0) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        uniform = torch.rand((*self.mean.shape, num_samples), generator=generator, dtype=torch.float64)
        return self._invert(uniform.to(self.value)).movedim(-1, 0)

    def _invert(self, share: Tensor) -> Tensor:
        """Return the values (..., S) below which so much (..., S) of the probability lies: linear between the points,
        up to each of which is half of its own probability and all of those before."""
        weight = self.log_weight.exp()
        below = (weight.cumsum(-1) - weight / 2).contiguous()
        place = torch.searchsorted(below, share.contiguous()).clamp(1, weight.shape[-1] - 1)
        low, high = below.gather(-1, place - 1), below.gather(-1, place)
        part = ((share - low) / (high - low).clamp(min=torch.finfo(share.dtype).tiny)).clamp(0, 1)
        first, second = self.value.gather(-1, place - 1), self.value.gather(-1, place)
        return first + part * (second - first)

    def elements(self, local: Tensor) -> Tensor:
        place = torch.searchsorted(self.value.contiguous(), local.unsqueeze(-1).contiguous())
        place = place.clamp(1, self.value.shape[-1] - 1)
        (first, second), (low, high) = (
            (side.gather(-1, place - 1)[..., 0], side.gather(-1, place)[..., 0])
            for side in (self.value, self.log_density)
        )
        part = (local - first) / (second - first)
        outside = (part < 0) | (part > 1)
        return torch.where(outside, -torch.inf, low + part * (high - low))


def _draw_noise(shape: tuple[int, ...], like: Tensor, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(like)
