"""Brute-force references for discriminative LDA (source 002, eq. 27.67). No project code.

    pi_i ~ Dirichlet(alpha)                               params["topic"] b (K, V), params["transformation"] A (C, K, K)
    j_il ~ Categorical(pi_i),  q_il | j_il, c ~ Categorical(A_c[j_il]),  y_il | q_il = k ~ Categorical(b_k)

labels (N, C) are indicators of the class c_i; of a document without one A is the mean over the classes. With the topics
of the tokens summed out a token of component j has word v with probability sum_k A_c[j, k] b[k, v].
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import gammaln, softmax, xlogy

from tests.references import _shared, _topics
from tests.references._shared import Array, Maybe, Params, Priors


def class_topics(params: Params, labels: Maybe, rows: int) -> Array:
    """(N, K, V): the word probabilities of the components of every document."""
    topic, matrix = (np.asarray(params[site], dtype=np.float64) for site in ("topic", "transformation"))
    given = np.zeros((rows, len(matrix))) if labels is None else np.asarray(labels, dtype=np.float64)
    found = np.zeros((rows, *topic.shape))
    for i, row in enumerate(given):
        classes = np.flatnonzero(row) if row.any() else np.arange(len(matrix))
        for c in classes:
            for j in range(len(topic)):
                for k in range(len(topic)):
                    found[i, j] += matrix[c, j, k] * topic[k] / len(classes)
    return found


def log_joint(
    params: Params, x: ArrayLike, local: ArrayLike, mask: Maybe = None, priors: Priors = None, labels: Maybe = None
) -> float:
    """log p(b, A) + sum_i log p(pi_i) + sum_i log p(y_i | pi_i, c_i, b, A)."""
    given, pi = dict(priors or {}), np.asarray(local, dtype=np.float64)
    alpha = _shared.concentration_of(given.pop("topic_proportion", ("dirichlet", 0.1))[1], pi.shape[1])
    density = gammaln(alpha.sum()) - gammaln(alpha).sum() + xlogy(alpha - 1, pi).sum(1)
    total = _shared.log_priors(params, given) + float(density.sum())
    rows = np.asarray(x)
    for i, beta in enumerate(class_topics(params, labels, len(rows))):
        keep = None if mask is None else np.asarray(mask)[i : i + 1]
        total += float(_topics.log_likelihood(beta, rows[i : i + 1], pi[i : i + 1], keep)[0])
    return total


def log_evidence(params: Params, x: ArrayLike, labels: Maybe = None, alpha: ArrayLike = 0.1) -> Array:
    """log p(y_i | c_i, b, A), (N,), by all components of a document's tokens."""
    rows = np.asarray(x)
    each = enumerate(class_topics(params, labels, len(rows)))
    return np.array([_topics.log_evidence(beta, rows[i : i + 1], alpha)[0] for i, beta in each])


def posterior_mean(params: Params, x: ArrayLike, labels: Maybe = None, alpha: ArrayLike = 0.1) -> Array:
    """E[pi_i | y_i, c_i], (N, K)."""
    rows = np.asarray(x)
    each = enumerate(class_topics(params, labels, len(rows)))
    return np.concatenate([_topics.posterior_mean(beta, rows[i : i + 1], alpha) for i, beta in each])


def class_posterior(params: Params, x: ArrayLike, prior: ArrayLike, alpha: ArrayLike = 0.1) -> Array:
    """P(c | y_i), (N, C), of classes with these prior probabilities."""
    rows, size = np.asarray(x), len(np.asarray(params["transformation"]))
    each = [log_evidence(params, rows, np.tile(one, (len(rows), 1)), alpha) for one in np.eye(size)]
    return softmax(np.array(each).T + np.log(np.asarray(prior, dtype=np.float64)), axis=1)
