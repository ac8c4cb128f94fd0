"""Brute-force references for supervised LDA with a binary response (source 002, eqs. 27.65-27.66). No project code.

LDA (see ``_topics``), and one response a document from the mean of its tokens' topics::

    pi_i ~ Dirichlet(alpha)                            topic_proportion  (N, K)
    q_il | pi_i ~ Categorical(pi_i)                    the topic of every token
    y_il | q_il = k ~ Categorical(b_k)                 params["topic"]  (K, V); x (N, V) counts the words
    qbar_ik = 1/L_i sum_l [q_il = k]                   (0 for a document without tokens)           (eq. 27.66)
    r_i | q_i ~ Bernoulli(sigmoid(w' qbar_i))          params["response_weight"]  (K,); response (N,)   (eq. 27.65)

There is no intercept: sum_k qbar_ik = 1, so that adding a number to every w_k is adding an intercept. ``mask`` (N, V)
leaves tokens out, as if the document was shorter; a NaN among the responses is one that was not observed. Given the
words the topics of the tokens are independent, but the response ties them: all of it is summed over explicitly.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, log_expit, logsumexp, xlogy

from tests.references import _topics
from tests.references._shared import Array, Params, Prior, log_priors
from tests.references.lda import token_bound


def log_response(weight: ArrayLike, counts: ArrayLike, response: float) -> Array:
    """log p(r | topic counts), from c (..., K); 0 where r is NaN."""
    counts = np.asarray(counts, dtype=np.float64)
    if np.isnan(response):
        return np.zeros(counts.shape[:-1])
    length = np.maximum(counts.sum(-1), 1)
    return log_expit((2 * response - 1) * (counts @ np.asarray(weight, dtype=np.float64)) / length)


def _responses(response: ArrayLike | None, size: int) -> Array:
    return np.full(size, np.nan) if response is None else np.asarray(response, dtype=np.float64)


# ----- all K^L topics of a document's tokens --------------------------------------------------------------------------


def given_proportion(params: Params, words: ArrayLike, proportion: ArrayLike, response: float) -> float:
    """log p(y_i, r_i | pi_i, b, w) = log sum_q prod_l pi_q b_q(y_l) p(r | qbar), by K^L terms."""
    topic, words = np.asarray(params["topic"], dtype=np.float64), np.asarray(words, dtype=int)
    q = _topics.assignments(len(topic), len(words))
    with np.errstate(divide="ignore"):
        table = np.log(np.asarray(proportion, dtype=np.float64)[q] * topic[q, words]).sum(1)
    answer = log_response(params["response_weight"], _topics.topic_counts(q, len(topic)), response)
    return float(logsumexp(table + answer))


def log_evidence_assignments(
    params: Params, x: ArrayLike, response: ArrayLike | None, alpha: ArrayLike, mask: ArrayLike | None = None
) -> Array:
    """log p(y_i, r_i | b, w, alpha) = log sum_q p(y_i, q | b) p(r_i | q), (N,), by K^L terms a document, the
    proportions integrated out in closed form (eq. 27.34)."""
    topic, values = params["topic"], []
    for words, r in zip(_topics.tokens_of(x, mask), _responses(response, len(np.asarray(x))), strict=True):
        q, table = _topics.assignment_table(topic, words, alpha)
        counts = _topics.topic_counts(q, len(topic))
        values.append(logsumexp(table + log_response(params["response_weight"], counts, r)))
    return np.array(values)


def token_posterior(
    params: Params, words: ArrayLike, response: float, alpha: ArrayLike
) -> tuple[NDArray[np.int_], Array]:
    """(q (M, L), P(q | y, r) (M,)) over all M = K^L topics of one document's tokens."""
    q, table = _topics.assignment_table(params["topic"], np.asarray(words, dtype=int), alpha)
    table = table + log_response(params["response_weight"], _topics.topic_counts(q, len(params["topic"])), response)
    return q, np.exp(table - logsumexp(table))


# ----- all vectors of topic counts: longer documents, any K -----------------------------------------------------------


def count_terms(topic: ArrayLike, words: ArrayLike) -> tuple[Array, Array]:
    """(c (M, K), a (M,)) with prod_l (sum_k s_k b_k(y_l)) = sum_c a_c prod_k s_k^c_k: the product multiplied out one
    token at a time as a polynomial in s, so that a_c = sum over the q with these counts of prod_l b_q(y_l)."""
    topic = np.asarray(topic, dtype=np.float64)
    terms = {(0,) * len(topic): 1.0}
    for v in np.asarray(words, dtype=int):
        product: dict[tuple, float] = {}
        for counts, value in terms.items():
            for k, b in enumerate(topic[:, v]):
                key = (*counts[:k], counts[k] + 1, *counts[k + 1 :])
                product[key] = product.get(key, 0.0) + value * b
        terms = product
    return np.array(list(terms), dtype=np.float64), np.array(list(terms.values()))


def _count_table(params: Params, words: ArrayLike, response: float, alpha: ArrayLike) -> tuple[Array, Array]:
    """(c (M, K), log p(y_i, r_i, c_i | b, w, alpha) (M,))."""
    counts, coefficient = count_terms(params["topic"], words)
    with np.errstate(divide="ignore"):
        table = np.log(coefficient) + _topics.log_dirichlet_moment(counts, alpha)
    return counts, table + log_response(params["response_weight"], counts, response)


