"""Users or items in place of those of a fit: their rows given their ratings and everything that is known.

With loadings a_j, offsets o_j and a prior Normal(m, P^-1) of the rows, Gaussian ratings give

    V^-1 = P + sum_j h_j a_j a_j' / sigma^2,    V^-1 m' = P m + sum_j h_j (r_j - o_j) a_j / sigma^2,

and others the same with the quadratics of ``outcomes`` in place of the squares, which take turns with the rows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from custom_inference.families.ratings.outcomes import quadratic, terms
from custom_inference.families.ratings.rows import RatingRows
from ppl_models import PMF

#: Turns of bounds and rows.
_TURNS = 8


class Rows(NamedTuple):
    """Gaussian rows: mean (N, C), covariance (N, C, C) or None where they are drawn."""

    mean: Tensor
    covariance: Tensor | None


def conditional(
    model: PMF,
    at: Any,
    rows: RatingRows,
    loading: Tensor,
    offset: Tensor,
    mean: Tensor,
    covariance: Tensor,
    users: bool,
) -> Rows:
    """Rows given their ratings; users: whether these are rows of users, whose items have precisions of their own."""
    if model.likelihood != "gaussian":
        return _bounded(model, at, rows, loading, offset, mean, covariance)
    size, precision = loading.shape[1], torch.linalg.inv(covariance)
    weight = at["scale"].pow(-2) * (at["item_precision"] if users and "item_precision" in at else 1.0)
    weight = torch.as_tensor(weight).expand(len(loading)).unsqueeze(1)
    gram = rows.of_users(weight * (loading[:, :, None] * loading[:, None, :]).flatten(1)).unflatten(1, (size, size))
    right = rows.rated_of_users(weight * loading) - rows.of_users(weight * loading * offset[:, None])
    found = torch.linalg.inv(gram + precision)
    return Rows((found @ (right + mean @ precision).unsqueeze(-1)).squeeze(-1), 0.5 * (found + found.mT))


def _bounded(
    model: PMF, at: Any, rows: RatingRows, loading: Tensor, offset: Tensor, mean: Tensor, covariance: Tensor
) -> Rows:
    """Of ratings that are not Gaussian, by the bound, which is the best at its own posterior."""
    user, item, value = rows.listed()
    bound, sign = terms(value.cpu().double().numpy(), model.levels)
    scale = float(at["scale"]) if "scale" in at else 1.0
    a, size, precision = loading[item], loading.shape[1], torch.linalg.inv(covariance)
    prior = mean.expand(len(rows), size)
    found = Rows(prior, covariance.expand(len(rows), size, size))
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
        found = Rows((inverse @ right.unsqueeze(-1)).squeeze(-1), inverse)
    return found
