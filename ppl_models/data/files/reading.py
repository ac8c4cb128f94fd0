"""Files from elsewhere: what is read of them runs no code, takes no more memory than there is, and fails by name; and
matrices from files, with their labels."""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import math
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import scipy.sparse
import torch

from ppl_models.core.errors import DataError, FileFormatError, PPLError
from ppl_models.data.lazy import pandas as pd
from ppl_models.data.matrix import Data, as_matrix

#: The most that deflate makes of a byte (RFC 1951: 258 bytes of two bits), and some for the headers.
_INFLATION = 1100


def named_file(source: Any, expected: str) -> Path | None:
    """The file that a source names, None where it is no name. Raises DataError for a string that names none."""
    if isinstance(source, str) and ("\n" in source or len(source) > 4096 or not Path(source).is_file()):
        raise DataError(f"a single string, {source[:40]!r}, that names no file", expected=expected)
    return Path(source) if isinstance(source, str | Path) else None


@contextlib.contextmanager
def naming(path: Path | None) -> Iterator[None]:
    """Errors of the suite say which file they are about; None: no file is read."""
    try:
        yield
    except PPLError as error:
        if path is not None and str(path) not in str(error):
            error.args = (f"{path}: {error}", *error.args[1:])
        raise


@contextlib.contextmanager
def reading(path: Path, kind: str = "") -> Iterator[None]:
    """Whatever a parser raises is a FileFormatError: of a damaged file it raises anything."""
    with naming(path):
        try:
            yield
        except PPLError:
            raise
        except Exception as error:
            what = " ".join(str(error).split())[:200] or type(error).__name__
            raise FileFormatError(f"{path}: not readable{f' as {kind}' if kind else ''}: {what}") from None


def file_bytes(path: Path) -> bytes:
    """The contents of a file, which may be compressed with gzip."""
    raw = path.read_bytes()
    if raw[:2] != b"\x1f\x8b":
        return raw
    most = psutil.virtual_memory().available // 4
    with gzip.GzipFile(fileobj=io.BytesIO(raw)) as file:
        found = file.read(most + 1)
    if len(found) > most:
        raise FileFormatError(f"{path}: more than {most / 2**30:.3g} GiB once it is decompressed")
    return found


def decoded(path: Path, raw: bytes) -> str:
    """A text in UTF-8, with newlines alone at the ends of lines."""
    try:
        return raw.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise FileFormatError(f"{path}: no text in UTF-8 ({error.reason} at byte {error.start})") from None


def table(path: Path, suffix: str) -> pd.DataFrame:
    """The table of a ``.csv`` or a ``.parquet`` file."""
    with warnings.catch_warnings(action="ignore"):
        return csv_frame(path) if suffix == ".csv" else pd.read_parquet(path)


def csv_frame(path: Path, raw: bytes | None = None) -> pd.DataFrame:
    """A table with a header, as pandas reads it. raw: the header and some of the file's lines; None: the whole file.

    Raises FileFormatError for a header of numbers that repeat, which is a row of data; and for lines with fewer fields
    than the header: pandas takes what is not there for missing entries, but a file that was cut off ends with it.
    """
    with reading(path, "csv"), warnings.catch_warnings(action="ignore"):
        frame, head = (
            pd.read_csv(path if raw is None else io.BytesIO(raw), encoding="utf-8-sig", **settings)
            for settings in ({}, {"header": None, "nrows": 1})
        )
    if head.shape[1] == head.select_dtypes("number").shape[1] and bool(head.iloc[0].duplicated().any()):
        first = ",".join(f"{value:g}" for value in head.iloc[0])
        found = f"no header, the first line is {first[:60]!r}"
        raise FileFormatError(f"{path}: {found}; expected names of the columns there")
    if frame.shape[1] > 1 and bool(frame.iloc[:, -1].isna().any()):
        lines = csv.reader(io.StringIO((file_bytes(path) if raw is None else raw).decode("utf-8-sig")))
        header = next((line for line in lines if line), [])
        short = next((line for line in lines if line and len(line) < len(header)), None)
        if short is not None:
            found = f"{len(short)} fields where the header has {len(header)}: {','.join(short)[:60]!r}"
            raise FileFormatError(f"{path}: not readable as csv: {found}")
    return frame


