"""What the references of the topic models share: tokens, likelihoods, and sums over all topics of a document's tokens.

Source 002, sections 27.2.3 and 27.3, read with its faults mended. No project code.

    pi_i ~ Dirichlet(alpha)                    topic_proportion  (N, K)     (eq. 27.18)
    q_il ~ Categorical(pi_i)                   the topic of every token     (eq. 27.19)
    b_k ~ Dirichlet(gamma)                     topic  (K, V)                (eq. 27.20)
    y_il | q_il = k ~ Categorical(b_k)         x (N, V) counts the words    (eq. 27.21)

``mask`` (N, V) is True where a count was observed. The tokens of an unobserved count are left out, as if the document
was shorter. Everything is float64, and as slow as it is plain.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import gammaln, logsumexp, softmax

from tests.references import _shared
from tests.references._shared import Array, Labels, Maybe

counts_of = _shared.filled  # n (N, V), 0 where unobserved


def tokens_of(x: ArrayLike, mask: Maybe = None) -> list[Labels]:
    """The words y_i of every document, (L_i,), in the order of the vocabulary."""
    counts = counts_of(x, mask).astype(int)
    return [np.repeat(np.arange(counts.shape[1]), row) for row in counts]


def log_likelihood(topic: ArrayLike, x: ArrayLike, proportion: ArrayLike, mask: Maybe = None) -> Array:
    """log p(y_i | pi_i, b) = sum_l log sum_k pi_ik b_{k y_il} (eqs. 27.13 and 27.22), (N,), token by token."""
    topic, proportion = np.asarray(topic, dtype=np.float64), np.asarray(proportion, dtype=np.float64)
    total = np.zeros(len(proportion))
    with np.errstate(divide="ignore"):
        for i, words in enumerate(tokens_of(x, mask)):
            for v in words:
                total[i] += np.log(sum(proportion[i, k] * topic[k, v] for k in range(len(topic))))
    return total


log_joint = _shared.log_joint_of(lambda params, *data: log_likelihood(params["topic"], *data), "topic_proportion")


def log_coefficient(x: ArrayLike, mask: Maybe = None) -> Array:
    """log L_i! / prod_v n_iv!, (N,): how many orders of tokens have these counts (eqs. 27.11 and 27.13)."""
    counts = counts_of(x, mask)
    return gammaln(counts.sum(1) + 1) - gammaln(counts + 1).sum(1)


# ----- topics b given: all K^L topics of a document's tokens ----------------------------------------------------------


def assignment_table(topic: ArrayLike, words: Labels, alpha: ArrayLike) -> tuple[Labels, Array]:
    """(q (M, L), log p(y, q | b) (M,)) over all M = K^L topics of one document's tokens, pi integrated out."""
    topic = np.asarray(topic, dtype=np.float64)
    q = _shared.assignments(len(topic), len(words))
    with np.errstate(divide="ignore"):
        emission = np.log(topic)[q, words].sum(1)
    return q, emission + _shared.log_dirichlet_moment(_shared.counts_of_values(q, len(topic)), alpha)


def log_evidence(topic: ArrayLike, x: ArrayLike, alpha: ArrayLike, mask: Maybe = None) -> Array:
    """log p(y_i | b, alpha) = log sum_q p(y_i, q | b), (N,): exact, by K^L terms a document."""
    return np.array([logsumexp(assignment_table(topic, words, alpha)[1]) for words in tokens_of(x, mask)])


def posterior_mean(topic: ArrayLike, x: ArrayLike, alpha: ArrayLike, mask: Maybe = None) -> Array:
    """E[pi_i | y_i, b], (N, K): given q, pi_i is Dirichlet(alpha + c_i) (eq. 27.31)."""
    size, means = len(np.asarray(topic)), []
    for words in tokens_of(x, mask):
        q, table = assignment_table(topic, words, alpha)
        means.append(_shared.mean_given_counts(table, _shared.counts_of_values(q, size), alpha))
    return np.array(means)


def responsibilities(topic: ArrayLike, x: ArrayLike, alpha: ArrayLike, mask: Maybe = None) -> Array:
    """P(q_il = k | y_i, b) of a token of word v, (N, V, K); NaN where the document lacks the word.

    All tokens of one word in one document have the same posterior: they are exchangeable.
    """
    size = len(np.asarray(topic))
    result = np.full((*np.shape(x), size), np.nan)
    for i, words in enumerate(tokens_of(x, mask)):
        q, table = assignment_table(topic, words, alpha)
        weight = softmax(table)
        for place, v in enumerate(words):
            result[i, v] = [weight[q[:, place] == k].sum() for k in range(size)]
    return result


# ----- the same by integration over pi, and by multiplying out --------------------------------------------------------


def _integral(topic: ArrayLike, words: Labels, alpha: ArrayLike, power: int = 0) -> float:
    """log int s^power prod_l (s b_1 + (1 - s) b_2) Beta(s | alpha) ds for K = 2."""
    first, second = np.asarray(topic, dtype=np.float64)[:, words]
    return _shared.log_beta_integral(
        lambda s: np.log(np.outer(s, first) + np.outer(1 - s, second)).sum(1), alpha, power
    )


def log_evidence_quadrature(topic: ArrayLike, x: ArrayLike, alpha: ArrayLike, mask: Maybe = None) -> Array:
    """log int p(y_i | pi) Dirichlet(pi | alpha) dpi (eq. 27.12 without its coefficient), (N,), K = 2 only."""
    return np.array([_integral(topic, words, alpha) for words in tokens_of(x, mask)])


def posterior_mean_quadrature(topic: ArrayLike, x: ArrayLike, alpha: ArrayLike, mask: Maybe = None) -> Array:
    """E[pi_i | y_i, b], (N, 2), K = 2 only."""
    first = [np.exp(_integral(topic, w, alpha, 1) - _integral(topic, w, alpha)) for w in tokens_of(x, mask)]
    return np.stack([first, 1 - np.array(first)], axis=1)


def log_evidence_polynomial(topic: ArrayLike, x: ArrayLike, alpha: ArrayLike, mask: Maybe = None) -> Array:
    """log p(y_i | b, alpha), (N,), any K and longer documents: the terms of prod_l (sum_k pi_k b_{k y_l}), a polynomial
    in pi, times their Dirichlet moments."""
    topic, values = np.asarray(topic, dtype=np.float64), []
    for words in tokens_of(x, mask):
        counts, coefficients = _shared.multiplied_out((_shared.linear(topic[:, v]) for v in words), len(topic))
        values.append(logsumexp(coefficients + _shared.log_dirichlet_moment(counts, alpha)))
    return np.array(values)
