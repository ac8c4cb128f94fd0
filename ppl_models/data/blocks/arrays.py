"""Arrays in files: ``.npy``, and ``.npz`` of dense, bit-packed or scipy's sparse matrices.

Rows are read at their place in the file, a zip archive's uncompressed members too. Compressed members have no places:
they are unpacked into memory while they are read, one file at a time.
"""

from __future__ import annotations

import math
import struct
import zipfile
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import scipy.sparse

from ppl_models.core.errors import FileFormatError, require_room
from ppl_models.data.blocks.files import RowFile, Rows
from ppl_models.data.files.matrices import npz_labels, npz_parts
from ppl_models.data.files.reading import npy_header, reading

#: Bytes of a compressed matrix that are unpacked into memory, at most.
UNPACKED = 2**28


@dataclass(frozen=True)
class Stored:
    """An array as it lies in a file: from which byte, of which type and shape.

    member: its name in a compressed archive, where it has no place of its own; offset is -1 then.
    """

    path: Path
    offset: int
    dtype: str
    shape: tuple[int, ...]
    fortran: bool = False
    member: str | None = None

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def kind(self) -> str:
        return np.dtype(self.dtype).kind

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def check(self) -> Stored:
        """Raises FileFormatError where the file ends before the array does."""
        found = self.path.stat().st_size
        if self.member is None and found < self.offset + self.num_bytes:
            raise FileFormatError(f"{self.path}: {found} bytes, expected {self.offset + self.num_bytes}; cut short?")
        return self

    def rows(self, start: int, stop: int) -> np.ndarray:
        """A copy of some of the leading axis. No page of the file stays mapped."""
        if self.fortran:
            mapped: Any = np.memmap(self.path, self.dtype, "r", self.offset, self.shape, "F")
            return np.array(mapped[start:stop], order="C")
        width = math.prod(self.shape[1:])
        skipped, count = start * width * np.dtype(self.dtype).itemsize, (stop - start) * width
        found = np.fromfile(self.path, self.dtype, count, offset=self.offset + skipped)
        if len(found) != count:
            raise FileFormatError(f"{self.path}: ends within rows {start} to {stop - 1}")
        return found.reshape(stop - start, *self.shape[1:])

    def whole(self) -> np.ndarray:
        if self.member is None:
            found = np.fromfile(self.path, self.dtype, math.prod(self.shape), offset=self.offset)
            return found.reshape(self.shape, order="F" if self.fortran else "C")
        with reading(self.path, "npz"), np.load(self.path, allow_pickle=False) as archive:
            return archive[self.member]

    def reader(self) -> Rows:
        """Reads rows at their place, or copies them from memory, to which a compressed member is unpacked."""
        if self.member is None:
            return self.rows
        array = self.whole()
        return lambda start, stop: array[start:stop].copy()


@dataclass(frozen=True)
class DenseRows(RowFile):
    """A matrix; or, with ``bits``, one of 0/1 that ``np.packbits`` packed along its rows, of so many columns."""

    matrix: Stored
    bits: int | None = None

    @classmethod
    def of(cls, matrix: Stored, bits: int | None = None) -> DenseRows:
        matrix.check()
        return cls(len(matrix), matrix.shape[1] if bits is None else bits, matrix.member is not None, matrix, bits)

    def open(self) -> AbstractContextManager[Rows]:
        read, bits = self.matrix.reader(), self.bits
        if bits is None:
            return nullcontext(read)
        return nullcontext(lambda start, stop: np.unpackbits(read(start, stop), axis=1)[:, :bits])


@dataclass(frozen=True)
class CsrRows(RowFile):
    """A sparse matrix by rows: where each row's entries begin (N + 1,), their columns and values."""

    starts: Stored
    columns: Stored
    values: Stored

    def open(self) -> AbstractContextManager[Rows]:
        starts, columns, values = (part.reader() for part in (self.starts, self.columns, self.values))

        def rows(start: int, stop: int) -> scipy.sparse.csr_matrix:
            begin = starts(start, stop + 1)
            first, last = int(begin[0]), int(begin[-1])
            if (np.diff(begin) < 0).any() or not 0 <= first <= last <= len(self.values):
                raise FileFormatError(f"{self.starts.path}: damaged after row {start}; rows end before they begin")
            column = columns(first, last)
            if ((column < 0) | (column >= self.num_columns)).any():
                found = f"damaged after row {start}; columns beyond {self.num_columns}"
                raise FileFormatError(f"{self.columns.path}: {found}")
            parts = (values(first, last), column, begin - first)
            return scipy.sparse.csr_matrix(parts, shape=(stop - start, self.num_columns))

        return nullcontext(rows)