def npz_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an NPZ archive by name. Arrays of Python objects, which could run code, are refused.

    What the headers announce is held against the size of the file before any memory is asked for.
    """
    with zipfile.ZipFile(path) as archive:
        names, needed = [name for name in archive.namelist() if name.endswith(".npy")], 0
        for name in names:
            with archive.open(name) as member:
                shape, _, dtype = npy_header(member, f"{path}: {name}")
            needed += math.prod(shape) * dtype.itemsize
        most = min(_INFLATION * path.stat().st_size, psutil.virtual_memory().available)
        if needed > most:
            found = f"{path}: announces arrays of {needed / 2**30:.3g} GiB"
            raise FileFormatError(f"{found}; a file of this size, on this machine, holds at most {most / 2**30:.3g}")
        arrays = {}
        for name in names:
            with archive.open(name) as member:
                arrays[name.removesuffix(".npy")] = np.lib.format.read_array(member, allow_pickle=False)
        return arrays


def npy_header(file: Any, what: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, order (True: Fortran's) and type of an array of numbers. Raises FileFormatError for any other."""
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise FileFormatError(f"{what}: version {version} of the npy format; expected numbers, no records")
    read: Any = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(file)
    if dtype.hasobject:
        raise FileFormatError(f"{what} holds Python objects, which are not read; expected numbers")
    if any(size < 0 for size in shape):
        raise FileFormatError(f"{what} announces the shape {shape}")
    return tuple(shape), fortran, dtype


_SPARSE_PARTS = ("indices", "indptr", "data", "shape")
_ENDINGS = (".csv", ".parquet", ".npz")


def read_matrix(
    path: str | Path,
    *,
    columns: str | None = None,
    matrix: str | None = None,
    rows: str | None = None,
    dtype: torch.dtype | None = None,
    keep_sparse: bool = False,
) -> Data:
    """Rows x features from CSV, Parquet or NPZ (dense, bit-packed, or scipy sparse), labels kept.

    CSV, Parquet: the first column becomes the row labels where it is not numeric; column names become feature
    labels. NPZ: the matrix is a scipy sparse matrix, or ``X``/``x``, or ``X_bits`` + ``shape``, or the only
    two-dimensional array, or sparse parts under a prefix (``words_indptr``, ...); ``matrix`` picks one by name. A
    one-dimensional array of strings whose length is D names the features, and one of length N the rows; ``columns`` and
    ``rows`` pick one by name, of strings or not. ``keep_sparse`` leaves sparse matrices sparse.
    """
    path = Path(path)
    if not path.is_file():
        raise FileFormatError(f"{path}: no such file")
    suffix = path.suffix.lower()
    if suffix not in _ENDINGS:
        raise FileFormatError(f"{path}: unknown ending {suffix!r}; readable: {', '.join(_ENDINGS)}")
    if suffix != ".npz" and (matrix, rows) != (None, None):
        raise FileFormatError(f"{path}: {suffix[1:]} has no arrays to pick {matrix or rows!r} from; expected NPZ")
    with reading(path, suffix[1:]):
        if suffix == ".npz":
            values, coords = _from_npz(path, matrix, {"row": rows, "feature": columns})
        else:
            values, coords = _from_table(path, suffix), {}
    with naming(path):
        checked = as_matrix(values, dtype=dtype, keep_sparse=keep_sparse)
    return Data(x=checked.x, mask=checked.mask, coords={**checked.coords, **coords})


def _from_table(path: Path, suffix: str) -> pd.DataFrame:
    frame = table(path, suffix)
    if not len(frame):
        raise DataError("no rows below the header", axis="row", expected="N >= 1")
    return labelled(frame)


def labelled(frame: pd.DataFrame) -> pd.DataFrame:
    """A table whose first column, where it is not numeric, labels the rows."""
    if frame.shape[1] and not pd.api.types.is_numeric_dtype(frame.iloc[:, 0]):
        frame = frame.set_index(frame.columns[0])
    return frame


