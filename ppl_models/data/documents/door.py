"""``documents(...)``: texts, tokens, counts or a file of them, cleaned, as data that the document models take."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ppl_models.core.errors import DataError
from ppl_models.data import sparse
from ppl_models.data.containers import plain, plausible_size
from ppl_models.data.documents.counts import as_data, counted_documents
from ppl_models.data.documents.words import Vocabulary, WordCounts
from ppl_models.data.files.corpora import read_corpus, read_words
from ppl_models.data.files.headers import Header
from ppl_models.data.files.matrices import read_matrix
from ppl_models.data.files.reading import named_file, naming
from ppl_models.data.files.tables import ending, matrix_of, require_file
from ppl_models.data.lazy import is_pandas
from ppl_models.data.matrix import Data

#: Endings of matrices of counts; other files are texts, lda-c, or UCI's bag of words.
_MATRICES = (".csv", ".tsv", ".tab", ".parquet", ".npz")


def documents(
    source: Any,
    *,
    vocabulary: Any = None,
    vocabulary_size: int | None = None,
    labels: Sequence[Any] | str | None = None,
    min_count: int = 1,
    max_share: float = 1.0,
    stop_words: str | Iterable[str] | None = None,
    file_format: str | None = None,
    matrix: str | None = None,
    columns: Sequence[Any] | None = None,
    id: Any = None,
    drop: Any = None,
    header: Header = "auto",
    mask: Any = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    **vectorizer: Any,
) -> Data:
    """Documents from whatever people hold them in: word counts (N, V), words and labels of documents as coords.

    >>> data = documents(["the river bank", "bank and loan"], stop_words=["the", "and"])
    >>> data.coords["feature"], data.dense().x.tolist()
    (['bank', 'loan', 'river'], [[1.0, 0.0, 1.0], [1.0, 1.0, 0.0]])

    Parameters
    ----------
    source: raw texts (list or Series of strings); lists of tokens, words or columns as whole numbers; mappings of words
        to counts; a matrix of counts (array, tensor, scipy sparse, DataFrame, DataArray, ``Data``); or the path of a
        file: texts one a line, lda-c, UCI's bag of words (these also ``.gz``), CSV, TSV, Parquet, NPZ.
    vocabulary: words in the order of the columns, a mapping of words to columns, the ``Data`` of a fit, or the path of
        a file with a word a line. Other words are left out, with a DataWarning that says how many. For a matrix without
        words it names the columns. By default all words, sorted.
    vocabulary_size: columns, for tokens by number.
    labels: of the documents; the name of an array for NPZ files.
    min_count: leave out words with fewer tokens in all. max_share: leave out words in more than this share of the
        documents. stop_words: words to leave out, or "english" for scikit-learn's list.
    file_format: "text", "lda-c" or "uci", where it should not be guessed. matrix: which of an NPZ file's.
    columns, id, drop: of tables (files and DataFrames): the columns of the words, that of the labels, and those
        left out. header: of CSV and TSV: whether the first line has the words; "auto" looks at it.
    mask: True = observed; NaN is missing too.
    vectorizer: settings of scikit-learn's ``CountVectorizer`` (``lowercase``, ``ngram_range``, ...), for raw texts.

    Raises DataError or FileFormatError for what cannot be read as documents, saying where.
    """
    if min_count < 0 or not 0 < max_share <= 1:
        found = f"min_count = {min_count}, max_share = {max_share}"
        raise DataError(found, axis="word", expected="a number of at least 0, and a share above 0 and up to 1")
    if vocabulary_size is not None:
        plausible_size(vocabulary_size, 0, "word")
    if isinstance(vocabulary, Path) or (isinstance(vocabulary, str) and Path(vocabulary).is_file()):
        vocabulary = read_words(Path(vocabulary))
    known = None if vocabulary is None else Vocabulary.of(vocabulary)
    if stop_words is not None:
        stop_words = _stop_words(stop_words)
    file = named_file(source, "a list of texts, or the path of a file")
    names = labels if isinstance(labels, str) else None
    if file is not None:
        size = len(known) if known is not None else vocabulary_size
        table = {"columns": columns, "id": id, "drop": drop, "header": header}
        source = _read(file, size, names, file_format, matrix, table, dtype)
    else:
        require_file(None, header)
        if (columns, id, drop) != (None, None, None):
            source = _of_table(source, columns, id, drop)
        given = {"file_format": file_format, "matrix": matrix, "labels": names}
        first = next((name for name, value in given.items() if value is not None), None)
        if first is not None:
            raise DataError(f"{first} = {given[first]!r} for documents that come from no file", expected="a path")
    with naming(file):
        data = counted_documents(
            source, known, vocabulary_size, are_tokens=known is not None or vocabulary_size is not None,
            vectorizer=vectorizer, stop_words=stop_words, mask=mask, dtype=dtype, device=device,
        )  # fmt: skip
        if labels is not None and names is None:
            if len(labels) != len(data):
                found = f"{len(labels)} labels for {len(data)} documents"
                raise DataError(found, axis="document", expected="one label a document")
            data = replace(data, coords={**data.coords, "row": plain(labels)})
        return _pruned(data, min_count, max_share, stop_words)


def _stop_words(given: str | Iterable[str]) -> set[str]:
    if not isinstance(given, str):
        return set(given)
    if given != "english":
        raise DataError(f"stop_words = {given!r}", axis="word", expected="'english', or a list of words")
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

    return set(ENGLISH_STOP_WORDS)


def _read(
    file: Path,
    size: int | None,
    labels: str | None,
    file_format: str | None,
    matrix: str | None,
    table: Any,
    dtype: Any,
) -> Any:
    """The documents of a file. size: columns, where they are known. table: what is said of a table's columns."""
    if ending(file) in _MATRICES and file_format is None:
        return read_matrix(file, matrix=matrix, rows=labels, **table, dtype=dtype, keep_sparse=True)
    said = next((name for name, value in table.items() if value not in (None, "auto")), None)
    if said is not None:
        raise DataError(f"{said}= for {file}, which is no table", expected=f"a file of {', '.join(_MATRICES)}")
    if matrix is not None or labels is not None:
        raise DataError(f"the arrays of {file} have no names", expected="matrix= and labels= by name for NPZ files")
    corpus = read_corpus(file, file_format, vocabulary_size=size)
    return corpus if isinstance(corpus, list) else as_data(WordCounts(*corpus, {}), dtype=dtype)


