"""Brute-force references for the correlated topic model (CTM; source 002, section 27.4.1). No project code.

    z_i ~ Normal(mu, Sigma)                  params["mean"] (K,), params["covariance"] (K, K)           (eq. 27.51)
    pi_i = softmax(z_i)                      z is the local site topic_logit, (N, K)                    (eq. 27.52)
    y_il | z_i ~ Categorical(sum_k pi_ik b_k)    params["topic"] (K, V); x (N, V) counts the words      (eq. 27.55)

``mask`` (N, V) leaves tokens out, as in ``_topics``. The likelihood does not see a number added to all of z_i: with an
orthonormal basis H (K - 1, K) of the vectors that sum to 0, pi_i depends on u_i = H z_i ~ Normal(H mu, H Sigma H')
alone. That is what the evidence is integrated over; the other road integrates over all of z.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats
from scipy.special import logsumexp, softmax, xlogy

from tests.references import _topics
from tests.references._shared import Array, Params, Prior, log_priors


def sum_zero_basis(size: int) -> Array:
    """Helmert's rows (K - 1, K): orthonormal, each summing to 0."""
    rows = np.zeros((size - 1, size))
    for k in range(1, size):
        rows[k - 1, :k], rows[k - 1, k] = 1.0, -k
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def identified(params: Params) -> tuple[Array, Array]:
    """(mu, Sigma) of z less its mean over the topics: all that the data can tell about them."""
    mean, covariance = (np.asarray(params[site], dtype=np.float64) for site in ("mean", "covariance"))
    centre = np.eye(len(mean)) - 1.0 / len(mean)
    return centre @ mean, centre @ covariance @ centre


def log_inverse_wishart(covariance: ArrayLike, df: float, scale: ArrayLike) -> float:
    """log density over positive definite matrices, proportional to |S|^-(df + K + 1)/2 exp(-tr(scale S^-1) / 2)."""
    size = len(np.asarray(covariance))
    matrix = np.asarray(scale, dtype=np.float64) * (np.eye(size) if np.ndim(scale) == 0 else 1.0)
    return float(stats.invwishart.logpdf(np.asarray(covariance, dtype=np.float64), df, matrix))


def log_likelihood(params: Params, x: ArrayLike, logit: ArrayLike, mask: ArrayLike | None = None) -> Array:
    """log p(y_i | z_i, b), (N,), token by token (eq. 27.55)."""
    return _topics.log_likelihood(params["topic"], x, softmax(np.asarray(logit, dtype=np.float64), axis=-1), mask)


def log_joint(
    params: Params,
    x: ArrayLike,
    local: ArrayLike,
    mask: ArrayLike | None = None,
    priors: Mapping[str, Prior] | None = None,
) -> float:
    """log p(globals) + sum_i log N(z_i; mu, Sigma) + sum_i log p(y_i | z_i, b); a global site that ``priors`` leaves
    out adds 0. ``priors["covariance"]`` = ("inverse_wishart", df, scale)."""
    priors = dict(priors or {})
    total = float(log_likelihood(params, x, local, mask).sum())
    total += float(np.sum(stats.multivariate_normal.logpdf(local, params["mean"], params["covariance"])))
    if "covariance" in priors:
        name, *arguments = priors.pop("covariance")
        total += {"inverse_wishart": log_inverse_wishart}[name](params["covariance"], *arguments)
    return total + log_priors(params, priors)


# ----- integrals over the logits --------------------------------------------------------------------------------------


def _grid(dimensions: int, points: NDArray, weights: NDArray) -> tuple[Array, Array]:
    """(standard points (M, d), log weights (M,)) of a product rule."""
    places = np.stack(np.meshgrid(*[points] * dimensions, indexing="ij"), -1).reshape(-1, dimensions)
    each = np.stack(np.meshgrid(*[weights] * dimensions, indexing="ij"), -1).reshape(-1, dimensions)
    return places, each.sum(1)


