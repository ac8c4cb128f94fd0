"""``ratings(...)``: columns, frames, triples, matrices and files, as data that models of ratings take."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from ppl_models.core.errors import DataError, list_some, warn_of_data
from ppl_models.data import sparse
from ppl_models.data.containers import as_numbers, as_tensor, first_text, plausible_size, refuse_blocks, unpack
from ppl_models.data.covariates import in_rows_of
from ppl_models.data.files.fields import without_index
from ppl_models.data.files.headers import Header
from ppl_models.data.files.reading import file_named, naming
from ppl_models.data.files.tables import columns_called, list_names, matrix_of, read_table, require_file
from ppl_models.data.held import Column, MatrixLike, Source, is_listed, is_path, is_text, labels_of, to_column
from ppl_models.data.labels import number_labels
from ppl_models.data.lazy import is_pandas
from ppl_models.data.lazy import pandas as pd
from ppl_models.data.matrix import Data
from ppl_models.data.ratings.data import Duplicates, Ratings, ratings_of, warn_of_zeros
from ppl_models.data.ratings.frames import (
    NAMES,
    WIDTHS,
    columns_by_name,
    find_entries,
    is_list,
    is_sparse,
    with_columns,
)
from ppl_models.data.times import Times, numbers_of

_EXPECTED = "user, item, rating: columns of one length, a frame, triples, a matrix, or the path of a file"


def ratings(
    user: Source,
    item: Column | None = None,
    value: Column | None = None,
    *,
    num_users: int | None = None,
    num_items: int | None = None,
    users: Sequence[Hashable] | None = None,
    items: Sequence[Hashable] | None = None,
    time: Times | None = None,
    between: tuple[float, float] | None = None,
    duplicates: Duplicates = "refuse",
    columns: Sequence[Any] | None = None,
    header: Header = "auto",
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Ratings:
    """Ratings of items by users, from whatever people hold them in.

    >>> data = ratings(["ann", "bob", "ann"], ["Heat", "Heat", "Alien"], [5, 3, 4])
    >>> data.num_users, data.items, data.value.tolist()
    (2, ['Heat', 'Alien'], [5.0, 4.0, 3.0])

    Parameters
    ----------
    user, item, value: (M,) who rated what how. Or in place of ``user`` alone: a frame with the columns user, item and
        rating, perhaps time (also as MovieLens calls them), or with users and items as the two levels of its index; a
        list of tuples (user, item, rating) or (user, item, rating, time); a scipy or torch sparse matrix (U, I), all of
        whose stored entries are ratings; a dense matrix (U, I), NaN where nothing was rated; or the path of a file of a
        frame: CSV, TSV, text (MovieLens' ``u.data``, ``ratings.dat``), Parquet.
    num_users, num_items: sizes, where some have no ratings. Users and items are then whole numbers from 0.
    users, items: the labels of all of them, in order. By default those that occur: whole numbers in their order (0, 1,
        ..., U - 1 are positions), other labels in order of appearance.
    time: (M,) when each rating was given: numbers, or dates, which become days since 1970.
    between: the lowest and the highest rating that there can be.
    duplicates: what is taken of several ratings of an item by one user: none ("refuse"), the "first" or "last", by time
        or else in their order, or the "mean", which has the last time.
    columns: of a frame or a file: those of user, item, rating and perhaps time, where they are called otherwise.
    header: of CSV and text files: whether the first line names the columns. "auto" looks at it.

    Raises DataError for columns of different lengths, ratings that are no numbers or out of range, users and items that
    are out of range or unknown, pairs that occur twice, and what may be a list or a table.
    """
    file = file_named(user, _EXPECTED) if is_path(user) and (item is None or not is_text(user)) else None
    require_file(file, header)
    with naming(file):
        given: Any = user if file is None else file
        held = _table_of(given, columns, header) if item is None or columns is not None else given
        how = (num_users, users), (num_items, items)
        if isinstance(held, Ratings):
            if item is not None:
                raise DataError("columns beside ratings", axis="rating", expected=_EXPECTED)
            found = held.to(dtype=dtype)
        elif item is None and is_matrix(held):
            found = _matrix(held, time, how, dtype, duplicates)
        else:
            parts = _columns(held, time) if item is None else (held, item, value, time)
            found = _ratings_of_columns(*parts, how, dtype, duplicates)
        _check_values(found.value, between)
        return found.to(device=device)


def _table_of(source: Any, columns: Sequence[Any] | None, header: Header) -> Any:
    """Return the frame of a file, or of what may be one, with the columns that are asked for; all else as it is."""
    if is_path(source):
        frame = read_table(Path(source), header, lists=WIDTHS, asked=columns or ())
        source = frame if columns is not None or columns_by_name(frame) is not None else matrix_of(frame)
    elif is_pandas(source, "DataFrame", "Series"):
        source = with_columns(source)
        source = source if columns is not None else without_index(source, "the frame of ratings")
    return source if columns is None else _select_columns(source, columns)


def _select_columns(source: Source, columns: Sequence[Any]) -> pd.DataFrame:
    """The columns of user, item, rating and perhaps time, by these names."""
    if not is_pandas(source, "DataFrame") or len(list_names(columns)) not in WIDTHS:
        raise DataError(f"columns = {columns!r} of {type(source).__name__}", axis="rating",
                        expected="those of user, item, rating, perhaps time, of a frame or a file")  # fmt: skip
    found = source[columns_called(source, columns)]
    return found.set_axis(["user", "item", "rating", "time"][: len(columns)], axis=1)


_Sizes = tuple[tuple[int | None, Sequence[Hashable] | None], tuple[int | None, Sequence[Hashable] | None]]


def _check_values(value: Tensor, between: tuple[float, float] | None) -> None:
    warn_of_zeros(value)
    if between is None:
        return
    low, high = between
    wrong = (value < low) | (value > high)
    if bool(wrong.any()):
        found = f"{int(wrong.sum())} ratings out of range (the first: {float(value[wrong][0]):g})"
        raise DataError(found, axis="rating", expected=f"{low:g} to {high:g}")


def is_matrix(source: Any) -> bool:
    """Whether something is a matrix of users and items, rather than a list or a frame of ratings.

    Raises DataError for an array that can only be a list, and for a frame that may be either.
    """
    refuse_blocks(source)
    if is_pandas(source, "DataFrame"):
        return columns_by_name(source) is None
    if is_listed(source) and len(source) > 0 and all(isinstance(one, tuple) for one in source):
        return False
    if np.ndim(source) == 2 and not sparse.is_matrix(source) and np.shape(source)[1] in WIDTHS:
        values = as_numbers(source)
        if is_list(pd.DataFrame(np.asarray(values))):
            found = f"an array of shape {tuple(values.shape)} that looks like a list of user, item, rating"
            raise DataError(found, axis="rating", expected="a matrix of users and items; ratings(*x.T) reads a list")
    return True


def _columns(source: Any, time: Times | None) -> tuple[Any, Any, Any, Any]:
    """User, item, value and time of a frame or of tuples."""
    if is_pandas(source, "DataFrame"):
        names = columns_by_name(source)
        assert names is not None
        if names["value"] is None:
            known = " or ".join(NAMES["value"])
            told = f"{known} among {list(source.columns)}, or columns=[user, item, rating] (--columns USER,ITEM,RATING)"
            raise DataError("no column of ratings", axis="rating", expected=told)
        others = [column for column in source.columns if column not in names.values()]
        if others:
            warn_of_data(f"columns {list_some(others, 4, show=repr)} are left out: no user, item, rating or time")
        if time is None and names["time"] is not None:
            time = source[names["time"]]
        return source[names["user"]], source[names["item"]], source[names["value"]], time
    lengths = {len(one) for one in source}
    if not lengths <= {3, 4} or len(lengths) > 1:
        raise DataError(f"tuples of {sorted(lengths)} entries", axis="rating",
                        expected="(user, item, rating) or (user, item, rating, time), all alike")  # fmt: skip
    columns = list(zip(*source, strict=True))
    return columns[0], columns[1], columns[2], columns[3] if len(columns) == 4 and time is None else time


def _ratings_of_columns(
    user: Column, item: Column, value: Column | None, time: Times | None, how: _Sizes, dtype: torch.dtype | None,
    duplicates: Duplicates,
) -> Ratings:  # fmt: skip
    """The ratings of columns."""
    if value is None:
        raise DataError("users and items without ratings", axis="rating", expected=_EXPECTED)
    aligned: list[Any] = [one if one is None else in_rows_of(user, one) for one in (item, value, time)]
    item, value, time = aligned
    values = to_column(value)
    if values.dtype.kind in "OUST" and values.ndim == 1 and (told := first_text(values)):
        raise DataError(f"ratings that are texts{told}", axis="rating", expected="numbers")
    number = as_numbers(values, axis="rating")
    given: dict[str, Any] = {"user": to_column(user), "item": to_column(item), "value": number}
    given |= {} if time is None else {"time": to_column(time)}
    lengths = {name: len(one) for name, one in given.items()}
    if any(one.ndim != 1 for one in given.values()) or len(set(lengths.values())) > 1:
        found = ", ".join(f"{length} of {name}" for name, length in lengths.items())
        raise DataError(f"columns of different lengths: {found}", axis="rating", expected="one entry a rating in each")
    rated = as_tensor(number, dtype)
    _require_finite(rated)
    (who, users, user_names), (what, items, item_names) = (
        number_labels(given[axis], axis, *one) for axis, one in zip(("user", "item"), how, strict=True)
    )
    coords = {axis: names for axis, names in (("row", user_names), ("feature", item_names)) if names is not None}
    when = _times(given["time"]) if "time" in given else None
    return ratings_of(
        who, what, rated, num_users=users, num_items=items, time=when, coords=coords, duplicates=duplicates
    )


def _require_finite(rated: Tensor) -> None:
    wrong = ~torch.isfinite(rated)
    if not len(rated):
        raise DataError("no ratings", axis="rating", expected="at least one")
    if bool(wrong.any()):
        place = int(wrong.nonzero()[0])
        found = f"{int(wrong.sum())} ratings are no finite numbers (the first: {float(rated[place])} at {place})"
        raise DataError(found, axis="rating", expected="finite numbers; leave out what was not rated")


def _times(given: np.ndarray) -> Tensor:
    """Numbers as they are, in float64, which single precision rounds to minutes; dates and what reads as such as days
    since 1970."""
    found = as_tensor(as_numbers(numbers_of(given, axis="rating"), axis="rating"), torch.float64)
    if not bool(torch.isfinite(found).all()):
        raise DataError("times that are missing or infinite", axis="rating", expected="a time of every rating")
    return found


def _matrix(
    source: Source, time: Times | None, how: _Sizes, dtype: torch.dtype | None, duplicates: Duplicates
) -> Ratings:
    """The ratings of a matrix (U, I)."""
    if time is not None:
        raise DataError("times beside a matrix", axis="rating", expected="columns user, item and rating beside time")
    coords: dict[str, list[Any]] = {}
    if isinstance(source, Data):
        source, coords = source.x_with_nan, source.coords
    held: Any = source
    shape = [*getattr(held, "shape", ())]
    if sparse.is_matrix(held):
        user, item, value = _entries_of(held)
    elif is_sparse(held):
        user, item, value = find_entries(held)
        names = {"row": labels_of(held.index), "feature": labels_of(held.columns)}
        coords = {axis: labels for axis, labels in names.items() if labels is not None}
    else:
        values, labels = unpack(source)
        dense = torch.as_tensor(values if torch.is_tensor(values) else np.array(values, dtype=np.float64))
        if dense.ndim != 2:
            raise DataError(f"{dense.ndim} dimensions, shape {tuple(dense.shape)}", expected=_EXPECTED)
        coords, shape = coords or labels, tuple(dense.shape)
        user, item = (part.cpu().numpy() for part in (~torch.isnan(dense.double())).nonzero(as_tuple=True))
        value = dense[user, item]
    rated = as_tensor(value, dtype)
    _require_finite(rated)
    for axis, key, place, (size, labels) in zip(("user", "item"), ("row", "feature"), (0, 1), how, strict=True):
        size = len(labels) if labels is not None and key not in coords else size
        if size is not None and size != shape[place]:
            raise DataError(f"a matrix of shape {tuple(shape)}", axis=axis, expected=f"{size} {axis}s")
        plausible_size(shape[place], len(rated), axis)
    found = ratings_of(
        user.astype(np.int64), item.astype(np.int64), rated, num_users=shape[0], num_items=shape[1],
        coords=dict(coords), duplicates=duplicates,
    )  # fmt: skip
    for key, (_, labels) in zip(("row", "feature"), how, strict=True):
        if labels is not None and key not in coords:
            found = found.with_labels(key, labels_of(labels))
    users, items = (labels if key in coords else None for key, (_, labels) in zip(("row", "feature"), how, strict=True))
    return relabel(found, users=users, items=items)


def _entries_of(matrix: MatrixLike) -> tuple[np.ndarray, np.ndarray, np.ndarray | Tensor]:
    """User, item and value of what a sparse matrix stores, also of what it stores twice."""
    if torch.is_tensor(matrix) and matrix.layout == torch.sparse_coo:  # to coalesce it would be to add up
        user, item = matrix._indices().cpu().numpy()
        return user, item, as_numbers(matrix._values())
    given = sparse.scipy_of(matrix)
    part = scipy.sparse.coo_array(given)
    rated = part.data != 0
    if getattr(given, "format", None) == "bsr" and not rated.all():
        warn_of_data("a matrix of blocks, which are filled up with zeros: these are taken for what nobody rated")
        return part.row[rated], part.col[rated], as_numbers(part.data[rated])
    return part.row, part.col, as_numbers(part.data)


def relabel(
    data: Ratings, *, users: Sequence[Hashable] | None = None, items: Sequence[Hashable] | None = None
) -> Ratings:
    """The ratings with users or items at the places of their labels among other ones; None: as they are.

    Raises DataError for labels that are not among these.
    """
    coords, place, size = {}, [data.user.cpu().numpy(), data.item.cpu().numpy()], [data.num_users, data.num_items]
    for n, (axis, key, own, known) in enumerate(
        (("user", "row", data.users, users), ("item", "feature", data.items, items))
    ):
        names = data.coords.get(key)
        if known is not None:
            place[n], size[n], names = number_labels([own[at] for at in place[n].tolist()], axis, None, known)
        coords |= {} if names is None else {key: names}
    found = ratings_of(
        place[0], place[1], data.value.cpu(), num_users=size[0], num_items=size[1], coords=coords,
        time=None if data.time is None else data.time.cpu(),
    )  # fmt: skip
    return found.to(device=data.x.device)
