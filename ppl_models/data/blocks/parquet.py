"""Parquet files, row group by row group.

By ``pyarrow.parquet``: a scan of ``pyarrow.dataset`` begins at no row, and holds row groups whole (700 to 1,100 MB for
one of 1,000,000 rows of 50 columns, where this takes 280).
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ppl_models.core.errors import DataError, FileFormatError
from ppl_models.data.blocks.files import RowFile, Rows, cut, require_columns
from ppl_models.data.files.reading import reading
from ppl_models.data.held import is_string

#: Bytes of a column that are read ahead.
_AHEAD = 2**16


@dataclass(frozen=True)
class ParquetRows(RowFile):
    """Numeric columns of a Parquet file; nulls are missing. groups: the rows of each row group."""

    path: Path
    columns: tuple[str, ...]
    groups: tuple[int, ...]

    def runs(self, start: int, stop: int, size: int) -> list[list[tuple[int, int]]]:
        """Large row groups are a run of blocks each; small ones make up blocks together."""
        runs, end = [], 0
        for rows in self.groups:
            before, end = max(end, start), end + rows
            if min(end, stop) <= before:
                continue
            if before > start and min(end, stop) - start > size:
                runs.append(cut(start, before, size))
                start = before
        return [*runs, cut(start, stop, size)]

    @contextlib.contextmanager
    def open(self) -> Iterator[Rows]:
        import pyarrow.parquet

        try:
            with pyarrow.parquet.ParquetFile(self.path, buffer_size=_AHEAD) as file:
                yield _Reader(self, file)
        finally:
            pyarrow.default_memory_pool().release_unused()  # which it keeps for itself, more with every pass


class _Reader:
    """Goes on where the last rows ended; elsewhere it starts over at the row group."""

    def __init__(self, table: ParquetRows, file: Any):
        self.table, self.file = table, file
        self.position, self.left = -1, None
        self.batches: Iterator[Any] = iter(())

    def __call__(self, start: int, stop: int) -> np.ndarray:
        """(rows, columns), NaN where there is nothing."""
        import pyarrow

        with reading(self.table.path, "parquet"):
            if start != self.position:
                self._seek(start, stop - start)
            rows = pyarrow.Table.from_batches(self._take(stop - start))
            frame = rows.to_pandas(ignore_metadata=True, use_threads=False)
            return frame.to_numpy(dtype=np.float64, na_value=np.nan)

    def _seek(self, start: int, batch_rows: int) -> None:
        """Go to a row: forward within the current row group, or to the beginning of the row group that holds it."""
        ends = list(itertools.accumulate(self.table.groups))
        group = int(np.searchsorted(ends, start, side="right"))
        begin = ends[group] - self.table.groups[group]
        if not begin <= self.position < start:
            how: dict[str, Any] = {"batch_size": batch_rows, "columns": list(self.table.columns), "use_threads": False}
            # One row group after the other: asked for several, pyarrow makes room for all of them at once.
            each = (self.file.iter_batches(row_groups=[number], **how) for number in range(group, len(ends)))
            self.batches, self.left, self.position = itertools.chain.from_iterable(each), None, begin
        while self.position < start:
            self._take(min(batch_rows, start - self.position))

    def _take(self, count: int) -> list[Any]:
        """The next rows, as parts of batches."""
        parts = []
        self.position += count
        while count:
            batch = self.left if self.left is not None else next(self.batches, None)
            if batch is None:
                raise FileFormatError(f"{self.table.path}: ends {count} rows before its metadata say")
            parts.append(batch.slice(0, count))
            self.left = batch.slice(count) if len(batch) > count else None
            count -= len(parts[-1])
        return parts


def parquet_file(path: Path, columns: Sequence[str] | None = None, left_out: Sequence[str] = ()) -> ParquetRows:
    """A file's numeric columns, all but the labels of rows: pandas' index, and a first column that is not numeric.
    left_out: further ones that are not read.

    Raises FileFormatError where it is none, and DataError for columns that are not there or hold no numbers.
    """
    import pyarrow.parquet

    with reading(path, "parquet"), pyarrow.parquet.ParquetFile(path) as file:
        schema, metadata = file.schema_arrow, file.metadata
        groups = tuple(metadata.row_group(i).num_rows for i in range(metadata.num_row_groups))
    kinds = {str(name): kind for name, kind in zip(schema.names, schema.types, strict=True)}
    names = list(kinds) if columns is None else list(columns)
    if columns is None:
        labels = [name for name in (schema.pandas_metadata or {}).get("index_columns", []) if is_string(name)]
        names = [name for name in names if name not in labels]
        names = names[1:] if names and not _numeric(kinds[names[0]]) else names
    require_columns(path, [*names, *left_out], kinds)
    names = [name for name in names if name not in left_out]
    wrong = [name for name in names if not _numeric(kinds[name])]
    if wrong:
        found = f"column {wrong[0]!r} of {path} holds {kinds[wrong[0]]}, not numbers"
        raise DataError(found, axis="feature", expected="numeric or boolean columns; columns= picks them")
    if not names or not sum(groups):
        found = f"{path} has {sum(groups)} rows of {len(names)} numeric columns"
        raise DataError(found, expected="at least one of each")
    return ParquetRows(sum(groups), len(names), False, path, tuple(names), groups)


def _numeric(kind: Any) -> bool:
    import pyarrow

    types = pyarrow.types
    return types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)
