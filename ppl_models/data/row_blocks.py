"""Rows that do not fit into memory: read in blocks, anew on every pass.

Blocks of counts are kept in a folder: one CSR matrix as three raw arrays that grow at their ends, and ``blocks.json``.

    starts.bin   int64 (N + 1,)     where each row's entries begin
    columns.bin  int32 (entries,)   their columns
    values.bin   float32 (entries,) their values (whole numbers up to 2^24 are exact)
"""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
import torch

from ppl_models.core import displays
from ppl_models.core.errors import DataError, FileFormatError
from ppl_models.data import sparse
from ppl_models.data.atomic import PARTIAL, flush, write_text
from ppl_models.data.blocks.arrays import CsrRows, Stored
from ppl_models.data.blocks.files import FileBlocks, HeldRows, at_least_one
from ppl_models.data.containers import NotInMemory
from ppl_models.data.held import MatrixLike, is_listed
from ppl_models.data.matrix import Data, as_matrix


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

    @property
    def _files(self) -> FileBlocks | None:
        """The blocks of files, which can be read at any place; None of a plain ``read``."""
        return self.read if isinstance(self.read, FileBlocks) else None

    def _repr_html_(self) -> str:
        labels = {f"labels of {axis}": displays.list_labels(names) for axis, names in self.coords.items()}
        return displays.display(f"RowBlocks: {self.num_rows} rows, read block by block", displays.facts(labels))

    @classmethod
    def of(cls, data: MatrixLike, block_rows: int) -> RowBlocks:
        """Blocks of ``block_rows`` rows of data in memory."""
        checked = as_matrix(data, keep_sparse=True)
        coords = {axis: labels for axis, labels in checked.coords.items() if axis == "feature"}
        return cls(
            read=FileBlocks.of([HeldRows(len(checked), checked.num_features, False, checked)], block_rows),
            num_rows=len(checked),
            coords=coords,
        )

    def shuffled(self, generator: torch.Generator) -> Iterator[list[Any]]:
        """All rows in other blocks, each a list of parts from random places, as far as the source can be read there.

        Compressed files and large row groups of Parquet are read from their beginning to their end, a plain ``read``
        as it is.
        """
        return ([block] for block in self) if self._files is None else self._files.shuffled(generator)

    def part(self, rank: int, size: int) -> RowBlocks:
        """Every ``size``-th block from the ``rank``-th on: what one of several processes reads.

        The rows of files are counted without reading them; those of a plain ``read`` by a pass over the blocks.

        Raises DataError where there are fewer blocks than processes.
        """
        if not 0 <= rank < size:
            raise DataError(f"part {rank} of {size}", expected=f"0 to {size - 1}")
        if size == 1:
            return self
        if self._files is not None:
            chosen = self._files.part(rank, size)
            return replace(self, read=chosen, num_rows=chosen.num_rows)
        every = partial(_every, self.read, rank, size)
        rows = sum(int(block.shape[0]) if hasattr(block, "shape") else len(block) for block in every())
        if not rows:
            found = f"no block for process {rank} of {size}"
            raise DataError(found, axis="row", expected="at least one block for each process")
        return replace(self, read=every, num_rows=rows)

    def map(self, change: Callable[[Any], Any]) -> RowBlocks:
        """Return a source that changes every block as it is read, to one of as many rows (``lambda x: x > 0.5``)."""
        plain = partial(_map_blocks, self.read, change)
        return replace(self, read=plain if self._files is None else self._files.map(change))


def _every(read: Callable[[], Iterable[Any]], rank: int, size: int) -> Iterator[Any]:
    """Yield every size-th block of a source that can only be read in order."""
    return itertools.islice(read(), rank, None, size)


def _map_blocks(read: Callable[[], Iterable[Any]], change: Callable[[Any], Any]) -> Iterator[Any]:
    return map(change, read())


_PARTS = {"starts": np.int64, "columns": np.int32, "values": np.float32}
ABOUT = "blocks.json"


