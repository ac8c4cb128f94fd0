"""What the references of mixtures share: sums over the class of each row. No project code."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logsumexp

from tests.references._shared import Array


def evidence(table: Array) -> Array:
    """log sum_k exp(table_nk), (N,)."""
    return np.asarray(logsumexp(table, axis=1))


def posterior(table: Array) -> Array:
    """P(class k | row n), (N, K)."""
    return np.exp(table - np.asarray(logsumexp(table, axis=1, keepdims=True)))


def chosen(table: Array, component: ArrayLike) -> float:
    """Sum over the rows at the classes of ``component``, one-hot (N, K)."""
    return float(table[np.arange(len(table)), np.asarray(component).argmax(1)].sum())


def proportions(weights: ArrayLike, concentration: ArrayLike = 1.0) -> Array:
    """pi_k = (sum_n r_nk + alpha_k - 1) / (the same summed over k)."""
    share = np.asarray(weights, dtype=np.float64).sum(0) + np.asarray(concentration) - 1.0
    return share / share.sum()
