"""Brute-force references for logistic PCA (Bernoulli exponential-family PCA; baseline of source 001, eq. 25).

Written from the mathematics alone (Schein et al. 2003; Jaakkola & Jordan 2000 for the bound). No project code.

    s_n ~ Normal(0, I_K)                                               score           (N, K)
    theta_nt = b_t + sum_k s_nk w_kt                                   params["bias"] (D,), params["weight"] (K, D)
    x_nt | s_n ~ Bernoulli(sigmoid(theta_nt)):  log p = x theta - log(1 + e^theta)

``mask`` (N, D) is True where an entry was observed; an unobserved entry drops out of the product.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.integrate import nquad
from scipy.optimize import minimize
from scipy.special import logsumexp

from tests.references import _shared
from tests.references._shared import Array, Maybe, Params


def log_likelihood(params: Params, x: ArrayLike, score: ArrayLike, mask: Maybe = None) -> Array:
    """log p(x_n | s_n), (N,)."""
    seen = _shared.observed(x, mask)
    theta = np.asarray(params["bias"]) + np.asarray(score, dtype=np.float64) @ np.asarray(params["weight"])
    return np.where(seen, _shared.filled(x, mask) * theta - np.logaddexp(0.0, theta), 0.0).sum(1)


log_joint = _shared.log_joint_of(log_likelihood, "score", ("normal", 0.0, 1.0))
empirical_bayes_log_likelihood = _shared.empirical_bayes_of(log_likelihood)


def log_evidence_quadrature(params: Params, x: ArrayLike, mask: Maybe = None) -> Array:
    """log p(x_n) = log int p(x_n | s) N(s; 0, I) ds, (N,), K = 1 or 2, by scipy's adaptive quadrature.

    The box is 9 to either side of the mode of p(x_n, s): log p(x_n, s) is concave with a Hessian below -I, so
    outside it falls short of the peak by more than 9^2 / 2 = 40 nats.
    """
    x, seen = np.asarray(x, dtype=np.float64), _shared.observed(x, mask)
    weight, bias = (np.asarray(params[site], dtype=np.float64) for site in ("weight", "bias"))
    size, values = len(weight), []
    for n in range(len(x)):
        row, w, b = x[n, seen[n]], weight[:, seen[n]], bias[seen[n]]

        def height(s: Array, row=row, w=w, b=b) -> float:
            theta = b + s @ w
            gauss = -0.5 * float(s @ s) - 0.5 * size * np.log(2 * np.pi)
            return float((row * theta - np.logaddexp(0.0, theta)).sum()) + gauss

        mode = minimize(lambda s, height=height: -height(s), np.zeros(size), options={"gtol": 1e-7}).x
        peak = height(mode)
        limits = [(m - 9.0, m + 9.0) for m in mode]
        options = [{"epsabs": 1e-10, "epsrel": 1e-9, "limit": 60, "points": [m]} for m in mode]
        area = nquad(lambda *s, h=height, p=peak: np.exp(h(np.array(s)) - p), limits, opts=options)[0]
        values.append(peak + np.log(area))
    return np.array(values)


def _hermite_table(params: Params, x: ArrayLike, mask: Maybe, points: int) -> tuple[Array, Array]:
    """(scores (M, K), log weight + log p(x_n | score) (N, M)) of the product rule for N(0, I)."""
    grid, log_weight = _shared.hermite(np.shape(params["weight"])[0], points)
    return grid, _shared.likelihood_table(log_likelihood, params, x, grid, mask) + log_weight


def log_evidence_hermite(params: Params, x: ArrayLike, mask: Maybe = None, points: int = 200) -> Array:
    """The same by a Gauss-Hermite product rule on the prior, K = 1 or 2: fast, and precise for moderate weights.

    Against adaptive quadrature (K = 1, six features): 1e-13 with weights of about 1.5, but 3e-6 with weights of 3.
    """
    return np.asarray(logsumexp(_hermite_table(params, x, mask, points)[1], axis=1))


def posterior_moments_hermite(
    params: Params, x: ArrayLike, mask: Maybe = None, points: int = 200
) -> tuple[Array, Array]:
    """(E[s_n | x_n] (N, K), Cov (N, K, K)) by the same rule."""
    grid, table = _hermite_table(params, x, mask, points)
    weight = np.exp(table - np.asarray(logsumexp(table, axis=1, keepdims=True)))
    mean = weight @ grid
    return mean, np.einsum("ng,gi,gk->nik", weight, grid, grid) - np.einsum("ni,nk->nik", mean, mean)


# ----- the Jaakkola-Jordan bound ------------------------------------------------------------------------------------


def curvature(xi: ArrayLike) -> Array:
    """lambda(xi) = tanh(xi / 2) / (4 xi), 1/8 at 0."""
    xi = np.abs(np.asarray(xi, dtype=np.float64))
    small = xi < 1e-4
    safe = np.where(small, 1.0, xi)
    return np.where(small, 0.125 - xi**2 / 96, np.tanh(safe / 2) / (4 * safe))


def theta_moments(params: Params, mean: ArrayLike, covariance: ArrayLike) -> tuple[Array, Array]:
    """(E[theta_nt], E[theta_nt^2]), each (N, D), under q(s_n) = N(m_n, C_n)."""
    weight = np.asarray(params["weight"], dtype=np.float64)
    first = np.asarray(params["bias"]) + np.asarray(mean) @ weight
    return first, first**2 + np.einsum("kt,nkl,lt->nt", weight, np.asarray(covariance), weight)


def gaussian_kl(mean: ArrayLike, covariance: ArrayLike) -> Array:
    """KL(N(m_n, C_n) || N(0, I)), (N,)."""
    mean, covariance = np.asarray(mean, dtype=np.float64), np.asarray(covariance, dtype=np.float64)
    trace = np.trace(covariance, axis1=1, axis2=2)
    return 0.5 * (trace + (mean**2).sum(1) - mean.shape[1] - np.linalg.slogdet(covariance)[1])


def jaakkola_bound(
    params: Params, x: ArrayLike, mean: ArrayLike, covariance: ArrayLike, xi: ArrayLike, mask: Maybe = None
) -> Array:
    """Lower bound on log p(x_n) for given q(s_n) = N(m_n, C_n) and xi (N, D), (N,)::

    log p(x | theta) >= x theta - theta/2 + log sigmoid(xi) - xi/2 - lambda(xi) (theta^2 - xi^2)
    bound = sum_{t seen} E_q[that] - KL(q || N(0, I))
    """
    seen, xi = _shared.observed(x, mask), np.asarray(xi, dtype=np.float64)
    first, second = theta_moments(params, mean, covariance)
    entry = (_shared.filled(x, mask) - 0.5) * first - np.logaddexp(0.0, -xi) - xi / 2 - curvature(xi) * (second - xi**2)
    return np.where(seen, entry, 0.0).sum(1) - gaussian_kl(mean, covariance)


def elbo_of_gaussian(params: Params, x: ArrayLike, mean: ArrayLike, covariance: ArrayLike, mask: Maybe = None) -> Array:
    """ELBO of the same q without Jaakkola's second bound, (N,): theta_nt is Gaussian, so one-dimensional
    Gauss-Hermite quadrature gives E_q[log(1 + e^theta)]."""
    seen = _shared.observed(x, mask)
    first, second = theta_moments(params, mean, covariance)
    node, weight = np.polynomial.hermite_e.hermegauss(60)
    points = first[..., None] + np.sqrt(np.maximum(second - first**2, 0.0))[..., None] * node
    softplus = np.logaddexp(0.0, points) @ (weight / weight.sum())
    entry = _shared.filled(x, mask) * first - softplus
    return np.where(seen, entry, 0.0).sum(1) - gaussian_kl(mean, covariance)


def best_xi(params: Params, mean: ArrayLike, covariance: ArrayLike) -> Array:
    """The xi that maximises the bound at given q: xi_nt^2 = E_q[theta_nt^2], (N, D)."""
    return np.sqrt(theta_moments(params, mean, covariance)[1])


def best_gaussian(params: Params, x: ArrayLike, xi: ArrayLike, mask: Maybe = None) -> tuple[Array, Array]:
    """The q(s_n) = N(m_n, C_n) that maximises the bound at given xi, among all distributions::

    C^-1 = I + 2 sum_{t seen} lambda(xi_t) w_t w_t';  C^-1 m = sum_{t seen} (x_t - 1/2 - 2 lambda(xi_t) b_t) w_t
    """
    seen, weight = _shared.observed(x, mask), np.asarray(params["weight"], dtype=np.float64)
    x, rate = _shared.filled(x, mask), np.where(seen, curvature(xi), 0.0)
    means, covariances = [], []
    for n in range(len(x)):
        precision = np.eye(len(weight)) + 2 * (weight * rate[n]) @ weight.T
        right = weight @ np.where(seen[n], x[n] - 0.5 - 2 * rate[n] * np.asarray(params["bias"]), 0.0)
        covariances.append(np.linalg.inv(precision))
        means.append(covariances[-1] @ right)
    return np.array(means), np.array(covariances)


def best_loadings(
    x: ArrayLike, mean: ArrayLike, covariance: ArrayLike, xi: ArrayLike, mask: Maybe = None
) -> dict[str, Array]:
    """The weight and bias that maximise the summed bound at given q and xi: with s~ = (s, 1), for each feature
    [2 sum_{n seen} lambda(xi_nt) <s~ s~'>] (w_t, b_t) = sum_{n seen} (x_nt - 1/2) <s~>."""
    seen, mean = _shared.observed(x, mask), np.asarray(mean, dtype=np.float64)
    x, rate = _shared.filled(x, mask), np.where(seen, curvature(xi), 0.0)
    extended = np.concatenate([mean, np.ones((len(mean), 1))], axis=1)
    pair = np.einsum("ni,nk->nik", extended, extended)
    pair[:, :-1, :-1] += np.asarray(covariance)
    left = 2 * np.einsum("nt,nik->tik", rate, pair)
    right = np.einsum("nt,ni->ti", np.where(seen, x - 0.5, 0.0), extended)
    solution = np.linalg.solve(left, right[..., None])[..., 0]
    return {"weight": solution[:, :-1].T, "bias": solution[:, -1]}


def best_jaakkola(
    params: Params, x: ArrayLike, mask: Maybe = None, sweeps: int = 1000
) -> tuple[Array, Array, Array, Array]:
    """Alternate xi and q from xi = 1: (mean, covariance, xi, bound)."""
    xi = np.ones(np.shape(x))
    for _ in range(sweeps):
        before = xi
        mean, covariance = best_gaussian(params, x, xi, mask)
        xi = best_xi(params, mean, covariance)
        if np.abs(xi - before).max(initial=0.0) < 1e-13:
            break
    return mean, covariance, xi, jaakkola_bound(params, x, mean, covariance, xi, mask)
