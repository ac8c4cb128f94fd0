"""Brute-force references for the aspect Bernoulli model (AB).

Written from the mathematics alone (Bingham, Kaban & Fortelius, "The aspect Bernoulli model", eqs. 1-15, 22-23),
with the full N x D x K array of responsibilities that an implementation avoids. It imports no project code.

Notation, for row n, feature t and aspect k::

    s_n on the simplex, s_n ~ Dirichlet(alpha) (alpha = 1 in the paper)       membership          (N, K)
    z_nt ~ Categorical(s_n)                                                   indicator           (N, D)
    x_nt | z_nt = k ~ Bernoulli(a_kt)                                         aspect_probability  (K, D)
    z summed out: x_nt ~ Binomial(total_count, p_nt),  p_nt = sum_k s_nk a_kt                     (eq. 11)

``mask`` (N, D) is True where an entry was observed; ``x`` is not read elsewhere. Everything is float64.
A count of ``total_count`` = T is the sum of T independent draws, each with an indicator of its own.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import gammaln, logsumexp, softmax, xlog1py, xlogy

from tests.references import _shared
from tests.references._shared import Array, Maybe, Params, Priors, log_density, log_priors, observed


def _aspects(params: Params) -> Array:
    return np.asarray(params["aspect_probability"], dtype=np.float64)


def _counts(x: ArrayLike, mask: Maybe, total_count: int) -> tuple[Array, Array]:
    """(ones, zeros), (N, D): how many of the observed draws were 1 and 0; both 0 where unobserved."""
    seen = observed(x, mask)
    ones = np.where(seen, np.asarray(x, dtype=np.float64), 0.0)
    return ones, np.where(seen, total_count - ones, 0.0)


def _log_coefficient(ones: Array, zeros: Array) -> Array:
    """log of the binomial coefficients, summed over features, (N,)."""
    return (gammaln(ones + zeros + 1) - gammaln(ones + 1) - gammaln(zeros + 1)).sum(1)


def log_likelihood(
    params: Params,
    x: ArrayLike,
    membership: ArrayLike,
    mask: Maybe = None,
    total_count: int = 1,
    coefficient: bool = True,
) -> Array:
    """log p(x_n | s_n, a), (N,), the terms of eq. 6; ``coefficient`` adds the binomial one (0 for one draw)."""
    ones, zeros = _counts(x, mask, total_count)
    p = np.asarray(membership, dtype=np.float64) @ _aspects(params)
    value = (xlogy(ones, p) + xlog1py(zeros, -p)).sum(1)
    return value + _log_coefficient(ones, zeros) if coefficient else value


log_joint = _shared.log_joint_of(log_likelihood, "membership", ("dirichlet", 1.0))
empirical_bayes_log_likelihood = _shared.empirical_bayes_of(log_likelihood)


def log_joint_indicator(
    params: Params, x: ArrayLike, membership: ArrayLike, indicator: ArrayLike, mask: Maybe = None, priors: Priors = None
) -> float:
    """The same with the indicators z (N, D) of every entry kept (eq. 2), for one draw an entry.

    The indicator of an unobserved entry keeps its prior factor s_nz: only the factor of x drops out.
    """
    seen, a = observed(x, mask), _aspects(params)
    x, membership, indicator = np.asarray(x), np.asarray(membership, dtype=np.float64), np.asarray(indicator)
    priors = dict(priors or {})
    total = log_density(membership, priors.pop("membership", ("dirichlet", 1.0))) + log_priors(params, priors)
    for n, t in np.ndindex(*x.shape):
        k = int(indicator[n, t])
        total += float(np.log(membership[n, k]))
        if seen[n, t]:
            total += float(xlogy(x[n, t], a[k, t]) + xlog1py(1 - x[n, t], -a[k, t]))
    return total


# ----- EM, eqs. 7-9 -------------------------------------------------------------------------------------------------


def responsibilities(params: Params, membership: ArrayLike) -> tuple[Array, Array]:
    """q_{k,t,n,1} and q_{k,t,n,0}: P(z_nt = k | x_nt = 1 or 0, s_n, a), each (N, D, K) (eq. 7).

    Where the denominator is 0 (an entry of probability 0) the result is 0, not 0/0.
    """
    membership, a = np.asarray(membership, dtype=np.float64), _aspects(params)
    both = []
    for b in (a, 1.0 - a):
        joint = membership[:, None, :] * b.T[None]
        total = joint.sum(-1, keepdims=True)
        both.append(np.divide(joint, total, out=np.zeros_like(joint), where=total > 0))
    return both[0], both[1]


def update_membership(
    params: Params, x: ArrayLike, membership: ArrayLike, mask=None, total_count: int = 1, concentration: ArrayLike = 1.0
) -> Array:
    """Eqs. 7 and 8, (N, K): s_nk = (sum_t q_kt + alpha_k - 1) / sum_k of the same. Rows without data keep alpha's mode
    or, where alpha = 1, what they were (every value is then as good)."""
    ones, zeros = _counts(x, mask, total_count)
    on, off = responsibilities(params, membership)
    share = np.einsum("nt,ntk->nk", ones, on) + np.einsum("nt,ntk->nk", zeros, off) + np.asarray(concentration) - 1.0
    total = share.sum(1, keepdims=True)
    return np.where(total > 0, share / np.where(total > 0, total, 1.0), membership)


def update_aspects(
    params: Params, x: ArrayLike, membership: ArrayLike, mask=None, total_count: int = 1, beta: tuple = (1.0, 1.0)
) -> Array:
    """Eqs. 7 and 9, (K, D): a_kt = (sum_n x q + a0 - 1) / (sum_n q + a0 + b0 - 2), a Beta(a0, b0) prior's mode."""
    ones, zeros = _counts(x, mask, total_count)
    on, off = responsibilities(params, membership)
    present = np.einsum("nt,ntk->kt", ones, on) + beta[0] - 1.0
    absent = np.einsum("nt,ntk->kt", zeros, off) + beta[1] - 1.0
    total = present + absent
    return np.where(total > 0, present / np.where(total > 0, total, 1.0), _aspects(params))


