"""Brute-force references for PLSA (source 004, slides "Probabilistic Latent Semantic Analysis"). No project code.

    P(w | d) = sum_z P(w | z) P(z | d)     params["topic"] = P(w | z) (K, V), the local P(z | d) (N, K)

EM holds the full documents x words x aspects array of P(z | d, w) that an implementation avoids. With ``pseudo`` counts
beside the expected ones it climbs sum n log P(w | d) + sum p log P(w | z) + sum p' log P(z | d): the maximum a
posteriori under Dirichlet(p + 1) in the simplex, or Dirichlet(p) in the softmax basis.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import xlogy

from tests.references import _topics
from tests.references._shared import Array, Maybe

log_joint = _topics.log_joint


def responsibilities(topic: ArrayLike, proportion: ArrayLike, beta: float = 1.0) -> Array:
    """P(z | d, w) proportional to [P(w | z) P(z | d)]^beta, (N, V, K): the E step, tempered where beta < 1 (Hofmann,
    SIGIR 1999, eq. 9). A word of probability 0 has zeros."""
    joint = (np.asarray(topic, dtype=np.float64).T[None] * np.asarray(proportion, dtype=np.float64)[:, None, :]) ** beta
    total = joint.sum(-1, keepdims=True)
    return np.divide(joint, total, out=np.zeros_like(joint), where=total > 0)


def topic_update(x: ArrayLike, share: ArrayLike, pseudo: ArrayLike = 0.0, mask: Maybe = None) -> Array:
    """P(w | z) = sum_d n(d, w) P(z | d, w) / (the same summed over words), (K, V)."""
    counts = np.einsum("dw,dwz->zw", _topics.counts_of(x, mask), np.asarray(share)) + np.asarray(pseudo)
    return counts / counts.sum(1, keepdims=True)


def proportion_update(x: ArrayLike, share: ArrayLike, pseudo: ArrayLike = 0.0, mask: Maybe = None) -> Array:
    """P(z | d) = sum_w n(d, w) P(z | d, w) / n(d), (N, K); uniform where a document has neither tokens nor pseudo."""
    counts = np.einsum("dw,dwz->dz", _topics.counts_of(x, mask), np.asarray(share)) + np.asarray(pseudo)
    total = counts.sum(1, keepdims=True)
    return np.where(total > 0, counts / np.where(total > 0, total, 1.0), 1.0 / counts.shape[1])


def em_iteration(
    x: ArrayLike,
    topic: ArrayLike,
    proportion: ArrayLike,
    topic_pseudo: ArrayLike = 0.0,
    proportion_pseudo: ArrayLike = 0.0,
    beta: float = 1.0,
    mask: Maybe = None,
) -> tuple[Array, Array]:
    """(P(w | z), P(z | d)) after one E step and one M step of both."""
    share = responsibilities(topic, proportion, beta)
    return topic_update(x, share, topic_pseudo, mask), proportion_update(x, share, proportion_pseudo, mask)


def free_energy(x: ArrayLike, topic, proportion, share: ArrayLike, beta: float = 1.0, mask=None) -> float:
    """F = sum n(d, w) sum_z [beta q log P(w, z | d) - q log q], for any q (N, V, K): what the tempered E step maximises
    over q and the M step over the probabilities; for beta = 1 the log-likelihood at the best q."""
    n, q = _topics.counts_of(x, mask)[:, :, None], np.asarray(share, dtype=np.float64)
    with np.errstate(divide="ignore"):
        joint = np.asarray(topic).T[None] * np.asarray(proportion)[:, None, :]
    gain = beta * xlogy(q, joint) - xlogy(q, q)
    return float((n * np.where(n > 0, gain, 0.0)).sum())


def fold_in(
    x: ArrayLike, topic: ArrayLike, pseudo: ArrayLike = 0.0, mask: Maybe = None, iterations: int = 5000
) -> Array:
    """P(z | d) of new documents, (N, K), at fixed P(w | z), from the uniform: the objective is concave in P(z | d)."""
    proportion = np.full((len(np.asarray(x)), len(np.asarray(topic))), 1.0 / len(np.asarray(topic)))
    for _ in range(iterations):
        proportion = proportion_update(x, responsibilities(topic, proportion), pseudo, mask)
    return proportion


def symmetric_em_iteration(x: ArrayLike, word: ArrayLike, document: ArrayLike, aspect: ArrayLike) -> tuple[Array, ...]:
    """(P(w | z), P(d | z), P(z)) after one iteration of the slides' symmetric form,
    P(d, w) = sum_z P(z) P(d | z) P(w | z)."""
    n = np.asarray(x, dtype=np.float64)
    joint = np.einsum("z,zd,zw->dwz", np.asarray(aspect), np.asarray(document), np.asarray(word))
    expected = n[:, :, None] * joint / joint.sum(-1, keepdims=True)
    word, document, aspect = expected.sum(0).T, expected.sum(1).T, expected.sum((0, 1))
    return word / word.sum(1, keepdims=True), document / document.sum(1, keepdims=True), aspect / aspect.sum()
