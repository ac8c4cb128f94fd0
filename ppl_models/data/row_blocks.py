"""Rows that do not fit into memory: read in blocks, anew on every pass."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from ppl_models.core.errors import DataError
from ppl_models.data.blocks.files import FileBlocks, HeldRows
from ppl_models.data.containers import NotInMemory
from ppl_models.data.matrix import as_matrix


@dataclass(frozen=True, kw_only=True)
class RowBlocks(NotInMemory):
    """A source of blocks of rows. ``VariationalEM`` fits to it with one block in memory at a time.

    :func:`row_blocks` opens files as one; or, of anything else:

    read: called for every pass; returns the blocks in order, each anything that the model's ``prepare`` takes (a
        scipy sparse matrix, an array, a DataFrame, a list of texts for document models, a :class:`Data`).
    num_rows: N of all blocks together; a pass that finds another number raises DataError.
    coords: labels of the axes; of the vocabulary as ``{"feature": [...]}``.
    """

    read: Callable[[], Iterable[Any]]
    num_rows: int
    coords: dict[str, list[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.num_rows < 1:
            raise DataError(f"num_rows = {self.num_rows}", expected="at least 1")

    def __len__(self) -> int:
        return self.num_rows

    def __iter__(self) -> Iterator[Any]:
        return iter(self.read())

    @classmethod
    def of(cls, data: Any, block_rows: int) -> RowBlocks:
        """Blocks of ``block_rows`` rows of data in memory."""
        checked = as_matrix(data, keep_sparse=True)
        coords = {axis: labels for axis, labels in checked.coords.items() if axis == "feature"}
        return cls(read=FileBlocks.of([HeldRows(checked)], block_rows), num_rows=len(checked), coords=coords)

    def shuffled(self, generator: torch.Generator) -> Iterator[list[Any]]:
        """All rows in other blocks, each a list of parts from random places, as far as the source can be read there.

        Compressed files and large row groups of Parquet are read from their beginning to their end, a plain ``read``
        as it is.
        """
        return self.read.shuffled(generator) if isinstance(self.read, FileBlocks) else map(_alone, self)

    def part(self, rank: int, size: int) -> RowBlocks:
        """Every ``size``-th block from the ``rank``-th on: what one of several processes reads.

        The rows of files are counted without reading them; those of a plain ``read`` by a pass over the blocks.

        Raises DataError where there are fewer blocks than processes.
        """
        if not 0 <= rank < size:
            raise DataError(f"part {rank} of {size}", expected=f"0 to {size - 1}")
        if size == 1:
            return self
        if isinstance(self.read, FileBlocks):
            chosen = self.read.part(rank, size)
            return replace(self, read=chosen, num_rows=chosen.num_rows)
        every = partial(_every, self.read, rank, size)
        rows = sum(_length(block) for block in every())
        if not rows:
            found = f"no block for process {rank} of {size}"
            raise DataError(found, axis="row", expected="at least one block for each process")
        return replace(self, read=every, num_rows=rows)

    def map(self, change: Callable[[Any], Any]) -> RowBlocks:
        """The same source with every block changed as it is read, to one of as many rows (``lambda x: x > 0.5``)."""
        read = self.read.map(change) if isinstance(self.read, FileBlocks) else partial(_changed, self.read, change)
        return replace(self, read=read)


def _every(read: Callable[[], Iterable[Any]], rank: int, size: int) -> Iterator[Any]:
    """Every size-th block of what can only be read in order."""
    return itertools.islice(read(), rank, None, size)


def _changed(read: Callable[[], Iterable[Any]], change: Callable[[Any], Any]) -> Iterator[Any]:
    return map(change, read())


def _alone(block: Any) -> list[Any]:
    return [block]


def _length(block: Any) -> int:
    shape = getattr(block, "shape", None)
    return int(shape[0]) if shape else len(block)
