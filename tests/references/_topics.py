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

import itertools

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.integrate import quad
from scipy.special import betaln, gammaln, logsumexp

from tests.references._shared import Array, observed

Tokens = list[NDArray[np.int_]]


def counts_of(x: ArrayLike, mask: ArrayLike | None = None) -> Array:
    """n (N, V), 0 where unobserved."""
    return np.where(observed(x, mask), np.asarray(x, dtype=np.float64), 0.0)


def tokens_of(x: ArrayLike, mask: ArrayLike | None = None) -> Tokens:
    """The words y_i of every document, (L_i,), in the order of the vocabulary."""
    counts = counts_of(x, mask).astype(int)
    return [np.repeat(np.arange(counts.shape[1]), row) for row in counts]


def concentration_of(value: ArrayLike, size: int) -> Array:
    return np.broadcast_to(np.asarray(value, dtype=np.float64), (size,))


def log_likelihood(topic: ArrayLike, x: ArrayLike, proportion: ArrayLike, mask: ArrayLike | None = None) -> Array:
    """log p(y_i | pi_i, b) = sum_l log sum_k pi_ik b_{k y_il} (eqs. 27.13 and 27.22), (N,), token by token."""
    topic, proportion = np.asarray(topic, dtype=np.float64), np.asarray(proportion, dtype=np.float64)
    total = np.zeros(len(proportion))
    with np.errstate(divide="ignore"):
        for i, words in enumerate(tokens_of(x, mask)):
            for v in words:
                total[i] += np.log(sum(proportion[i, k] * topic[k, v] for k in range(len(topic))))
    return total


def log_coefficient(x: ArrayLike, mask: ArrayLike | None = None) -> Array:
    """log L_i! / prod_v n_iv!, (N,): how many orders of tokens have these counts (eqs. 27.11 and 27.13)."""
    counts = counts_of(x, mask)
    return gammaln(counts.sum(1) + 1) - gammaln(counts + 1).sum(1)


# ----- topics b given: all K^L topics of a document's tokens ----------------------------------------------------------


def log_dirichlet_moment(counts: ArrayLike, concentration: ArrayLike) -> Array:
    """log E[prod_k pi_k^c_k] under Dirichlet(alpha), over the last axis: one document's factor of eq. 27.34, for an
    alpha of any shape."""
    counts = np.asarray(counts, dtype=np.float64)
    alpha = concentration_of(concentration, counts.shape[-1])
    rise = (gammaln(alpha + counts) - gammaln(alpha)).sum(-1)
    return rise + gammaln(alpha.sum()) - gammaln(alpha.sum() + counts.sum(-1))


def assignments(num_topics: int, num_tokens: int) -> NDArray[np.int_]:
    """All K^L values of q, (K^L, L)."""
    every = list(itertools.product(range(num_topics), repeat=num_tokens))
    return np.array(every, dtype=int).reshape(num_topics**num_tokens, num_tokens)


def topic_counts(q: NDArray[np.int_], num_topics: int) -> Array:
    """c_k = sum_l [q_l = k] over the last axis, (..., K)."""
    return np.stack([(q == k).sum(-1) for k in range(num_topics)], axis=-1).astype(float)


def assignment_table(topic: ArrayLike, words: NDArray[np.int_], alpha: ArrayLike) -> tuple[NDArray, Array]:
    """(q (M, L), log p(y, q | b) (M,)) over all M = K^L topics of one document's tokens, pi integrated out."""
    topic = np.asarray(topic, dtype=np.float64)
    q = assignments(len(topic), len(words))
    with np.errstate(divide="ignore"):
        emission = np.log(topic)[q, words].sum(1)
    return q, emission + log_dirichlet_moment(topic_counts(q, len(topic)), alpha)


def log_evidence(topic: ArrayLike, x: ArrayLike, alpha: ArrayLike, mask: ArrayLike | None = None) -> Array:
    """log p(y_i | b, alpha) = log sum_q p(y_i, q | b), (N,): exact, by K^L terms a document."""
    return np.array([logsumexp(assignment_table(topic, words, alpha)[1]) for words in tokens_of(x, mask)])


