"""Brute-force references for the hierarchical Dirichlet process (Teh et al. 2006; source 002, 27.3.8). No project code.

    v_k ~ Beta(1, c), k < K,   beta_k = v_k prod_{j<k} (1 - v_j),   pi_i ~ Dirichlet(a beta),   the rest as LDA
    (``_topics``)

and, without a limit of topics, the Chinese restaurant franchise: the law of which tokens share a topic, its topics and
tables integrated out, as a sum over how many tables there are.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats
from scipy.special import gammaln, logsumexp, xlogy

from tests.references import _shared, _topics
from tests.references._shared import Array, Labels, Maybe, Params, Priors


def log_sticks(weight: ArrayLike, c: float) -> float:
    """log density of beta on the simplex: of the sticks, and of beta by the sticks, d beta_k / d v_k = prod (1 -
    v_j)."""
    weight = np.asarray(weight, dtype=np.float64)
    left, total = 1.0, 0.0
    for share in weight[:-1]:
        total += float(stats.beta.logpdf(share / left, 1.0, c)) - np.log(left)
        left -= share
    return total


def log_joint(params: Params, x: ArrayLike, local: ArrayLike, mask: Maybe = None, priors: Priors = None) -> float:
    """log p(b, beta, a, c) + sum_i log p(pi_i | a beta) + sum_i log p(y_i | pi_i, b)."""
    alpha = float(params["concentration"]) * np.asarray(params["topic_weight"], dtype=np.float64)
    density = gammaln(alpha.sum()) - gammaln(alpha).sum() + xlogy(alpha - 1, np.asarray(local)).sum(1)
    sticks = (
        0.0
        if "topic_weight" in (priors or {})
        else log_sticks(params["topic_weight"], float(params["stick_concentration"]))
    )
    likelihood = _topics.log_likelihood(params["topic"], x, local, mask)
    return _shared.log_priors(params, priors) + sticks + float(density.sum() + likelihood.sum())


def log_evidence(params: Params, x: ArrayLike, mask: Maybe = None) -> Array:
    """log p(y_i | b, beta, a), (N,)."""
    alpha = float(params["concentration"]) * np.asarray(params["topic_weight"], dtype=np.float64)
    return _topics.log_evidence(params["topic"], x, alpha, mask)


# ----- without a limit of topics --------------------------------------------------------------------------------------


def partitions(number: int) -> Iterator[Labels]:
    """Every way to share tokens among topics: the first has topic 0, each other one an old topic or the next new."""
    if number == 0:
        yield np.zeros(0, dtype=int)
        return
    for before in partitions(number - 1):
        for topic in range(before.max(initial=-1) + 2):
            yield np.append(before, topic)


def _log_stirling(number: int, tables: int) -> float:
    """log of the unsigned Stirling number of the first kind: permutations of ``number`` with so many cycles."""
    row = [1.0]
    for n in range(number):
        row = [(row[m - 1] if m else 0.0) + (n * row[m] if m < len(row) else 0.0) for m in range(len(row) + 1)]
    return float(np.log(row[tables])) if row[tables] > 0 else -np.inf


def log_partition(document: Labels, topic: Labels, a: float, c: float) -> float:
    """log p(the partition of the tokens), tables summed out: of n_ik customers at m_ik tables, and the tables at topics

    prod_i [a^m_i. Gamma(a) / Gamma(a + L_i) prod_k s(n_ik, m_ik)]  c^K Gamma(c) / Gamma(c + m..) prod_k (m_.k - 1)!
    """
    size = topic.max() + 1
    counts = np.zeros((document.max() + 1, size), dtype=int)
    np.add.at(counts, (document, topic), 1)
    seated = list(zip(*counts.nonzero(), strict=True))
    lengths, terms = counts.sum(1), []
    for tables in itertools.product(*(range(1, counts[place] + 1) for place in seated)):
        of_topics = np.zeros(size, dtype=int)
        value = sum(_log_stirling(int(counts[place]), m) for place, m in zip(seated, tables, strict=True))
        for (_, k), m in zip(seated, tables, strict=True):
            of_topics[k] += m
        total = of_topics.sum()
        value += total * np.log(a) + float((gammaln(a) - gammaln(a + lengths)).sum())
        value += size * np.log(c) + float(gammaln(c) - gammaln(c + total) + gammaln(of_topics).sum())
        terms.append(value)
    return float(logsumexp(terms))


def log_words(word: Labels, topic: Labels, gamma: ArrayLike) -> float:
    """log p(y | the partition), the topics' words integrated out under Dirichlet(gamma), gamma (V,)."""
    gamma = np.asarray(gamma, dtype=np.float64)
    counts = np.zeros((topic.max() + 1, len(gamma)))
    np.add.at(counts, (topic, word), 1)
    return float(_shared.log_dirichlet_moment(counts, gamma).sum())


def posterior(
    document: Labels, word: Labels, gamma: ArrayLike, a: float, c: float
) -> tuple[list[Labels], Array, float]:
    """(partitions, their probabilities given the words, log p(y)) of a toy corpus, a and c given."""
    every = list(partitions(len(word)))
    joint = np.array([log_partition(document, one, a, c) + log_words(word, one, gamma) for one in every])
    return every, np.exp(joint - np.logaddexp.reduce(joint)), float(np.logaddexp.reduce(joint))
