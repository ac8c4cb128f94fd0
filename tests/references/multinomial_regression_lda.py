"""Brute-force references for multinomial regression LDA (source 002, eqs. 27.68-27.70). No project code.

pi_i = softmax(c + W'u_i)     params["prevalence_bias"] c (K,), ["prevalence_weight"] W (P, K); covariates u (N, P)
q_il ~ Categorical(pi_i),   y_il | q_il = k ~ Categorical(b_k)                            params["topic"] b (K, V)
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from tests.references import _shared, _topics
from tests.references._shared import Array, Maybe, Params, Priors


def proportion(params: Params, covariates: Maybe, rows: int) -> Array:
    """pi (N, K) (eq. 27.68); softmax(c) where no covariates are given."""
    bias, weight = (np.asarray(params[f"prevalence_{name}"], dtype=np.float64) for name in ("bias", "weight"))
    given = np.zeros((rows, len(weight))) if covariates is None else np.asarray(covariates, dtype=np.float64)
    found = np.empty((rows, len(bias)))
    for i, u in enumerate(given):
        odds = [np.exp(bias[k] + sum(u[p] * weight[p, k] for p in range(len(weight)))) for k in range(len(bias))]
        found[i] = np.array(odds) / sum(odds)
    return found


def log_evidence(params: Params, x: ArrayLike, covariates: Maybe = None, mask: Maybe = None) -> Array:
    """log p(y_i | u_i), (N,), token by token (eq. 27.70)."""
    return _topics.log_likelihood(params["topic"], x, proportion(params, covariates, len(np.asarray(x))), mask)


def log_joint(
    params: Params, x: ArrayLike, local: ArrayLike, mask: Maybe = None, priors: Priors = None, covariates: Maybe = None
) -> float:
    """log p(b, c, W) + sum_i log p(y_i | pi_i, b), -inf unless pi_i are the proportions of eq. 27.68."""
    known = proportion(params, covariates, len(np.asarray(x)))
    if np.abs(np.asarray(local) - known).max() > 1e-9:
        return -np.inf
    return _shared.log_priors(params, priors) + float(_topics.log_likelihood(params["topic"], x, known, mask).sum())


def log_evidence_by_topics(params: Params, x: ArrayLike, covariates: Maybe = None) -> Array:
    """The same by summing over all K^L topics of a document's tokens (eqs. 27.69-27.70)."""
    topic, found = np.asarray(params["topic"], dtype=np.float64), []
    for words, pi in zip(_topics.tokens_of(x), proportion(params, covariates, len(np.asarray(x))), strict=True):
        q = _shared.assignments(len(topic), len(words))
        found.append(np.log(np.prod(pi[q] * topic[q, words], axis=1).sum()))
    return np.array(found)
