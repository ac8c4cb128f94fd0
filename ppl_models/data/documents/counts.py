"""Reading of documents: texts in any container become sparse word counts with labels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse
import torch

from ppl_models.core.errors import DataError, about, warn_of_data
from ppl_models.data import sparse
from ppl_models.data.containers import plausible_size, refuse_blocks
from ppl_models.data.documents.words import Vocabulary, WordCounts, count_texts, count_tokens, read_cut, say_unknown
from ppl_models.data.held import MatrixLike, Source, Words, is_listed, is_string, is_text, labels_of, to_list
from ppl_models.data.lazy import is_pandas
from ppl_models.data.lazy import pandas as pd
from ppl_models.data.matrix import Data, as_values_of
from ppl_models.likelihoods import Poisson


def as_documents(
    data: Source,
    *,
    mask: MatrixLike | None = None,
    vocabulary: Words | None = None,
    vocabulary_size: int | None = None,
    cut: Mapping[str, Any] | None = None,
    site: str | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Data:
    """Documents by words: counts (N, V), sparse ones in torch's CSR layout, the words as ``coords["feature"]``.

    data: counts as an array, a tensor, a scipy sparse matrix, a DataFrame or a DataArray (documents by words); lists of
        tokens (words, or columns as whole numbers); mappings of words to counts; or raw texts, which scikit-learn's
        ``CountVectorizer`` cuts up. :func:`documents` reads files too, and takes settings.
    vocabulary: the words of a fitted model, in order. Labelled columns and tokens are brought to it: words that it
        lacks are left out with a DataWarning, words that the data lack occur in no document. Columns without labels
        must be as many. Numbers 0, ..., V - 1: the columns have no words.
    cut: how the texts of a fit were cut up, settings of ``CountVectorizer``.

    Masked entries are left out of their documents, as if these were shorter.

    Raises DataError for what is no count, or no document, and for a vocabulary that does not fit.
    """
    with about(site):
        known = None if vocabulary is None else Vocabulary.of(vocabulary)
        settings: dict[str, Any] = {"mask": mask, "dtype": dtype, "device": device}
        return count_documents(data, known, vocabulary_size, cut=cut, **settings)


def count_documents(
    data: Source,
    vocabulary: Vocabulary | None,
    size: int | None,
    *,
    are_tokens: bool = False,
    vectorizer: Mapping[str, Any] | None = None,
    stop_words: set[str] | None = None,
    cut: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Data:
    """Count documents, for :func:`as_documents` and :func:`documents`. settings: those of :func:`as_matrix`.

    are_tokens: see :func:`count_listed`. vectorizer, stop_words: how raw texts are cut up; cut: what stands for them
    where they are not given, the way of a fit.
    """
    if size is not None:
        plausible_size(size, 0, "word")
    listed = list_documents(data)
    if listed is not None:
        texts, labels = listed
        options, are_texts = dict(vectorizer or {}), is_string(texts[0])
        if stop_words is not None and are_texts:
            options.setdefault("stop_words", sorted(stop_words))
        options = options or (read_cut(cut) if are_texts and cut else {})
        counted = count_listed(texts, vocabulary=vocabulary, size=size, are_tokens=are_tokens, **options)
        checked = as_data(counted, labels, **settings)
        checked = replace(checked, recipe={"texts": options}) if are_texts and options else checked
    elif vectorizer:
        found = f"settings {', '.join(map(repr, vectorizer))} for documents that are no raw texts"
        raise DataError(found, expected="texts; counts are taken as they are")
    else:
        checked = as_values_of(Poisson(), data, keep_sparse=True, **settings)
    checked = in_vocabulary(checked, vocabulary)
    if size is not None and checked.num_features != size:
        problem = f"{checked.num_features} words where vocabulary_size = {size}"
        raise DataError(problem, axis="word", expected=f"shape (N, {size})")
    return checked


def as_data(counted: WordCounts, labels: list[Any] | None = None, **settings: Any) -> Data:
    """Counts with the words of their columns and the labels of their documents; says what was left out."""
    shape: Any = counted.counts.shape
    if 0 in shape:
        raise DataError(f"{shape[0]} documents of {shape[1]} words", expected="at least one document and one word")
    if counted.words is not None and len(counted.words) != shape[1]:
        found = f"{len(counted.words)} words beside counts of {shape[1]}"
        raise DataError(found, axis="word", expected="a vocabulary of the same length")
    data = as_values_of(Poisson(), counted.counts, keep_sparse=True, **settings)
    say_unknown(counted.unknown, counted.counts)
    return data.with_labels("row", labels).with_labels("feature", counted.words)


def list_documents(data: Any) -> tuple[list[Any], list[Any] | None] | None:
    """The documents one by one with their labels, or None where the data are a matrix."""
    refuse_blocks(data)
    if is_text(data):
        problem = f"a single {type(data).__name__}, {data[:30]!r}"
        raise DataError(problem, expected="a list of documents; documents(...) reads files")
    labels = None
    if is_pandas(data, "Series"):
        if pd.api.types.is_numeric_dtype(data):
            raise DataError("a Series of numbers", expected="texts, lists of tokens, or a matrix of counts")
        data, labels = data.tolist(), labels_of(list(data.index))
    if isinstance(data, np.ndarray):
        if data.dtype.kind == "S":
            raise DataError("an array of bytes", expected="strings; decode them first")
        data = data.tolist() if data.dtype.kind in "UO" and data.ndim else data
    if isinstance(data, list | tuple | Iterator):
        data = list(data)
        if not data:
            raise DataError("no documents", axis="document", expected="N >= 1")
        return None if _is_numbers(data) else (data, labels)
    return None


def _is_numbers(lists: list[Any]) -> bool:
    """Whether lists hold what can only be the entries of a matrix: numbers that are not whole, equally many a row."""
    kinds = _kinds(lists)
    if kinds is None:
        return all(np.isscalar(row) and not is_text(row) for row in lists)
    numeric = all(issubclass(kind, int | float | np.integer | np.floating | type(None)) for kind in kinds)
    return numeric and not _are_whole(kinds) and len(set(map(len, lists))) == 1


def _kinds(lists: list[Any]) -> set[type] | None:
    """The types of the entries of lists; None where some are no lists."""
    rows = [to_list(row) if getattr(row, "ndim", 0) == 1 else row for row in lists]
    return {type(value) for row in rows for value in row} if all(map(is_listed, rows)) else None


def _are_whole(kinds: set[type]) -> bool:
    return all(issubclass(kind, int | np.integer) and kind is not bool for kind in kinds)


def count_listed(
    listed: list[Any], *, vocabulary: Vocabulary | None, size: int | None, are_tokens: bool = False, **settings: Any
) -> WordCounts:
    """Counts of texts or of token lists, whichever the first document is.

    are_tokens: lists of whole numbers are known to be tokens. Otherwise equally long ones could be a matrix of counts
        as well, and are refused. settings: for ``CountVectorizer``, where the documents are texts.
    """
    if isinstance(listed[0], bytes):
        raise DataError("documents of bytes", axis="document", expected="strings; decode them first")
    if is_string(listed[0]):
        return count_texts(listed, vocabulary=vocabulary, **settings)
    if settings:
        found = f"settings {', '.join(map(repr, settings))} for documents that are no raw texts"
        raise DataError(found, expected="texts; tokens are counted as they are")
    kinds = None if are_tokens else _kinds(listed)
    if kinds and _are_whole(kinds) and len(set(map(len, listed))) == 1:
        problem = f"{len(listed)} equally long lists of whole numbers: word counts, or tokens by their columns"
        raise DataError(problem, expected="counts as np.asarray(lists); tokens as documents(lists, vocabulary_size=V)")
    return count_tokens(listed, vocabulary=vocabulary, size=size)


def in_vocabulary(data: Data, vocabulary: Vocabulary | None) -> Data:
    """Return the documents with the columns of the vocabulary; unknown words are dropped with a warning.

    Columns without labels are taken to be the vocabulary's, in order. Without a vocabulary only the data's own words
    are checked.
    """
    words = data.coords.get("feature")
    if words is not None:
        words = list(Vocabulary.of(words).words)  # refuses words that occur twice
    if vocabulary is None or (words is not None and not vocabulary.named):
        return data
    if words is None:
        if data.num_features != len(vocabulary):
            problem = f"{data.num_features} columns without names where the vocabulary has {len(vocabulary)} words"
            raise DataError(problem, axis="word", expected="as many columns, or columns named by words")
        return data.with_labels("feature", vocabulary.words) if vocabulary.named else data
    if words == list(vocabulary.words):
        return data
    column = vocabulary.columns(words)
    if not (column >= 0).any():
        problem = f"none of the {len(words)} words is in the vocabulary (the first: {words[0]!r})"
        raise DataError(problem, axis="word", expected=f"words such as {vocabulary.words[0]!r}")
    return _move_columns(data, words, column, vocabulary)


def _move_columns(data: Data, words: list[Any], column: np.ndarray, vocabulary: Vocabulary) -> Data:
    """Columns put where ``column`` says, those at -1 left out."""
    before = sparse.row_sums(data.observed_x).cpu().numpy()
    totals = sparse.column_sums(data.observed_x).cpu().numpy()
    unknown = {words[j]: float(totals[j]) for j in np.flatnonzero(column < 0) if totals[j]}
    size, mask = (len(data), len(vocabulary)), data.mask
    if data.is_sparse:
        known = np.flatnonzero(column >= 0)
        to = scipy.sparse.csr_matrix((np.ones(len(known)), (known, column[known])), shape=(len(words), size[1]))
        moved = sparse.from_scipy(sparse.to_scipy(data.x) @ to, dtype=data.x.dtype, device=data.x.device)
    else:
        source = torch.as_tensor(np.flatnonzero(column >= 0), device=data.x.device)
        target = torch.as_tensor(column[column >= 0], device=data.x.device)
        moved = data.x.new_zeros(size).index_copy(1, target, data.x[:, source])
        if mask is not None:
            mask = torch.ones(size, dtype=torch.bool, device=mask.device).index_copy(1, target, mask[:, source])
    say_unknown(unknown, sparse.row_sums(moved).cpu().numpy()[:, None], before)
    return replace(data, x=moved, mask=mask, coords={**data.coords, "feature": list(vocabulary.words)})


def check_documents(data: Data) -> None:
    """Check that documents can be learned from: raise on no tokens at all, warn of empty documents."""
    x = data.observed_x
    empty = (sparse.row_sums(x) == 0).nonzero().flatten().tolist()
    if len(empty) == len(data):
        raise DataError("every document is empty", axis="document", expected="at least one token")
    if empty:
        first = data.coords.get("row", range(len(data)))[empty[0]]
        warn_of_data(
            f"{len(empty)} of {len(data)} documents are empty (the first: {first!r}); they say nothing of the topics, "
            "and their topic proportions are those of the prior"
        )
    unused = (sparse.column_sums(x) == 0).nonzero().flatten().tolist()
    if unused:
        warn_of_data(
            f"{len(unused)} of {data.num_features} words occur in no document (the first: "
            f"{data.feature_names[unused[0]]!r}); their probabilities are those of the prior"
        )
