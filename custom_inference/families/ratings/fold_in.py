"""Users or items in place of those of a fit: their rows given their ratings and everything that is known.

With loadings a_j, offsets o_j and a prior Normal(m, P^-1) of the rows, Gaussian ratings give

    V^-1 = P + sum_j h_j a_j a_j' / sigma^2,    V^-1 m' = P m + sum_j h_j (r_j - o_j) a_j / sigma^2,

and others the same with the quadratics of ``outcomes`` in place of the squares, which take turns with the rows. Where
noise varies, gains a_n of the rows take turns with them too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from custom_inference.core.local_inference import Local
from custom_inference.core.posteriors import GaussianPosterior
from custom_inference.core.states import Params
from custom_inference.families.ratings.outcomes import quadratic, terms
from custom_inference.families.ratings.rows import RatingRows
from custom_inference.families.ratings.times import without_time
from ppl_models import PMF, Data

#: Turns of bounds and rows.
_TURNS = 8
#: Turns of rows and gains, at most, until gains change by less.
_MOST, _SETTLED = 100, 1e-9


class ProfileRows(NamedTuple):
    """Gaussian rows: mean (N, C), covariance (N, C, C) or None where they are drawn."""

    mean: Tensor
    covariance: Tensor | None


def conditional(
    model: PMF,
    at: Mapping[str, Tensor],
    rows: RatingRows,
    loading: Tensor,
    offset: Tensor,
    mean: Tensor,
    covariance: Tensor,
    gains: Tensor | None,
) -> ProfileRows:
    """Return rows given their ratings; gains: those of the other side, by which precisions of its ratings are
    multiplied; None: 1. Where noise varies, the rows have gains of their own as well."""
    if model.likelihood != "gaussian":
        return _variational_posterior(model, at, rows, loading, offset, mean, covariance)
    sums = _sums(at, rows, loading, offset - rows.centre, gains)
    if model.noise_shape is not None:
        return _with_gains(model.noise_shape, rows, sums, mean, covariance)
    return _gaussian_posterior(*sums[:2], mean, covariance)


def _gaussian_posterior(gram: Tensor, right: Tensor, mean: Tensor, covariance: Tensor) -> ProfileRows:
    precision = torch.linalg.inv(covariance)
    found = torch.linalg.inv(gram + precision)
    return ProfileRows((found @ (right + mean @ precision).unsqueeze(-1)).squeeze(-1), 0.5 * (found + found.mT))


def _sums(
    at: Mapping[str, Tensor], rows: RatingRows, loading: Tensor, offset: Tensor, gains: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute sum h a a' (N, C, C), sum h a (r - o) (N, C) and sum h (r - o)^2 (N,) over the ratings of rows, by
    sigma^2."""
    size = loading.shape[1]
    each = at["scale"].pow(-2) * (1.0 if gains is None else gains)
    weight = torch.as_tensor(each).expand(len(loading)).unsqueeze(1)
    gram = rows.of_users(weight * (loading[:, :, None] * loading[:, None, :]).flatten(1)).unflatten(1, (size, size))
    right = rows.sum_ratings_by_user(weight * loading) - rows.of_users(weight * loading * offset[:, None])
    user, item, value = rows.list_ratings()
    square = weight[item, 0] * (value - offset[item]).square()
    return gram, right, torch.zeros_like(right[:, 0]).index_add_(0, user, square)


def profiles_given(model: PMF, params: Params, data: Data, family: str) -> Local:
    """Infer the Gaussian posterior of users' profiles at given globals: exact of Gaussian ratings, where noise does not
    vary between users; else of the bounds of ``outcomes``, or with q(p_n) q(a_n) for the noise."""
    rows = RatingRows.of(without_time(model, params, data), model.units[0])
    prior = model.prior(model.local_site, like=params["item"], values=params)
    loading, offset = model.coefficients(params, data.others.get("item_covariates"))
    none = torch.zeros(len(data), loading.shape[1]).to(loading)
    moved = model.profiles(params, none, data.others.get("user_covariates"))
    mean, covariance = prior.mean + moved, prior_covariance(prior)
    found = conditional(model, params, rows, loading, offset, mean, covariance, params.get("item_precision"))
    assert found.covariance is not None
    posterior = GaussianPosterior(found.mean - moved, found.covariance)
    return Local(posterior, torch.full_like(found.mean[:, 0], torch.nan), what="variational", family=family)


def _with_gains(
    shape: float, rows: RatingRows, sums: tuple[Tensor, Tensor, Tensor], mean: Tensor, covariance: Tensor
) -> ProfileRows:
    """Update q(p_n) and q(a_n) = Gamma(s + n / 2, s + E[sum h (r - o - a'p)^2] / 2 sigma^2) by turns."""
    (gram, right, square), count, gain = sums, rows.count, torch.ones_like(sums[2])
    for _ in range(_MOST):
        found, before = _gaussian_posterior(gain[:, None, None] * gram, gain[:, None] * right, mean, covariance), gain
        assert found.covariance is not None
        moment = found.covariance + found.mean[:, :, None] * found.mean[:, None, :]
        error = square - 2 * (right * found.mean).sum(1) + (gram * moment).sum((1, 2))
        gain = (shape + 0.5 * count) / (shape + 0.5 * error)
        if float((gain - before).abs().max()) < _SETTLED:
            break
    return found


def prior_covariance(prior: torch.distributions.Distribution) -> Tensor:
    found = getattr(prior, "covariance_matrix", None)
    return torch.diag(prior.variance) if found is None else found


def _variational_posterior(
    model: PMF,
    at: Mapping[str, Tensor],
    rows: RatingRows,
    loading: Tensor,
    offset: Tensor,
    mean: Tensor,
    covariance: Tensor,
) -> ProfileRows:
    """Infer profiles from ratings that are not Gaussian, by the bound that is best at its own posterior."""
    user, item, value = rows.list_ratings()
    bound, sign = terms((value + rows.centre).round().cpu().double().numpy(), model.levels)
    scale = float(at["scale"]) if "scale" in at else 1.0
    a, size, precision = loading[item], loading.shape[1], torch.linalg.inv(covariance)
    prior = mean.expand(len(rows), size)
    found = ProfileRows(prior, covariance.expand(len(rows), size, size))
    for _ in range(_TURNS):
        assert found.covariance is not None
        eta = (found.mean[user] * a).sum(-1) + offset[item]
        spread = torch.einsum("mi,mij,mj->m", a, found.covariance[user], a)
        each = quadratic(*(one.cpu().double().numpy() for one in (eta, spread)), bound, sign, scale)
        weight, linear = (torch.as_tensor(one).to(a) for one in each)
        pairs = weight[:, None, None] * a[:, :, None] * a[:, None, :]
        gram = pairs.new_zeros(len(rows), size, size).index_add_(0, user, pairs)
        pull = (linear - weight * offset[item])[:, None] * a
        right = pull.new_zeros(len(rows), size).index_add_(0, user, pull) + prior @ precision
        inverse = torch.linalg.inv(gram + precision)
        inverse = 0.5 * (inverse + inverse.mT)
        found = ProfileRows((inverse @ right.unsqueeze(-1)).squeeze(-1), inverse)
    return found
