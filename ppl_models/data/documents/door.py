"""``documents(...)``: texts, tokens, counts or a file of them, cleaned, as data that the document models take."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ppl_models.core.errors import DataError
from ppl_models.data import sparse
from ppl_models.data.adapt import adapt
from ppl_models.data.containers import first_text
from ppl_models.data.documents.counts import as_data, count_documents
from ppl_models.data.documents.words import Vocabulary, WordCounts
from ppl_models.data.files.corpora import read_corpus, read_words
from ppl_models.data.files.fields import without_index
from ppl_models.data.files.headers import Header
from ppl_models.data.files.matrices import read_matrix
from ppl_models.data.files.reading import file_named, naming
from ppl_models.data.files.tables import columns_called, ending, list_names, matrix_of, read_table, require_file
from ppl_models.data.held import MatrixLike, Names, Source, Words, is_path, is_string, is_text, labels_of, plain
from ppl_models.data.lazy import is_pandas
from ppl_models.data.lazy import pandas as pd
from ppl_models.data.matrix import Data

#: Endings of matrices of counts; other files are texts, lda-c, or UCI's bag of words.
_MATRICES = (".csv", ".tsv", ".tab", ".parquet", ".npz")
#: Words from which on a label is a text.
_PROSE = 5


def documents(
    source: Source,
    *,
    vocabulary: Words | str | Path | None = None,
    vocabulary_size: int | None = None,
    labels: Sequence[Any] | str | None = None,
    min_count: int = 1,
    max_share: float = 1.0,
    stop_words: str | Iterable[str] | None = None,
    file_format: str | None = None,
    matrix: str | None = None,
    columns: Sequence[Any] | None = None,
    id: Names = None,
    drop: Names = None,
    text: Names = None,
    header: Header = "auto",
    mask: MatrixLike | None = None,
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
    vocabulary: words in the order of the columns, a mapping of words to columns, the ``Data`` of a fit, as whose texts
        these are cut up then, or the path of a file with a word a line. Other words are left out, with a DataWarning
        that says how many. For a matrix without words it names the columns. By default all words, sorted.
    vocabulary_size: columns, for tokens by number.
    labels: of the documents; the name of an array for NPZ files.
    min_count: leave out words with fewer tokens in all. max_share: leave out words in more than this share of the
        documents. stop_words: words to leave out, or "english" for scikit-learn's list.
    file_format: "text", "lda-c" or "uci", where it should not be guessed. matrix: which of an NPZ file's.
    columns, id, drop: of tables (files and DataFrames): the columns of the words, that of the labels, by default the
        first one where it is not numeric, and those left out. text: the column of raw texts, by default the only one
        beside the labels where it holds text. header: of CSV and TSV: whether the first line has the words; "auto"
        looks at it.
    mask: True = observed; NaN is missing too.
    vectorizer: settings of scikit-learn's ``CountVectorizer`` (``lowercase``, ``ngram_range``, ...), for raw texts.

    Raises DataError or FileFormatError for what cannot be read as documents, saying where.
    """
    known, words = _read_vocabulary(vocabulary), None if stop_words is None else _stop_words(stop_words)
    table = {"columns": columns, "id": id, "drop": drop, "text": text, "header": header}
    arrays = {"file_format": file_format, "matrix": matrix, "labels": labels if is_string(labels) else None}
    file = file_named(source, "a list of texts, or the path of a file")
    size = vocabulary_size if known is None else len(known)
    held = _of_held(source, table, arrays) if file is None else _read(file, size, table, dtype=dtype, **arrays)
    with naming(file):
        cut: Any = {"are_tokens": size is not None, "vectorizer": vectorizer, "stop_words": words}
        cut |= {"cut": getattr(vocabulary, "recipe", {}).get("texts")}
        data = count_documents(held, known, vocabulary_size, **cut, mask=mask, dtype=dtype, device=device)
        return _prune(data if is_string(labels) else _with_labels(data, labels), min_count, max_share, words)


def _read_vocabulary(given: Any) -> Vocabulary | None:
    """Return the vocabulary, or that of a file with a word a line."""
    if is_path(given) and (not is_string(given) or Path(given).is_file()):
        given = read_words(Path(given))
    return None if given is None else Vocabulary.of(given)


def _with_labels(data: Data, labels: Sequence[Any] | str | None) -> Data:
    if labels is None:
        return data
    if len(labels) != len(data):
        found = f"{len(labels)} labels for {len(data)} documents"
        raise DataError(found, axis="document", expected="one label a document")
    return data.with_labels("row", plain(labels))


def _stop_words(given: str | Iterable[str]) -> set[str]:
    if not is_text(given):
        return set(given)
    if given != "english":
        raise DataError(f"stop_words = {given!r}", axis="word", expected="'english', or a list of words")
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

    return set(ENGLISH_STOP_WORDS)


