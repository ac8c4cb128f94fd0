"""Topics from anchor words (Arora, Ge, Halpern, Mimno, Moitra, Sontag, Wu & Zhu, *A practical algorithm for topic
modeling with provable guarantees*, ICML 2013).

With n_d the counts of a document of L_d tokens, two different tokens of which are words v and w with probability

    Q_vw = 1/D sum_d (n_dv n_dw - n_dv [v = w]) / (L_d (L_d - 1)),    Qbar_vw = Q_vw / p_v,  p_v = sum_w Q_vw.

Where every topic has a word that no other has (an anchor), every row of Qbar is a convex combination of the anchors'
rows, with weights p(topic | v). Anchors are found by Gram and Schmidt: each the row farthest from the span of those
before it. Weights minimise the squared distance on the simplex, and

    b_kv = p(v | k)  proportional to  p(k | v) p_v.

Rows are projected to few dimensions at random, so that no matrix of words by words is made.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse
import torch
from scipy.linalg import solve_triangular
from scipy.optimize import nnls
from torch import Tensor

from custom_inference.families.rows.documents import DocumentRows
from ppl_models.data import sparse as _sparse

#: Dimensions that rows are projected to.
_DIMENSIONS = 400
#: Anchors occur in at least so many documents, and in at least this share of them, where enough words do.
_DOCUMENTS, _SHARE = 5, 0.01
#: How much more a sum of 1 weighs than the distance.
_HEAVY = 1e3


def anchor_topics(rows: DocumentRows, num_topics: int, generator: torch.Generator) -> Tensor:
    """b (K, V) >= 0; a word that never occurs has 0, and where too few rows differ topics are alike.

    generator: of the projection; the result hardly depends on it.
    """
    counts: Any = _sparse.to_scipy(rows.counts).astype(np.float64)
    length = np.asarray(counts.sum(1)).ravel()
    counts, length = counts[length >= 2], length[length >= 2]
    if counts.shape[0] == 0:
        even = torch.full((num_topics, rows.like.shape[1]), 1 / rows.like.shape[1])  # dense, which ``like`` may not be
        return even.to(rows.like)
    weight = 1 / (length * (length - 1)) / len(length)
    scaled = scipy.sparse.diags(weight) @ counts
    own = np.asarray(scaled.sum(0)).ravel()
    p = np.asarray(counts.T @ (weight * length)).ravel() - own
    words = int(counts.shape[1])
    size = min(_DIMENSIONS, words)
    noise = torch.randn(words, size, generator=generator, dtype=torch.float64).numpy() / np.sqrt(size)
    projected = scaled.T @ (counts @ noise) - own[:, None] * noise
    projected = projected / np.maximum(p, np.finfo(float).tiny)[:, None]
    anchors = _anchors(projected, _candidates(counts, num_topics), num_topics)
    topic = _weights(projected, projected[anchors]) * np.maximum(p, 0)[:, None]
    topic = topic / np.maximum(topic.sum(0), np.finfo(float).tiny)
    return torch.from_numpy(np.ascontiguousarray(topic.T)).to(rows.like)


def _candidates(counts: Any, num_topics: int) -> np.ndarray:
    """Words that may be anchors: rows of rare words are noise, and far from everything."""
    documents = np.bincount(counts.indices, weights=counts.data > 0, minlength=counts.shape[1])
    most = np.argsort(-documents, kind="stable")
    enough = int((documents >= max(_DOCUMENTS, _SHARE * counts.shape[0])).sum())
    return most[: max(enough, num_topics)]


def _anchors(rows: np.ndarray, candidates: np.ndarray, num_topics: int) -> np.ndarray:
    rest = rows[candidates].copy()
    first = int((rest**2).sum(1).argmax())
    rest -= rest[first]
    found = [first]
    for _ in range(num_topics - 1):
        far = (rest**2).sum(1)
        far[found] = -1.0
        at = int(far.argmax())
        direction = rest[at] / max(np.linalg.norm(rest[at]), np.finfo(float).tiny)
        rest -= np.outer(rest @ direction, direction)
        found.append(at)
    return candidates[found]


def _weights(rows: np.ndarray, anchors: np.ndarray) -> np.ndarray:
    """Find for every row the nearest convex combination of anchors (V, K): nonnegative least squares with a heavy row
    that asks for a sum of 1."""
    gram, cross = anchors @ anchors.T, rows @ anchors.T
    size = max(float(np.trace(gram)), np.finfo(float).tiny)
    heavy = _HEAVY * size
    factor = np.linalg.cholesky(gram + heavy + 1e-9 * size * np.eye(len(gram)))
    right = solve_triangular(factor, cross.T + heavy, lower=True).T
    weight = np.array([nnls(factor.T, one)[0] for one in right])
    return weight / np.maximum(weight.sum(1, keepdims=True), np.finfo(float).tiny)