def em_iteration(
    params: Params, x: ArrayLike, membership: ArrayLike, mask=None, total_count=1, concentration=1.0, beta=(1.0, 1.0)
) -> tuple[dict[str, Array], Array]:
    """One iteration as the paper lists it: (7) and (8), then (7) again and (9). Returns (params, membership)."""
    membership = update_membership(params, x, membership, mask, total_count, concentration)
    aspects = update_aspects(params, x, membership, mask, total_count, beta)
    return {**params, "aspect_probability": aspects}, membership


# ----- evidence and posterior with s integrated out -----------------------------------------------------------------


def _integral(params: Params, x, concentration, mask, total_count, power: int = 0) -> Array:
    """log int s_1^power p(x_n | s) Dirichlet(s | alpha) ds for K = 2, (N,)."""
    x, seen, values = np.asarray(x), observed(x, mask), []
    for n in range(len(x)):

        def height(s: Array, one=slice(n, n + 1)) -> Array:
            memberships = np.stack([s, 1 - s], axis=1)
            return _shared.likelihood_table(log_likelihood, params, x[one], memberships, seen[one], total_count)[0]

        values.append(_shared.log_beta_integral(height, concentration, power))
    return np.array(values)


def log_evidence_quadrature(
    params: Params, x: ArrayLike, concentration: ArrayLike = 1.0, mask=None, total_count: int = 1
) -> Array:
    """log p(x_n | a) = log int p(x_n | s, a) Dirichlet(s | alpha) ds (eq. 4), (N,), K = 2 only."""
    return _integral(params, x, concentration, mask, total_count)


def posterior_mean_quadrature(
    params: Params, x: ArrayLike, concentration: ArrayLike = 1.0, mask=None, total_count: int = 1
) -> Array:
    """E[s_n | x_n, a], (N, 2), K = 2 only."""
    evidence = _integral(params, x, concentration, mask, total_count)
    first = np.exp(_integral(params, x, concentration, mask, total_count, 1) - evidence)
    return np.stack([first, 1 - first], axis=1)


def indicator_table(params: Params, x: ArrayLike, concentration: ArrayLike = 1.0, mask=None) -> list[tuple]:
    """For each row, (z (M, T'), counts (M, K), log p(x_n, z) (M,)) over all M = K^T' indicators of its T' observed
    entries, s integrated out (eq. 3), one draw an entry."""
    x, seen, a = np.asarray(x, dtype=np.float64), observed(x, mask), _aspects(params)
    rows, size = [], len(a)
    for n in range(len(x)):
        at = np.flatnonzero(seen[n])
        b = np.where(x[n, at] == 1, a[:, at], 1 - a[:, at])
        z = _shared.assignments(size, len(at))
        counts = _shared.counts_of_values(z, size)
        with np.errstate(divide="ignore"):
            log_b = np.log(b)
        likelihood = log_b[z, np.arange(len(at))].sum(1)
        rows.append((z, counts, likelihood + _shared.log_dirichlet_moment(counts, concentration)))
    return rows


def log_evidence_indicators(params: Params, x: ArrayLike, concentration: ArrayLike = 1.0, mask=None) -> Array:
    """log p(x_n | a) = log sum_z p(x_n, z) over all K^D indicators, (N,) (eq. 3)."""
    return np.array([logsumexp(table) for _, _, table in indicator_table(params, x, concentration, mask)])


def posterior_mean_indicators(params: Params, x: ArrayLike, concentration: ArrayLike = 1.0, mask=None) -> Array:
    """E[s_n | x_n, a], (N, K): given z, s is Dirichlet(alpha + counts of z)."""
    tables = indicator_table(params, x, concentration, mask)
    return np.array([_shared.mean_given_counts(table, counts, concentration) for _, counts, table in tables])


