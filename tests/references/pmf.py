"""References for probabilistic matrix factorisation (002, eqs. 27.86, 27.90, 27.93). No project code.

    profile_n = (f_n, u_n)                                  local                          (N, K + 1)
    eta_nj = mean + g_j + f_n + u_n' v_j                    params["mean"], ["item_bias"] (I,), ["item"] (I, K)
    x_nj ~ Normal(eta_nj, sigma^2)                          params["scale"]

Given the items a row of observed ratings is jointly Gaussian with the profile: evidence and posterior by dense algebra.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from tests.references import _shared
from tests.references._shared import Array, Maybe, Params

#: Priors of the parts of a profile: f_n and the entries of u_n.
STANDARD = {"user_bias": ("normal", 0.0, 0.5), "user": ("normal", 0.0, 1.0)}


def predictor(params: Params, profile: ArrayLike) -> Array:
    """eta (N, I)."""
    profile = np.asarray(profile, dtype=np.float64)
    fixed = np.asarray(params["mean"]) + np.asarray(params["item_bias"])
    return fixed + profile[:, :1] + profile[:, 1:] @ np.asarray(params["item"]).T


def log_likelihood(params: Params, x: ArrayLike, profile: ArrayLike, mask: Maybe = None) -> Array:
    """log p(x_n | profile_n), (N,)."""
    density = stats.norm.logpdf(_shared.filled(x, mask), predictor(params, profile), float(params["scale"]))
    return np.where(_shared.observed(x, mask), density, 0.0).sum(1)


def log_joint(params: Params, x: ArrayLike, local: ArrayLike, mask: Maybe = None, priors: Any = None) -> float:
    """log p(globals) + sum_n log p(f_n) + log p(u_n) + log p(x_n | profile_n); globals without a prior are flat."""
    priors, local = {**STANDARD, **(priors or {})}, np.asarray(local, dtype=np.float64)
    of_parts = _shared.log_density(local[:, 0], priors["user_bias"]) + _shared.log_density(local[:, 1:], priors["user"])
    return float(log_likelihood(params, x, local, mask).sum()) + of_parts + _shared.log_priors(params, priors)


def prior_covariance(size: int) -> Array:
    """Of (f_n, u_n) under the standard priors."""
    return np.diag([STANDARD["user_bias"][2] ** 2, *[STANDARD["user"][2] ** 2] * (size - 1)])


def _of_row(params: Params, keep: Array, mean: Array, covariance: Array) -> tuple[Array, Array, Array]:
    """Loadings (J, K + 1) of the observed items, and mean and covariance of their ratings."""
    loading = np.concatenate([np.ones((len(params["item"]), 1)), np.asarray(params["item"])], 1)[keep]
    centre = (np.asarray(params["mean"]) + np.asarray(params["item_bias"]))[keep] + loading @ mean
    return loading, centre, loading @ covariance @ loading.T + float(params["scale"]) ** 2 * np.eye(len(loading))


def log_evidence(params: Params, x: ArrayLike, mask: Maybe = None, mean: Any = None, covariance: Any = None) -> Array:
    """log p(x_n), (N,): the density of the observed ratings of a row under their joint Gaussian."""
    size = np.shape(params["item"])[1] + 1
    mean = np.zeros(size) if mean is None else np.asarray(mean)
    covariance = prior_covariance(size) if covariance is None else np.asarray(covariance)
    values, seen, found = _shared.filled(x, mask), _shared.observed(x, mask), []
    for row, keep in zip(values, seen, strict=True):
        _, centre, spread = _of_row(params, keep, mean, covariance)
        found.append(stats.multivariate_normal.logpdf(row[keep], centre, spread) if keep.any() else 0.0)
    return np.array(found)


def posterior(params: Params, x: ArrayLike, mask: Maybe = None) -> tuple[Array, Array]:
    """Mean (N, K + 1) and covariance (N, K + 1, K + 1) of the profiles, by conditioning."""
    size = np.shape(params["item"])[1] + 1
    before = prior_covariance(size)
    values, seen, means, covariances = _shared.filled(x, mask), _shared.observed(x, mask), [], []
    for row, keep in zip(values, seen, strict=True):
        loading, centre, spread = _of_row(params, keep, np.zeros(size), before)
        gain = before @ np.linalg.solve(spread, loading).T if keep.any() else np.zeros((size, 0))
        means.append(gain @ (row[keep] - centre))
        covariances.append(before - gain @ loading @ before)
    return np.array(means), np.array(covariances)
