"""Matrices from files, with their labels: tables and NPZ archives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
import torch

from ppl_models.core.errors import DataError, FileFormatError
from ppl_models.data.files.headers import Header
from ppl_models.data.files.reading import naming, npz_arrays, reading
from ppl_models.data.files.tables import TABLES, ending, list_names, matrix_of, read_table
from ppl_models.data.held import Names, is_string
from ppl_models.data.matrix import Data, as_matrix

_SPARSE_PARTS = ("indices", "indptr", "data", "shape")
_ENDINGS = (*TABLES, ".npz")
#: id, drop and header of what is no table.
_NO_TABLE = (None, None, "auto")


def read_matrix(
    path: str | Path,
    *,
    columns: str | Sequence[Any] | None = None,
    id: Names = None,
    drop: Names = None,
    header: Header = "auto",
    matrix: str | None = None,
    rows: str | None = None,
    dtype: torch.dtype | None = None,
    keep_sparse: bool = False,
) -> Data:
    """Rows x features from a table (CSV, TSV, text, Parquet) or NPZ (dense, bit-packed, or scipy sparse), labels kept.

    Tables: column names become feature labels; the column that ``id`` names labels the rows, by default the first one
    where it is not numeric. ``columns`` are those to read, ``drop`` those to leave out. ``header`` says whether the
    first line of a text names the columns; "auto" looks at it, and says so where it is not what is usual.

    NPZ: the matrix is a scipy sparse matrix, or ``X``/``x``, or ``X_bits`` + ``shape``, or the only
    two-dimensional array, or sparse parts under a prefix (``words_indptr``, ...); ``matrix`` picks one by name. A
    one-dimensional array of strings whose length is D names the features, and one of length N the rows; ``columns`` and
    ``rows`` pick one by name, of strings or not. ``keep_sparse`` leaves sparse matrices sparse.
    """
    path = Path(path)
    if not path.is_file():
        raise FileFormatError(f"{path}: no such file")
    suffix = ending(path)
    if suffix not in _ENDINGS:
        raise FileFormatError(f"{path}: unknown ending {suffix!r}; readable: {', '.join(_ENDINGS)}")
    if suffix != ".npz" and (matrix, rows) != (None, None):
        raise FileFormatError(f"{path}: {suffix[1:]} has no arrays to pick {matrix or rows!r} from; expected NPZ")
    if suffix == ".npz" and not ((columns is None or is_string(columns)) and (id, drop, header) == _NO_TABLE):
        raise FileFormatError(f"{path}: id=, drop=, header= and lists of columns are for tables; NPZ has arrays")
    with reading(path, suffix[1:]):
        if suffix == ".npz":
            values, coords = _from_npz(path, matrix, {"row": rows, "feature": str(columns) if columns else None})
        else:
            frame, coords = read_table(path, header, asked=list_names(columns, id, drop), id=id), {}
            if not len(frame):
                raise DataError("no rows below the header", axis="row", expected="N >= 1")
            values = matrix_of(frame, columns, id=id, drop=drop)
    with naming(path):
        checked = as_matrix(values, dtype=dtype, keep_sparse=keep_sparse)
    return Data(x=checked.x, mask=checked.mask, coords={**checked.coords, **coords})


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
