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

import itertools
from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike
from scipy.integrate import quad
from scipy.special import betaln, digamma, gammaln, logsumexp, xlog1py, xlogy

from tests.references._shared import Array, Params, Prior, log_density, log_priors, observed


def _aspects(params: Params) -> Array:
    return np.asarray(params["aspect_probability"], dtype=np.float64)


def _counts(x: ArrayLike, mask: ArrayLike | None, total_count: int) -> tuple[Array, Array]:
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
    mask: ArrayLike | None = None,
    total_count: int = 1,
    coefficient: bool = True,
) -> Array:
    """log p(x_n | s_n, a), (N,), the terms of eq. 6; ``coefficient`` adds the binomial one (0 for one draw)."""
    ones, zeros = _counts(x, mask, total_count)
    p = np.asarray(membership, dtype=np.float64) @ _aspects(params)
    value = (xlogy(ones, p) + xlog1py(zeros, -p)).sum(1)
    return value + _log_coefficient(ones, zeros) if coefficient else value


def log_joint(
    params: Params,
    x: ArrayLike,
    membership: ArrayLike,
    mask: ArrayLike | None = None,
    priors: Mapping[str, Prior] | None = None,
    total_count: int = 1,
) -> float:
    """log p(a) + sum_n log Dirichlet(s_n) + sum_n log p(x_n | s_n, a), a scalar (eq. 2 with z summed out).

    ``priors["membership"]`` = ("dirichlet", alpha); by default alpha = 1, whose density is Gamma(K), not 1.
    """
    priors = dict(priors or {})
    membership = np.asarray(membership, dtype=np.float64)
    local = log_density(membership, priors.pop("membership", ("dirichlet", 1.0)))
    return local + float(log_likelihood(params, x, membership, mask, total_count).sum()) + log_priors(params, priors)


