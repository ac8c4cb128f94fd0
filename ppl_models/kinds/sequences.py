"""Models of documents as sequences of words: the word at every place, and where sentences end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Unpack

import torch

from ppl_models.core.errors import DataError, about
from ppl_models.core.row_models import RowModel
from ppl_models.data import sparse as _sparse
from ppl_models.data.covariates import read_before
from ppl_models.data.held import MatrixLike, Reading, Source, is_string
from ppl_models.data.matrix import Data, as_matrix
from ppl_models.data.sequences.data import Sequences
from ppl_models.data.sequences.door import sequences


@dataclass(frozen=True, kw_only=True, eq=False)
class SequenceModel(RowModel):
    """A model of sequences of words x (N, L), of a vocabulary whose axis is "word": the door for its data.

    x is 1 + the number of the word at each place, and 0 where there is none, which ends a sentence. The program takes
    ``layout`` (N, L), where generated documents have words.
    """

    @property
    def feature_axis(self) -> str:
        """Return the axis of the components' columns: words, where those of x are places."""
        return "word"

    @property
    def data_kind(self) -> str:
        return "sequences"

    def given(self, data: Data) -> dict[str, Any]:
        """Return where the documents have words: copies of them have as many, in sentences as long."""
        return {"layout": _sparse.dense(data.observed_x) != 0}

    def prepare(self, data: Source, **reading: Unpack[Reading]) -> Sequences:
        """Read what :func:`ppl_models.sequences` makes, or takes; or a matrix (N, L) as x is, NaN where nothing is.

        Raises DataError for what is neither, and for words beyond the vocabulary.
        """
        with about("x"):
            made = self._read(data, reading.get("mask"), reading.get("dtype"))
            value = made.stored
            wrong = (value < 0) | (value > self.sizes["word"]) | (value != value.round())
            if bool(wrong.any()):
                found = f"{int(wrong.sum())} entries that are no word (the first: {float(value[wrong][0]):g})"
                expected = f"whole numbers from 0 to vocabulary_size = {self.sizes['word']}: 1 + the word's number"
                raise DataError(found, axis="word", expected=expected)
            return made.to(dtype=reading.get("dtype"), device=reading.get("device"))

    def _read(self, data: Source, mask: MatrixLike | None, dtype: torch.dtype | None) -> Sequences:
        size = self.sizes["word"]
        own = read_before(data)
        if own is not None:
            if isinstance(own, Sequences) and own.num_words != size:
                found = f"{own.num_words} words where the model has vocabulary_size = {size}"
                raise DataError(found, axis="word", expected=f"{size}; sequences(..., vocabulary=)")
            if mask is not None:
                raise DataError("a mask was given beside data that already carry theirs")
            x, coords = own.observed_x if own.mask is not None else own.x, own.coords
        elif not _is_matrix(data):
            known = None if is_string(data) else size
            return self._read(sequences(data, vocabulary_size=known, dtype=dtype), mask, dtype)
        else:
            checked = as_matrix(data, mask=mask, dtype=dtype, keep_sparse=True)
            x, coords = checked.observed_x, checked.coords
        words = coords.get("feature")  # of a matrix as wide as the vocabulary, or not the words
        kept = {axis: names for axis, names in coords.items() if axis == "row" or len(words or ()) == size}
        return Sequences(x=x, num_words=size, coords=kept)

    def prepare_new(self, data: Source, like: Data, **reading: Unpack[Reading]) -> Sequences:
        """Read data in the vocabulary of the documents ``like``; unknown words are left out, and said."""
        own, words = read_before(data), like.coords.get("feature")
        other = isinstance(own, Sequences) and own.coords.get("feature") != words
        if other or (own is None and not _is_matrix(data)):
            data = sequences(data, like, dtype=reading.get("dtype"))
        return self.prepare(data, **reading)

    def check_for_fitting(self, data: Data) -> None:
        """Refuse data without any word."""
        if not bool((data.stored != 0).any()):
            raise DataError("no words", site="x", axis="document", expected="at least one sentence with a word")


def num_words(data: Data) -> int:
    """Return how many words the vocabulary of sequences has, or the largest that occurs where that is not known."""
    return data.num_words if isinstance(data, Sequences) else max(1, int(data.stored.max()))


def _is_matrix(data: Any) -> bool:
    """Return whether something is a matrix, rather than lists, arrays of tokens or a file."""
    return hasattr(data, "shape") and len(data.shape) == 2
