"""Brute-force references for the user rating profile model (source 002, eq. 27.14). No project code.

    pi_n ~ Dirichlet(alpha)                                local site, (N, K)
    y_nr | pi_n ~ Categorical(sum_k pi_nk b_k^(r))         params["response"]  (K, R, C)

The evidence expands the product over the responses into sums over the profile of each: every one of the K^R
assignments has Dirichlet-multinomial probability (eq. 27.34 without its coefficient for one row).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import gammaln, logsumexp

from tests.references._shared import Array, Params, Prior, log_density, log_priors, observed


def log_joint(
    params: Params,
    x: ArrayLike,
    membership: ArrayLike,
    mask: ArrayLike | None = None,
    priors: Mapping[str, Prior] | None = None,
) -> float:
    """log p(globals) + sum_n log p(pi_n) + sum_n sum_r log sum_k pi_nk b_k^(r)_{y_nr}."""
    seen, y, pi = observed(x, mask), np.asarray(x), np.asarray(membership, dtype=np.float64)
    total = log_priors(params, priors)
    if priors is not None and "membership" in priors:
        total += log_density(pi, priors["membership"])
    for n, r in zip(*seen.nonzero(), strict=True):
        total += float(np.log(pi[n] @ params["response"][:, r, int(y[n, r])]))
    return total


def _assignments(params: Params, row: Array, seen: Array, alpha: Array) -> tuple[list[tuple[int, ...]], Array]:
    """Every assignment of profiles to the observed responses of one row, and log p(y, assignment)."""
    features, size = np.flatnonzero(seen), len(alpha)
    every = list(itertools.product(range(size), repeat=len(features)))
    logs = np.empty(len(every))
    for i, profiles in enumerate(every):
        counts = np.bincount(profiles, minlength=size)
        logs[i] = (
            gammaln(alpha.sum())
            - gammaln(alpha.sum() + len(features))
            + (gammaln(alpha + counts) - gammaln(alpha)).sum()
        )
        logs[i] += sum(np.log(params["response"][k, r, int(row[r])]) for k, r in zip(profiles, features, strict=True))
    return every, logs


def log_evidence(params: Params, x: ArrayLike, mask: ArrayLike | None = None, concentration: ArrayLike = 0.3) -> Array:
    """log p(y_n), (N,)."""
    seen, y = observed(x, mask), np.asarray(x)
    alpha = np.broadcast_to(np.asarray(concentration, dtype=np.float64), (len(params["response"]),))
    return np.array([logsumexp(_assignments(params, row, s, alpha)[1]) for row, s in zip(y, seen, strict=True)])


def posterior_mean(
    params: Params, x: ArrayLike, mask: ArrayLike | None = None, concentration: ArrayLike = 0.3
) -> Array:
    """E[pi_n | y_n] (N, K): the mean over the assignments of (alpha + counts) / (sum alpha + responses)."""
    seen, y = observed(x, mask), np.asarray(x)
    size = len(params["response"])
    alpha = np.broadcast_to(np.asarray(concentration, dtype=np.float64), (size,))
    means = np.empty((len(y), size))
    for n, (row, s) in enumerate(zip(y, seen, strict=True)):
        every, logs = _assignments(params, row, s, alpha)
        weight = np.exp(logs - logsumexp(logs))
        counts = np.array([np.bincount(profiles, minlength=size) for profiles in every])
        means[n] = weight @ (alpha + counts) / (alpha.sum() + s.sum())
    return means
