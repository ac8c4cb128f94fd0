"""Matrices from files, with their labels."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse
import torch

from ppl_models._data import Data, as_matrix
from ppl_models._errors import DataError, FileFormatError

_SPARSE_PARTS = {"indices", "indptr", "data", "shape", "format"}


def read_matrix(
    path: str | Path, *, columns: str | None = None, dtype: torch.dtype | None = None, keep_sparse: bool = False
) -> Data:
    """Rows x features from CSV, Parquet or NPZ (dense, bit-packed, or scipy sparse), labels kept.

    CSV, Parquet: the first column becomes the row labels where it is not numeric; column names become feature
    labels. NPZ: the matrix is a scipy sparse matrix, or ``X``/``x``, or ``X_bits`` + ``shape``, or the only
    two-dimensional array; a one-dimensional array of strings whose length is D names the features
    (``columns`` picks one by name), and one of length N the rows. ``keep_sparse`` leaves sparse matrices sparse.
    """
    path = Path(path)
    if not path.is_file():
        raise FileFormatError(f"{path}: no such file")
    suffix = path.suffix.lower()
    readers = {".csv": _from_csv, ".parquet": _from_parquet, ".npz": _from_npz}
    if suffix not in readers:
        raise FileFormatError(f"{path}: unknown ending {suffix!r}; readable: {', '.join(readers)}")
    try:
        values, coords = readers[suffix](path, columns)
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile, pd.errors.ParserError) as error:
        if isinstance(error, FileFormatError | DataError):
            raise
        first_line = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise FileFormatError(f"{path}: not readable as {suffix[1:]}: {first_line}") from None
    checked = as_matrix(values, dtype=dtype, keep_sparse=keep_sparse)
    return Data(x=checked.x, mask=checked.mask, coords={**checked.coords, **coords})


def _frame(frame: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, list[Any]]]:
    if not len(frame):
        raise DataError("no rows below the header", axis="row", expected="N >= 1")
    if frame.shape[1] and not pd.api.types.is_numeric_dtype(frame.iloc[:, 0]):
        frame = frame.set_index(frame.columns[0])
    return frame, {}


def _from_csv(path: Path, columns: str | None) -> tuple[pd.DataFrame, dict[str, list[Any]]]:
    return _frame(pd.read_csv(path))


def _from_parquet(path: Path, columns: str | None) -> tuple[pd.DataFrame, dict[str, list[Any]]]:
    return _frame(pd.read_parquet(path))


def _from_npz(path: Path, columns: str | None) -> tuple[Any, dict[str, list[Any]]]:
    # allow_pickle stays off: a file from elsewhere must not be able to run code.
    with np.load(path, allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    if arrays.keys() >= _SPARSE_PARTS:
        matrix = scipy.sparse.load_npz(path)
        used = _SPARSE_PARTS
    elif "X_bits" in arrays and "shape" in arrays:
        matrix = np.unpackbits(arrays["X_bits"], axis=1)[:, : int(arrays["shape"][1])]
        used = {"X_bits", "shape"}
    else:
        planes = [n for n, a in arrays.items() if a.ndim == 2 and a.dtype.kind in "buif"]
        name = next((n for n in ("X", "x") if n in planes), planes[0] if len(planes) == 1 else None)
        if name is None:
            raise FileFormatError(f"{path}: no matrix found among {sorted(arrays)}; expected 'X' or a sparse matrix")
        matrix, used = arrays[name], {name}
    others = {n: a for n, a in arrays.items() if n not in used and a.ndim == 1 and a.dtype.kind in "US"}
    return matrix, _npz_labels(others, matrix.shape, columns, path)


def _npz_labels(
    arrays: dict[str, np.ndarray], shape: tuple[int, int], columns: str | None, path: Path
) -> dict[str, list[Any]]:
    if columns is not None and (columns not in arrays or len(arrays[columns]) != shape[1]):
        fitting = sorted(n for n, a in arrays.items() if len(a) == shape[1])
        raise FileFormatError(f"{path}: no label array {columns!r} of length {shape[1]}; there are: {fitting}")
    coords: dict[str, list[Any]] = {}
    for axis, size in (("row", shape[0]), ("feature", shape[1])):
        wanted = columns if axis == "feature" and columns else None
        # Labels must tell the entries apart: an array of categories (country, family, ...) is not one.
        unique = [n for n, a in arrays.items() if len(a) == size and len(set(a.tolist())) == size]
        name = wanted or (unique[0] if unique else None)
        if name is not None:
            coords[axis] = [str(v) for v in arrays[name].tolist()]
    return coords
