"""Brute-force references for labelled LDA (source 002, below eq. 27.72; Ramage et al. 2009). No project code.

    pi_i | x_i ~ Dirichlet(alpha_k for the topics k of the labels in x_i)       0 of the other topics
    q_il ~ Categorical(pi_i),   y_il | q_il = k ~ Categorical(b_k)              as LDA (see ``_topics``)

labels (N, L), 0 or 1; topic t of label l is number l T + t, those beyond L T are common to all. A document without any
label may use every topic. T is ``per_label``, 1 here.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import gammaln, logsumexp, softmax, xlogy

from tests.references import _shared, _topics
from tests.references._shared import Array, Labels, Maybe, Params, Priors


def topics_of(labels: ArrayLike, num_topics: int, per_label: int = 1) -> list[Labels]:
    """The topics that each document may use."""
    found = []
    for row in np.asarray(labels):
        own = [label * per_label + t for label in np.flatnonzero(row) for t in range(per_label)]
        common = list(range(len(row) * per_label, num_topics))
        found.append(np.array(own + common if own else range(num_topics), dtype=int))
    return found


def log_proportions(local: ArrayLike, allowed: list[Labels], alpha: ArrayLike) -> Array:
    """log p(pi_i | x_i), (N,): -inf where a topic that is not allowed has a share."""
    found = []
    for pi, own in zip(np.asarray(local, dtype=np.float64), allowed, strict=True):
        a = _shared.concentration_of(alpha, len(pi))[own]
        inside = gammaln(a.sum()) - gammaln(a).sum() + xlogy(a - 1, pi[own]).sum()
        found.append(inside if np.delete(pi, own).sum() == 0 else -np.inf)
    return np.array(found)


def log_joint(
    params: Params, x: ArrayLike, local: ArrayLike, mask: Maybe = None, priors: Priors = None, labels: Maybe = None,
    per_label: int = 1,
) -> float:  # fmt: skip
    """log p(b) + sum_i log p(pi_i | x_i) + sum_i log p(y_i | pi_i, b)."""
    given = dict(priors or {})
    alpha = given.pop("topic_proportion", ("dirichlet", 0.1))[1]
    size = len(np.asarray(params["topic"]))
    allowed = topics_of(np.zeros((len(np.asarray(x)), 1)) if labels is None else labels, size, per_label)
    total = _shared.log_priors(params, given) + float(log_proportions(local, allowed, alpha).sum())
    return total + float(_topics.log_likelihood(params["topic"], x, local, mask).sum())


def log_evidence(
    topic: ArrayLike, x: ArrayLike, labels: ArrayLike, alpha: ArrayLike = 0.1, per_label: int = 1, mask: Maybe = None
) -> Array:
    """log p(y_i | x_i, b), (N,): the sum over the topics of all tokens, of those that the document has."""
    topic = np.asarray(topic, dtype=np.float64)
    allowed, found = topics_of(labels, len(topic), per_label), []
    for words, own in zip(_topics.tokens_of(x, mask), allowed, strict=True):
        a = _shared.concentration_of(alpha, len(topic))[own]
        found.append(logsumexp(_topics.assignment_table(topic[own], words, a)[1]))
    return np.array(found)


def posterior_mean(
    topic: ArrayLike, x: ArrayLike, labels: ArrayLike, alpha: ArrayLike = 0.1, per_label: int = 1, mask: Maybe = None
) -> Array:
    """E[pi_i | y_i, x_i, b], (N, K), 0 of topics that a document lacks."""
    topic, rows = np.asarray(topic, dtype=np.float64), np.asarray(x)
    found = np.zeros((len(rows), len(topic)))
    for i, own in enumerate(topics_of(labels, len(topic), per_label)):
        a, keep = (
            _shared.concentration_of(alpha, len(topic))[own],
            None if mask is None else np.asarray(mask)[i : i + 1],
        )
        found[i, own] = _topics.posterior_mean(topic[own], rows[i : i + 1], a, keep)[0]
    return found


def label_posterior(topic: ArrayLike, x: ArrayLike, sets: ArrayLike, prior: ArrayLike, alpha: ArrayLike = 0.1) -> Array:
    """P(label l | y_i, b), (N, L), where the labels are one of ``sets`` (S, L) with probabilities ``prior`` (S,)."""
    rows, sets = np.asarray(x), np.asarray(sets, dtype=np.float64)
    each = [log_evidence(topic, rows, np.tile(one, (len(rows), 1)), alpha) for one in sets]
    joint = np.array(each).T + np.log(np.asarray(prior, dtype=np.float64))
    return softmax(joint, axis=1) @ sets
