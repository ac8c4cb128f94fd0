"""Brute-force references for Gaussian (probabilistic) PCA. Written from the mathematics alone. No project code.

    x_nj | s_n ~ Normal(b_j + sum_k s_nk w_kj, sigma^2),   so that   x_n ~ Normal(b, W'W + sigma^2 I)

params: weight (K, D), bias (D,), scale () or (D,). ``mask``: True where an entry was observed.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import multivariate_normal, norm

from tests.references import _pca, _shared
from tests.references._shared import Array, Maybe, Params


def log_likelihood(params: Params, x: ArrayLike, score: ArrayLike, mask: Maybe = None) -> Array:
    """log p(x_n | s_n), (N,)."""
    x, seen = _shared.filled(x, mask), _shared.observed(x, mask)
    return np.where(seen, norm.logpdf(x, _pca.natural(params, score), params["scale"]), 0.0).sum(1)


log_joint = _shared.log_joint_of(log_likelihood, "score", ("normal", 0.0, 1.0))


def covariance(params: Params) -> Array:
    """W'W + diag(sigma^2), (D, D)."""
    weight = np.asarray(params["weight"], dtype=np.float64)
    return weight.T @ weight + np.diag(np.broadcast_to(np.square(params["scale"]), weight.shape[1]))


def log_evidence(params: Params, x: ArrayLike, mask: Maybe = None) -> Array:
    """log p(x_n) of the observed entries, (N,)."""
    x, seen, whole, found = np.asarray(x), _shared.observed(x, mask), covariance(params), []
    for row, keep in zip(x, seen, strict=True):
        own = whole[np.ix_(keep, keep)]
        found.append(multivariate_normal.logpdf(row[keep], params["bias"][keep], own) if keep.any() else 0.0)
    return np.array(found)


def posterior_moments(params: Params, x: ArrayLike, mask: Maybe = None) -> tuple[Array, Array]:
    """E[s_n | x_n] (N, K) and Cov (N, K, K), by conditioning the joint Gaussian of (s_n, x_n)."""
    x, seen, whole = np.asarray(x), _shared.observed(x, mask), covariance(params)
    weight, means, covariances = np.asarray(params["weight"], dtype=np.float64), [], []
    for row, keep in zip(x, seen, strict=True):
        gain = weight[:, keep] @ np.linalg.inv(whole[np.ix_(keep, keep)])
        means.append(gain @ (row[keep] - params["bias"][keep]))
        covariances.append(np.eye(len(weight)) - gain @ weight[:, keep].T)
    return np.array(means), np.array(covariances)


def maximum_likelihood(x: ArrayLike, num_components: int) -> tuple[float, Array]:
    """The largest log likelihood of complete data, and the covariance W'W + sigma^2 I there (Tipping & Bishop 1999)."""
    x = np.asarray(x, dtype=np.float64)
    mean = x.mean(0)
    values, vectors = np.linalg.eigh(np.cov(x.T, bias=True))
    values, vectors = values[::-1], vectors[:, ::-1]
    noise = values[num_components:].mean()
    kept = vectors[:, :num_components] * np.sqrt(values[:num_components] - noise)
    best = kept @ kept.T + noise * np.eye(len(values))
    return float(multivariate_normal.logpdf(x, mean, best).sum()), best