def log_joint_indicator(
    params: Params,
    x: ArrayLike,
    membership: ArrayLike,
    indicator: ArrayLike,
    mask: ArrayLike | None = None,
    priors: Mapping[str, Prior] | None = None,
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


def _concentration(concentration: ArrayLike, num_components: int) -> Array:
    return np.broadcast_to(np.asarray(concentration, dtype=np.float64), (num_components,))


def _integral(params: Params, x, concentration, mask, total_count, power: int) -> Array:
    """log int s_1^power p(x_n | s) Dirichlet(s | alpha) ds for K = 2 by adaptive quadrature, (N,).

    The weight s^(a-1) (1-s)^(b-1) is left to QUADPACK's algebraic rule, so that alpha < 1 does no harm.
    """
    a, alpha = _aspects(params), _concentration(concentration, 2)
    x, seen = np.asarray(x), observed(x, mask)
    grid = np.stack([np.linspace(0, 1, 201), 1 - np.linspace(0, 1, 201)], axis=1)
    values = []
    for n in range(len(x)):
        row, keep = x[n : n + 1], seen[n : n + 1]

        def height(s: ArrayLike, row=row, keep=keep) -> float:
            memberships = np.atleast_2d(s)
            count = len(memberships)
            rows, keeps = np.repeat(row, count, 0), np.repeat(keep, count, 0)
            with np.errstate(divide="ignore"):
                return log_likelihood({"aspect_probability": a}, rows, memberships, keeps, total_count)

        peak = float(height(grid).max())
        area, _ = quad(
            lambda s, height=height, peak=peak: s**power * np.exp(height([[s, 1 - s]])[0] - peak),
            0.0, 1.0, weight="alg", wvar=(alpha[0] - 1, alpha[1] - 1), epsabs=0, epsrel=1e-11, limit=200,
        )  # fmt: skip
        values.append(peak + np.log(area) - betaln(*alpha))
    return np.array(values)


def log_evidence_quadrature(
    params: Params, x: ArrayLike, concentration: ArrayLike = 1.0, mask=None, total_count: int = 1
) -> Array:
    """log p(x_n | a) = log int p(x_n | s, a) Dirichlet(s | alpha) ds (eq. 4), (N,), K = 2 only."""
    return _integral(params, x, concentration, mask, total_count, 0)


def posterior_mean_quadrature(
    params: Params, x: ArrayLike, concentration: ArrayLike = 1.0, mask=None, total_count: int = 1
) -> Array:
    """E[s_n | x_n, a], (N, 2), K = 2 only."""
    evidence = _integral(params, x, concentration, mask, total_count, 0)
    first = np.exp(_integral(params, x, concentration, mask, total_count, 1) - evidence)
    return np.stack([first, 1 - first], axis=1)


def log_dirichlet_moment(counts: ArrayLike, concentration: ArrayLike) -> Array:
    """log E[prod_k s_k^c_k] under Dirichlet(alpha), over the last axis (the Dirichlet-multinomial without its
    coefficient): log Gamma(a.) / Gamma(a. + c.) + sum_k log Gamma(a_k + c_k) / Gamma(a_k)."""
    counts = np.asarray(counts, dtype=np.float64)
    alpha = _concentration(concentration, counts.shape[-1])
    rise = (gammaln(alpha + counts) - gammaln(alpha)).sum(-1)
    return rise + gammaln(alpha.sum()) - gammaln(alpha.sum() + counts.sum(-1))


def indicator_table(params: Params, x: ArrayLike, concentration: ArrayLike = 1.0, mask=None) -> list[tuple]:
    """For each row, (z (M, T'), counts (M, K), log p(x_n, z) (M,)) over all M = K^T' indicators of its T' observed
    entries, s integrated out (eq. 3), one draw an entry."""
    x, seen, a = np.asarray(x, dtype=np.float64), observed(x, mask), _aspects(params)
    rows, size = [], len(a)
    for n in range(len(x)):
        at = np.flatnonzero(seen[n])
        b = np.where(x[n, at] == 1, a[:, at], 1 - a[:, at])
        z = np.array(list(itertools.product(range(size), repeat=len(at))), dtype=int).reshape(size ** len(at), -1)
        counts = np.stack([(z == k).sum(1) for k in range(size)], axis=1)
        with np.errstate(divide="ignore"):
            log_b = np.log(b)
        likelihood = log_b[z, np.arange(len(at))].sum(1)
        rows.append((z, counts, likelihood + log_dirichlet_moment(counts, concentration)))
    return rows


def log_evidence_indicators(params: Params, x: ArrayLike, concentration: ArrayLike = 1.0, mask=None) -> Array:
    """log p(x_n | a) = log sum_z p(x_n, z) over all K^D indicators, (N,) (eq. 3)."""
    return np.array([logsumexp(table) for _, _, table in indicator_table(params, x, concentration, mask)])


def posterior_mean_indicators(params: Params, x: ArrayLike, concentration: ArrayLike = 1.0, mask=None) -> Array:
    """E[s_n | x_n, a], (N, K): given z, s is Dirichlet(alpha + counts of z)."""
    alpha = _concentration(concentration, len(_aspects(params)))
    means = []
    for _, counts, table in indicator_table(params, x, concentration, mask):
        weight = np.exp(table - logsumexp(table))
        means.append(weight @ ((alpha + counts) / (alpha + counts).sum(1, keepdims=True)))
    return np.array(means)


def attribution_indicators(params: Params, x: ArrayLike, concentration: ArrayLike = 1.0, mask=None) -> Array:
    """P(z_nt = k | x_n, a) with s integrated out, (N, D, K); NaN where x_nt was not observed."""
    seen, size = observed(x, mask), len(_aspects(params))
    result = np.full((*np.shape(x), size), np.nan)
    for n, (z, _, table) in enumerate(indicator_table(params, x, concentration, mask)):
        weight = np.exp(table - logsumexp(table))
        for position, t in enumerate(np.flatnonzero(seen[n])):
            result[n, t] = [weight[z[:, position] == k].sum() for k in range(size)]
    return result


def count_polynomial(params: Params, x: ArrayLike, mask=None, total_count: int = 1) -> list[dict[tuple, float]]:
    """prod_t (sum_k s_k a_kt)^x_t (sum_k s_k (1 - a_kt))^(T - x_t) as a polynomial in s: for each row, exponents
    (c_1..c_K) -> coefficient, multiplied out one linear factor at a time. C(T' + K - 1, K - 1) terms, not K^T'."""
    ones, zeros = _counts(x, mask, total_count)
    a, polynomials = _aspects(params), []
    for n in range(len(ones)):
        terms = {(0,) * len(a): 1.0}
        for t in range(a.shape[1]):
            for factor in [a[:, t]] * int(ones[n, t]) + [1 - a[:, t]] * int(zeros[n, t]):
                product: dict[tuple, float] = {}
                for exponents, value in terms.items():
                    for k, f in enumerate(factor):
                        key = (*exponents[:k], exponents[k] + 1, *exponents[k + 1 :])
                        product[key] = product.get(key, 0.0) + value * f
                terms = product
        polynomials.append(terms)
    return polynomials


def log_evidence_polynomial(
    params: Params, x: ArrayLike, concentration: ArrayLike = 1.0, mask=None, total_count: int = 1
) -> Array:
    """log p(x_n | a), (N,), any K and any counts: the polynomial's terms times their Dirichlet moments."""
    values = []
    for terms in count_polynomial(params, x, mask, total_count):
        with np.errstate(divide="ignore"):
            coefficients = np.log(np.array(list(terms.values())))
        values.append(logsumexp(coefficients + log_dirichlet_moment(np.array(list(terms)), concentration)))
    return np.array(values) + _log_coefficient(*_counts(x, mask, total_count))


# ----- variational Dirichlet ----------------------------------------------------------------------------------------


def expected_log_membership(gamma: ArrayLike) -> Array:
    """E[log s_k] = psi(gamma_k) - psi(gamma.) under Dirichlet(gamma), (N, K)."""
    gamma = np.asarray(gamma, dtype=np.float64)
    return digamma(gamma) - digamma(gamma.sum(-1, keepdims=True))


def dirichlet_kl(gamma: ArrayLike, concentration: ArrayLike) -> Array:
    """KL(Dirichlet(gamma_n) || Dirichlet(alpha)), (N,)."""
    gamma = np.asarray(gamma, dtype=np.float64)
    alpha = _concentration(concentration, gamma.shape[-1])
    normaliser = gammaln(gamma.sum(-1)) - gammaln(gamma).sum(-1) - gammaln(alpha.sum()) + gammaln(alpha).sum()
    return normaliser + ((gamma - alpha) * expected_log_membership(gamma)).sum(-1)


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
    a, expected = _aspects(params), expected_log_membership(gamma)
    total = _log_coefficient(ones, zeros) - dirichlet_kl(gamma, concentration)
    for count, r, b in zip((ones, zeros), indicator, (a, 1 - a), strict=True):
        r = np.asarray(r, dtype=np.float64)
        if not np.allclose(r.sum(-1)[count > 0], 1.0, rtol=0, atol=1e-8):
            raise ValueError("q(z) must lie on the simplex wherever a draw was observed")
        term = r * expected[:, None, :] + xlogy(r, b.T[None]) - xlogy(r, r)
        total = total + np.where(count[:, :, None] > 0, count[:, :, None] * term, 0.0).sum((1, 2))
    return total


def best_indicator(params: Params, gamma: ArrayLike) -> tuple[Array, Array]:
    """The q(z) that maximises the bound at given gamma: r_ntk proportional to exp(E[log s_nk]) b_kt."""
    return responsibilities(params, np.exp(expected_log_membership(gamma)))


def best_concentration(
    x: ArrayLike, indicator: tuple[ArrayLike, ArrayLike], concentration: ArrayLike = 1.0, mask=None, total_count=1
) -> Array:
    """The gamma (N, K) that maximises the bound at given q(z): alpha_k + sum_t r_ntk."""
    ones, zeros = _counts(x, mask, total_count)
    on, off = (np.asarray(r, dtype=np.float64) for r in indicator)
    alpha = _concentration(concentration, on.shape[-1])
    return alpha + np.einsum("nt,ntk->nk", ones, on) + np.einsum("nt,ntk->nk", zeros, off)


def best_dirichlet(
    params: Params, x: ArrayLike, concentration: ArrayLike = 1.0, mask=None, total_count=1, sweeps: int = 2000
) -> tuple[Array, Array]:
    """Alternate the two updates from the uniform start: (gamma (N, K), bound (N,)). A local optimum."""
    alpha = _concentration(concentration, len(_aspects(params)))
    gamma = np.tile(alpha + observed(x, mask).sum(1).mean() * total_count / len(alpha), (len(np.asarray(x)), 1))
    for _ in range(sweeps):
        before = gamma
        gamma = best_concentration(x, best_indicator(params, gamma), alpha, mask, total_count)
        if np.abs(gamma - before).max(initial=0.0) < 1e-13:
            break
    indicator = best_indicator(params, gamma)
    return gamma, dirichlet_bound(params, x, gamma, indicator, alpha, mask, total_count)


def empirical_bayes_log_likelihood(
    params: Params, train_membership: ArrayLike, x_test: ArrayLike, mask=None, total_count: int = 1
) -> Array:
    """Eq. 23, one value a test row, (N_test,): log (1/N_train) sum_n prod_t p(x_t,test | s_n, a)."""
    values = []
    for n in range(len(np.asarray(x_test))):
        row = np.repeat(np.asarray(x_test)[n : n + 1], len(np.asarray(train_membership)), 0)
        keep = None if mask is None else np.repeat(np.asarray(mask)[n : n + 1], len(row), 0)
        values.append(logsumexp(log_likelihood(params, row, train_membership, keep, total_count)) - np.log(len(row)))
    return np.array(values)