def trapezoid(dimensions: int, num_points: int = 241, reach: float = 10.0) -> tuple[Array, Array]:
    """The trapezoid rule for a standard normal: for smooth integrands its error falls faster than any power."""
    points = np.linspace(-reach, reach, num_points)
    weights = stats.norm.logpdf(points) + np.log(points[1] - points[0])
    return _grid(dimensions, points, weights)


def hermite(dimensions: int, num_points: int = 60) -> tuple[Array, Array]:
    """Gauss and Hermite's rule for a standard normal."""
    points, weights = np.polynomial.hermite_e.hermegauss(num_points)
    return _grid(dimensions, points, np.log(weights) - 0.5 * np.log(2 * np.pi))


def _reduced(params: Params) -> tuple[Array, Array]:
    """z (M, K) and log weights (M,) of the trapezoid rule over u = H z (K - 1 dimensions)."""
    basis = sum_zero_basis(len(params["mean"]))
    if not len(basis):
        return np.zeros((1, 1)), np.zeros(1)
    places, weights = trapezoid(len(basis))
    factor = np.linalg.cholesky(basis @ params["covariance"] @ basis.T)
    return (basis @ params["mean"] + places @ factor.T) @ basis, weights


def _whole(params: Params) -> tuple[Array, Array]:
    """z (M, K) and log weights (M,) of Gauss and Hermite's rule over all of z (K dimensions)."""
    places, weights = hermite(len(params["mean"]))
    return params["mean"] + places @ np.linalg.cholesky(params["covariance"]).T, weights


def _tables(
    params: Params, x: ArrayLike, mask: ArrayLike | None, rule: Callable[[Params], tuple[Array, Array]]
) -> tuple[Array, list[Array]]:
    """z (M, K), and log weight + log p(y_i | z) (M,) for every document."""
    logit, weights = rule({site: np.asarray(value, dtype=np.float64) for site, value in params.items()})
    with np.errstate(divide="ignore"):
        words = np.log(softmax(logit, axis=1) @ np.asarray(params["topic"], dtype=np.float64))
    counts = _topics.counts_of(x, mask)
    return logit, [weights + sum((n * words[:, v] for v, n in enumerate(row) if n), np.zeros(())) for row in counts]


def log_evidence(params: Params, x: ArrayLike, mask: ArrayLike | None = None) -> Array:
    """log p(y_i | b, mu, Sigma) = log int p(y_i | z) N(z; mu, Sigma) dz, (N,); K up to 3 (K - 1 dimensions)."""
    return np.array([logsumexp(table) for table in _tables(params, x, mask, _reduced)[1]])


def log_evidence_hermite(params: Params, x: ArrayLike, mask: ArrayLike | None = None) -> Array:
    """The same by another rule and without reducing z, (N,); less sharp where a document has many tokens."""
    return np.array([logsumexp(table) for table in _tables(params, x, mask, _whole)[1]])


def posterior_mean(params: Params, x: ArrayLike, mask: ArrayLike | None = None) -> Array:
    """E[pi_i | y_i], (N, K)."""
    logit, tables = _tables(params, x, mask, _reduced)
    return np.array([np.exp(table - logsumexp(table)) @ softmax(logit, axis=1) for table in tables])


def posterior_logit(params: Params, x: ArrayLike, mask: ArrayLike | None = None) -> tuple[Array, Array]:
    """E[z_i | y_i] (N, K) and its covariance (N, K, K).

    The posterior of u = H z is integrated; given u, z is what it is under the prior: linear in u, with the same spread.
    """
    mean, covariance = (np.asarray(params[site], dtype=np.float64) for site in ("mean", "covariance"))
    basis = sum_zero_basis(len(mean))
    gain = covariance @ basis.T @ np.linalg.inv(basis @ covariance @ basis.T)
    rest = covariance - gain @ basis @ covariance
    logit, tables = _tables(params, x, mask, _reduced)
    u, means, spreads = logit @ basis.T, [], []
    for table in tables:
        weight = np.exp(table - logsumexp(table))
        centre = weight @ u
        spread = (u - centre).T @ ((u - centre) * weight[:, None])
        means.append(mean + gain @ (centre - basis @ mean))
        spreads.append(rest + gain @ spread @ gain.T)
    return np.array(means), np.array(spreads)


