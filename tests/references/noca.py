"""Brute-force references for noisy-or component analysis (NOCA).

Written from the mathematics alone (Singliar and Hauskrecht, "Noisy-Or Component
Analysis and its Application to Link Analysis", eqs. 1-7 and Fig. 2), in plain
NumPy, by summing over all 2^K source codes. Slow on purpose: the only virtue
asked of this file is to be obviously right. It imports no project code.

Notation, for row n, feature j and source i::

    s in {0,1}^K,  P(s_i = 1) = source_prior_i            params["source_prior"]  (K,)
    theta_ij = -log(1 - loading_ij)                       params["loading"]       (K, D)
    theta_0j = -log(1 - leak_j)                           params["leak"]          (D,)
    a_j(s)   = theta_0j + sum_i s_i theta_ij
    P(x_j = 0 | s) = exp(-a_j(s)),  P(x_j = 1 | s) = 1 - exp(-a_j(s))

``x`` is (N, D) of 0/1. ``mask`` (N, D) is True where an entry was observed; an
unobserved entry drops out of the product, whatever value ``x`` holds there.
Everything is float64. The leak must lie in (0, 1): the factorised bound divides
by log P(x_j = 1 | s = 0). Loadings may be 0 or 1 and priors may be 0 or 1 where
only sums over codes are involved (a code of probability zero then counts as such).
"""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, xlog1py, xlogy

from tests.references._shared import Array, Maybe, Params, Priors, all_codes, log_priors, observed, summed_out


def log1mexp(a: ArrayLike) -> Array:
    """phi(a) = log(1 - exp(-a)) for a >= 0; -inf at 0, 0 at infinity."""
    a = np.asarray(a, dtype=np.float64)
    # expm1 keeps digits where 1 - e^-a is small, log1p where e^-a is small.
    with np.errstate(divide="ignore"):
        return np.where(a < np.log(2.0), np.log(-np.expm1(-a)), np.log1p(-np.exp(-a)))


def _theta(params: Params) -> tuple[Array, Array]:
    """(theta (K, D), theta_0 (D,)); infinite where a probability is 1."""
    with np.errstate(divide="ignore"):
        theta = -np.log1p(-np.asarray(params["loading"], dtype=np.float64))
        theta0 = -np.log1p(-np.asarray(params["leak"], dtype=np.float64))
    return theta, theta0


def _ones_and_zeros(x: ArrayLike, mask: Maybe) -> tuple[NDArray, NDArray]:
    """Boolean (N, D) tables: observed to be 1, observed to be 0."""
    x, seen = np.asarray(x), observed(x, mask)
    return seen & (x == 1), seen & (x == 0)


def log_code_prior(params: Params, source: Array) -> Array:
    """log P(s), summed over the last axis of ``source``; affine in s, so that s may be a mean."""
    prior = np.asarray(params["source_prior"], dtype=np.float64)
    return (xlogy(source, prior) + xlog1py(1.0 - source, -prior)).sum(-1)


def _activation(params: Params, code: Array) -> Array:
    """a_j(s), (D,), for one code (K,). A selected sum: 0 * inf never arises."""
    theta, theta0 = _theta(params)
    return theta0 + theta[np.asarray(code) == 1].sum(0)


def log_joint_table(params: Params, x: ArrayLike, mask: Maybe = None) -> Array:
    """log P(x_n, s) for every row and every code, (N, 2^K) (the terms of eq. 1)."""
    ones, zeros = _ones_and_zeros(x, mask)
    codes = all_codes(len(params["source_prior"]))
    table = np.empty((ones.shape[0], len(codes)))
    for c, code in enumerate(codes):
        a = _activation(params, code)
        likelihood = np.where(ones, log1mexp(a), 0.0) + np.where(zeros, -a, 0.0)
        table[:, c] = likelihood.sum(1) + log_code_prior(params, code)
    return table


