"""Brute-force references for categorical PCA (002, eq. 27.7). Written from the mathematics alone. No project code.

    x_nr | s_n ~ Cat(softmax over c < C_r of b_rc + sum_k s_nk w_krc)

params: weight (K, D, C), bias (D, C). A category c >= C_r is one that feature r lacks; SIZES has C_r of the model's
example, and ``log_likelihood_of(sizes)`` is for others. ``mask``: True where an entry was observed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logsumexp

from tests.references import _pca, _shared
from tests.references._shared import Array, Function, Maybe, Params

SIZES = (3, 2, 4, 3)


def log_likelihood_of(sizes: Sequence[int]) -> Function:
    """log p(x_n | s_n) (N,) as a function of (params, x, score, mask), where feature r has sizes[r] categories."""

    def log_likelihood(params: Params, x: ArrayLike, score: ArrayLike, mask: Maybe = None) -> Array:
        eta, x, seen = _pca.natural(params, score), _shared.filled(x, mask).astype(int), _shared.observed(x, mask)
        total = np.zeros(len(x))
        for r, size in enumerate(sizes):
            own = eta[:, r, :size]
            total_odds = np.asarray(logsumexp(own, axis=1))
            terms = np.take_along_axis(own, np.minimum(x[:, r : r + 1], size - 1), 1)[:, 0] - total_odds
            total += np.where(seen[:, r], terms, 0.0)
        return total

    return log_likelihood


log_likelihood = log_likelihood_of(SIZES)
log_joint = _shared.log_joint_of(log_likelihood, "score", ("normal", 0.0, 1.0))
log_evidence, posterior_moments = _pca.by_grid(log_likelihood)
