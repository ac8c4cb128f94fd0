"""Posteriors over globals whose entries are real numbers, or have any prior of single numbers."""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.distributions import ExpTransform, MultivariateNormal, Normal, SigmoidTransform
from torch.distributions.transforms import identity_transform

from custom_inference.core.posteriors.continuous import ElementwisePosterior
from custom_inference.core.posteriors.protocol import ContinuousPosterior, normal_quantiles

#: Nodes of integrals over one normal.
_NODES = 41


class _FreeNormal(ContinuousPosterior):
    """A normal of the entries on the unconstrained scale, of which they are a function."""

    location: Tensor
    #: From the real line to the entries.
    transform: ClassVar[Any] = identity_transform

    @property
    @abc.abstractmethod
    def deviation(self) -> Tensor:
        """The standard deviation of every entry on the unconstrained scale."""

    @property
    def mean(self) -> Tensor:
        return self.location if self.transform is identity_transform else self._integrate(lambda value: value)

    @property
    def variance(self) -> Tensor:
        if self.transform is identity_transform:
            return self.deviation.square()
        mean = self.mean.unsqueeze(-1)
        return self._integrate(lambda value: (value - mean).square())

    def _integrate(self, function: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the mean of a function of every entry, by Gauss-Hermite quadrature."""
        node, weight = (part.to(self.location) for part in gauss_hermite())
        value = self.transform(self.location.unsqueeze(-1) + self.deviation.unsqueeze(-1) * node)
        return function(value) @ weight

    def quantiles(self, levels: Sequence[float]) -> Tensor:
        return self.transform(normal_quantiles(self.location, self.deviation.square(), levels))

    def sample(self, num_samples: int = 1, *, seed: int = 0) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        shape = (num_samples, *self.noise_shape)
        noise = torch.randn(shape, generator=generator, dtype=torch.float64).to(self.location)
        return self.transform(self.location + self.scale_noise(noise))

    @abc.abstractmethod
    def scale_noise(self, noise: Tensor) -> Tensor:
        """Return the deviations (S, *shape) of draws from their means, made of noise."""


@dataclass(frozen=True)
class NormalPosterior(_FreeNormal, ElementwisePosterior):
    """Normal(location, scale^2) of every entry, independent of the others."""

    location: Annotated[Tensor, "*"]
    scale: Annotated[Tensor, "*", "positive"]

    @property
    def deviation(self) -> Tensor:
        return self.scale

    def scale_noise(self, noise: Tensor) -> Tensor:
        return self.scale * noise

    def elements(self, local: Tensor) -> Tensor:
        free = self.transform.inv(local)
        volume = self.transform.log_abs_det_jacobian(free, local)
        return Normal(self.location, self.scale, validate_args=False).log_prob(free) - volume


class LogNormalPosterior(NormalPosterior):
    """A normal of the logarithm of every entry."""

    transform = ExpTransform()


class LogitNormalPosterior(NormalPosterior):
    """A normal of the logit of every entry."""

    transform = SigmoidTransform()


@dataclass(frozen=True)
class JointNormalPosterior(_FreeNormal):
    """One normal of all entries of a site together, and of those of other sites.

    location + root noise, with noise of L independent standard normals, which all sites of a fit have in common: root
    (M, L) has a row for each of the site's M entries in order.
    """

    joint = True
    drawn_together = True

    location: Annotated[Tensor, "*"]
    root: Annotated[Tensor, "ml"]

    def __post_init__(self) -> None:
        if len(self.root) != self.location.numel() or self.root.shape[1] < len(self.root):
            raise ValueError(f"a root of shape {tuple(self.root.shape)} of {self.location.numel()} entries")

    @property
    def deviation(self) -> Tensor:
        return self.root.square().sum(-1).sqrt().reshape(self.location.shape)

    @property
    def noise_shape(self) -> tuple[int, ...]:
        return (self.root.shape[1],)

    def scale_noise(self, noise: Tensor) -> Tensor:
        return (noise @ self.root.mT).reshape(-1, *self.location.shape)

    @property
    def factor(self) -> Tensor:
        """The Cholesky factor (M, M) of the covariance of the site's entries, which may nearly be singular."""
        factor = torch.linalg.qr(self.root.mT, mode="r")[1].mT
        return factor * factor.diagonal().sign()

    def log_prob(self, local: Tensor) -> Tensor:
        """Return the log density of all entries together, (1,)."""
        free = self.transform.inv(local)
        volume = self.transform.log_abs_det_jacobian(free, local).sum()
        normal = MultivariateNormal(self.location.reshape(-1), scale_tril=self.factor, validate_args=False)
        return (normal.log_prob(free.reshape(-1)) - volume).reshape(1)


class JointLogNormalPosterior(JointNormalPosterior):
    """One normal of the logarithms of all entries of a site together, and of those of other sites."""

    transform = ExpTransform()


class JointLogitNormalPosterior(JointNormalPosterior):
    """One normal of the logits of all entries of a site together, and of those of other sites."""

    transform = SigmoidTransform()


def log_density_of(posteriors: Mapping[str, ContinuousPosterior], values: Mapping[str, Tensor]) -> float:
    """Return the log density of values of several sites: of those that are drawn together, their joint one."""
    together: dict[str, Any] = {site: q for site, q in posteriors.items() if q.drawn_together}
    total = sum(float(q.log_prob(values[site]).sum()) for site, q in posteriors.items() if site not in together)
    if together:
        free = {site: q.transform.inv(values[site]) for site, q in together.items()}
        away = torch.cat([(free[site] - q.location).reshape(-1) for site, q in together.items()])
        whole = JointNormalPosterior(torch.zeros_like(away), torch.cat([q.root for q in together.values()]))
        volume = [q.transform.log_abs_det_jacobian(free[site], values[site]).sum() for site, q in together.items()]
        total += float(whole.log_prob(away)) - float(sum(volume))
    return total


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


@functools.cache
def gauss_hermite() -> tuple[Tensor, Tensor]:
    """Return nodes and weights (nodes,) of means over a standard normal."""
    node, weight = (torch.as_tensor(part) for part in np.polynomial.hermite_e.hermegauss(_NODES))
    return node, weight / weight.sum()
