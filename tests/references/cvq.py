"""Brute-force references for the cooperative vector quantizer (CVQ).

Written from the mathematics alone (slides 003, "Cooperative Vector Quantizer", with the faults of the slides
mended: Gaussian constant, entropy sign, gradient of W, the missing sigma update), by summing over all 2^K codes.
It imports no project code.

Notation, for row n, feature j and source i::

    s in {0,1}^K,  P(s_i = 1) = pi_i                          params["source_prior"]  (K,)
    x_nj | s ~ Normal(sum_i s_i w_ij, sigma_j^2)              params["weight"]        (K, D)
                                                              params["scale"]         () or (D,), sigma

``mask`` (N, D) is True where an entry was observed; an unobserved entry drops out of the product, whatever ``x``
holds there. Everything is float64.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq
from scipy.special import expit, logit

from tests.references import _shared, noca
from tests.references._shared import Array, Maybe, Pair, Params, Prior, Priors
from tests.references.noca import _log_prior, bernoulli_entropy, code_probability


def _scale(params: Params) -> Array:
    """sigma_j, (D,)."""
    return np.broadcast_to(np.asarray(params["scale"], dtype=np.float64), np.shape(params["weight"])[1:])


def _log_likelihood(params: Params, x: ArrayLike, code: Array, mask: Maybe) -> Array:
    """log p(x_n | s) of one code (K,) or one code a row (N, K), (N,)."""
    seen, sigma = _shared.observed(x, mask), _scale(params)
    residual = _shared.filled(x, mask) - np.asarray(code, dtype=np.float64) @ params["weight"]
    density = -0.5 * np.log(2 * np.pi * sigma**2) - residual**2 / (2 * sigma**2)
    return np.where(seen, density, 0.0).sum(1)


def log_joint(params: Params, x: ArrayLike, source: ArrayLike, mask: Maybe = None, priors: Priors = None) -> float:
    """log p(globals) + sum_n log P(s_n) + sum_n log p(x_n | s_n), a scalar; sites without a prior are flat."""
    source = np.asarray(source, dtype=np.float64)
    rows = _log_prior(params, source) + _log_likelihood(params, x, source, mask)
    return float(rows.sum()) + _shared.log_priors(params, priors)


def log_joint_table(params: Params, x: ArrayLike, mask: Maybe = None) -> Array:
    """log p(x_n, s) of every row and every code, (N, 2^K), columns in the order of ``all_codes``."""
    codes = _shared.all_codes(len(params["source_prior"]))
    columns = [_log_likelihood(params, x, code, mask) + _log_prior(params, code) for code in codes]
    return np.stack(columns, axis=1)


log_evidence, posterior = _shared.summed_out(log_joint_table)


def mean_field_bound(params: Params, x: ArrayLike, source_mean: ArrayLike, mask: Maybe = None) -> Array:
    """F_n of a factorised Q with means lambda (N, K), (N,)::

    F = sum_j [-1/2 log(2 pi sigma_j^2) - 1/(2 sigma_j^2) (x_j^2 - 2 x_j sum_i lambda_i w_ij
              + sum_{i,k} (lambda_i lambda_k + delta_ik lambda_i (1 - lambda_i)) w_ij w_kj)]
        + sum_i [lambda_i log pi_i + (1 - lambda_i) log(1 - pi_i)] + H(lambda)
    """
    mean, weight = np.asarray(source_mean, dtype=np.float64), np.asarray(params["weight"], dtype=np.float64)
    seen, sigma = _shared.observed(x, mask), _scale(params)
    x = _shared.filled(x, mask)
    pair = mean_field_second_moment(mean)
    square = x**2 - 2 * x * (mean @ weight) + np.einsum("nik,ij,kj->nj", pair, weight, weight)
    gauss = np.where(seen, -0.5 * np.log(2 * np.pi * sigma**2) - square / (2 * sigma**2), 0.0).sum(1)
    return gauss + _log_prior(params, mean) + bernoulli_entropy(mean)


def elbo_of_mean(params: Params, x: ArrayLike, source_mean: ArrayLike, mask: Maybe = None) -> Array:
    """The same F_n by its definition, summing over all codes, (N,)."""
    table = log_joint_table(params, x, mask)
    return (code_probability(source_mean) * table).sum(1) + bernoulli_entropy(source_mean)


def coordinate_optimum(
    params: Params, x: ArrayLike, source_mean: ArrayLike, component: int, mask: Maybe = None
) -> Array:
    """The lambda_u that maximises F_n with the other lambdas held, (N,), from the definition of F."""
    return noca.coordinate_optimum(log_joint_table(params, x, mask), source_mean, component)


def coordinate_formula(
    params: Params, x: ArrayLike, source_mean: ArrayLike, component: int, mask: Maybe = None
) -> Array:
    """The slides' lambda_u, with mask and per-feature scale, (N,)::

    logit lambda_u = logit pi_u + sum_{j seen} w_uj / sigma_j^2 (x_j - sum_{i != u} lambda_i w_ij - w_uj / 2)
    """
    weight, seen, u = np.asarray(params["weight"], dtype=np.float64), _shared.observed(x, mask), component
    mean = np.asarray(source_mean, dtype=np.float64)
    others = mean @ weight - np.outer(mean[:, u], weight[u])
    drive = np.where(seen, weight[u] / _scale(params) ** 2 * (_shared.filled(x, mask) - others - weight[u] / 2), 0.0)
    return expit(logit(params["source_prior"][u]) + drive.sum(1))


def best_mean_field(
    params: Params, x: ArrayLike, start: ArrayLike, mask: Maybe = None, sweeps: int = 500
) -> tuple[Array, Array]:
    """Coordinate ascent, one source after another: (source_mean (N, K), F (N,)). A local optimum."""
    mean = noca.coordinate_ascent(start, lambda mean, u: coordinate_formula(params, x, mean, u, mask), sweeps)
    return mean, mean_field_bound(params, x, mean, mask)


# ----- M step: the maximisers of E_Q[log p(x, s)] for given moments of s --------------------------------------------


def mean_field_second_moment(source_mean: ArrayLike) -> Array:
    """<s s'> of a factorised Q, (N, K, K): lambda_i lambda_k off the diagonal, lambda_i on it."""
    mean = np.asarray(source_mean, dtype=np.float64)
    pair = mean[:, :, None] * mean[:, None, :]
    for i in range(mean.shape[1]):
        pair[:, i, i] = mean[:, i]
    return pair