def _from_npz(path: Path, wanted: str | None, names: Mapping[str, str | None]) -> tuple[Any, dict[str, list[Any]]]:
    """The matrix and the labels of its axes, by the ``names`` of arrays that were asked for."""
    arrays = npz_arrays(path)
    matrix, used = _npz_matrix(arrays, wanted, path)
    others = {n: a for n, a in arrays.items() if n not in used and a.ndim == 1}
    sizes = zip(names.items(), matrix.shape, strict=True)
    coords = {axis: npz_labels(others, size, name, path) for (axis, name), size in sizes}
    return matrix, {axis: labels for axis, labels in coords.items() if labels is not None}


def _npz_matrix(arrays: dict[str, np.ndarray], wanted: str | None, path: Path) -> tuple[Any, set[str]]:
    """The matrix, and the names of the arrays that it is made of."""
    names = npz_parts(arrays, wanted, path)
    parts, used = {part: arrays[name] for part, name in names.items()}, set(names.values())
    if "matrix" in parts:
        return parts["matrix"], used
    if "bits" in parts:
        return np.unpackbits(parts["bits"], axis=1)[:, : int(parts["shape"][1])], used
    kind = str(parts["format"].item().decode()) if "format" in parts else "csr"
    if kind not in ("csr", "csc"):
        raise FileFormatError(f"{path}: a sparse matrix in the layout {kind!r}; expected 'csr' or 'csc'")
    make = scipy.sparse.csr_matrix if kind == "csr" else scipy.sparse.csc_matrix
    matrix = make((parts["data"], parts["indices"], parts["indptr"]), shape=tuple(parts["shape"].tolist()))
    matrix.check_format()
    return matrix, used


def npz_parts(arrays: Mapping[str, Any], wanted: str | None, path: Path) -> dict[str, str]:
    """What an archive's matrix is made of -> the array's name; of arrays only ndim and kind count.

    It is made of "matrix"; or "bits" and "shape"; or the parts of a sparse matrix, among them perhaps "format".
    """
    if "X_bits" in arrays and "shape" in arrays:
        return {"bits": "X_bits", "shape": "shape"}
    sparse = {n.removesuffix("indptr") for n in arrays if n.endswith("indptr")}
    sparse = {prefix for prefix in sparse if all(prefix + part in arrays for part in _SPARSE_PARTS)}
    dense = [n for n, a in arrays.items() if a.ndim == 2 and np.dtype(a.dtype).kind in "buif"]
    if "" in sparse and wanted is None:
        dense, sparse = [], {""}
    elif not sparse and wanted is None:
        dense = next(([n] for n in ("X", "x") if n in dense), dense)
    found = {prefix.rstrip("_"): prefix for prefix in sparse} | dict.fromkeys(dense)
    if wanted is not None:
        found = {name: prefix for name, prefix in found.items() if name == wanted}
    if len(found) != 1:
        choice = f"several matrices; matrix= picks one of {sorted(found)}" if found else (
            f"no matrix {'' if wanted is None else repr(wanted) + ' '}found among {sorted(arrays)}; "
            "expected 'X' or a sparse matrix")  # fmt: skip
        raise FileFormatError(f"{path}: {choice}")
    name, prefix = next(iter(found.items()))
    if prefix is None:
        return {"matrix": name}
    return {part: prefix + part for part in (*_SPARSE_PARTS, "format") if prefix + part in arrays}


def npz_labels(arrays: Mapping[str, np.ndarray], size: int, wanted: str | None, path: Path) -> list[Any] | None:
    """The labels of an axis: the array of the name that is wanted, else the first that tells the entries apart."""
    if wanted is not None and (wanted not in arrays or len(arrays[wanted]) != size):
        fitting = sorted(n for n, a in arrays.items() if len(a) == size)
        raise FileFormatError(f"{path}: no label array {wanted!r} of length {size}; there are: {fitting}")
    # Labels must tell the entries apart: an array of categories (country, family, ...) is not one.
    texts = (n for n, a in arrays.items() if a.dtype.kind in "US" and len(a) == size and len(set(a.tolist())) == size)
    name = wanted or next(texts, None)
    if name is None:
        return None
    labels = arrays[name].tolist()
    return labels if arrays[name].dtype.kind in "iuf" else [str(v) for v in labels]
