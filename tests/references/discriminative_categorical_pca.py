"""Brute-force references for discriminative categorical PCA (002, eqs. 27.73-27.74). No project code.

    z_n ~ N(U'u_n, I_K),   log p(y_n | z_n) = sum_j x_nj eta_nj - L_n log sum_j e^eta_nj,   eta_n = b + sum_k z_nk w_k

params: weight (K, D), bias (D,), input_weight (P, K). covariates: u (N, P). Draws of masked labels are left out.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from tests.references import _pca, _shared, softmax_pca
from tests.references._shared import Array, Maybe, Params, Priors


def log_likelihood(params: Params, x: ArrayLike, score: ArrayLike, mask: Maybe = None) -> Array:
    """log p(y_n | z_n), (N,), the labels in their order."""
    return softmax_pca.log_likelihood(params, x, score, mask)


def prior_means(params: Params, covariates: ArrayLike) -> Array:
    """U'u_n, (N, K)."""
    return np.asarray(covariates, dtype=np.float64) @ np.asarray(params["input_weight"], dtype=np.float64)


def log_joint(
    params: Params, x: ArrayLike, score: ArrayLike, mask: Maybe = None, priors: Priors = None, covariates: Maybe = None
) -> float:
    """log p(globals) + sum_n log p(z_n | u_n) + sum_n log p(y_n | z_n).

    The prior of the score that ``priors`` says is that of z_n - U'u_n; N(0, 1) where it says nothing.
    """
    away = np.asarray(score, dtype=np.float64) - prior_means(params, covariates)
    given = {"score": ("normal", 0.0, 1.0), **(priors or {})}
    own = {site: value for site, value in params.items() if site in given}
    return _shared.log_priors({**own, "score": away}, given) + float(log_likelihood(params, x, score, mask).sum())


def _given_inputs(params: Params, x: ArrayLike, score: ArrayLike, mask: Maybe, covariates: ArrayLike) -> Array:
    return log_likelihood(params, x, np.asarray(score) + prior_means(params, covariates), mask)


#: Of (params, x, mask, points, covariates); the moments are those of z_n - U'u_n.
log_evidence, moments_from_prior = _pca.by_grid(_given_inputs)