def log_joint(
    params: Params,
    x: ArrayLike,
    local: ArrayLike,
    mask: ArrayLike | None = None,
    priors: Mapping[str, Prior] | None = None,
    response: ArrayLike | None = None,
) -> float:
    """log p(b) + log p(w) + sum_i log p(pi_i) + sum_i log p(y_i, r_i | pi_i, b, w), with the topics of the tokens
    summed out; a site that ``priors`` leaves out adds 0, and so does a response that was not observed."""
    proportion = np.asarray(local, dtype=np.float64)
    total = log_priors({**params, "topic_proportion": proportion}, priors)
    for words, pi, r in zip(_topics.tokens_of(x, mask), proportion, _responses(response, len(proportion)), strict=True):
        counts, coefficient = count_terms(params["topic"], words)
        with np.errstate(divide="ignore"):
            table = np.log(coefficient) + xlogy(counts, pi).sum(1)
        total += float(logsumexp(table + log_response(params["response_weight"], counts, r)))
    return total


def log_evidence(
    params: Params,
    x: ArrayLike,
    response: ArrayLike | None = None,
    alpha: ArrayLike = 0.1,
    mask: ArrayLike | None = None,
) -> Array:
    """log p(y_i, r_i | b, w, alpha), (N,), by the C(L + K - 1, K - 1) vectors of topic counts."""
    pairs = zip(_topics.tokens_of(x, mask), _responses(response, len(np.asarray(x))), strict=True)
    return np.array([logsumexp(_count_table(params, words, r, alpha)[1]) for words, r in pairs])


def posterior_mean(
    params: Params,
    x: ArrayLike,
    response: ArrayLike | None = None,
    alpha: ArrayLike = 0.1,
    mask: ArrayLike | None = None,
) -> Array:
    """E[pi_i | y_i, r_i], (N, K): given the counts pi_i is Dirichlet(alpha + c_i) (eq. 27.31)."""
    means, size = [], len(params["topic"])
    for words, r in zip(_topics.tokens_of(x, mask), _responses(response, len(np.asarray(x))), strict=True):
        counts, table = _count_table(params, words, r, alpha)
        after = _topics.concentration_of(alpha, size) + counts
        means.append(np.exp(table - logsumexp(table)) @ (after / after.sum(1, keepdims=True)))
    return np.array(means)


def response_probability(params: Params, x: ArrayLike, alpha: ArrayLike = 0.1, mask: ArrayLike | None = None) -> Array:
    """P(r_i = 1 | y_i, b, w, alpha), (N,): the prediction for documents whose response was not observed."""
    values, weight = [], np.asarray(params["response_weight"], dtype=np.float64)
    for words in _topics.tokens_of(x, mask):
        counts, table = _count_table(params, words, np.nan, alpha)
        values.append(np.exp(table - logsumexp(table)) @ expit(counts @ weight / max(len(words), 1)))
    return np.array(values)


# ----- mean field: q(pi_i) = Dirichlet, q(q_il) = Categorical, the logistic by its quadratic bound --------------------


def response_moments(weight: ArrayLike, share: ArrayLike) -> tuple[float, float]:
    """(E[s], E[s^2]) of s = w' qbar where the tokens' topics are independent with probabilities ``share`` (L, K)."""
    weight, share = np.asarray(weight, dtype=np.float64), np.asarray(share, dtype=np.float64)
    length, mean = max(len(share), 1), share @ weight
    variance = (share @ weight**2 - mean**2).sum() / length**2
    return float(mean.sum() / length), float((mean.sum() / length) ** 2 + variance)


def logistic_bound(mean: float, square: float, response: float, xi: float) -> float:
    """Jaakkola and Jordan's lower bound of E[log sigmoid((2r - 1) s)] from E[s] and E[s^2], for any xi > 0::

    log sigmoid(xi) + ((2r - 1) E[s] - xi) / 2 - lambda(xi) (E[s^2] - xi^2),   lambda(xi) = tanh(xi / 2) / (4 xi)
    """
    curvature = np.tanh(xi / 2) / (4 * xi)
    return float(log_expit(xi) + ((2 * response - 1) * mean - xi) / 2 - curvature * (square - xi**2))


def bound(
    params: Params, words: ArrayLike, response: float, weight: ArrayLike, share: ArrayLike, xi: float, alpha: ArrayLike
) -> float:
    """A lower bound of log p(y_i, r_i | b, w, alpha), for any Dirichlet(weight (K,)), share (L, K) and xi: the bound of
    LDA written token by token, plus that of the response."""
    total = token_bound(params["topic"], words, weight, share, alpha)
    if np.isnan(response):
        return total
    return total + logistic_bound(*response_moments(params["response_weight"], share), response, xi)


def expected_log_response(weight: ArrayLike, share: ArrayLike, response: float) -> float:
    """E[log p(r | q)] itself under independent topics of the tokens, by K^L terms: what the bound is below."""
    share = np.asarray(share, dtype=np.float64)
    q = _topics.assignments(share.shape[1], len(share))
    probability = share[np.arange(len(share)), q].prod(1)
    return float(probability @ log_response(weight, _topics.topic_counts(q, share.shape[1]), response))