def posterior_mean(topic: ArrayLike, x: ArrayLike, alpha: ArrayLike, mask: ArrayLike | None = None) -> Array:
    """E[pi_i | y_i, b], (N, K): given q, pi_i is Dirichlet(alpha + c_i) (eq. 27.31)."""
    size, means = len(np.asarray(topic)), []
    for words in tokens_of(x, mask):
        q, table = assignment_table(topic, words, alpha)
        after = concentration_of(alpha, size) + topic_counts(q, size)
        means.append(np.exp(table - logsumexp(table)) @ (after / after.sum(1, keepdims=True)))
    return np.array(means)


def responsibilities(topic: ArrayLike, x: ArrayLike, alpha: ArrayLike, mask: ArrayLike | None = None) -> Array:
    """P(q_il = k | y_i, b) of a token of word v, (N, V, K); NaN where the document lacks the word.

    All tokens of one word in one document have the same posterior: they are exchangeable.
    """
    size = len(np.asarray(topic))
    result = np.full((*np.shape(x), size), np.nan)
    for i, words in enumerate(tokens_of(x, mask)):
        q, table = assignment_table(topic, words, alpha)
        weight = np.exp(table - logsumexp(table))
        for place, v in enumerate(words):
            result[i, v] = [weight[q[:, place] == k].sum() for k in range(size)]
    return result


# ----- the same by integration over pi, and by multiplying out --------------------------------------------------------


def _integral(topic: Array, words: NDArray[np.int_], alpha: Array, power: int) -> float:
    """log int s^power prod_l (s b_1 + (1 - s) b_2) Beta(s | alpha) ds for K = 2, by adaptive quadrature.

    The weight s^(a-1) (1-s)^(b-1) is left to QUADPACK's algebraic rule, so that alpha < 1 does no harm.
    """

    def height(s):
        with np.errstate(divide="ignore"):
            return sum(np.log(s * topic[0, v] + (1 - s) * topic[1, v]) for v in words) + 0.0 * s

    peak = float(np.max(height(np.linspace(0.0, 1.0, 201))))
    area, _ = quad(
        lambda s: s**power * np.exp(height(s) - peak), 0.0, 1.0,
        weight="alg", wvar=(alpha[0] - 1, alpha[1] - 1), epsabs=0, epsrel=1e-11, limit=200,
    )  # fmt: skip
    return float(peak + np.log(area) - betaln(*alpha))


def log_evidence_quadrature(topic: ArrayLike, x: ArrayLike, alpha: ArrayLike, mask: ArrayLike | None = None) -> Array:
    """log int p(y_i | pi) Dirichlet(pi | alpha) dpi (eq. 27.12 without its coefficient), (N,), K = 2 only."""
    topic, alpha = np.asarray(topic, dtype=np.float64), concentration_of(alpha, 2)
    return np.array([_integral(topic, words, alpha, 0) for words in tokens_of(x, mask)])


def posterior_mean_quadrature(topic: ArrayLike, x: ArrayLike, alpha: ArrayLike, mask: ArrayLike | None = None) -> Array:
    """E[pi_i | y_i, b], (N, 2), K = 2 only."""
    topic, alpha = np.asarray(topic, dtype=np.float64), concentration_of(alpha, 2)
    first = [np.exp(_integral(topic, w, alpha, 1) - _integral(topic, w, alpha, 0)) for w in tokens_of(x, mask)]
    return np.stack([first, 1 - np.array(first)], axis=1)


def log_evidence_polynomial(topic: ArrayLike, x: ArrayLike, alpha: ArrayLike, mask: ArrayLike | None = None) -> Array:
    """log p(y_i | b, alpha), (N,), any K and longer documents: prod_l (sum_k pi_k b_{k y_l}) multiplied out one token
    at a time as a polynomial in pi, exponents (c_1..c_K) -> coefficient, then its terms' Dirichlet moments."""
    topic, values = np.asarray(topic, dtype=np.float64), []
    for words in tokens_of(x, mask):
        terms = {(0,) * len(topic): 1.0}
        for v in words:
            product: dict[tuple, float] = {}
            for exponents, value in terms.items():
                for k, b in enumerate(topic[:, v]):
                    key = (*exponents[:k], exponents[k] + 1, *exponents[k + 1 :])
                    product[key] = product.get(key, 0.0) + value * b
            terms = product
        with np.errstate(divide="ignore"):
            coefficients = np.log(np.array(list(terms.values())))
        values.append(logsumexp(coefficients + log_dirichlet_moment(np.array(list(terms)), alpha)))
    return np.array(values)
