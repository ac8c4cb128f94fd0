"""Conversion of containers of numbers to arrays and tensors: nothing is rounded, masked or reordered in silence."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from ppl_models.core.errors import DataError, MethodError
from ppl_models.data import sparse
from ppl_models.data.adapt import adapt
from ppl_models.data.held import MatrixLike, ReadBefore, Source, index_labels, is_number, is_path, is_text, labels_of
from ppl_models.data.labels import order_beside
from ppl_models.data.lazy import is_pandas, is_xarray
from ppl_models.data.lazy import pandas as pd
from ppl_models.data.lazy import xarray as xr

#: What the axes of the models' data are called. A labelled array that has them the other way round is transposed.
_ROWS, _COLUMNS = ("row", "document", "node"), ("feature", "word", "to_node")
#: Rounding by more than this part of a column's spread is a loss; of numbers whose spread is no more than this part of
#: their size, the spread is rounding itself.
_LOST, _SAME = 1e-4, 1e-13
#: Entries this near to whole numbers, by their size (up to 1e4), are these: what logarithms leave of counts.
ROUNDING = 1e-7


class NotInMemory:
    """Rows that are read block by block: no data for what needs all of them at once."""


def refuse_blocks(data: Source | None) -> None:
    """Raises MethodError for rows that are read block by block."""
    if isinstance(data, NotInMemory):
        raise MethodError(
            f"{type(data).__name__} where all rows are needed in memory; VariationalEM and EM fit to them, without a "
            "mask beside them, and everything else takes single blocks"
        )


def unpack(
    data: Source, *, axis: str | None = None, axes: tuple[str, ...] = ("row", "feature")
) -> tuple[np.ndarray | Tensor, dict[str, list[Any]]]:
    """The numbers of a dense container, and the labels of its ``axes``, by their names."""
    data = adapt(data)
    if is_pandas(data, "DataFrame"):
        values: Any = frame_values(data)
    elif is_pandas(data, "Series"):
        values = frame_values(data.to_frame())[:, 0]
    elif is_xarray(data, "DataArray"):
        _refuse_transposed(data, axes)
        values = as_numbers(data.values, axis=axis)
    else:
        values = as_numbers(data, axis=axis)
    named = zip(axes, axis_labels(data), strict=False)
    return values, {axis: names for axis, names in named if names is not None and labels_of(names) is not None}


def axis_labels(data: Source | None) -> list[list[Any] | None]:
    """The labels of each axis of a container, those of a default index, 0 to N - 1, too; None where it has none."""
    if is_pandas(data, "DataFrame"):
        return [index_labels(data.index), index_labels(data.columns)]
    if is_pandas(data, "Series"):
        return [index_labels(data.index)]
    if is_xarray(data, "DataArray"):
        return [index_labels(data.coords[dim].values) if dim in data.coords else None for dim in data.dims]
    return [data.coords.get("row"), data.coords.get("feature")] if isinstance(data, ReadBefore) else [None, None]


def as_numbers(data: Source, *, axis: str | None = None) -> np.ndarray | Tensor:
    """An array or a tensor of real numbers from anything that numpy makes one of; masked entries become NaN."""
    if is_path(data):
        readers = "read_matrix of ppl_models.datasets, documents, graph, ratings and relations read files of them"
        raise DataError(f"a single string or path, {str(data)[:60]!r}", axis=axis, expected=f"numbers; {readers}")
    if torch.is_tensor(data):
        if data.is_complex() or data.is_quantized or data.device.type == "meta":
            what = "without values" if data.device.type == "meta" else f"of type {data.dtype}"
            raise DataError(f"entries {what}", axis=axis, expected="numbers")
        return data.detach()
    try:
        values = np.asarray(adapt(data))
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        problem = f"not a rectangular array ({str(error).splitlines()[0]})"
        raise DataError(problem, axis=axis, expected="rows of equal length") from None
    if values.dtype.kind == "O" and values.ndim:
        values = _of_objects(values, axis)
    if values.dtype.kind not in "buif":
        found = f"entries of type {values.dtype}" + (f" ({type(data).__name__})" if values.ndim == 0 else "")
        first = values.flat[0] if values.dtype.kind == "U" and values.size else None
        raise DataError(found, axis=axis, expected="numbers" if first is None else _instead_of_words(str(first)))
    if values.dtype.kind == "f" and values.dtype.itemsize > 8:
        values = _exact(values)
    return values if values.dtype.isnative else values.astype(values.dtype.newbyteorder("="))


def _instead_of_words(first: str) -> str:
    return f"numbers; of two words, such as {first!r} and another, x == {first!r}; of more, a model of categories"


def _of_objects(values: np.ndarray, axis: str | None) -> np.ndarray:
    """Python's numbers, as frames of mixed columns give them, in float64; None and pandas' NA are missing."""
    wrong = next((one for one in values.flat if not _is_cell(one)), None)
    if wrong is not None:
        found = f"entries of type {type(wrong).__name__} (the first: {wrong!r})"
        raise DataError(found, axis=axis, expected=_instead_of_words(wrong) if is_text(wrong) else "numbers")
    known = values.copy()
    known[pd.isna(values)] = np.nan
    return _exact(known)


def _is_cell(one: Any) -> bool:
    return one is None or one is pd.NA or is_number(one)


def frame_values(frame: pd.DataFrame) -> np.ndarray:
    """The entries of a frame, all of whose columns hold real numbers; what is missing becomes NaN."""
    objects = [place for place, kind in enumerate(frame.dtypes) if pd.api.types.is_object_dtype(kind)]
    for place in (place for place in objects if all(map(_is_cell, frame.iloc[:, place]))):
        frame = frame.copy(deep=False)
        frame.isetitem(place, _of_objects(frame.iloc[:, place].to_numpy(), None))
    kinds = list(zip(frame.columns, frame.dtypes, strict=True))
    numeric, is_complex = pd.api.types.is_numeric_dtype, pd.api.types.is_complex_dtype
    wrong = [(str(name), kind) for name, kind in kinds if not numeric(kind) or is_complex(kind)]
    if wrong:
        name, kind = wrong[0]
        column = frame.iloc[:, [str(one) for one in frame.columns].index(name)]
        problem = f"column {name!r} holds {kind}, not numbers{first_text(column)}"
        raise DataError(problem, axis="feature", expected="numeric or boolean columns")
    values = frame.to_numpy(dtype=np.float64, na_value=np.nan)
    large = np.flatnonzero((np.abs(values) >= 2.0**53).any(0)) if values.size else []
    for place in large:  # hardly ever: whole numbers there may have been rounded
        column = frame.iloc[:, int(place)].dropna()
        if pd.api.types.is_integer_dtype(column.dtype):
            _exact(np.array(column.tolist(), dtype=object))
    return values


def first_text(values: Any) -> str:
    """Describe the first of the values (N,) that is a text and no number, and its place; "" if there is none."""
    texts: Any = pd.Series(values).reset_index(drop=True)
    texts = texts[texts.map(type).eq(str)]
    numbers: Any = pd.to_numeric(texts, errors="coerce")
    wrong = texts[numbers.isna()]
    if not len(wrong):
        return " (but texts of them)" if len(texts) else ""
    told = f" (the first: {str(wrong.iloc[0])[:40]!r} in row {wrong.index[0]}"
    commas = wrong.str.fullmatch(r"[+-]?\d+(?:[.,]\d+)*").all()
    return f"{told}{'; numbers are read without commas and blanks among their digits' if commas else ''})"


def _refuse_transposed(data: xr.DataArray, axes: tuple[str, ...]) -> None:
    dims = tuple(map(str, data.dims))
    if len(dims) == 2 and (dims[0] in _COLUMNS or dims[1] in _ROWS):
        expected = f"({dims[1]}, {dims[0]}), as data.transpose({dims[1]!r}, {dims[0]!r}) has them"
        raise DataError(f"dimensions ({dims[0]}, {dims[1]})", expected=expected)
    if any(name in axes and axes.index(name) != place for place, name in enumerate(dims)):
        given = ", ".join(map(repr, axes))
        raise DataError(f"dimensions {dims}", expected=f"{axes}, as data.transpose({given}) has them")


def as_tensor(values: np.ndarray | Tensor, dtype: torch.dtype | None) -> Tensor:
    """A tensor of floating-point numbers, by default of the default type, or in float64 where that one loses digits in
    which they differ (:func:`type_for`).

    Raises DataError for whole numbers that would be rounded, and finite ones that would become infinite.
    """
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise DataError(f"dtype = {dtype}", expected="a floating-point type such as torch.float64")
    if not torch.is_tensor(values):
        if values.dtype.kind in "iu" and values.dtype.itemsize == 8:
            values = _exact(values)
        if not values.flags.writeable or any(stride < 0 for stride in values.strides):
            values = values.copy()  # torch warns of the one, and knows nothing of the other
        if values.dtype.kind == "u" and values.dtype.itemsize > 1:
            values = values.astype(np.float64)
        values = torch.as_tensor(values)
    dtype = dtype or type_for(values)
    tensor = values.to(dtype)
    if values.is_floating_point():
        narrower = torch.finfo(dtype).max < torch.finfo(values.dtype).max
        wrong = torch.isinf(tensor) & torch.isfinite(values) if narrower else None
    else:
        exact = 2 / torch.finfo(dtype).eps
        large = values.abs() > exact if values.dtype in (torch.int16, torch.int32, torch.int64) else None
        wrong = None if large is None or not bool(large.any()) else large & (tensor.long() != values)
    if wrong is not None and bool(wrong.any()):
        first = values[tuple(wrong.nonzero()[0])].item()
        raise DataError(f"{int(wrong.sum())} entries that {dtype} cannot hold (the first: {first:g})",
                        expected="smaller numbers, or another dtype")  # fmt: skip
    return tensor


def type_for(values: Tensor) -> torch.dtype:
    """The default type of torch, unless rounding to it changes whole numbers, or others (of one column) by more than a
    part of their spread: then float64. Ratings of 2000000.1 and 2000000.2 are one number in single precision."""
    dtype = torch.get_default_dtype()
    if values.dtype not in (torch.float64, torch.int32, torch.int64) or dtype == torch.float64 or not values.numel():
        return dtype
    lost = (values.to(dtype).double() - values).abs()
    finite = torch.isfinite(values)
    if bool((finite & ~torch.isfinite(lost)).any()):
        return torch.float64
    lost = torch.where(finite, lost, 0.0)
    if not bool(lost.any()):
        return dtype
    exact = values.double()
    if bool(((lost > 0) & (exact == exact.round())).any()):
        return torch.float64  # whole numbers are never rounded
    number = finite.sum(0).clamp(min=1)
    middle = torch.where(finite, exact, 0.0).sum(0) / number
    spread = (torch.where(finite, exact - middle, 0.0).square().sum(0) / number).sqrt()
    differ = spread > _SAME * middle.abs()
    return torch.float64 if bool((differ & (lost.amax(0) > _LOST * spread)).any()) else dtype


def _exact(values: np.ndarray) -> np.ndarray:
    """Convert to float64 if it holds the numbers exactly; only whole numbers must not be rounded."""
    with np.errstate(over="ignore"):
        found = np.asarray(values.astype(np.float64))
    if values.dtype.kind == "f":
        wrong = np.asarray(np.isinf(found) & ~np.isinf(values))
    else:
        wrong = np.asarray(np.abs(found) >= 2.0**53)  # hardly ever: looked at one by one
        pairs = zip(found[wrong].tolist(), values[wrong].tolist(), strict=True)
        wrong[wrong] = [int(float_) != int(whole) for float_, whole in pairs]
    if wrong.any():
        problem = f"{int(wrong.sum())} entries that float64 cannot hold (the first: {values[wrong].ravel()[0]})"
        raise DataError(problem, expected="smaller numbers")
    return found


def sparse_matrix(data: Any) -> Any:
    """A scipy or torch sparse matrix as a CSR one of numbers, whose entries are where its shape says.

    What is stored twice is added up, whole numbers in float64: in 8 bits 100 + 100 is -56.
    """
    hybrid = getattr(data, "layout", None) == torch.sparse_coo and bool(data.dense_dim())
    if len(data.shape) != 2 or hybrid:
        raise DataError(f"{len(data.shape)} dimensions, shape {tuple(data.shape)}", expected="(N, D)")
    if sparse.is_tensor(data):
        as_numbers(data)  # which refuses other entries
        data = sparse.scipy_of(data)
    if data.dtype.kind not in "buif":
        raise DataError(f"entries of type {data.dtype}", expected="numbers")
    try:
        if hasattr(data, "check_format"):  # what is not checked here is read from beyond the arrays
            data.check_format(full_check=True)
            if (np.diff(data.indptr) < 0).any():
                raise ValueError("rows that end before they begin")
    except (ValueError, IndexError, TypeError) as error:
        problem = f"a damaged sparse matrix ({str(error).splitlines()[0]})"
        raise DataError(problem, expected="indices within the shape") from None
    if data.dtype.kind in "iu" or (data.dtype.kind == "f" and data.dtype.itemsize not in (4, 8)):
        stored: Any = getattr(data, "data", None)
        if getattr(getattr(stored, "dtype", None), "kind", "f") in "iu":
            _exact(stored)
        data = data.astype(np.float64)
    if not data.dtype.isnative:
        data = data.astype(data.dtype.newbyteorder("="))
    return scipy.sparse.csr_matrix(data)


def plausible_size(size: int, stored: int, axis: str) -> int:
    """The size of an axis that was only announced. A few bytes can announce any: far more places than there are entries
    to fill them are refused before memory is asked for."""
    most = 2**24 + 100 * stored
    if not 0 <= size <= most:
        raise DataError(f"{size} of them for {stored} entries", axis=axis, expected=f"0 to {most}")
    return size


def mask_values(
    mask: MatrixLike, shape: tuple[int, ...], coords: dict[str, list[Any]], axes: tuple[str, ...] = ("row", "feature")
) -> Tensor:
    """A mask of yes and no for every entry, True = observed, as a tensor.

    coords: the labels of the data, in whose order a mask is put that has labels too.
    """
    expected = "one mask entry per data entry, True = observed"
    mask = adapt(mask)
    if sparse.is_matrix(mask):
        raise DataError("a sparse mask", expected=expected)
    values, _ = unpack(mask, axes=axes)
    given = values if torch.is_tensor(values) else torch.as_tensor(np.array(values, dtype=np.float64))
    for place, (axis, own) in enumerate(zip(axes, axis_labels(mask), strict=False)):
        order = order_beside(own, coords.get(axis), axis, "the mask lacks {} of the labels of the data")
        given = given if order is None else given.index_select(place, torch.as_tensor(order, device=given.device))
    if given.shape != torch.Size(shape):
        raise DataError(f"mask of shape {tuple(given.shape)} for data of shape {shape}", expected=expected)
    if given.dtype != torch.bool:
        wrong = (given != 0) & (given != 1)
        if bool(wrong.any()):
            first = given[tuple(wrong.nonzero()[0])].item()
            raise DataError(f"a mask with the entry {first:g}", expected="True and False, or 1 and 0")
    return given != 0
