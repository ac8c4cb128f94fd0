"""Brute-force references for sparse gamma-Poisson factor analysis (source 002, eqs. 27.16-27.17). No project code.

    z_nk = 0 with probability rho_k, otherwise ~ Gamma(alpha_k, beta_k)      activation (N, K)
    x_nv | z_n ~ Poisson(sum_k z_nk b_kv)                                    params["loading"] = b (K, D)

The evidence is that of gamma-Poisson factor analysis with the components of a set, summed over all sets.
"""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logsumexp

from tests.references import _shared, gamma_poisson
from tests.references._shared import Array, Maybe, Params, filled, observed

log_likelihood = gamma_poisson.log_likelihood
log_joint = _shared.log_joint_of(log_likelihood, "activation", ("spike_gamma", 0.5, 1.0, 1.0))


def log_evidence(
    params: Params, x: ArrayLike, spike: ArrayLike, shape: ArrayLike, rate: ArrayLike, mask: Maybe = None
) -> Array:
    """log p(x_n), (N,)."""
    loading = np.asarray(params["loading"], dtype=np.float64)
    rho, alpha, beta = (np.broadcast_to(np.asarray(p, dtype=np.float64), (len(loading),)) for p in (spike, shape, rate))
    empty = np.where((filled(x, mask) * observed(x, mask)).sum(1) > 0, -np.inf, 0.0)
    terms = []
    for code in itertools.product((False, True), repeat=len(loading)):
        on = np.array(code)
        found = empty
        if on.any():
            found = gamma_poisson.log_evidence({"loading": loading[on]}, x, alpha[on], beta[on], mask)
        terms.append(found + np.log1p(-rho[on]).sum() + np.log(rho[~on]).sum())
    return np.asarray(logsumexp(terms, axis=0))
