"""One chain of collapsed Gibbs sampling of latent Dirichlet allocation: the state that the compiled sweeps change."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from custom_inference.steps._documents import DocumentRows

#: Single precision holds no smaller concentrations in products with others.
_SMALLEST = 1e-30
#: Topics are padded to whole blocks of so many: ``_gibbs_kernels.LANES``, without loading the compiler.
_LANES = 16


@dataclass(frozen=True)
class TokenList:
    """The tokens of a corpus, document by document and in each in the order of the words.

    word: (T,) int32. start: (N + 1,) int64, where each document begins. vocabulary_size: V.
    """

    word: NDArray[np.int32]
    start: NDArray[np.int64]
    vocabulary_size: int

    @classmethod
    def of(cls, rows: DocumentRows) -> TokenList:
        counts = rows.counts
        repeats = counts.values().cpu().numpy().astype(np.int64)
        word = np.repeat(counts.col_indices().cpu().numpy().astype(np.int32), repeats)
        ends = np.concatenate([[0], np.cumsum(repeats)])[counts.crow_indices().cpu().numpy()]
        return cls(word, ends.astype(np.int64), counts.shape[1])

    def __len__(self) -> int:
        return len(self.word)

    @property
    def document(self) -> NDArray[np.int64]:
        """The document of every token, (T,)."""
        return np.repeat(np.arange(len(self.start) - 1), np.diff(self.start))


class LdaChain:
    """The topics of all tokens, and their counts, under LDA with the proportions and the topics integrated out.

    alpha: (K,) or one number. gamma: (V,) or one number. seed: a whole number; a chain is a function of it.
    topic: (T,) int32, -1 for tokens not yet assigned: the first sweep then draws each given those before it.
    """

    def __init__(self, tokens: TokenList, num_topics: int, alpha: Tensor | float, gamma: Tensor | float, seed: int):
        self.tokens, self.num_topics = tokens, num_topics
        self.alpha = _vector(alpha, num_topics)
        self.gamma = _vector(gamma, tokens.vocabulary_size)
        self._padded = -(-num_topics // _LANES) * _LANES
        self._rng = np.array([seed % 2**64], np.uint64)
        self._assign(np.full(len(tokens), -1, np.int32))

    def _assign(self, topic: NDArray[np.int32]) -> None:
        """Start over from these topics; counts are made anew."""
        self.topic = topic
        self._word_topic = np.zeros((self.tokens.vocabulary_size, self._padded), np.int32)
        known = topic >= 0
        np.add.at(self._word_topic, (self.tokens.word[known], topic[known]), 1)
        self._total = self._word_topic.sum(0, dtype=np.int32)

    def sweep(self, count: int = 1) -> None:
        """Passes over all tokens; other threads may run meanwhile."""
        from custom_inference import _gibbs_kernels as kernels

        alpha = np.zeros(self._padded, np.float32)
        alpha[: self.num_topics] = self.alpha.clip(_SMALLEST)
        gamma = self.gamma.clip(_SMALLEST).astype(np.float32)
        for _ in range(count):
            kernels.sweep(
                self.tokens.word, self.topic, self.tokens.start, alpha, gamma, self._word_topic, self._total, self._rng
            )

    @property
    def word_topic(self) -> NDArray[np.int32]:
        """c_vk (V, K), a view."""
        return self._word_topic[:, : self.num_topics]


def _vector(value: Tensor | float, size: int) -> NDArray[np.float64]:
    return np.broadcast_to(torch.as_tensor(value, dtype=torch.float64).cpu().numpy(), size).copy()
