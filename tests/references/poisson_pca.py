"""Brute-force references for Poisson PCA (002, eq. 27.9). Written from the mathematics alone. No project code.

    x_nj | s_n ~ Poisson(exp(o_n + b_j + sum_k s_nk w_kj))

params: weight (K, D), bias (D,). ``offset`` (N,): o, 0 by default. ``mask``: True where an entry was observed.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import gammaln

from tests.references import _pca, _shared
from tests.references._shared import Array, Maybe, Params


def log_likelihood(
    params: Params, x: ArrayLike, score: ArrayLike, mask: Maybe = None, offset: ArrayLike = 0.0
) -> Array:
    """log p(x_n | s_n), (N,)."""
    eta, x, seen = _pca.natural(params, score), _shared.filled(x, mask), _shared.observed(x, mask)
    eta = eta + np.reshape(np.broadcast_to(offset, len(x)), (-1, 1))
    return np.where(seen, x * eta - np.exp(eta) - gammaln(x + 1), 0.0).sum(1)


def log_joint(params, x, score, mask=None, priors=None, offset=0.0) -> float:
    """log p(globals) + sum_n log p(s_n) + sum_n log p(x_n | s_n)."""
    return _shared.log_joint_of(log_likelihood, "score", ("normal", 0.0, 1.0))(params, x, score, mask, priors, offset)


log_evidence, posterior_moments = _pca.by_grid(log_likelihood)


def expected_log_likelihood(params: Params, x: ArrayLike, mean: Array, covariance: Array, mask: Maybe = None) -> Array:
    """E[log p(x_n | s_n)] under N(m_n, V_n), (N,): E[e^eta] = exp(E eta + Var eta / 2) of a lognormal variable."""
    eta, x, seen = _pca.natural(params, mean), _shared.filled(x, mask), _shared.observed(x, mask)
    variance = np.einsum("kj,nkl,lj->nj", params["weight"], covariance, params["weight"])
    return np.where(seen, x * eta - np.exp(eta + variance / 2) - gammaln(x + 1), 0.0).sum(1)
