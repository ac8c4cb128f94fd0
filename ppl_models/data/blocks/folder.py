"""A folder of counts: one CSR matrix as three raw arrays that grow at their ends, and ``blocks.json``.

starts.bin   int64 (N + 1,)    where each row's entries begin
columns.bin  int32 (entries,)  their columns
values.bin   float32 (entries,) their values (whole numbers up to 2^24 are exact)
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from ppl_models.core.errors import DataError, FileFormatError
from ppl_models.data import sparse
from ppl_models.data.atomic import PARTIAL, flush, write_text
from ppl_models.data.blocks.arrays import CsrRows, Stored
from ppl_models.data.blocks.files import FileBlocks, at_least_one
from ppl_models.data.matrix import Data, as_matrix
from ppl_models.data.row_blocks import RowBlocks

_PARTS = {"starts": np.int64, "columns": np.int32, "values": np.float32}
ABOUT = "blocks.json"


def save_blocks(folder: str | Path, blocks: Iterable[Any], *, vocabulary: Sequence[Any] | None = None) -> Path:
    """Writes blocks of counts, one after the other, as a folder that :func:`open_blocks` reads; returns the folder.

    blocks: scipy sparse matrices, arrays, ... of the same number of columns, or :class:`RowBlocks`. One is in memory at
        a time. Real numbers and missing entries: ``np.save`` each block into a folder for :func:`row_blocks`.
    vocabulary: the columns' labels; by default those of the first block, if it has some.

    Raises
    ------
    FileFormatError: a folder that holds something already; but for what a run that was cut short left.
    DataError: no rows, missing entries, values that are no whole numbers from 0 to 2^24, blocks of different widths.
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
    files = {name: (target / f"{name}.bin").open("wb") for name in _PARTS}
    try:
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
    finally:
        for file in files.values():
            file.close()
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
        if labels is not None and (not isinstance(labels, list) or len(labels) != width):
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
    file = CsrRows(starts=parts["starts"], columns=parts["columns"], values=parts["values"], num_columns=width)
    coords = {} if labels is None else {"feature": labels}
    return RowBlocks(read=FileBlocks.of([file], step), num_rows=rows, coords=coords)


def _counts(checked: Data, number: int, width: int) -> scipy.sparse.csr_matrix:
    where = f"block {number}"
    if checked.mask is not None:
        raise DataError(f"{where} has missing entries", expected="counts")
    if checked.num_features != width:
        raise DataError(f"{where} has {checked.num_features} columns", axis="feature", expected=f"{width}")
    x = checked.x if checked.is_sparse else sparse.from_dense(checked.x)
    matrix = sparse.to_scipy(x)
    wrong = (matrix.data < 0) | (matrix.data > 2**24) | (matrix.data != np.round(matrix.data))
    if wrong.any():
        raise DataError(f"{where} has {matrix.data[wrong][0]:g}", expected="whole numbers from 0 to 2^24")
    return matrix
