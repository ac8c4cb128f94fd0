"""Brute-force references for bilinear factors of clicks (source 002, eq. 27.94, through a sigmoid). No project code.

    user_u ~ Normal(0, I_K);  a_u = W'x_u + user_u,  b_v = V'z_v + item_v;  R(u, v) ~ Bernoulli(sigmoid(a_u'b_v))

    params["item"] (I, K),  params["item_weight"] = V (Q, K),  params["user_weight"] = W (P, K)

x (U, I), user (U, K); ``mask`` (U, I) is True where an entry was observed. Features that are not given are a constant 1
followed by zeros.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logsumexp

from tests.references import _shared
from tests.references._shared import Array, Maybe, Params, Priors


def features(value: Maybe, rows: int, columns: int) -> Array:
    """Those given, (rows, columns), or 1 and zeros."""
    if value is not None:
        return np.asarray(value, dtype=np.float64)
    return np.tile(np.eye(1, columns), (rows, 1))


def log_odds(params: Params, user: ArrayLike, user_covariates: Maybe = None, item_covariates: Maybe = None) -> Array:
    """a_u'b_v, (U, I)."""
    user, item = (np.asarray(value, dtype=np.float64) for value in (user, params["item"]))
    none = np.zeros((0, item.shape[1]))
    w, v = (np.asarray(params.get(f"{side}_weight", none), dtype=np.float64) for side in ("user", "item"))
    x, z = features(user_covariates, len(user), len(w)), features(item_covariates, len(item), len(v))
    return (x @ w + user) @ (z @ v + item).T


def log_likelihood(
    params: Params, x: ArrayLike, user: ArrayLike, mask: Maybe = None, user_covariates: Maybe = None,
    item_covariates: Maybe = None,
) -> Array:  # fmt: skip
    """log p(x_u | user_u), (U,)."""
    theta = log_odds(params, user, user_covariates, item_covariates)
    each = _shared.filled(x, mask) * theta - np.logaddexp(0.0, theta)
    return np.where(_shared.observed(x, mask), each, 0.0).sum(1)


def log_joint(
    params: Params, x: ArrayLike, user: ArrayLike, mask: Maybe = None, priors: Priors = None,
    user_covariates: Maybe = None, item_covariates: Maybe = None,
) -> float:  # fmt: skip
    """log p(globals) + sum_u log p(user_u) + sum_u log p(x_u | user_u); a global that ``priors`` leaves out is flat."""
    return _joint(params, x, user, mask, priors, user_covariates, item_covariates)


_joint = _shared.log_joint_of(log_likelihood, "user", ("normal", 0.0, 1.0))


def log_evidence_hermite(
    params: Params, x: ArrayLike, mask: Maybe = None, user_covariates: Maybe = None, item_covariates: Maybe = None,
    points: int = 50,
) -> Array:  # fmt: skip
    """log p(x_u) with the user's own factor integrated out by a Gauss-Hermite product rule, (U,); K = 1 or 2."""
    return np.asarray(logsumexp(_table(params, x, mask, user_covariates, item_covariates, points)[1], axis=1))


def posterior_mean_hermite(
    params: Params, x: ArrayLike, mask: Maybe = None, user_covariates: Maybe = None, item_covariates: Maybe = None,
    points: int = 50,
) -> Array:  # fmt: skip
    """E[user_u | x_u], (U, K), by the same rule."""
    grid, table = _table(params, x, mask, user_covariates, item_covariates, points)
    return np.exp(table - np.asarray(logsumexp(table, axis=1, keepdims=True))) @ grid


def _table(params, x, mask, user_covariates, item_covariates, points) -> tuple[Array, Array]:
    grid, log_weight = _shared.hermite(np.shape(params["item"])[1], points)
    x = np.asarray(x, dtype=np.float64)
    given = features(user_covariates, len(x), len(params.get("user_weight", ())))
    seen, rows = _shared.observed(x, mask), []
    for n in range(len(x)):
        same = [np.repeat(one[n][None], len(grid), 0) for one in (x, seen, given)]
        rows.append(log_likelihood(params, same[0], grid, same[1], same[2], item_covariates))
    return grid, np.array(rows) + log_weight