def save_blocks(folder: str | Path, blocks: Iterable[Any], *, vocabulary: Sequence[Any] | None = None) -> Path:
    """Writes blocks of counts, one after the other, as a folder that :func:`open_blocks` reads; returns the folder.

    blocks: scipy sparse matrices, arrays, ... of the same number of columns, or :class:`RowBlocks`. One is in memory at
        a time. Real numbers and missing entries: ``np.save`` each block into a folder for :func:`row_blocks`.
    vocabulary: the columns' labels; by default those of the first block, if it has some.

    Raises FileFormatError for a folder that holds something already, but for what a run that was cut short left; and
    DataError for no rows, missing entries, values that are no whole numbers from 0 to 2^24, blocks of different widths.
    """
    target = Path(folder)
    if target.exists() and (not target.is_dir() or not all(map(_is_left, target.iterdir()))):
        raise FileFormatError(f"{target}: holds something already; blocks go into a new folder")
    made = not target.exists()
    target.mkdir(parents=True, exist_ok=True)
    labels = None if vocabulary is None else list(vocabulary)
    if labels is None and isinstance(blocks, RowBlocks):
        labels = blocks.coords.get("feature")
    try:
        about = _write_parts(target, blocks, labels)
        # Last: a folder without it was not written to its end.
        write_text(target / ABOUT, json.dumps(about))
    except BaseException:
        for one in filter(_is_left, target.iterdir()):
            one.unlink()
        if made:
            target.rmdir()
        raise
    return target


def _is_left(path: Path) -> bool:
    """Whether this may have been left in its folder by a run that was cut short, as long as there is no ABOUT."""
    return path.suffix == PARTIAL or path.name in [f"{name}.bin" for name in _PARTS]


def _write_parts(target: Path, blocks: Iterable[Any], labels: list[Any] | None) -> dict[str, Any]:
    """The arrays of all blocks, and what ``blocks.json`` says of them."""
    width, rows, entries = 0, 0, 0
    with contextlib.ExitStack() as stack:
        files = {name: stack.enter_context((target / f"{name}.bin").open("wb")) for name in _PARTS}
        files["starts"].write(np.zeros(1, np.int64).tobytes())
        for number, block in enumerate(blocks):
            checked = as_matrix(block, keep_sparse=True)
            labels = checked.coords.get("feature") if number == 0 and labels is None else labels
            width = width if number else checked.num_features
            matrix = _counts(checked, number, width)
            parts = {"starts": matrix.indptr[1:] + entries, "columns": matrix.indices, "values": matrix.data}
            for name, kind in _PARTS.items():
                files[name].write(np.asarray(parts[name], dtype=kind).tobytes())
            rows, entries = rows + len(checked), entries + matrix.nnz
    if not rows:
        raise DataError("no blocks", expected="at least one row")
    if labels is not None and len(labels) != width:
        raise DataError(f"{len(labels)} labels for {width} columns", axis="feature", expected="one label a column")
    for name in _PARTS:
        flush(target / f"{name}.bin")
    return {"rows": rows, "columns": width, "entries": entries, "vocabulary": labels}


def open_blocks(folder: str | Path, *, block_rows: int = 4096) -> RowBlocks:
    """The rows of a folder that :func:`save_blocks` wrote, read block by block.

    Raises FileFormatError for a folder that is none, or whose arrays were cut short.
    """
    source, step = Path(folder), at_least_one(block_rows)
    try:
        about = json.loads((source / ABOUT).read_text(encoding="utf-8"))
        rows, width, entries = (int(about[name]) for name in ("rows", "columns", "entries"))
        labels = about.get("vocabulary")
        if labels is not None and (not is_listed(labels) or len(labels) != width):
            raise ValueError(f"a vocabulary that does not name the {width} columns")
    except (OSError, ValueError, LookupError, TypeError, ArithmeticError, AttributeError, RecursionError) as error:
        raise FileFormatError(f"{source}: no folder of blocks ({error})") from None
    sizes = {"starts": rows + 1, "columns": entries, "values": entries}
    parts = {}
    for name, kind in _PARTS.items():
        path, needed = source / f"{name}.bin", sizes[name] * np.dtype(kind).itemsize
        found = path.stat().st_size if path.is_file() else 0
        if found != needed:
            raise FileFormatError(f"{path}: {found} bytes, expected {needed}")
        parts[name] = Stored(path, 0, np.dtype(kind).str, (sizes[name],))
    file = CsrRows(rows, width, False, parts["starts"], parts["columns"], parts["values"])
    coords = {} if labels is None else {"feature": labels}
    return RowBlocks(read=FileBlocks.of([file], step), num_rows=rows, coords=coords)


def _counts(checked: Data, number: int, width: int) -> scipy.sparse.csr_matrix:
    where = f"block {number}"
    if checked.mask is not None:
        raise DataError(f"{where} has missing entries", expected="counts")
    if checked.num_features != width:
        raise DataError(f"{where} has {checked.num_features} columns", axis="feature", expected=f"{width}")
    matrix = sparse.to_scipy(checked.x if checked.is_sparse else sparse.from_dense(checked.x))
    wrong = (matrix.data < 0) | (matrix.data > 2**24) | (matrix.data != np.round(matrix.data))
    if wrong.any():
        raise DataError(f"{where} has {matrix.data[wrong][0]:g}", expected="whole numbers from 0 to 2^24")
    return matrix