def _of_table(source: Any, columns: Any, id: Any, drop: Any) -> Any:
    """The columns of a frame that hold counts."""
    if not is_pandas(source, "DataFrame"):
        raise DataError(
            f"columns=, id= or drop= of {type(source).__name__}", expected="a DataFrame or a file of a table"
        )
    return matrix_of(source, columns, id=id, drop=drop)


def _pruned(data: Data, min_count: int, max_share: float, stop_words: set[str] | None) -> Data:
    """Without rare words, words in most documents, and stop words."""
    if min_count <= 1 and max_share == 1 and stop_words is None:
        return data
    observed = data.observed_x
    kept = np.ones(data.num_features, dtype=bool)
    if min_count > 1:
        kept &= sparse.column_sums(observed).cpu().numpy() >= min_count
    if max_share < 1:
        counts: Any = sparse.to_scipy(observed) if data.is_sparse else observed.cpu().numpy()
        kept &= np.asarray((counts > 0).sum(0)).ravel() <= max_share * len(data)
    words = data.feature_names
    if stop_words is not None:
        kept &= np.array([word not in stop_words for word in words])
    if not kept.any():
        found = f"none of the {len(words)} words is left"
        raise DataError(found, axis="word", expected="a lower min_count, a higher max_share, or fewer stop words")
    return data.columns(np.flatnonzero(kept))
