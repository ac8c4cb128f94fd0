"""Brute-force references for nonnegative matrix factorisation under the Kullback-Leibler divergence: the program of
gamma-Poisson factor analysis under flat priors (source 002, section 27.2.4). No project code.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import kl_div

from tests.references import _shared, gamma_poisson
from tests.references._shared import Array

log_likelihood = gamma_poisson.log_likelihood
log_joint = _shared.log_joint_of(log_likelihood, "activation")


def divergence(x: ArrayLike, activation: ArrayLike, loading: ArrayLike) -> float:
    """sum_nv [x log(x / y) - x + y], y = z b."""
    return float(kl_div(np.asarray(x, dtype=np.float64), np.asarray(activation) @ np.asarray(loading)).sum())


def multiplicative_update(x: ArrayLike, activation: Array, loading: Array) -> tuple[Array, Array]:
    """One update of the activations, then of the loadings (Lee & Seung 2001, theorem 2)."""
    x = np.asarray(x, dtype=np.float64)
    activation = activation * ((x / (activation @ loading)) @ loading.T) / loading.sum(1)
    loading = loading * (activation.T @ (x / (activation @ loading))) / activation.sum(0)[:, None]
    return activation, loading
