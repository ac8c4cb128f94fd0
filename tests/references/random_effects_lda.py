"""Brute-force references for random-effects LDA (002, Fig. 27.16b): a CTM with a mean and a spread of every document.

    W_ip ~ Normal(m_p, Sigma), p = 1..P;   z_i = W_i'u_i ~ Normal(m'u_i, |u_i|^2 Sigma);   words as in ``ctm``

params: topic (K, V), mean (P, K), covariance (K, K). covariates: u (N, P).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from tests.references import ctm
from tests.references._shared import Array, Maybe, Params, Priors, log_priors

log_likelihood = ctm.log_likelihood


def of_document(params: Params, covariates: ArrayLike) -> Params:
    """The CTM of a document with these covariates (P,)."""
    u, mean = np.asarray(covariates, dtype=np.float64), np.asarray(params["mean"], dtype=np.float64)
    return {"topic": params["topic"], "mean": u @ mean, "covariance": (u @ u) * np.asarray(params["covariance"])}


def log_joint(
    params: Params, x: ArrayLike, local: ArrayLike, mask: Maybe = None, priors: Priors = None, covariates: Maybe = None
) -> float:
    """As that of ``ctm``, document by document."""
    priors = dict(priors or {})
    total = float(log_likelihood(params, x, local, mask).sum())
    for z, u in zip(np.asarray(local), np.asarray(covariates), strict=True):
        own = of_document(params, u)
        total += float(stats.multivariate_normal.logpdf(z, own["mean"], own["covariance"]))
    if "covariance" in priors:
        _, *arguments = priors.pop("covariance")
        total += ctm.log_inverse_wishart(params["covariance"], *arguments)
    return total + log_priors(params, priors)


def _each(function, params: Params, x: ArrayLike, mask: Maybe, covariates: ArrayLike) -> list:
    rows = [np.asarray(x)[i : i + 1] for i in range(len(np.asarray(x)))]
    masks = [None] * len(rows) if mask is None else [np.asarray(mask)[i : i + 1] for i in range(len(rows))]
    given = [of_document(params, u) for u in np.asarray(covariates)]
    return [function(*one) for one in zip(given, rows, masks, strict=True)]


def log_evidence(params: Params, x: ArrayLike, mask: Maybe = None, covariates: Maybe = None) -> Array:
    """log p(y_i | u_i, globals), (N,)."""
    return np.concatenate(_each(ctm.log_evidence, params, x, mask, covariates))


def posterior_logit(params: Params, x: ArrayLike, mask: Maybe = None, covariates: Maybe = None) -> tuple[Array, Array]:
    """E[z_i | y_i] (N, K) and its covariance (N, K, K)."""
    found = _each(ctm.posterior_logit, params, x, mask, covariates)
    return np.concatenate([one[0] for one in found]), np.concatenate([one[1] for one in found])