def moments(weights: ArrayLike) -> tuple[Array, Array]:
    """(<s> (N, K), <s s'> (N, K, K)) under weights over codes, (N, 2^K)."""
    weights = np.asarray(weights, dtype=np.float64)
    codes = _shared.all_codes(int(np.log2(weights.shape[1])))
    return weights @ codes, np.einsum("nc,ci,ck->nik", weights, codes, codes)


def expected_log_joint(params: Params, x: ArrayLike, weights: ArrayLike, mask: Maybe = None) -> float:
    """EM's objective sum_n sum_s r_n(s) log p(x_n, s) for weights r (N, 2^K)."""
    return float((np.asarray(weights, dtype=np.float64) * log_joint_table(params, x, mask)).sum())


def best_source_prior(source_mean: ArrayLike, beta: Pair = (1.0, 1.0)) -> Array:
    """pi_i = (sum_n <s_ni> + a - 1) / (N + a + b - 2), (K,)."""
    a, b = beta
    mean = np.asarray(source_mean, dtype=np.float64)
    return (mean.sum(0) + a - 1) / (len(mean) + a + b - 2)


def best_weight(
    x: ArrayLike,
    source_mean: ArrayLike,
    second_moment: ArrayLike,
    mask: Maybe = None,
    scale: ArrayLike = 1.0,
    normal: Pair | None = None,
) -> Array:
    """W (K, D), one K x K system a feature: only rows that observed feature j enter its normal equations::

    [sum_{n: seen} <s_n s_n'> + (sigma_j^2 / tau^2) I] w_.j = sum_{n: seen} <s_n> x_nj + (sigma_j^2 / tau^2) m

    ``normal`` = (m, tau) is a Normal prior on every weight; without one ``scale`` does not matter. A singular
    system takes its least-norm solution.
    """
    seen = _shared.observed(x, mask)
    x, mean, pair = _shared.filled(x, mask), np.asarray(source_mean), np.asarray(second_moment)
    sigma = np.broadcast_to(np.asarray(scale, dtype=np.float64), x.shape[1:])
    weight = np.empty((mean.shape[1], x.shape[1]))
    for j in range(x.shape[1]):
        rows = seen[:, j]
        left, right = pair[rows].sum(0), mean[rows].T @ x[rows, j]
        if normal is not None:
            ratio = sigma[j] ** 2 / normal[1] ** 2
            left, right = left + ratio * np.eye(len(left)), right + ratio * normal[0]
        weight[:, j] = np.linalg.lstsq(left, right, rcond=None)[0]
    return weight


def expected_square(
    x: ArrayLike, weight: ArrayLike, source_mean: ArrayLike, second_moment: ArrayLike, mask: Maybe = None
) -> tuple[Array, Array]:
    """(R_j, M_j): sum over rows that observed j of <(x_nj - s_n' w_.j)^2>, and how many there are; each (D,)."""
    seen, weight = _shared.observed(x, mask), np.asarray(weight, dtype=np.float64)
    x = _shared.filled(x, mask)
    square = x**2 - 2 * x * (np.asarray(source_mean) @ weight)
    square = square + np.einsum("nik,ij,kj->nj", second_moment, weight, weight)
    return np.where(seen, square, 0.0).sum(0), seen.sum(0).astype(float)


def best_scale(
    x: ArrayLike,
    weight: ArrayLike,
    source_mean: ArrayLike,
    second_moment: ArrayLike,
    mask: Maybe = None,
    per_feature: bool = False,
    prior: Prior | None = None,
) -> Array:
    """sigma () or (D,): the maximiser of -M log sigma - R / (2 sigma^2) + log p(sigma).

    Flat: sigma^2 = R / M. With a prior (("inverse_gamma", a, b) or ("lognormal", m, t), a density of sigma
    itself) the root, in u = log sigma, of the derivative, found by bracketing: R e^{-2u} - M + dlog p/du = 0.
    """
    square, count = expected_square(x, weight, source_mean, second_moment, mask)
    if not per_feature:
        square, count = square.sum(), count.sum()
    return np.vectorize(lambda r, m: _scale_root(r, m, prior), otypes=[float])(square, count)


def _scale_root(square: float, count: float, prior: Prior | None) -> float:
    if prior is None:
        return float(np.sqrt(square / count))
    name, a, b = prior
    slopes = {"inverse_gamma": lambda u: -(a + 1) + b * np.exp(-u), "lognormal": lambda u: -1 - (u - a) / b**2}
    slope = slopes[name]
    return float(np.exp(brentq(lambda u: square * np.exp(-2 * u) - count + slope(u), -30.0, 30.0, xtol=1e-14)))
