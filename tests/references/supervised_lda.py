"""Brute-force references for supervised LDA (source 002, eqs. 27.65-27.66). No project code.

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
from scipy import stats
from scipy.special import expit, log_expit, log_softmax, logsumexp, softmax, xlogy

from tests.references import _shared, _topics
from tests.references._shared import Array, Maybe, Params, Priors


def log_response(params: Params, counts: ArrayLike, response: ArrayLike, kind: str = "binary") -> Array:
    """log p(r | topic counts), (M,), from c (M, K); unknown responses, NaN, add 0.

    eta = W qbar, an entry a response or class: Bernoulli(sigmoid(eta)), Categorical(softmax(eta)), Normal(eta,
    params["response_scale"]), Poisson(exp(eta)); several responses, r (R,), are independent given the counts.
    """
    counts, response = np.asarray(counts, dtype=np.float64), np.atleast_1d(np.asarray(response, dtype=np.float64))
    weight = np.atleast_2d(np.asarray(params["response_weight"], dtype=np.float64))
    eta = counts @ weight.T / np.maximum(counts.sum(-1, keepdims=True), 1)
    if kind == "categorical":
        return log_softmax(eta, axis=1)[:, int(response[0])] if not np.isnan(response[0]) else np.zeros(len(eta))
    total = np.zeros(len(eta))
    for place, r in enumerate(response):
        if np.isnan(r):
            continue
        each = eta[:, place]
        if kind == "binary":
            total += log_expit((2 * r - 1) * each)
        elif kind == "real":
            total += stats.norm.logpdf(r, each, np.ravel(params["response_scale"])[place])
        else:
            total += stats.poisson.logpmf(r, np.exp(each))
    return total


def _rows(params: Params, x: ArrayLike, response: Maybe, mask: Maybe, kind: str):
    """Of every document: c (M, K), the log of sum over the q with these counts of prod_l b_q(y_l), log p(r | c)."""
    topic = np.asarray(params["topic"], dtype=np.float64)
    response = np.full(len(np.asarray(x)), np.nan) if response is None else np.asarray(response, dtype=np.float64)
    for words, r in zip(_topics.tokens_of(x, mask), response, strict=True):
        counts, coefficients = _shared.multiplied_out((_shared.linear(topic[:, v]) for v in words), len(topic))
        yield counts, coefficients, log_response(params, counts, r, kind)


def log_joint(
    params: Params,
    x: ArrayLike,
    local: ArrayLike,
    mask: Maybe = None,
    priors: Priors = None,
    response: Maybe = None,
    kind: str = "binary",
) -> float:
    """log p(b) + log p(w) + sum_i log p(pi_i) + sum_i log p(y_i, r_i | pi_i, b, w), with the topics of the tokens
    summed out; a site that ``priors`` leaves out adds 0, and so does a response that was not observed."""
    proportion = np.asarray(local, dtype=np.float64)
    total = _shared.log_priors({**params, "topic_proportion": proportion}, priors)
    for (counts, coefficients, answer), pi in zip(_rows(params, x, response, mask, kind), proportion, strict=True):
        total += float(logsumexp(coefficients + xlogy(counts, pi).sum(1) + answer))
    return total


def log_evidence(
    params: Params,
    x: ArrayLike,
    response: Maybe = None,
    alpha: ArrayLike = 0.1,
    mask: Maybe = None,
    kind: str = "binary",
) -> Array:
    """log p(y_i, r_i | b, w, alpha), (N,), by the C(L + K - 1, K - 1) vectors of topic counts."""
    rows = _rows(params, x, response, mask, kind)
    return np.array([logsumexp(value + answer + _shared.log_dirichlet_moment(c, alpha)) for c, value, answer in rows])


def mean_response(params: Params, x: ArrayLike, alpha: ArrayLike = 0.1, kind: str = "binary") -> Array:
    """E[r_i | y_i], (N,) or (N, R), of classes their probabilities (N, C): the response is not observed."""
    weight, means = np.atleast_2d(np.asarray(params["response_weight"], dtype=np.float64)), []
    for c, value, _ in _rows(params, x, None, None, kind):
        chance = softmax(value + _shared.log_dirichlet_moment(c, alpha))
        eta = c @ weight.T / np.maximum(c.sum(1, keepdims=True), 1)
        link = {"binary": expit, "real": np.asarray, "counts": np.exp, "categorical": lambda e: softmax(e, axis=1)}
        means.append(chance @ link[kind](eta))
    found = np.array(means)
    return found[:, 0] if np.ndim(params["response_weight"]) == 1 else found


def log_joint_of_topics(
    x: ArrayLike, q: ArrayLike, response: ArrayLike, params: Params, alpha: float, gamma: float, kind: str = "binary"
) -> float:
    """log p(y, q, r | w) with proportions and topics integrated out; q holds the topics of all tokens, document by
    document."""
    words = _topics.tokens_of(x)
    weight = np.atleast_2d(params["response_weight"])
    size, at, total = weight.shape[1], 0, 0.0
    table = np.zeros((size, np.shape(x)[1]))
    for tokens, r in zip(words, np.asarray(response, dtype=np.float64), strict=True):
        own = np.asarray(q)[at : at + len(tokens)]
        at += len(tokens)
        np.add.at(table, (own, tokens), 1)
        counts = np.bincount(own, minlength=size)[None]
        total += float(_shared.log_dirichlet_moment(counts, alpha)[0] + log_response(params, counts, r, kind)[0])
    return total + float(_shared.log_dirichlet_moment(table, gamma).sum())
