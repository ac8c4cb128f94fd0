"""Text files of rows, plain or compressed with gzip: lda-c, UCI's bag of words, texts one a line, CSV.

Where every so many rows begin is found in one pass, so that blocks are read at their place. ``pyarrow.dataset`` scans
CSV from the beginning alone, and takes the types of columns from the first block: it fails where whole numbers are
followed by 1.5. scikit-learn's ``load_svmlight_file`` reads lda-c only if its words are sorted.
"""

from __future__ import annotations

import contextlib
import gzip
import itertools
import zlib
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import scipy.sparse

from ppl_models.core.errors import DataError, FileFormatError
from ppl_models.data.blocks.files import MIXED, RowFile, Rows, require_columns
from ppl_models.data.documents.counts import count_listed
from ppl_models.data.documents.words import Vocabulary
from ppl_models.data.files.corpora import lda_c, lines_of, numbers_in, uci_header, uci_triples
from ppl_models.data.files.fields import without_index
from ppl_models.data.files.headers import Header
from ppl_models.data.files.reading import decode, encoding_of
from ppl_models.data.files.tables import Layout, columns_called, is_bare, layout_of, list_names, text_frame
from ppl_models.data.held import Names
from ppl_models.data.lazy import pandas as pd

#: Bytes that are looked at together; rows by which the columns of a table are told.
_CHUNK, _SEEN = 2**24, 100


@contextlib.contextmanager
def open_bytes(path: Path) -> Iterator[BinaryIO]:
    """The bytes of a file, unpacked where it is compressed. Raises FileFormatError where it cannot be read."""
    if not path.is_file():
        raise FileFormatError(f"{path}: no such file")
    try:
        with gzip.open(path, "rb") if is_compressed(path) else path.open("rb") as file:
            yield file  # pyright: ignore[reportReturnType]
    except (OSError, EOFError, zlib.error) as error:
        raise FileFormatError(f"{path}: not readable: {str(error).splitlines()[0]}") from None


