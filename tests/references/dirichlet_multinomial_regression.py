"""Brute-force references for Dirichlet-multinomial regression (source 002, eqs. 27.71-27.72). No project code.

alpha_ik = exp(c_k + sum_p u_ip W_pk)     params["prevalence_bias"] (K,), params["prevalence_weight"] (P, K)
pi_i ~ Dirichlet(alpha_i)                 the rest as LDA, see ``_topics``; covariates u (N, P)
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import gammaln, logsumexp, xlogy

from tests.references import _shared, _topics
from tests.references._shared import Array, Maybe, Params, Priors


def concentration(params: Params, covariates: Maybe, rows: int) -> Array:
    """alpha (N, K) (eq. 27.71); exp(c) where no covariates are given."""
    weight = np.asarray(params["prevalence_weight"], dtype=np.float64)
    given = np.zeros((rows, len(weight))) if covariates is None else np.asarray(covariates, dtype=np.float64)
    found = np.empty((rows, weight.shape[1]))
    for i in range(rows):
        for k in range(weight.shape[1]):
            found[i, k] = np.exp(
                params["prevalence_bias"][k] + sum(given[i, p] * weight[p, k] for p in range(len(weight)))
            )
    return found


def log_joint(
    params: Params, x: ArrayLike, local: ArrayLike, mask: Maybe = None, priors: Priors = None, covariates: Maybe = None
) -> float:
    """log p(b, c, W) + sum_i log p(pi_i | u_i) + sum_i log p(y_i | pi_i, b)."""
    alpha = concentration(params, covariates, len(np.asarray(x)))
    density = gammaln(alpha.sum(1)) - gammaln(alpha).sum(1) + xlogy(alpha - 1, np.asarray(local)).sum(1)
    likelihood = _topics.log_likelihood(params["topic"], x, local, mask)
    return _shared.log_priors(params, priors) + float(density.sum() + likelihood.sum())


def log_evidence(params: Params, x: ArrayLike, covariates: Maybe = None, mask: Maybe = None) -> Array:
    """log p(y_i | u_i, b, c, W), (N,): by all K^L topics of a document's tokens."""
    alpha = concentration(params, covariates, len(np.asarray(x)))
    words = _topics.tokens_of(x, mask)
    return np.array(
        [logsumexp(_topics.assignment_table(params["topic"], y, a)[1]) for y, a in zip(words, alpha, strict=True)]
    )


def posterior_mean(params: Params, x: ArrayLike, covariates: Maybe = None) -> Array:
    """E[pi_i | y_i, u_i], (N, K)."""
    rows = np.asarray(x)
    alpha = concentration(params, covariates, len(rows))
    return np.concatenate(
        [_topics.posterior_mean(params["topic"], rows[i : i + 1], alpha[i]) for i in range(len(rows))]
    )
