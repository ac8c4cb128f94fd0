"""Brute-force references for the user rating profile model (source 002, eq. 27.14). No project code.

    pi_n ~ Dirichlet(alpha)                                local site, (N, K)
    y_nr | pi_n ~ Categorical(sum_k pi_nk b_k^(r))         params["response"]  (K, R, C)

The evidence expands the product over the responses into sums over the profile of each: every one of the K^R
assignments has Dirichlet-multinomial probability (eq. 27.34 without its coefficient for one row).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logsumexp

from tests.references import _shared
from tests.references._shared import Array, Labels, Maybe, Params


def log_likelihood(params: Params, x: ArrayLike, membership: ArrayLike, mask: Maybe = None) -> Array:
    """log p(y_n | pi_n) = sum_r log sum_k pi_nk b_k^(r)_{y_nr}, (N,)."""
    seen, y, pi = _shared.observed(x, mask), np.asarray(x), np.asarray(membership, dtype=np.float64)
    total = np.zeros(len(y))
    for n, r in zip(*seen.nonzero(), strict=True):
        total[n] += np.log(pi[n] @ params["response"][:, r, int(y[n, r])])
    return total


log_joint = _shared.log_joint_of(log_likelihood, "membership")


def _tables(params: Params, x: ArrayLike, mask: Maybe, alpha: ArrayLike) -> list[tuple[Labels, Array]]:
    """Of every row, the counts (M, K) of all assignments of profiles to its responses, and log p(y, z) (M,)."""
    size, tables = len(params["response"]), []
    for row, seen in zip(np.asarray(x), _shared.observed(x, mask), strict=True):
        features = np.flatnonzero(seen)
        every = _shared.assignments(size, len(features))
        counts = _shared.counts_of_values(every, size)
        emission = np.log(params["response"][every, features, row[features].astype(int)]).sum(1)
        tables.append((counts, emission + _shared.log_dirichlet_moment(counts, alpha)))
    return tables


def log_evidence(params: Params, x: ArrayLike, mask: Maybe = None, concentration: ArrayLike = 0.3) -> Array:
    """log p(y_n), (N,)."""
    return np.array([logsumexp(logs) for _, logs in _tables(params, x, mask, concentration)])


def posterior_mean(params: Params, x: ArrayLike, mask: Maybe = None, concentration: ArrayLike = 0.3) -> Array:
    """E[pi_n | y_n] (N, K): the mean over the assignments of (alpha + counts) / (sum alpha + responses)."""
    return np.array(
        [_shared.mean_given_counts(logs, c, concentration) for c, logs in _tables(params, x, mask, concentration)]
    )
