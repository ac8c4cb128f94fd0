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

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import log_expit, logsumexp, xlogy

from tests.references import _shared, _topics
from tests.references._shared import Array, Maybe, Params, Priors


def log_response(weight: ArrayLike, counts: ArrayLike, response: float) -> Array:
    """log p(r | topic counts), from c (..., K); 0 where r is NaN."""
    counts = np.asarray(counts, dtype=np.float64)
    if np.isnan(response):
        return np.zeros(counts.shape[:-1])
    length = np.maximum(counts.sum(-1), 1)
    return log_expit((2 * response - 1) * (counts @ np.asarray(weight, dtype=np.float64)) / length)


def _rows(params: Params, x: ArrayLike, response: Maybe, mask: Maybe):
    """Of every document: c (M, K), the log of sum over the q with these counts of prod_l b_q(y_l), log p(r | c)."""
    topic = np.asarray(params["topic"], dtype=np.float64)
    response = np.full(len(np.asarray(x)), np.nan) if response is None else np.asarray(response, dtype=np.float64)
    for words, r in zip(_topics.tokens_of(x, mask), response, strict=True):
        counts, coefficients = _shared.multiplied_out((_shared.linear(topic[:, v]) for v in words), len(topic))
        yield counts, coefficients, log_response(params["response_weight"], counts, r)


def log_joint(
    params: Params, x: ArrayLike, local: ArrayLike, mask: Maybe = None, priors: Priors = None, response: Maybe = None
) -> float:
    """log p(b) + log p(w) + sum_i log p(pi_i) + sum_i log p(y_i, r_i | pi_i, b, w), with the topics of the tokens
    summed out; a site that ``priors`` leaves out adds 0, and so does a response that was not observed."""
    proportion = np.asarray(local, dtype=np.float64)
    total = _shared.log_priors({**params, "topic_proportion": proportion}, priors)
    for (counts, coefficients, answer), pi in zip(_rows(params, x, response, mask), proportion, strict=True):
        total += float(logsumexp(coefficients + xlogy(counts, pi).sum(1) + answer))
    return total


def log_evidence(
    params: Params, x: ArrayLike, response: Maybe = None, alpha: ArrayLike = 0.1, mask: Maybe = None
) -> Array:
    """log p(y_i, r_i | b, w, alpha), (N,), by the C(L + K - 1, K - 1) vectors of topic counts."""
    rows = _rows(params, x, response, mask)
    return np.array([logsumexp(value + answer + _shared.log_dirichlet_moment(c, alpha)) for c, value, answer in rows])
