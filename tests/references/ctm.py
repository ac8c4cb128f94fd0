"""Brute-force references for the correlated topic model (CTM; source 002, section 27.4.1). No project code.

    z_i ~ Normal(mu, Sigma)                  params["mean"] (K,), params["covariance"] (K, K)           (eq. 27.51)
    pi_i = softmax(z_i)                      z is the local site topic_logit, (N, K)                    (eq. 27.52)
    y_il | z_i ~ Categorical(sum_k pi_ik b_k)    params["topic"] (K, V); x (N, V) counts the words      (eq. 27.55)

``mask`` (N, V) leaves tokens out, as in ``_topics``. The likelihood does not see a number added to all of z_i: with an
orthonormal basis H (K - 1, K) of the vectors that sum to 0, pi_i depends on u_i = H z_i ~ Normal(H mu, H Sigma H')
alone. That is what the evidence is integrated over.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats
from scipy.special import logsumexp, softmax

from tests.references import _topics
from tests.references._shared import Array, Maybe, Params, Priors, log_priors, product_rule


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


def log_likelihood(params: Params, x: ArrayLike, logit: ArrayLike, mask: Maybe = None) -> Array:
    """log p(y_i | z_i, b), (N,), token by token (eq. 27.55)."""
    return _topics.log_likelihood(params["topic"], x, softmax(np.asarray(logit, dtype=np.float64), axis=-1), mask)


def log_joint(params: Params, x: ArrayLike, local: ArrayLike, mask: Maybe = None, priors: Priors = None) -> float:
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


def trapezoid(dimensions: int, num_points: int = 241, reach: float = 10.0) -> tuple[Array, Array]:
    """The trapezoid rule for a standard normal: for smooth integrands its error falls faster than any power."""
    points = np.linspace(-reach, reach, num_points)
    weights = stats.norm.logpdf(points) + np.log(points[1] - points[0])
    return product_rule(dimensions, points, weights)


def _reduced(params: Params) -> tuple[Array, Array]:
    """z (M, K) and log weights (M,) of the trapezoid rule over u = H z (K - 1 dimensions)."""
    basis = sum_zero_basis(len(params["mean"]))
    if not len(basis):
        return np.zeros((1, 1)), np.zeros(1)
    places, weights = trapezoid(len(basis))
    factor = np.linalg.cholesky(basis @ params["covariance"] @ basis.T)
    return (basis @ params["mean"] + places @ factor.T) @ basis, weights


def _tables(params: Params, x: ArrayLike, mask: Maybe) -> tuple[Array, list[Array]]:
    """z (M, K), and log weight + log p(y_i | z) (M,) for every document."""
    logit, weights = _reduced({site: np.asarray(value, dtype=np.float64) for site, value in params.items()})
    with np.errstate(divide="ignore"):
        words = np.log(softmax(logit, axis=1) @ np.asarray(params["topic"], dtype=np.float64))
    counts = _topics.counts_of(x, mask)
    return logit, [weights + sum((n * words[:, v] for v, n in enumerate(row) if n), np.zeros(())) for row in counts]


def log_evidence(params: Params, x: ArrayLike, mask: Maybe = None) -> Array:
    """log p(y_i | b, mu, Sigma) = log int p(y_i | z) N(z; mu, Sigma) dz, (N,); K up to 3 (K - 1 dimensions)."""
    return np.array([logsumexp(table) for table in _tables(params, x, mask)[1]])


def posterior_logit(params: Params, x: ArrayLike, mask: Maybe = None) -> tuple[Array, Array]:
    """E[z_i | y_i] (N, K) and its covariance (N, K, K).

    The posterior of u = H z is integrated; given u, z is what it is under the prior: linear in u, with the same spread.
    """
    mean, covariance = (np.asarray(params[site], dtype=np.float64) for site in ("mean", "covariance"))
    basis = sum_zero_basis(len(mean))
    gain = covariance @ basis.T @ np.linalg.inv(basis @ covariance @ basis.T)
    rest = covariance - gain @ basis @ covariance
    logit, tables = _tables(params, x, mask)
    u, means, spreads = logit @ basis.T, [], []
    for table in tables:
        weight = softmax(table)
        centre = weight @ u
        spread = (u - centre).T @ ((u - centre) * weight[:, None])
        means.append(mean + gain @ (centre - basis @ mean))
        spreads.append(rest + gain @ spread @ gain.T)
    return np.array(means), np.array(spreads)
