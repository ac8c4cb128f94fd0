"""Text files by lines: where every so many lines begin, found in one pass, so that blocks are read at their place."""

from __future__ import annotations

import contextlib
import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ppl_models.core.errors import FileFormatError

#: Bytes that are looked at together.
_CHUNK = 2**24


@contextlib.contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
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
    first_line: int = 1

    def read(self, file: BinaryIO, start: int, stop: int) -> bytes:
        """The lines of rows ``start`` to ``stop``, multiples of ``step`` or the end."""
        first, last = self.offsets[start // self.step], self.offsets[-(-stop // self.step)]
        file.seek(first)
        return file.read(last - first)

    def line(self, row: int) -> int:
        """The number of a row's line, from 1, in a file without blank lines."""
        return self.first_line + row


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
    with opened(path) as file:
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
    return Index(tuple([*begin, *kept, *end]), step, rows, skipped + 1)
