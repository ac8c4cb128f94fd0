"""Documents with the order of their words, as models of sequences take them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from ppl_models.data import sparse
from ppl_models.data.displays import of_sequences
from ppl_models.data.matrix import Data


class Tokens(NamedTuple):
    """The T tokens of documents, in their order. word, document, sentence: (T,), whole numbers from 0; position (T,):
    places within the sentence, from 0. sentence_document: (M,), the document of each sentence."""

    word: Tensor
    document: Tensor
    sentence: Tensor
    position: Tensor
    sentence_document: Tensor

    @classmethod
    def of(cls, x: Tensor) -> Tokens:
        """Read x (N, L), dense or CSR: 1 + the number of the word; 0, for no word, ends a sentence."""
        document, value, sentence, position = sparse.runs(x)
        return cls(value.long() - 1, document, sentence, position, document[position == 0])

    @property
    def offsets(self) -> Tensor:
        """(M + 1,), where each sentence begins, and the number of tokens."""
        begins = (self.position == 0).nonzero().flatten()
        return torch.cat([begins, begins.new_tensor([len(self.word)])])


@dataclass(frozen=True, kw_only=True, repr=False)
class Sequences(Data):
    """N documents of sentences of words; rows are documents.

    x: (N, L): 1 + the number of the word at each place; 0 where there is none. Sentences are runs of words: a 0 is
        between two of them, and behind the last. Dense, or in torch's CSR layout.
    num_words: V, the size of the vocabulary.
    coords: "row" the labels of the documents, "feature" the words, where they have any.
    """

    num_words: int

    container: ClassVar[str] = "sequences"
    _display = of_sequences

    @property
    def num_features(self) -> int:
        return self.num_words

    @cached_property
    def tokens(self) -> Tokens:
        """The tokens, in their order."""
        return Tokens.of(self.x)

    @property
    def num_tokens(self) -> int:
        return len(self.tokens.word)

    @property
    def num_sentences(self) -> int:
        return len(self.tokens.sentence_document)

    @property
    def words(self) -> Sequence[Any]:
        """The vocabulary; the words' numbers where they have no labels."""
        return self.feature_names

    def counts(self) -> Data:
        """The words of the documents without their order, (N, V) in CSR layout: what :class:`ppl_models.LDA` reads."""
        size, (word, document) = (len(self), self.num_words), self.tokens[:2]
        ones, parts = np.ones(len(word)), (document.cpu().numpy(), word.cpu().numpy())
        x = scipy.sparse.csr_matrix((ones, parts), shape=size)
        return Data(x=sparse.from_scipy(x, dtype=self.x.dtype, device=self.x.device), coords=dict(self.coords))

    def dense(self) -> Sequences:
        return replace(self, x=super().dense().x) if self.is_sparse else self

    def rows(self, index: Tensor | slice) -> Sequences:
        """The chosen documents, with their labels."""
        chosen = super().rows(index)
        return replace(self, x=chosen.x, coords=chosen.coords, others=chosen.others)


def sequences_of(
    word: np.ndarray,
    document: np.ndarray,
    sentence: np.ndarray,
    *,
    num_documents: int,
    num_words: int,
    coords: dict[str, list[Any]],
    dtype: torch.dtype,
) -> Sequences:
    """Sequences whose tokens are known by number. document, sentence: (T,) of each token, neither ever falling."""
    begins = np.ones(len(word), dtype=bool)
    begins[1:] = (np.diff(document) != 0) | (np.diff(sentence) != 0)
    length = np.bincount(document, minlength=num_documents)
    crow = np.concatenate([[0], length.cumsum()])
    # Every sentence of a document but the first is one place further on: there is a 0 before it.
    before = begins.cumsum()
    gap = before - before[crow[document]] if len(word) else before
    column = np.arange(len(word)) - crow[document] + gap
    crow, column = (torch.as_tensor(part.astype(np.int64)) for part in (crow, column))
    size = num_documents, int(column.max()) + 1 if len(column) else 1
    x = sparse.tensor(crow, column, torch.as_tensor(word + 1.0).to(dtype), size=size)
    return Sequences(x=x, num_words=num_words, coords=coords)
