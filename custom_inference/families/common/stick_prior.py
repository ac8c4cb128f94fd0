"""Priors of points on the simplex as densities of their stick-breaking coordinates, with two derivatives."""

from __future__ import annotations

from functools import singledispatch
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, MixtureSameFamily, StickBreakingTransform, TransformedDistribution

from custom_inference.core.posteriors.logistic_normal import Sticks


class StickPrior:
    """The density of stick-breaking coordinates u under a prior of points on the simplex."""

    def __init__(self, prior: Distribution):
        self.prior, self.own = prior, _in_sticks(prior)

    def log_prob(self, u: Tensor, sticks: Sticks) -> Tensor:
        """Compute the log density (...) of coordinates (..., K - 1)."""
        if self.own is not None:
            return self.own.log_prob(u)
        return self.prior.log_prob(sticks.log_share.exp()) + sticks.log_volume

    def derivatives(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the gradient (N, K - 1) and minus the Hessian (N, K - 1, K - 1) at coordinates (N, K - 1)."""
        with torch.enable_grad():
            at = u.detach().requires_grad_()
            value = self.log_prob(at, Sticks.of(at)).sum()
            slope = _gradient(value, at, create_graph=True)
            columns = [_gradient(one.sum(), at, retain_graph=True) for one in slope.unbind(-1)]
        bend = torch.stack([*columns], -1) if columns else u.new_zeros(*u.shape, 0)
        return slope.detach(), -(bend + bend.mT) / 2


def _gradient(value: Tensor, at: Tensor, **settings: Any) -> Tensor:
    """Differentiate; zeros for what does not depend on ``at``: the Hessian of a linear function."""
    if not value.requires_grad:
        return torch.zeros_like(at)
    found = torch.autograd.grad(value, at, allow_unused=True, materialize_grads=True, **settings)[0]
    return found if settings.get("create_graph") else found.detach()


@singledispatch
def _in_sticks(prior: Distribution) -> Distribution | None:
    """Return the distribution of the coordinates, where a prior is stated by it; None for others."""
    del prior
    return None


@_in_sticks.register
def _(prior: MixtureSameFamily) -> Distribution | None:
    part = _in_sticks(prior.component_distribution)
    return None if part is None else MixtureSameFamily(prior.mixture_distribution, part, validate_args=False)


@_in_sticks.register
def _(prior: TransformedDistribution) -> Distribution | None:
    if not isinstance(prior.transforms[-1], StickBreakingTransform):
        return None
    before = prior.transforms[:-1]
    return TransformedDistribution(prior.base_dist, before, validate_args=False) if before else prior.base_dist
