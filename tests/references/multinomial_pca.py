"""Brute-force references for multinomial PCA (source 002, eqs. 27.11-27.12): LDA as a distribution over counts.

    pi_i ~ Dirichlet(alpha)                    params["topic"] = b (K, V)
    n_i | pi_i ~ Multinomial(L_i, pi_i b)      with its coefficient L_i! / prod_v n_iv!

No project code.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from tests.references import _topics
from tests.references._shared import Array, Maybe, Params, log_joint_of


def log_likelihood(params: Params, x: ArrayLike, local: ArrayLike, mask: Maybe = None) -> Array:
    """log Mu(n_i | L_i, pi_i b), (N,) (eq. 27.11), by SciPy's multinomial."""
    counts = _topics.counts_of(x, mask)
    words = np.asarray(local, dtype=np.float64) @ np.asarray(params["topic"], dtype=np.float64)
    return np.array([stats.multinomial.logpmf(n, n.sum(), p) for n, p in zip(counts, words, strict=True)])


log_joint = log_joint_of(log_likelihood, "topic_proportion")


def log_evidence(params: Params, x: ArrayLike, alpha: ArrayLike, mask: Maybe = None) -> Array:
    """log p(n_i | L_i, b) (eq. 27.12), (N,): the tokens' evidence times the number of their orders."""
    return _topics.log_evidence(params["topic"], x, alpha, mask) + _topics.log_coefficient(x, mask)