# ----- the variational bound of Blei and Lafferty, with a full covariance ---------------------------------------------


def kl_normal(mean: ArrayLike, spread: ArrayLike, prior_mean: ArrayLike, prior_spread: ArrayLike) -> float:
    """KL(N(m, V) || N(mu, Sigma))."""
    difference = np.asarray(mean, dtype=np.float64) - prior_mean
    ratio = np.linalg.solve(prior_spread, np.asarray(spread, dtype=np.float64))
    mahalanobis = difference @ np.linalg.solve(prior_spread, difference)
    return 0.5 * float(np.trace(ratio) - np.linalg.slogdet(ratio)[1] - len(difference) + mahalanobis)


def token_share(topic: ArrayLike, words: ArrayLike, mean: ArrayLike) -> Array:
    """q~_lk proportional to b_k(y_l) exp(m_k), (L, K): the best posterior of the tokens' topics."""
    share = np.asarray(topic, dtype=np.float64)[:, np.asarray(words, dtype=int)].T * np.exp(mean - np.max(mean))
    return share / share.sum(1, keepdims=True)


def log_sum_bound(
    mean: ArrayLike, spread: ArrayLike, tilt: ArrayLike | None = None, zeta: float | None = None
) -> float:
    """An upper bound of E[log sum_k exp z_k] under N(m, V), for any tilt a (K,) and zeta > 0::

        a'm + sum_k exp(m_k - a'm + (e_k - a)'V (e_k - a) / 2) / zeta - 1 + log zeta

    by the concavity of the logarithm, applied to sum_k exp(z_k - a'z). Without zeta at the best one, log of the sum. A
    tilt of 0, the default, is Blei and Lafferty's bound; the best a is softmax_k(m_k + V_kk / 2 - (V a)_k) (Knowles and
    Minka 2011), sums to 1, and makes the bound blind to a number added to all of z.
    """
    mean, spread = np.asarray(mean, dtype=np.float64), np.asarray(spread, dtype=np.float64)
    tilt = np.zeros(len(mean)) if tilt is None else np.asarray(tilt, dtype=np.float64)
    centred = np.eye(len(mean)) - tilt
    total = float(np.exp(mean - tilt @ mean + np.einsum("ki,ij,kj->k", centred, spread, centred) / 2).sum())
    zeta = total if zeta is None else zeta
    return float(tilt @ mean + total / zeta - 1 + np.log(zeta))


def bound(
    params: Params,
    words: ArrayLike,
    mean: ArrayLike,
    spread: ArrayLike,
    share: ArrayLike,
    tilt: ArrayLike | None = None,
    zeta: float | None = None,
) -> float:
    """A lower bound of log p(y_i | b, mu, Sigma), for any q(z) = N(m, V), share (L, K) of the tokens, tilt and zeta::

    sum_l sum_k q~_lk (m_k + log b_k(y_l) - log q~_lk) - L (bound of E[log sum_k exp z_k]) - KL(N(m, V) || N(mu, Sigma))
    """
    mean, share = np.asarray(mean, dtype=np.float64), np.asarray(share, dtype=np.float64)
    words, topic = np.asarray(words, dtype=int), np.asarray(params["topic"], dtype=np.float64)
    total = float((share * mean + xlogy(share, topic[:, words].T) - xlogy(share, share)).sum())
    total -= len(words) * log_sum_bound(mean, spread, tilt, zeta)
    return total - kl_normal(mean, spread, params["mean"], params["covariance"])


def total_bound(
    params: Params,
    x: ArrayLike,
    mean: ArrayLike,
    spread: ArrayLike,
    shares: list[Array],
    tilt: ArrayLike,
    mask: ArrayLike | None = None,
) -> float:
    """sum_i of :func:`bound` at the given q (``shares[i]`` is (L_i, K)): what an M step maximises in params."""
    documents = zip(
        _topics.tokens_of(x, mask), np.asarray(mean), np.asarray(spread), shares, np.asarray(tilt), strict=True
    )
    return sum(bound(params, words, m, v, share, a) for words, m, v, share, a in documents)
