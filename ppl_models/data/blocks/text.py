"""Text files of rows, plain or compressed with gzip: lda-c, texts one a line, CSV.

``pyarrow.dataset`` scans CSV from the beginning alone, and takes the types of columns from the first block: it fails
where whole numbers are followed by 1.5. scikit-learn's ``load_svmlight_file`` reads lda-c only if its words are sorted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import scipy.sparse

from ppl_models.core.errors import DataError, FileFormatError
from ppl_models.data.blocks.files import MIXED, RowFile, Rows
from ppl_models.data.blocks.lines import Index, by_lines, is_compressed, opened
from ppl_models.data.documents.counts import count_listed
from ppl_models.data.documents.words import Vocabulary
from ppl_models.data.files.corpora import lda_c
from ppl_models.data.files.reading import csv_frame, reading
from ppl_models.data.lazy import pandas as pd


@dataclass(frozen=True)
class TextRows(RowFile):
    """A row a line, or several; ``index`` says where blocks of its ``step`` rows begin."""

    path: Path
    index: Index
    num_columns: int
    in_order: bool

    @property
    def num_rows(self) -> int:
        return self.index.num_rows

    def runs(self, start: int, stop: int, size: int) -> list[list[tuple[int, int]]]:
        return super().runs(start, stop, max(1, size // self.index.step) * self.index.step)

    @contextlib.contextmanager
    def opened(self) -> Iterator[Rows]:
        with opened(self.path) as file:
            yield lambda start, stop: self.parsed(file, start, stop)

    def parsed(self, file: BinaryIO, start: int, stop: int) -> Any:
        """The block that begins at row ``start``."""
        raise NotImplementedError


def step_of(block_rows: int) -> int:
    """Rows between two places of the index: what shuffled blocks are made of."""
    return -(-block_rows // MIXED)


# ----- documents ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LdaCRows(TextRows):
    """lda-c: each line the number of distinct words, then ``word:count`` pairs."""

    def parsed(self, file: BinaryIO, start: int, stop: int) -> scipy.sparse.csr_matrix:
        lines = _decoded(self.path, self.index.read(file, start, stop))
        return lda_c(self.path, lines, self.num_columns, self.index.line(start))


def lda_c_file(path: Path, block_rows: int, size: int | None) -> LdaCRows:
    """size: columns; by default as many as occur, for which the file is read once more."""
    index = by_lines(path, step_of(block_rows))
    file = LdaCRows(path, index, size or 2**31 - 1, is_compressed(path))
    if size is None:
        blocks = [block for run in file.runs(0, file.num_rows, block_rows) for block in run]
        with file.opened() as rows:
            last = max(int(rows(*block).indices.max(initial=-1)) for block in blocks)
        if last < 0:
            raise FileFormatError(f"{path}: no words in any document")
        file = LdaCRows(path, index, last + 1, file.in_order)
    return file


@dataclass(frozen=True)
class TextsRows(TextRows):
    """A document a line, counted in a known vocabulary; other words are left out."""

    vocabulary: Vocabulary

    def parsed(self, file: BinaryIO, start: int, stop: int) -> scipy.sparse.csr_matrix:
        texts = _decoded(self.path, self.index.read(file, start, stop))
        return count_listed(texts, vocabulary=self.vocabulary, size=None).counts


def texts_file(path: Path, block_rows: int, words: list[Any] | None) -> TextsRows:
    """Raises DataError without a vocabulary: all blocks must have the same columns."""
    if words is None:
        found = f"{path}: texts without a vocabulary, read in blocks that must have the same columns"
        raise DataError(found, axis="word", expected="vocabulary=, a list of words or a file with a word a line")
    known = Vocabulary.of(words)
    return TextsRows(path, by_lines(path, step_of(block_rows)), len(known), is_compressed(path), known)


def _decoded(path: Path, raw: bytes) -> list[str]:
    try:
        text = raw.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise FileFormatError(f"{path}: no text in UTF-8 ({error.reason})") from None
    return text.removesuffix("\n").split("\n")


# ----- CSV ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CsvRows(TextRows):
    """Rows of a CSV file; empty fields are missing. labelled: whether its first column names the rows."""

    header: bytes
    columns: tuple[Any, ...]
    labelled: bool

    def parsed(self, file: BinaryIO, start: int, stop: int) -> pd.DataFrame:
        frame = _frame(self.path, self.header + self.index.read(file, start, stop))
        if len(frame) != stop - start:
            found = f"{len(frame)} rows where there are {stop - start} lines, from row {start} on"
            raise FileFormatError(f"{self.path}: not readable as csv: {found}")
        frame = frame.set_index(frame.columns[0]) if self.labelled else frame
        return frame.loc[:, list(self.columns)]


def csv_file(path: Path, block_rows: int, columns: list[str] | None) -> CsvRows:
    """Its numeric columns; the first column names the rows where it is not numeric."""
    index = by_lines(path, step_of(block_rows), skipped=1, blanks=False, quoted=True)
    with opened(path) as file:
        header = file.read(index.offsets[0])
        frame = _frame(path, header + index.read(file, 0, min(index.step, index.num_rows)))
    labelled = columns is None and not pd.api.types.is_numeric_dtype(frame.iloc[:, 0])
    names = list(frame.columns[1:] if labelled else frame.columns) if columns is None else columns
    unknown = [name for name in names if name not in frame.columns]
    if unknown or not names:
        found = f"{path} has no column {unknown[0]!r}" if unknown else f"{path} has no columns of numbers"
        raise DataError(found, axis="feature", expected=f"among {', '.join(map(repr, frame.columns[:8]))}")
    return CsvRows(path, index, len(names), is_compressed(path), header, tuple(names), labelled)


def _frame(path: Path, raw: bytes) -> pd.DataFrame:
    with reading(path, "csv"):
        return csv_frame(path, raw)
