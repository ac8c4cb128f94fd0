"""Brute-force references for gamma-Poisson factor analysis (source 002, eqs. 27.15-27.16). No project code.

    z_n  ~ prod_k Gamma(alpha_k, beta_k)                 activation (N, K)
    x_nv | z_n ~ Poisson(sum_k z_nk b_kv)                params["loading"] = b (K, D)

``mask`` (N, D) is True where an entry was observed; an unobserved entry drops out of the product.

The evidence by two roads: adaptive quadrature over z_n, and the sum over auxiliary counts. With x_nv = sum_k m_nkv,
m_nkv ~ Poisson(z_nk b_kv), the allocations m of a row have given their sums m_k over its features

    log p(m) = sum_k [log G(alpha_k + m_k) / G(alpha_k) + alpha_k log beta_k - (alpha_k + m_k) log(beta_k + B_k)]
               + sum_kv [m_kv log b_kv - log m_kv!],       B_k = sum of b_kv over the observed entries.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats
from scipy.integrate import nquad
from scipy.special import gammaln, logsumexp, softmax, xlogy

from tests.references import _shared
from tests.references._shared import Array, Maybe, Params, filled, observed


def log_likelihood(params: Params, x: ArrayLike, local: ArrayLike, mask: Maybe = None) -> Array:
    """log p(x_n | z_n), (N,), by SciPy's Poisson."""
    rate = np.asarray(local, dtype=np.float64) @ np.asarray(params["loading"], dtype=np.float64)
    return np.where(observed(x, mask), stats.poisson.logpmf(filled(x, mask), rate), 0.0).sum(1)


log_joint = _shared.log_joint_of(log_likelihood, "activation", ("gamma", 0.3, 0.3))


def _pair(shape: ArrayLike, rate: ArrayLike, size: int) -> tuple[Array, Array]:
    first, second = (np.broadcast_to(np.asarray(part, dtype=np.float64), (size,)) for part in (shape, rate))
    return first, second


def allocations(total: int, size: int) -> list[tuple[int, ...]]:
    """All ways to divide ``total`` events among ``size`` components."""
    return [m for m in itertools.product(range(total + 1), repeat=size) if sum(m) == total]


def allocation_table(
    loading: Array, row: Array, shape: Array, rate: Array, seen: NDArray[np.bool_]
) -> tuple[Array, Array]:
    """Every allocation of a row's events: sums m_k (M, K), and log p(m) (M,)."""
    size, places = len(loading), np.flatnonzero(seen & (row > 0))
    exposure = rate + loading[:, seen].sum(1)
    sums, logs = [], []
    for each in itertools.product(*(allocations(int(row[v]), size) for v in places)):
        m = np.array(each, dtype=float).reshape(len(places), size)
        own = m.sum(0)
        marginal = gammaln(shape + own) - gammaln(shape) + shape * np.log(rate) - (shape + own) * np.log(exposure)
        sums.append(own)
        logs.append(marginal.sum() + (xlogy(m, loading[:, places].T) - gammaln(m + 1)).sum())
    return np.array(sums), np.array(logs)


def log_evidence(params: Params, x: ArrayLike, shape: ArrayLike, rate: ArrayLike, mask: Maybe = None) -> Array:
    """log p(x_n), (N,), by the sum over auxiliary counts."""
    return np.array([logsumexp(logs) for _, logs, _ in _tables(params, x, shape, rate, mask)])


def posterior_mean(params: Params, x: ArrayLike, shape: ArrayLike, rate: ArrayLike, mask: Maybe = None) -> Array:
    """E[z_n | x_n], (N, K): given the auxiliary counts z_nk is Gamma(alpha_k + m_k, beta_k + B_k)."""
    alpha, _ = _pair(shape, rate, len(params["loading"]))
    found = _tables(params, x, shape, rate, mask)
    return np.array([softmax(logs) @ ((alpha + sums) / exposure) for sums, logs, exposure in found])


def _tables(params: Params, x: ArrayLike, shape: ArrayLike, rate: ArrayLike, mask: Maybe):
    loading = np.asarray(params["loading"], dtype=np.float64)
    alpha, beta = _pair(shape, rate, len(loading))
    seen, x = observed(x, mask), filled(x, mask)
    for n in range(len(x)):
        yield *allocation_table(loading, x[n], alpha, beta, seen[n]), beta + loading[:, seen[n]].sum(1)


def log_evidence_quadrature(
    params: Params, x: ArrayLike, shape: ArrayLike, rate: ArrayLike, mask: Maybe = None
) -> Array:
    """The same by adaptive quadrature over u = log z, K = 1 or 2."""
    loading = np.asarray(params["loading"], dtype=np.float64)
    alpha, beta = _pair(shape, rate, len(loading))
    seen, x, values = observed(x, mask), filled(x, mask), []
    for n in range(len(x)):
        counts, weight = x[n, seen[n]], loading[:, seen[n]]
        constant = (alpha * np.log(beta) - gammaln(alpha)).sum() - gammaln(counts + 1).sum()

        def density(*u: float, counts=counts, weight=weight, constant=constant) -> float:
            """Gamma(z; alpha, beta) z Poisson(x; z b), z = e^u."""
            z = np.exp(u)
            mean = z @ weight
            return math.exp(constant + alpha @ u - beta @ z + counts @ np.log(mean) - mean.sum())

        limits = [(-30.0 / a, 6.0) for a in np.minimum(alpha, 1.0)]
        options = {"epsabs": 1e-11, "epsrel": 1e-8, "limit": 100, "points": [0.0]}
        values.append(np.log(nquad(density, limits, opts=[options] * len(loading))[0]))
    return np.array(values)