def attribution_indicators(params: Params, x: ArrayLike, concentration: ArrayLike = 1.0, mask=None) -> Array:
    """P(z_nt = k | x_n, a) with s integrated out, (N, D, K); NaN where x_nt was not observed."""
    seen, size = observed(x, mask), len(_aspects(params))
    result = np.full((*np.shape(x), size), np.nan)
    for n, (z, _, table) in enumerate(indicator_table(params, x, concentration, mask)):
        weight = softmax(table)
        for position, t in enumerate(np.flatnonzero(seen[n])):
            result[n, t] = [weight[z[:, position] == k].sum() for k in range(size)]
    return result


def log_evidence_polynomial(
    params: Params, x: ArrayLike, concentration: ArrayLike = 1.0, mask=None, total_count: int = 1
) -> Array:
    """log p(x_n | a), (N,), any K and any counts: prod_t (sum_k s_k a_kt)^x_t (sum_k s_k (1 - a_kt))^(T - x_t) as a
    polynomial in s, its terms times their Dirichlet moments."""
    ones, zeros = _counts(x, mask, total_count)
    a, values = _aspects(params), []
    for on, off in zip(ones.astype(int), zeros.astype(int), strict=True):
        draws = np.concatenate([np.repeat(a, on, axis=1), np.repeat(1 - a, off, axis=1)], axis=1)
        counts, coefficients = _shared.multiplied_out(map(_shared.linear, draws.T), len(a))
        values.append(logsumexp(coefficients + _shared.log_dirichlet_moment(counts, concentration)))
    return np.array(values) + _log_coefficient(ones, zeros)


# ----- variational Dirichlet ----------------------------------------------------------------------------------------


def dirichlet_bound(
    params: Params,
    x: ArrayLike,
    gamma: ArrayLike,
    indicator: tuple[ArrayLike, ArrayLike],
    concentration: ArrayLike = 1.0,
    mask=None,
    total_count: int = 1,
) -> Array:
    """ELBO of q(s_n) q(z_n) with q(s_n) = Dirichlet(gamma_n), (N,)::

    E_q[log p(x, z, s)] - E_q[log q] = sum_t sum_k r_ntk (E[log s_k] + log b_kt - log r_ntk) - KL(gamma || alpha)

    ``indicator`` = (r for a draw that came out 1, r for one that came out 0), each (N, D, K) on the simplex over
    k (b = a, 1 - a respectively); a count weighs the two by how many draws came out so, and adds its coefficient.
    """
    ones, zeros = _counts(x, mask, total_count)
    a, expected = _aspects(params), _shared.expected_log_dirichlet(gamma)
    total = _log_coefficient(ones, zeros) - _shared.dirichlet_divergence(gamma, concentration)
    for count, r, b in zip((ones, zeros), indicator, (a, 1 - a), strict=True):
        r = np.asarray(r, dtype=np.float64)
        if not np.allclose(r.sum(-1)[count > 0], 1.0, rtol=0, atol=1e-8):
            raise ValueError("q(z) must lie on the simplex wherever a draw was observed")
        term = r * expected[:, None, :] + xlogy(r, b.T[None]) - xlogy(r, r)
        total = total + np.where(count[:, :, None] > 0, count[:, :, None] * term, 0.0).sum((1, 2))
    return total


def best_indicator(params: Params, gamma: ArrayLike) -> tuple[Array, Array]:
    """The q(z) that maximises the bound at given gamma: r_ntk proportional to exp(E[log s_nk]) b_kt."""
    return responsibilities(params, np.exp(_shared.expected_log_dirichlet(gamma)))


def best_concentration(
    x: ArrayLike, indicator: tuple[ArrayLike, ArrayLike], concentration: ArrayLike = 1.0, mask=None, total_count=1
) -> Array:
    """The gamma (N, K) that maximises the bound at given q(z): alpha_k + sum_t r_ntk."""
    ones, zeros = _counts(x, mask, total_count)
    on, off = (np.asarray(r, dtype=np.float64) for r in indicator)
    alpha = _shared.concentration_of(concentration, on.shape[-1])
    return alpha + np.einsum("nt,ntk->nk", ones, on) + np.einsum("nt,ntk->nk", zeros, off)


def best_dirichlet(
    params: Params, x: ArrayLike, concentration: ArrayLike = 1.0, mask=None, total_count=1, sweeps: int = 2000
) -> tuple[Array, Array]:
    """Alternate the two updates from the uniform start: (gamma (N, K), bound (N,)). A local optimum."""
    alpha = _shared.concentration_of(concentration, len(_aspects(params)))
    gamma = np.tile(alpha + observed(x, mask).sum(1).mean() * total_count / len(alpha), (len(np.asarray(x)), 1))
    for _ in range(sweeps):
        before = gamma
        gamma = best_concentration(x, best_indicator(params, gamma), alpha, mask, total_count)
        if np.abs(gamma - before).max(initial=0.0) < 1e-13:
            break
    indicator = best_indicator(params, gamma)
    return gamma, dirichlet_bound(params, x, gamma, indicator, alpha, mask, total_count)
