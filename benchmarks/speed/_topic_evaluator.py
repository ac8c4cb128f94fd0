"""One corpus and one evaluator for all programs that find topics. NumPy and SciPy only: the peers' Python reads it too.

The score of a topic-word matrix is its perplexity in document completion: the topic proportions of each test document
are folded in from one half of its tokens, and the other half is scored. The same deterministic fold-in for everybody:

    theta_k = (alpha + sum_v n_v r_vk) / sum,    r_vk = theta_k b_kv / sum_k' theta_k' b_k'v,    100 times from uniform.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]
#: scipy.sparse.csr_matrix (N, V); its stubs are of no help.
Counts = Any
_PARTS = {"train": "train", "observed": "test_obs", "held_out": "test_held"}


class Corpus(NamedTuple):
    """Documents to learn from; the two halves of the test documents; what they were drawn with.

    truth: the true topics (K, V).
    """

    train: Counts
    observed: Counts
    held_out: Counts
    alpha: float
    gamma: float
    truth: Array

    @property
    def num_tokens(self) -> int:
        return int(self.train.sum())

    def save(self, path: Path) -> None:
        parts = {}
        for name, prefix in _PARTS.items():
            matrix = getattr(self, name)
            for part in ("data", "indices", "indptr"):
                parts[f"{prefix}_{part}"] = getattr(matrix, part)
        size = {"V": self.train.shape[1], "K": len(self.truth)}
        np.savez(path, **size, alpha=self.alpha, gamma=self.gamma, phi_true=self.truth, **parts)

    @classmethod
    def load(cls, path: Path) -> Corpus:
        """An archive of CSR parts (train_data, ..., test_obs_..., test_held_...), V, alpha, gamma, phi_true."""
        with np.load(path, allow_pickle=False) as archive:
            parts = {name: archive[name] for name in archive.files}
        size = int(parts["V"])

        def matrix(prefix: str) -> Counts:
            data, indices, indptr = (parts[f"{prefix}_{part}"] for part in ("data", "indices", "indptr"))
            return sp.csr_matrix((data, indices, indptr), (len(indptr) - 1, size))

        halves = [matrix(prefix) for prefix in _PARTS.values()]
        return cls(*halves, float(parts["alpha"]), float(parts["gamma"]), parts["phi_true"])


def halved(counts: Counts, seed: int = 0) -> tuple[Counts, Counts]:
    """Half of each document's tokens, drawn at random, and the other half (the larger where the number is odd)."""
    rng = np.random.default_rng(seed)
    first, rest = counts.copy(), counts.copy()
    for row in range(counts.shape[0]):
        cells = slice(counts.indptr[row], counts.indptr[row + 1])
        n = counts.data[cells].astype(np.int64)
        first.data[cells] = rng.multivariate_hypergeometric(n, int(n.sum()) // 2)
    rest.data = counts.data - first.data
    first.eliminate_zeros()
    rest.eliminate_zeros()
    return first, rest


def probabilities(topic: Array) -> Array:
    """Rows that sum to one, nothing below 1e-12."""
    floored = np.maximum(np.asarray(topic, dtype=np.float64), 1e-12)
    return floored / floored.sum(1, keepdims=True)


def fold_in(topic: Array, counts: Counts, alpha: float, iterations: int = 100) -> Array:
    """Topic proportions of documents (N, K) at given topics."""
    row = np.repeat(np.arange(counts.shape[0]), np.diff(counts.indptr))
    word = np.ascontiguousarray(topic.T[counts.indices])
    n, back = counts.data.astype(np.float64), np.ascontiguousarray(topic.T)
    theta = np.ones((counts.shape[0], len(topic)))
    for _ in range(iterations):
        share = n / np.maximum(np.einsum("ck,ck->c", theta[row], word), 1e-300)
        theta = alpha + theta * (sp.csr_matrix((share, counts.indices, counts.indptr), counts.shape) @ back)
    return theta / theta.sum(1, keepdims=True)


def perplexity(topic: Array, corpus: Corpus) -> float:
    """exp(-mean log p(token)) over the held-out halves, natural logarithm, every token the same weight."""
    words = probabilities(topic)
    theta = fold_in(words, corpus.observed, corpus.alpha)
    held = corpus.held_out.tocoo()
    p = np.einsum("ck,ck->c", theta[held.row], words.T[held.col])
    return float(np.exp(-(held.data * np.log(p)).sum() / held.data.sum()))


def first_at_most(level: float, scores: Any, count: int) -> int | None:
    """The first of ``count`` states at which ``scores(i)`` is at most ``level``, if they fall; else None.

    By bisection: a state is only scored where needed.
    """
    if not count or scores(count - 1) > level:
        return None
    low, high = 0, count - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if scores(middle) <= level else (middle + 1, high)
    return high
