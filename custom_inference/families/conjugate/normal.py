"""Normal priors of real numbers, independent of each other."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from custom_inference.families.conjugate.pair import Pair, conjugate_prior
from ppl_models import Model, PriorError
from ppl_models.distributions import Flat


@dataclass(frozen=True)
class Normal(Pair):
    """The law Normal(mean, 1 / precision) of every element; flat where the precision is 0. Functions of vectors, which
    lie along the last axis, sum over it."""

    mean: Tensor
    precision: Tensor

    @classmethod
    def of(cls, model: Model, site: str, shape: tuple[int, ...], like: Tensor) -> Self:
        """Read a Normal or flat prior, in this shape. Raises PriorError for any other prior."""
        if isinstance(model.priors[site], Flat):
            return cls(like.new_zeros(shape), like.new_zeros(shape))
        prior = conjugate_prior(model, site, torch.distributions.Normal)
        return cls(prior.loc.to(like).expand(shape), prior.scale.to(like).pow(-2).expand(shape))

    @property
    def is_proper(self) -> bool:
        """Whether no element is flat."""
        return bool((self.precision > 0).all())

    def is_central(self, axis: int) -> bool:
        """Tell whether all means are 0, and the precisions the same along an axis: turns of its vectors change
        nothing."""
        return bool((self.mean == 0).all() and (self.precision == self.precision.narrow(axis, 0, 1)).all())

    def require_proper(self, site: str) -> None:
        """Raise PriorError for a flat prior: what is integrated out needs one that integrates."""
        if not self.is_proper:
            problem = f"the prior of '{site}' is flat, so that it cannot be integrated out"
            raise PriorError(f'{problem}; use guide="map" for it')

    def log_constant(self) -> Tensor:
        """Compute what the log density of vectors has beside its squares; nothing of flat elements."""
        proper = self.precision > 0
        log = torch.log(self.precision.where(proper, 1.0) / (2 * math.pi))
        return 0.5 * torch.where(proper, log, 0.0).sum(-1)

    def log_kernel(self, value: Tensor) -> Tensor:
        """Compute the log density of vectors without ``log_constant``."""
        return -0.5 * ((value - self.mean).square() * self.precision).sum(-1)

    def kl_of(self, mean: Tensor, covariance: Tensor, log_det: Tensor) -> Tensor:
        """Compute KL(Normal(mean, covariance) || self) of vectors; log_det: log|covariance|."""
        trace = (covariance.diagonal(dim1=-2, dim2=-1) * self.precision).sum(-1)
        rest = self.precision.log().sum(-1) + self.precision.shape[-1] - trace
        return -self.log_kernel(mean) - 0.5 * (log_det + rest)