def log_joint(params: Params, x: ArrayLike, source: ArrayLike, mask: Maybe = None, priors: Priors = None) -> float:
    """log p(globals) + sum_n log P(s_n) + sum_n log P(x_n | s_n), a scalar; sites without a prior are flat."""
    ones, zeros = _ones_and_zeros(x, mask)
    total = log_priors(params, priors)
    for n, code in enumerate(np.asarray(source, dtype=np.float64)):
        a = _activation(params, code)
        total += float(log_code_prior(params, code))
        total += float(log1mexp(a)[ones[n]].sum()) - float(a[zeros[n]].sum())
    return total


log_evidence, posterior = summed_out(log_joint_table)


def _bound_gain(params: Params, q: ArrayLike) -> Array:
    """q_j(i) [phi(theta_0j + theta_ij / q_j(i)) - phi(theta_0j)], shape of ``q`` (N, D, K).

    The limit at q = 0 is 0: the bracket stays between 0 and -phi(theta_0j) < inf
    (phi(inf) = 0), and the factor q in front takes it to 0. With theta_ij = 0 the
    bracket is 0 for every q.
    """
    theta, theta0 = _theta(params)
    q = np.asarray(q, dtype=np.float64)
    used = (q > 0) & (theta.T > 0)
    # A subnormal q overflows theta / q to infinity, which is the limit wanted.
    with np.errstate(over="ignore"):
        scaled = np.divide(theta.T, q, out=np.zeros_like(q), where=used)
    start = theta0[:, None]
    return np.where(used, q * (log1mexp(start + scaled) - log1mexp(start)), 0.0)


def bernoulli_entropy(source_mean: ArrayLike) -> Array:
    """- sum_i [m_i log m_i + (1 - m_i) log(1 - m_i)], over the last axis."""
    mean = np.asarray(source_mean, dtype=np.float64)
    return -(xlogy(mean, mean) + xlogy(1.0 - mean, 1.0 - mean)).sum(-1)


def factorized_bound(params: Params, x: ArrayLike, source_mean: ArrayLike, q: ArrayLike, mask: Maybe = None) -> Array:
    """F_n of eq. 7, (N,), with the entropy of Q in place of the misprinted last term.

    ``source_mean`` (N, K) holds Q's means; ``q`` (N, D, K) lies on the simplex over
    K. With L = sum_i <s_i> log pi_i + (1 - <s_i>) log(1 - pi_i)::

        F = L + sum_{j: x_j=0} [-theta_0j - sum_i <s_i> theta_ij]
              + sum_{j: x_j=1} sum_i q_j(i) [<s_i> phi(theta_0j + theta_ij / q_j(i))
                                             + (1 - <s_i>) phi(theta_0j)]
              + H(Q)

    As sum_i q_j(i) = 1, the bracket for x_j = 1 is phi(theta_0j) plus the gains of
    :func:`_bound_gain`. Entries of ``q`` where x is not an observed 1 are not read.
    """
    ones, zeros = _ones_and_zeros(x, mask)
    mean = np.asarray(source_mean, dtype=np.float64)
    theta, theta0 = _theta(params)
    gain = np.where(ones[:, :, None], _bound_gain(params, _valid_q(q, ones)), 0.0)
    present = np.where(ones, log1mexp(theta0), 0.0).sum(1)
    present += np.einsum("ni,nji->n", mean, gain)
    absent = np.zeros(len(ones))
    for n, i in itertools.product(*map(range, mean.shape)):
        if mean[n, i] > 0:
            absent[n] -= mean[n, i] * theta[i, zeros[n]].sum()
    absent -= np.where(zeros, theta0, 0.0).sum(1)
    return log_code_prior(params, mean) + absent + present + bernoulli_entropy(mean)


def _valid_q(q: ArrayLike, ones: NDArray) -> Array:
    """``q`` with unread entries zeroed; the read ones must lie on the simplex."""
    q = np.where(ones[:, :, None], np.asarray(q, dtype=np.float64), 0.0)
    if np.any(q < 0) or not np.allclose(q.sum(-1)[ones], 1.0, rtol=0, atol=1e-6):
        raise ValueError("q must lie on the simplex over sources wherever x is an observed 1")
    return q


