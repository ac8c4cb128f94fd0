"""Brute-force references for the relational topic model (source 002, eq. 27.80). No project code.

LDA (see ``_topics``), and a link for every pair of documents from the mean topics of their tokens::

    pi_i ~ Dirichlet(alpha)                            topic_proportion  (N, K)
    q_il | pi_i ~ Categorical(pi_i)                    the topic of every token; qbar_i their mean, topic_share (N, K)
    y_il | q_il = k ~ Categorical(b_k)                 params["topic"]  (K, V); x (N, V) counts the words
    s_ij = sum_k w_k qbar_ik qbar_jk + w_0             params["link_weight"]  (K,), params["link_bias"]
    R_ij ~ Bernoulli(sigmoid(s_ij)), Poisson(exp(s_ij)), or Poisson(s_ij)      links (N, N); NaN or -1 is unknown

over all pairs i < j, of directed links over all i != j. ``mask`` (N, V) leaves tokens out.
"""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats
from scipy.special import log_expit, logsumexp

from tests.references import _shared, _topics
from tests.references._shared import Array, Labels, Maybe, Params, Priors


def log_links(
    params: Params, share: ArrayLike, links: ArrayLike, kind: str = "sigmoid", directed: bool = False, copies: int = 1
) -> float:
    """sum over the known pairs of log p(R_ij | qbar), pair by pair; of kind "rate" R_ij log s_ij alone."""
    share, links = np.asarray(share, dtype=np.float64), np.asarray(links, dtype=np.float64)
    total = 0.0
    for i, j in itertools.permutations(range(len(share)), 2):
        if (not directed and i > j) or not links[i, j] >= 0:
            continue
        score = float((params["link_weight"] * share[i] * share[j]).sum() + params["link_bias"])
        if kind == "sigmoid":
            total += float(log_expit((2 * links[i, j] - 1) * score))
        elif kind == "rate":
            total += float(links[i, j] * np.log(score))
        else:
            total += float(stats.poisson.logpmf(links[i, j], score if kind == "additive" else np.exp(score)))
    return copies * total


def log_shares(params: Params, x: ArrayLike, proportion: ArrayLike, share: ArrayLike, mask: Maybe = None) -> Array:
    """log p(y_i, qbar_i | pi_i, b), (N,): the coefficient of the counts L qbar in prod_l sum_k pi_k b_{k y_l} t_k."""
    topic, found = np.asarray(params["topic"]), []
    for words, pi, q in zip(_topics.tokens_of(x, mask), np.asarray(proportion), np.asarray(share), strict=True):
        counts, log_value = _shared.multiplied_out((_shared.linear(pi * topic[:, v]) for v in words), len(topic))
        same = np.abs(counts / max(len(words), 1) - q).max(1) < 1e-9
        found.append(logsumexp(log_value[same]) if same.any() else -np.inf)
    return np.array(found)


def log_joint(
    params: Params,
    x: ArrayLike,
    local: ArrayLike,
    mask: Maybe = None,
    priors: Priors = None,
    links: Maybe = None,
    topic_share: Maybe = None,
    **settings,
) -> float:
    """log p(globals) + log p(pi) + log p(y, qbar | pi, b) + log p(R | qbar, w)."""
    total = _shared.log_priors({**params, "topic_proportion": np.asarray(local)}, priors)
    if links is None or topic_share is None:
        return total + float(_topics.log_likelihood(params["topic"], x, local, mask).sum())
    total += float(log_shares(params, x, local, topic_share, mask).sum())
    return total + log_links(params, topic_share, links, **settings)


def table(params: Params, x: ArrayLike, links: ArrayLike, alpha: ArrayLike = 0.1, **settings) -> tuple[Labels, Array]:
    """(q (M, T), log p(y, q, R | globals) (M,)) over all topics of all tokens of all documents, pi integrated out."""
    words, topic = _topics.tokens_of(x), np.asarray(params["topic"])
    ends = np.cumsum([0, *map(len, words)])
    q = _shared.assignments(len(topic), int(ends[-1]))
    with np.errstate(divide="ignore"):
        value = np.log(topic)[q, np.concatenate(words)].sum(1)
    counts = np.stack([_shared.counts_of_values(q[:, a:b], len(topic)) for a, b in itertools.pairwise(ends)], 1)
    value += sum(_shared.log_dirichlet_moment(counts[:, i], alpha) for i in range(len(words)))
    share = counts / np.maximum(np.diff(ends), 1)[:, None]
    return q, value + np.array([log_links(params, one, links, **settings) for one in share])


def log_evidence(params: Params, x: ArrayLike, links: ArrayLike, alpha: ArrayLike = 0.1, **settings) -> float:
    """log p(y, R | globals), by all K^T topics of the tokens."""
    log_value: Array = table(params, x, links, alpha, **settings)[1]
    return float(np.logaddexp.reduce(log_value))


def log_joint_of_topics(
    x: ArrayLike, q: ArrayLike, links: ArrayLike, params: Params, alpha: ArrayLike, gamma: float, **settings
) -> float:
    """log p(y, q, R | w, w_0) with proportions and topics integrated out; q (T,) document by document."""
    words, q = _topics.tokens_of(x), np.asarray(q)
    size, ends = len(params["link_weight"]), np.cumsum([0, *map(len, words)])
    counts = np.array([np.bincount(q[a:b], minlength=size) for a, b in itertools.pairwise(ends)])
    words_of_topics = np.zeros((size, np.shape(x)[1]))
    np.add.at(words_of_topics, (q, np.concatenate(words)), 1)
    total = (
        _shared.log_dirichlet_moment(counts, alpha).sum() + _shared.log_dirichlet_moment(words_of_topics, gamma).sum()
    )
    return float(total) + log_links(params, counts / np.maximum(np.diff(ends), 1)[:, None], links, **settings)


def log_joint_of_link_topics(
    x: ArrayLike, q: ArrayLike, ends: ArrayLike, label: ArrayLike, params: Params, alpha: ArrayLike, gamma: Maybe
) -> float:
    """log p(y, q, l | w, w_0) of additive links on the proportions, these integrated out, and the topics too; without
    gamma these are params["topic"].

    ends (L, 2): the documents of every link; label l (L,): its topic, which both documents drew with probability
    pi_ik pi_jk and that has the rate w_k, or K for none, with the rate w_0. Pairs without a link do not count.
    """
    words, q, size = _topics.tokens_of(x), np.asarray(q), len(params["link_weight"])
    bounds = np.cumsum([0, *map(len, words)])
    counts = np.array([np.bincount(q[a:b], minlength=size) for a, b in itertools.pairwise(bounds)])
    words_of_topics = np.zeros((size, np.shape(x)[1]))
    np.add.at(words_of_topics, (q, np.concatenate(words)), 1)
    total = 0.0
    for (i, j), k in zip(np.asarray(ends), np.asarray(label), strict=True):
        if k == size:
            total += float(np.log(params["link_bias"]))
            continue
        total += float(np.log(params["link_weight"][k]))
        counts[i, k] += 1
        counts[j, k] += 1
    if gamma is None:
        total += float((words_of_topics * np.log(params["topic"])).sum())
    else:
        total += float(_shared.log_dirichlet_moment(words_of_topics, gamma).sum())
    return total + float(_shared.log_dirichlet_moment(counts, alpha).sum())
