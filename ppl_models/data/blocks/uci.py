"""UCI's bag of words as blocks of documents."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import scipy.sparse

from ppl_models.core.errors import FileFormatError
from ppl_models.data.blocks.lines import Index, chunks, is_compressed, opened
from ppl_models.data.blocks.text import TextRows, step_of
from ppl_models.data.files.corpora import ENTRY, check_uci, numbers_in, uci_header


@dataclass(frozen=True)
class UciRows(TextRows):
    """UCI's bag of words, sorted by document: lines ``document word count``, from 1, below N, V and their number."""

    def parsed(self, file: BinaryIO, start: int, stop: int) -> scipy.sparse.csr_matrix:
        numbers = numbers_in(self.index.read(file, start, stop))
        assert numbers is not None  # as the pass that made the index found
        document, word, count = numbers.reshape(-1, 3).T
        shape = (stop - start, self.num_columns)
        return scipy.sparse.csr_matrix((count, (document - 1 - start, word - 1)), shape=shape)


def uci_file(path: Path, block_rows: int) -> UciRows:
    """Reads the file once. Raises FileFormatError, naming the line, for what is no such file, or not sorted."""
    with opened(path) as file:
        head = [file.readline().decode("utf-8", "replace") for _ in range(3)]
        documents, size, entries = uci_header(path, head)
        offsets, before, seen, step = [file.tell()], 1, 0, step_of(block_rows)
        for lines in _whole_lines(file):
            triples, begins = _triples(path, lines, seen, (documents, size), before)
            blocks = (triples[:, 0] - 1) // step
            # Where the first entry of every block is; of blocks without any, where the next one's is.
            for at in np.flatnonzero(np.diff(blocks, prepend=(before - 1) // step)):
                offsets += [lines[0] + int(begins[at])] * (int(blocks[at]) + 1 - len(offsets))
            before, seen = int(triples[-1, 0]), seen + len(triples)
        end = file.tell()
    if seen != entries:
        raise FileFormatError(f"{path}: {seen} entries, where the third line announces {entries}")
    offsets += [end] * (-(-documents // step) + 1 - len(offsets))
    return UciRows(path, Index(tuple(offsets), step, documents), size, is_compressed(path))


def _whole_lines(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """(offset, bytes) of the rest of the file, cut at the ends of lines."""
    left = b""
    for offset, piece in chunks(file):
        raw, begin = left + piece.tobytes(), offset - len(left)
        stop = raw.rfind(b"\n") + 1
        left = raw[stop:]
        if raw[:stop].strip():
            yield begin, raw[:stop]


def _triples(
    path: Path, lines: tuple[int, bytes], seen: int, limits: tuple[int, int], before: int
) -> tuple[np.ndarray, np.ndarray]:
    """Document, word and count of every line, and where among the bytes the line begins."""
    letters = np.frombuffer(lines[1], np.uint8)
    ends = np.flatnonzero(letters == ord("\n")) + 1
    begins = np.concatenate([[0], ends[:-1]])
    numbers = numbers_in(lines[1])
    tokens = np.diff(np.searchsorted(_begins_of_tokens(letters), ends), prepend=0)
    if numbers is None or (tokens != 3).any():
        _name_the_line(path, lines[1], seen)
        raise FileFormatError(f"{path}: not readable as UCI's bag of words; expected lines 'document word count'")
    triples = numbers.reshape(-1, 3)
    check_uci(path, triples, limits, seen)
    back = np.flatnonzero(np.diff(triples[:, 0], prepend=before) < 0)
    if len(back):
        found = f"entry {seen + int(back[0]) + 1} goes back to document {triples[back[0], 0]}"
        raise FileFormatError(f"{path}: {found}; blocks can be read where the lines are sorted by document")
    return triples, begins


def _begins_of_tokens(letters: np.ndarray) -> np.ndarray:
    """Where what stands between blanks begins."""
    dark = letters > ord(" ")
    return np.flatnonzero(dark & ~np.concatenate([[False], dark[:-1]]))


def _name_the_line(path: Path, raw: bytes, seen: int) -> None:
    for number, line in enumerate(raw.decode("utf-8", "replace").splitlines(), seen + 4):
        if not ENTRY.fullmatch(line.strip()):
            raise FileFormatError(f"{path}: line {number} is {line[:40]!r}; expected 'document word count'")