def is_compressed(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"\x1f\x8b"


@dataclass(frozen=True)
class Index:
    """offsets: of the bytes where rows 0, step, 2 step, ... begin, and where the last one ends."""

    offsets: tuple[int, ...]
    step: int
    num_rows: int

    def read(self, file: BinaryIO, start: int, stop: int) -> bytes:
        """The lines of rows ``start`` to ``stop``, multiples of ``step`` or the end."""
        first, last = self.offsets[start // self.step], self.offsets[-(-stop // self.step)]
        file.seek(first)
        return file.read(last - first)


def chunks(file: BinaryIO) -> Iterator[tuple[int, np.ndarray]]:
    """(offset, bytes) of the file, piece by piece; the last one ends with a newline."""
    offset, last = file.tell(), b"\n"
    while piece := file.read(_CHUNK):
        yield offset, np.frombuffer(piece, np.uint8)
        offset, last = offset + len(piece), piece[-1:]
    if last != b"\n":
        yield offset, np.frombuffer(b"\n", np.uint8)


def by_lines(path: Path, step: int, *, skipped: int = 0, blanks: bool = True, quoted: bool = False) -> Index:
    """The index of a file with a row a line, after ``skipped`` lines of a header.

    blanks: whether blank lines are rows. quoted: whether newlines within double quotes are part of a row.
    """
    kept, rows, inside, before, last_end = [], -skipped, 0, 0, 0
    with open_bytes(path) as file:
        for offset, piece in chunks(file):
            ends = np.flatnonzero(piece == ord("\n"))
            if quoted:
                marks = np.flatnonzero(piece == ord('"'))
                ends = ends[(np.searchsorted(marks, ends) + inside) % 2 == 0]
                inside += len(marks)
            returned = np.concatenate([[before], piece])[ends] == ord("\r")
            before, ends = int(piece[-1]), ends + offset + 1
            empty = np.diff(ends, prepend=last_end) == 1 + returned
            last_end = int(ends[-1]) if len(ends) else last_end
            ends = ends if blanks else ends[~empty]
            number = np.arange(rows, rows + len(ends))
            # The end of row r is where row r + 1 begins.
            kept += ends[(number >= -1) & ((number + 1) % step == 0)].tolist()
            rows += len(ends)
    if rows < 1:
        raise FileFormatError(f"{path}: no rows{' below the header' if skipped else ''}")
    begin = [] if skipped else [0]
    end = [] if rows % step == 0 else [last_end]
    return Index((*begin, *kept, *end), step, rows)


@dataclass(frozen=True)
class TextRows(RowFile):
    """A row a line, or several; ``index`` says where blocks of its ``step`` rows begin.

    parse: the block of the lines of rows from a start up to a stop; a function that can be sent to other processes.
    """

    path: Path
    index: Index
    parse: Callable[[bytes, int, int], Any]

    def runs(self, start: int, stop: int, size: int) -> list[list[tuple[int, int]]]:
        return super().runs(start, stop, max(1, size // self.index.step) * self.index.step)

    @contextlib.contextmanager
    def open(self) -> Iterator[Rows]:
        with open_bytes(self.path) as file:
            yield lambda start, stop: self.parse(self.index.read(file, start, stop), start, stop)


def step_of(block_rows: int) -> int:
    """Rows between two places of the index: what shuffled blocks are made of."""
    return -(-block_rows // MIXED)


def lda_c_file(path: Path, block_rows: int, size: int | None) -> TextRows:
    """size: columns; by default as many as occur, for which the file is read once more."""
    index, most = by_lines(path, step_of(block_rows)), size or 2**31 - 1
    file = TextRows(index.num_rows, most, is_compressed(path), path, index, partial(_lda_c, path, most))
    if size is not None:
        return file
    with file.open() as rows:
        blocks = itertools.chain.from_iterable(file.runs(0, file.num_rows, block_rows))
        last = max(int(rows(*block).indices.max(initial=-1)) for block in blocks)
    if last < 0:
        raise FileFormatError(f"{path}: no words in any document")
    return replace(file, num_columns=last + 1, parse=partial(_lda_c, path, last + 1))


def _lda_c(path: Path, size: int, raw: bytes, start: int, stop: int) -> scipy.sparse.csr_matrix:
    return lda_c(path, lines_of(decode(path, raw)), size, start + 1)


def texts_file(path: Path, block_rows: int, words: list[Any] | None) -> TextRows:
    """A document a line, counted in a known vocabulary; other words are left out.

    Raises DataError without a vocabulary: all blocks must have the same columns.
    """
    if words is None:
        found = f"{path}: texts without a vocabulary, read in blocks that must have the same columns"
        raise DataError(found, axis="word", expected="vocabulary=, a list of words or a file with a word a line")
    known, index = Vocabulary.of(words), by_lines(path, step_of(block_rows))
    return TextRows(index.num_rows, len(known), is_compressed(path), path, index, partial(_texts, path, known))


def _texts(path: Path, known: Vocabulary, raw: bytes, start: int, stop: int) -> scipy.sparse.csr_matrix:
    return count_listed(lines_of(decode(path, raw)), vocabulary=known, size=None).counts


def csv_file(
    path: Path,
    block_rows: int,
    columns: list[Any] | None,
    header: Header = "auto",
    id: Names = None,
    drop: Names = None,
) -> tuple[TextRows, list[Any] | None]:
    """Rows of a CSV or TSV file, and its numeric columns, None where they have no names; the first column names the
    rows where it is not numeric, or that which ``id`` names."""
    layout = layout_of(path, header)
    with open_bytes(path) as file:
        encoding = encoding_of(file.read(4))
    if encoding != "utf-8-sig":
        raise FileFormatError(f"{path}: a text in {encoding.upper()}; expected UTF-8, of which blocks of rows are read")
    skipped = layout.comments + int(layout.header)
    index = by_lines(path, step_of(block_rows), skipped=skipped, blanks=False, quoted=True)
    with open_bytes(path) as file:
        begin = file.read(index.offsets[0])
        some = min(index.step * -(-_SEEN // index.step), index.num_rows)
        frame = text_frame(path, layout, begin + index.read(file, 0, some))
    counted = len(frame.columns) - without_index(frame, path, list_names(columns, id, drop)).shape[1]
    first = columns is None and not pd.api.types.is_numeric_dtype(frame.iloc[:, 0])
    label = columns_called(frame, id)[0] if id is not None else frame.columns[0] if first else None
    left = [label, *frame.columns[:counted], *([] if drop is None else columns_called(frame, drop))]
    if columns is not None and not is_bare(frame):
        require_columns(path, columns, frame.columns)
    chosen = list(frame.columns) if columns is None else columns_called(frame, columns)
    names = [name for name in chosen if name not in left]
    if not names:
        raise DataError(f"{path} has no columns of numbers", axis="feature", expected="at least one")
    parse = partial(_csv, path, layout, begin, names, label)
    bare = is_bare(frame)
    return TextRows(index.num_rows, len(names), is_compressed(path), path, index, parse), None if bare else names


def _csv(
    path: Path, layout: Layout, begin: bytes, names: list[Any], label: Hashable, raw: bytes, start: int, stop: int
) -> Any:
    """Empty fields are missing. begin: the line of the header. label: the column that names the rows, or None."""
    frame = text_frame(path, layout, begin + raw)
    if len(frame) != stop - start:
        found = f"{len(frame)} rows where there are {stop - start} lines, from row {start} on"
        raise FileFormatError(f"{path}: not readable as csv: {found}")
    frame = (frame if label is None else frame.set_index(label)).loc[:, names]
    return frame if layout.header else frame.set_axis(range(len(names)), axis=1)


def uci_file(path: Path, block_rows: int) -> TextRows:
    """UCI's bag of words, sorted by document: lines ``document word count``, from 1, below N, V and their number.

    Reads the file once. Raises FileFormatError, naming the line, for what is no such file, or not sorted."""
    with open_bytes(path) as file:
        head = [file.readline().decode("utf-8", "replace") for _ in range(3)]
        documents, size, entries = uci_header(path, head)
        offsets, before, seen, step = [file.tell()], 1, 0, step_of(block_rows)
        for lines in _whole_lines(file):
            triples = uci_triples(path, lines[1], (documents, size), seen)
            back = np.flatnonzero(np.diff(triples[:, 0], prepend=before) < 0)
            if len(back):
                found = f"entry {seen + int(back[0]) + 1} goes back to document {triples[back[0], 0]}"
                raise FileFormatError(f"{path}: {found}; blocks can be read where the lines are sorted by document")
            begins = np.flatnonzero(np.frombuffer(b"\n" + lines[1][:-1], np.uint8) == ord("\n"))
            blocks = (triples[:, 0] - 1) // step
            # Where the first entry of every block is; of blocks without any, where the next one's is.
            for at in np.flatnonzero(np.diff(blocks, prepend=(before - 1) // step)):
                offsets += [lines[0] + int(begins[at])] * (int(blocks[at]) + 1 - len(offsets))
            before, seen = int(triples[-1, 0]), seen + len(triples)
        end = file.tell()
    if seen != entries:
        raise FileFormatError(f"{path}: {seen} entries, where the third line announces {entries}")
    offsets += [end] * (-(-documents // step) + 1 - len(offsets))
    index = Index(tuple(offsets), step, documents)
    return TextRows(documents, size, is_compressed(path), path, index, partial(_uci, size))


def _uci(size: int, raw: bytes, start: int, stop: int) -> scipy.sparse.csr_matrix:
    numbers = numbers_in(raw)
    assert numbers is not None  # as the pass that made the index found
    document, word, count = numbers.reshape(-1, 3).T
    return scipy.sparse.csr_matrix((count, (document - 1 - start, word - 1)), shape=(stop - start, size))


def _whole_lines(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """(offset, bytes) of the rest of the file, cut at the ends of lines."""
    left = b""
    for offset, piece in chunks(file):
        raw, begin = left + piece.tobytes(), offset - len(left)
        stop = raw.rfind(b"\n") + 1
        left = raw[stop:]
        if raw[:stop].strip():
            yield begin, raw[:stop]
