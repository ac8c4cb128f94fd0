"""Rows in files, cut into blocks that can be read in any order, by any process.

Everything here is a frozen dataclass of paths and places, so that it can be sent to other processes; files are opened
while blocks are read, and only then.
"""

from __future__ import annotations

import abc
import contextlib
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from ppl_models.core.errors import DataError
from ppl_models.data.matrix import Data

#: Places that the rows of a shuffled block come from.
MIXED = 16

#: Reads the rows from a start up to a stop.
Rows = Callable[[int, int], Any]


@dataclass(frozen=True)
class RowFile(abc.ABC):
    """N rows of D columns in one file (or folder) that can be read from any row on.

    in_order: whether reading from anywhere but where the last block ended costs much (compressed files).
    """

    num_rows: int
    num_columns: int
    in_order: bool

    @abc.abstractmethod
    def open(self) -> AbstractContextManager[Rows]:
        """Open the file and return a function that reads rows while it is open."""

    def runs(self, start: int, stop: int, size: int) -> list[list[tuple[int, int]]]:
        """Rows ``start`` to ``stop`` in blocks of at most ``size``; those of one list are read one after the other."""
        blocks = cut(start, stop, size)
        return [blocks] if self.in_order else [[block] for block in blocks]


def cut(start: int, stop: int, step: int) -> list[tuple[int, int]]:
    """[start, stop) in consecutive parts of ``step``."""
    return [(first, min(first + step, stop)) for first in range(start, stop, step)]


class Place(NamedTuple):
    """A range of rows of a file: the file, the first row, and the row after the last."""

    file: int
    start: int
    stop: int


@dataclass(frozen=True)
class FileBlocks:
    """Blocks of at most ``block_rows`` rows of several files, in runs of blocks that are read one after the other.

    change: what is done to every block that is read.
    """

    files: tuple[RowFile, ...]
    runs: tuple[tuple[Place, ...], ...]
    block_rows: int
    change: tuple[Callable[[Any], Any], ...] = ()

    @classmethod
    def of(cls, files: Sequence[RowFile], block_rows: int) -> FileBlocks:
        """Blocks of at most ``block_rows`` rows; none crosses from a file into the next."""
        at_least_one(block_rows)
        runs = [
            tuple(Place(number, *block) for block in run)
            for number, file in enumerate(files)
            for run in file.runs(0, file.num_rows, block_rows)
        ]
        return cls(tuple(files), tuple(runs), block_rows)

    @property
    def num_rows(self) -> int:
        return sum(place.stop - place.start for run in self.runs for place in run)

    def __call__(self) -> Iterator[Any]:
        """Yield all blocks in the order of the files."""
        return map(operator.itemgetter(1), self._read_runs(self.runs))

    def shuffled(self, generator: torch.Generator) -> Iterator[list[Any]]:
        """Yield all rows in new blocks of about ``block_rows``, each of ``MIXED`` parts from random places."""
        # Of every unit its run and which of the run's it is: places of all of them would be large lists.
        counts = np.array([len(self._units(run)) for run in self.runs])
        number = np.repeat(np.arange(len(counts)), counts)
        within = np.arange(len(number)) - np.repeat(counts.cumsum() - counts, counts)
        order = torch.randperm(len(number), generator=generator).numpy()
        units = (self._units(self.runs[number[i]])[within[i]] for i in order)
        parts, rows = [], 0
        for place, block in self._read_runs(units):
            parts.append(block)
            rows += place.stop - place.start
            del block
            if rows >= self.block_rows:
                yield parts
                parts, rows = [], 0
        if parts:
            yield parts

    def _units(self, run: tuple[Place, ...]) -> list[tuple[Place, ...]]:
        """A run in smaller parts that can be read in any order; one of several blocks stays as it is."""
        size = -(-self.block_rows // MIXED)
        if len(run) != 1:
            return [run]
        (file, start, stop), *_ = run
        return [tuple(Place(file, *block) for block in part) for part in self.files[file].runs(start, stop, size)]

    def part(self, rank: int, size: int) -> FileBlocks:
        """Return every size-th block from the rank-th on."""
        number, kept = 0, []
        for run in self.runs:
            kept.append(tuple(place for i, place in enumerate(run, number) if i % size == rank))
            number += len(run)
        if number < size:
            found = f"{number} block(s) for {size} processes"
            raise DataError(found, axis="row", expected="at least one block each; use a smaller block_rows")
        return replace(self, runs=tuple(run for run in kept if run))

    def map(self, change: Callable[[Any], Any]) -> FileBlocks:
        return replace(self, change=(*self.change, change))

    def _read_runs(self, runs: Iterable[tuple[Place, ...]]) -> Iterator[tuple[Place, Any]]:
        current, rows = None, None
        with contextlib.ExitStack() as stack:
            for place in (place for run in runs for place in run):
                if place.file != current or rows is None:
                    stack.close()  # one file is open at a time
                    current, rows = place.file, stack.enter_context(self.files[place.file].open())
                block = rows(place.start, place.stop)
                for change in self.change:
                    block = change(block)
                yield place, block
                del block


@dataclass(frozen=True)
class HeldRows(RowFile):
    """Rows that are in memory."""

    data: Data

    def open(self) -> AbstractContextManager[Rows]:
        return nullcontext(lambda start, stop: self.data.rows(slice(start, stop)))


def require_columns(path: Path, names: Iterable[Any], known: Iterable[Any], most: int = 8) -> None:
    """Raises DataError for columns that a file has not."""
    known = list(known)
    unknown = [name for name in names if name not in known]
    if unknown:
        more = "" if len(known) <= most else f", ... ({len(known)})"
        expected = f"among {', '.join(map(repr, known[:most]))}{more}"
        raise DataError(f"{path} has no column {unknown[0]!r}", axis="feature", expected=expected)


def at_least_one(block_rows: int) -> int:
    if block_rows < 1:
        raise DataError(f"block_rows = {block_rows}", expected="at least 1")
    return block_rows
