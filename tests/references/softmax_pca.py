"""Brute-force references for softmax PCA (002, eq. 27.6). Written from the mathematics alone. No project code.

    log p(tokens of n | s_n) = sum_v x_nv eta_nv - L_n log sum_v e^eta_nv,   eta_n = b + sum_k s_nk w_k

params: weight (K, V), bias (V,). Tokens of masked entries are left out of their documents.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logsumexp

from tests.references import _pca, _shared
from tests.references._shared import Array, Maybe, Params


def log_likelihood(params: Params, x: ArrayLike, score: ArrayLike, mask: Maybe = None) -> Array:
    """log p(x_n | s_n), (N,)."""
    eta, x = _pca.natural(params, score), _shared.filled(x, mask)
    return (x * eta).sum(1) - x.sum(1) * np.asarray(logsumexp(eta, axis=1))


log_joint = _shared.log_joint_of(log_likelihood, "score", ("normal", 0.0, 1.0))
log_evidence, posterior_moments = _pca.by_grid(log_likelihood)