def factorized_source_mean(params: Params, x: ArrayLike, q: ArrayLike, mask: Maybe = None) -> Array:
    """Q's means (N, K) by eq. 5: the maximiser of F over Q at fixed q.

    logit <s_i> = logit pi_i - sum_{j: x_j=0} theta_ij
                  + sum_{j: x_j=1} q_j(i) [phi(theta_0j + theta_ij/q_j(i)) - phi(theta_0j)]
    """
    ones, zeros = _ones_and_zeros(x, mask)
    theta, _ = _theta(params)
    prior = np.asarray(params["source_prior"], dtype=np.float64)
    gain = np.where(ones[:, :, None], _bound_gain(params, _valid_q(q, ones)), 0.0)
    with np.errstate(divide="ignore"):
        logit = np.log(prior) - np.log1p(-prior) + gain.sum(1)
    for n in range(len(ones)):
        logit[n] -= theta[:, zeros[n]].sum(1)
    return expit(logit)


def code_probability(source_mean: ArrayLike) -> Array:
    """Q(s) = prod_i m_i^s_i (1 - m_i)^(1 - s_i) of every code, (N, 2^K)."""
    mean = np.asarray(source_mean, dtype=np.float64)
    codes = all_codes(mean.shape[1])
    return np.where(codes[None] == 1, mean[:, None], 1.0 - mean[:, None]).prod(-1)


def _expectation(weight: Array, table: Array) -> Array:
    """sum_s weight(s) table(s) over the last axis, with 0 * -inf = 0."""
    return np.where(weight > 0, weight * np.where(weight > 0, table, 0.0), 0.0).sum(-1)


def elbo_of_mean(params: Params, x: ArrayLike, source_mean: ArrayLike, mask: Maybe = None) -> Array:
    """ELBO of the factorised Bernoulli Q, (N,): E_Q[log P(x, s)] + H(Q), over all codes."""
    expected = _expectation(code_probability(source_mean), log_joint_table(params, x, mask))
    return expected + bernoulli_entropy(source_mean)


def best_mean_field(
    params: Params, x: ArrayLike, start: ArrayLike, mask: Maybe = None, sweeps: int = 200
) -> tuple[Array, Array]:
    """Coordinate ascent on the mean-field ELBO: (source_mean (N, K), elbo (N,)).

    Each coordinate takes its exact optimum
    logit m_i = E[log P(x, s) | s_i = 1] - E[log P(x, s) | s_i = 0], so the ELBO never
    falls below that of ``start``. A local optimum: it depends on ``start``. Needs
    loadings and source priors strictly inside (0, 1).
    """
    mean = np.array(start, dtype=np.float64)
    table = log_joint_table(params, x, mask)
    on = all_codes(mean.shape[1]) == 1
    for _ in range(sweeps):
        before = mean.copy()
        for i in range(mean.shape[1]):
            expected = []
            for value in (0.0, 1.0):
                mean[:, i] = value
                expected.append((code_probability(mean) * table)[:, on[:, i] == value].sum(1))
            mean[:, i] = expit(expected[1] - expected[0])
        if np.abs(mean - before).max(initial=0.0) < 1e-14:
            break
    return mean, elbo_of_mean(params, x, mean, mask)


def expected_log_joint_by_enumeration(params: Params, x: ArrayLike, weights: ArrayLike, mask: Maybe = None) -> float:
    """EM's objective sum_n sum_s r_n(s) log P(x_n, s), for weights r (N, 2^K)."""
    weights = np.asarray(weights, dtype=np.float64)
    return float(_expectation(weights, log_joint_table(params, x, mask)).sum())


def bic(log_likelihood: float, num_components: int, num_features: int, num_rows: int) -> float:
    """-log p(x) + psi/2 log N, psi = KD + K + D free parameters (section 4.2). Smaller is better."""
    psi = num_components * num_features + num_components + num_features
    return -float(log_likelihood) + 0.5 * psi * float(np.log(num_rows))