def npy_file(path: Path) -> DenseRows:
    """A ``.npy`` of a matrix of numbers."""
    with reading(path, "npy"), path.open("rb") as file:
        stored = _header(file, path)
    if stored.ndim != 2 or stored.kind not in "buif":
        found = f"an array of {stored.dtype} of shape {stored.shape}"
        raise FileFormatError(f"{path}: {found}; expected a matrix of numbers, rows by columns")
    return DenseRows.of(stored)


def npz_file(path: Path, matrix: str | None = None, columns: str | None = None) -> tuple[RowFile, list[Any] | None]:
    """The matrix of an archive and the labels of its columns, chosen as :func:`datasets.read_matrix` does.

    Raises FileFormatError for no archive, no matrix or several, a sparse one by columns; and CapacityError for a
    compressed matrix that is larger than ``UNPACKED``.
    """
    with reading(path, "npz"):
        arrays = _members(path)
        parts = npz_parts(arrays, matrix, path)
        file = _as_rows(path, {part: arrays[full] for part, full in parts.items()})
        others = {n: a for n, a in arrays.items() if a.ndim == 1 and n not in parts.values() and a.kind in "USiuf"}
        fitting = {n: a.whole() for n, a in others.items() if len(a) == file.num_columns}
        labels = npz_labels(fitting, file.num_columns, columns, path)
    return file, labels


def _as_rows(path: Path, parts: dict[str, Stored]) -> RowFile:
    large = sum(part.num_bytes for part in parts.values() if part.member is not None)
    hint = "write it uncompressed (np.savez, save_npz(compressed=False)), or in parts"
    require_room(f"{path}: compressed arrays, which are unpacked into memory,", large, UNPACKED, hint)
    if "matrix" in parts:
        return DenseRows.of(parts["matrix"])
    if "bits" in parts:
        return DenseRows.of(parts["bits"], int(parts["shape"].whole()[1]))
    kind = str(parts["format"].whole().item().decode()) if "format" in parts else "csr"
    if kind != "csr":
        raise FileFormatError(f"{path}: a sparse matrix in the layout {kind!r}; rows can be read from 'csr': tocsr()")
    rows, width = (int(size) for size in parts["shape"].whole())
    starts, columns, values = (parts[part].check() for part in ("indptr", "indices", "data"))
    if len(starts) != rows + 1 or len(columns) != len(values):
        found = f"{len(starts)} starts, {len(columns)} columns and {len(values)} values"
        raise FileFormatError(f"{path}: {found} in a sparse matrix of {rows} rows")
    in_order = any(part.member is not None for part in (starts, columns, values))
    return CsrRows(rows, width, in_order, starts, columns, values)


def _members(path: Path) -> dict[str, Stored]:
    """The arrays of an archive by their headers."""
    found = {}
    with zipfile.ZipFile(path) as archive, path.open("rb") as raw:
        for info in archive.infolist():
            name = info.filename.removesuffix(".npy")
            if name == info.filename:
                continue
            if info.compress_type == zipfile.ZIP_STORED:
                raw.seek(info.header_offset)
                local = raw.read(30)  # the local header may have longer fields than the directory's
                raw.seek(info.header_offset + 30 + sum(struct.unpack("<HH", local[26:30])))
                found[name] = _header(raw, path)
            else:
                with archive.open(info) as member:
                    found[name] = _header(member, path, name)  # pyright: ignore[reportArgumentType]
    return found


def _header(file: BinaryIO, path: Path, member: str | None = None) -> Stored:
    shape, fortran, dtype = npy_header(file, f"{path}{'' if member is None else f': {member}'}")
    if dtype.names is not None:
        raise FileFormatError(f"{path}: an array of {dtype} of shape {shape}; expected numbers")
    offset = file.tell() if member is None else -1
    return Stored(path, offset, dtype.str, shape, fortran and len(shape) > 1, member)