def _of_held(source: Source, table: dict[str, Any], arrays: dict[str, str | None]) -> Any:
    """Return the documents of what is no file, of a frame by what is said of its columns."""
    source = adapt(source)
    require_file(None, table["header"])
    first = next((name for name, value in arrays.items() if value is not None), None)
    if first is not None:
        raise DataError(f"{first} = {arrays[first]!r} for documents that come from no file", expected="a path")
    chosen = [table[key] for key in ("columns", "id", "drop", "text")]
    return _of_table(source, *chosen) if is_pandas(source, "DataFrame") or chosen != [None] * 4 else source


def _read(
    file: Path, size: int | None, table: dict[str, Any], *, dtype: torch.dtype | None, labels: str | None,
    file_format: str | None, matrix: str | None,
) -> Any:  # fmt: skip
    """The documents of a file. size: columns, where they are known. table: what is said of a table's columns."""
    if ending(file) in _MATRICES and file_format is None:
        settings: dict[str, Any] = {name: value for name, value in table.items() if name != "text"}
        if ending(file) == ".npz" or (matrix, labels) != (None, None):
            return read_matrix(file, matrix=matrix, rows=labels, **settings, dtype=dtype, keep_sparse=True)
        chosen = [table[key] for key in ("columns", "id", "drop", "text")]
        with naming(file):
            frame = read_table(file, table["header"], asked=list_names(*chosen), id=table["id"])
            if not len(frame):
                raise DataError("no rows below the header", axis="document", expected="N >= 1")
            return _of_table(frame, *chosen)
    said = next((name for name, value in table.items() if value not in (None, "auto")), None)
    if said is not None:
        raise DataError(f"{said}= for {file}, which is no table", expected=f"a file of {', '.join(_MATRICES)}")
    if matrix is not None or labels is not None:
        raise DataError(f"the arrays of {file} have no names", expected="matrix= and labels= by name for NPZ files")
    corpus = read_corpus(file, file_format, vocabulary_size=size)
    return corpus if isinstance(corpus, list) else as_data(WordCounts(*corpus, {}), dtype=dtype)


def _of_table(source: Any, columns: Names, id: Names, drop: Names, text: Names) -> Any:
    """The counts or, as a Series, the texts of a frame, with their labels.

    Raises DataError for texts beside counts, and for texts that would be taken for labels.
    """
    if not is_pandas(source, "DataFrame"):
        raise DataError(
            f"columns=, id=, drop= or text= of {type(source).__name__}", expected="a DataFrame or a file of a table"
        )
    asked = list_names(columns, id, drop, text)
    source = without_index(source, "the table of documents", asked)
    if text is not None:
        label = None if id is None else columns_called(source, id)[0]
        (name,) = columns_called(source, [text])
        return _texts(source[name] if label is None else source.set_index(label)[name])
    is_text = [not pd.api.types.is_numeric_dtype(kind) for kind in source.dtypes]
    if is_text == [True] and id is None:
        return _texts(source.iloc[:, 0])
    if asked or (labels_of(source.index) is None and is_text[:1] == [True]):
        if id is None and columns is None and is_text[0] and sum(is_text) == 1:
            _refuse_prose(source.iloc[:, 0])
        source = matrix_of(source, columns, id=id, drop=drop)
        is_text = [not pd.api.types.is_numeric_dtype(kind) for kind in source.dtypes]
    if is_text == [True] and source.iloc[:, 0].dropna().map(type).eq(str).all():
        return _texts(source.iloc[:, 0])
    for name, wrong in zip(source.columns, is_text, strict=True):
        if wrong and (told := first_text(source[name])):
            options = f"text={name!r} (--text {name}) reads texts, id= (--id) has labels, drop= (--drop) leaves out"
            raise DataError(f"column {name!r} holds text{told}", axis="feature", expected=f"counts; {options}")
    return source


def _texts(column: pd.Series) -> pd.Series:
    """Texts, empty ones where they are missing."""
    return column.fillna("").astype(str)


def _refuse_prose(column: pd.Series) -> None:
    """Raises DataError for texts in the place of labels: most of them of several words."""
    given = column.dropna()
    words = given.astype(str).str.split().str.len()
    if len(given) and 2 * int((words >= _PROSE).sum()) > len(given):
        name = column.name
        found = f"column {name!r} holds texts ({str(given.iloc[0])[:40]!r}) beside columns of numbers"
        options = f"text={name!r} (--text {name}) reads the texts, id={name!r} (--id {name}) says that they are labels"
        raise DataError(found, axis="document", expected=f"counts and their labels; {options}")


def _prune(data: Data, min_count: int, max_share: float, stop_words: set[str] | None) -> Data:
    """Return the documents without rare words, words in most documents, and stop words."""
    if min_count < 0 or not 0 < max_share <= 1:
        found = f"min_count = {min_count}, max_share = {max_share}"
        raise DataError(found, axis="word", expected="a number of at least 0, and a share above 0 and up to 1")
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
