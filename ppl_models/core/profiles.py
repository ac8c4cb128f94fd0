"""Priors of profiles: a bias and factors as one vector (f_n, u_n) with a joint prior (Murphy 2012, eq. 27.90)."""

from __future__ import annotations

from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor

from ppl_models.distributions import InverseRootGamma, InverseWishart, SideBySide


def profile_hyper_priors(size: int, biases: bool, unit: float = 1.0) -> dict[str, Any]:
    """Return priors of a Gaussian with learned mean and full covariance on the profiles of both sides, of ``size``
    entries (Murphy 2012, eq. 27.90): Sigma ~ InverseWishart(size, .3 size D^2), m ~ Normal(0, Sigma), and scale^-2 ~
    Gamma(1, unit^2).

    D is diagonal with the unit of each entry: that of the ratings, or 1 of the factors of users.
    """
    user, item = (InverseWishart(float(size), 0.3 * size * torch.diag(one.square()).to(torch.get_default_dtype()))
                  for one in profile_units(size, biases, unit))  # fmt: skip
    return {
        "scale": InverseRootGamma(1.0, unit**2),
        "user_covariance": user,
        "item_covariance": item,
        "user_mean": _user_mean,
        "item_mean": _item_mean,
        **({"item": _factors_beside, "item_bias": _bias_beside} if biases else {"item": _factors}),
    }


def profile_units(size: int, biases: bool, unit: float) -> tuple[Tensor, Tensor]:
    """Return the unit of each entry of the rows of users and of items, (size,) each, in double precision: biases and
    the factors of items have that of the ratings, the factors of users 1."""
    user, item = torch.ones(size, dtype=torch.float64), torch.full((size,), unit, dtype=torch.float64)
    if biases:
        user[0] = unit
    return user, item


def profile_prior(bias: Any, factors: Any) -> Any:
    """Return the prior of (f_n, u_n) whose parts have these, one normal where both are."""
    base = getattr(factors, "base_dist", None)
    if type(base) is dist.Normal and type(bias) is dist.Normal:
        loc, scale = torch.cat([bias.loc.reshape(1), base.loc]), torch.cat([bias.scale.reshape(1), base.scale])
        return dist.Normal(loc, scale).to_event(1)
    return SideBySide(bias.expand((1,)).to_event(1), factors)


def normal(mean: Tensor, covariance: Tensor) -> Any:
    return dist.MultivariateNormal(mean, scale_tril=torch.linalg.cholesky(covariance))


# Functions of the module, which models with them are pickled by; their arguments name the sites that they depend on.


def _user_mean(user_covariance: Tensor) -> Any:
    return normal(torch.zeros_like(user_covariance[0]), user_covariance)


def values_of_known(value: Tensor, row: Tensor, place: Tensor) -> Tensor:
    """Return value[..., row, place], 0 of rows that it does not have."""
    known = torch.cat([value, torch.zeros_like(value[..., :1, :])], -2)
    return known[..., row.clamp(max=value.shape[-2]), place]


def _item_mean(item_covariance: Tensor) -> Any:
    return normal(torch.zeros_like(item_covariance[0]), item_covariance)


def _factors(item_mean: Tensor, item_covariance: Tensor) -> Any:
    return normal(item_mean, item_covariance)


def _factors_beside(item_mean: Tensor, item_covariance: Tensor) -> Any:
    """Return the marginal of v_j under (g_j, v_j) ~ Normal(m_v, Sigma_v)."""
    return normal(item_mean[1:], item_covariance[1:, 1:])


def _bias_beside(item_mean: Tensor, item_covariance: Tensor, item: Tensor) -> Any:
    """Return the conditional of g_j given v_j."""
    slope = torch.linalg.solve(item_covariance[1:, 1:], item_covariance[1:, 0])
    variance = item_covariance[0, 0] - item_covariance[0, 1:] @ slope
    return dist.Normal(item_mean[0] + (item - item_mean[1:]) @ slope, variance.sqrt())
