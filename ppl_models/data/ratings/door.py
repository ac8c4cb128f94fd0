"""``ratings(...)``: columns, frames, triples, matrices and files, as data that models of ratings take."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from ppl_models.core.errors import DataError
from ppl_models.data import sparse
from ppl_models.data.containers import as_numbers, as_tensor, first_text, plausible_size, refuse_blocks, unpack
from ppl_models.data.files.fields import without_index
from ppl_models.data.files.headers import Header, plain_name
from ppl_models.data.files.reading import file_named, naming
from ppl_models.data.files.tables import columns_called, list_names, matrix_of, read_table, require_file
from ppl_models.data.held import Column, Source, is_listed, is_path, is_text, is_whole, labels_of, plain, to_column
from ppl_models.data.labels import places_of, warn_of_twins
from ppl_models.data.lazy import is_pandas
from ppl_models.data.lazy import pandas as pd
from ppl_models.data.matrix import Data
from ppl_models.data.ratings.data import Ratings, ratings_of
from ppl_models.data.ratings.levels import NAMES, with_columns
from ppl_models.data.times import Times, numbers_of

#: Numbers of columns of lists of ratings, without times and with them.
_WIDTHS = (3, 4)
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
    columns: of a frame or a file: those of user, item, rating and perhaps time, where they are called otherwise.
    header: of CSV and text files: whether the first line names the columns. "auto" looks at it, and says so where it is
        not what is usual.

    Raises DataError for columns of different lengths, ratings that are no numbers or out of range, users and items that
    are out of range or unknown, and pairs that occur twice.
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
            found = _matrix(held, time, how, dtype)
        else:
            parts = _columns(held, time) if item is None else (held, item, value, time)
            found = _ratings_of_columns(*parts, how, dtype)
        _require_between(found.value, between)
        return found.to(device=device)


def _table_of(source: Any, columns: Sequence[Any] | None, header: Header) -> Any:
    """Return the frame of a file, or of what may be one, with the columns that are asked for; all else as it is."""
    if is_path(source):
        frame = read_table(Path(source), header, lists=_WIDTHS, asked=columns or ())
        source = frame if columns is not None or _columns_by_name(frame) is not None else matrix_of(frame)
    elif is_pandas(source, "DataFrame", "Series"):
        source = with_columns(source)
        source = source if columns is not None else without_index(source, "the frame of ratings")
    return source if columns is None else _select_columns(source, columns)


def _select_columns(source: Source, columns: Sequence[Any]) -> pd.DataFrame:
    """The columns of user, item, rating and perhaps time, by these names."""
    if not is_pandas(source, "DataFrame") or len(list_names(columns)) not in _WIDTHS:
        raise DataError(f"columns = {columns!r} of {type(source).__name__}", axis="rating",
                        expected="those of user, item, rating, perhaps time, of a frame or a file")  # fmt: skip
    found = source[columns_called(source, columns)]
    return found.set_axis(["user", "item", "rating", "time"][: len(columns)], axis=1)


_Sizes = tuple[tuple[int | None, Sequence[Hashable] | None], tuple[int | None, Sequence[Hashable] | None]]


def _require_between(value: Tensor, between: tuple[float, float] | None) -> None:
    if between is None:
        return
    low, high = between
    wrong = (value < low) | (value > high)
    if bool(wrong.any()):
        found = f"{int(wrong.sum())} ratings out of range (the first: {float(value[wrong][0]):g})"
        raise DataError(found, axis="rating", expected=f"{low:g} to {high:g}")


def is_matrix(source: Any) -> bool:
    """Whether something is a matrix of users and items, rather than a list or a frame of ratings."""
    refuse_blocks(source)
    if is_pandas(source, "DataFrame"):
        return _columns_by_name(source) is None
    return not (is_listed(source) and len(source) > 0 and all(isinstance(one, tuple) for one in source))


def _columns_by_name(frame: pd.DataFrame) -> dict[str, Any] | None:
    """Column by what it is; None for a frame with items for columns. Without known names three or four columns whose
    first two have no fractions are user, item, rating, time."""
    called = {plain_name(column): column for column in reversed(frame.columns)}
    found = {kind: next((called[one] for one in names if one in called), None) for kind, names in NAMES.items()}
    if found["user"] is not None and found["item"] is not None:
        return found
    if frame.shape[1] not in _WIDTHS or any(frame.iloc[:, n].dtype.kind == "f" for n in (0, 1)):
        return None
    return dict(zip(NAMES, [*frame.columns, None], strict=False))


def _columns(source: Any, time: Times | None) -> tuple[Any, Any, Any, Any]:
    """User, item, value and time of a frame or of tuples."""
    if is_pandas(source, "DataFrame"):
        names = _columns_by_name(source)
        assert names is not None
        if names["value"] is None:
            known = " or ".join(NAMES["value"])
            told = f"{known} among {list(source.columns)}, or columns=[user, item, rating] (--columns USER,ITEM,RATING)"
            raise DataError("no column of ratings", axis="rating", expected=told)
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
    user: Column, item: Column, value: Column | None, time: Times | None, how: _Sizes, dtype: torch.dtype | None
) -> Ratings:
    """The ratings of columns."""
    if value is None:
        raise DataError("users and items without ratings", axis="rating", expected=_EXPECTED)
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
    when = _times(given["time"], rated.dtype) if "time" in given else None
    return ratings_of(who, what, rated, num_users=users, num_items=items, time=when, coords=coords)


def _require_finite(rated: Tensor) -> None:
    wrong = ~torch.isfinite(rated)
    if not len(rated):
        raise DataError("no ratings", axis="rating", expected="at least one")
    if bool(wrong.any()):
        place = int(wrong.nonzero()[0])
        found = f"{int(wrong.sum())} ratings are no finite numbers (the first: {float(rated[place])} at {place})"
        raise DataError(found, axis="rating", expected="finite numbers; leave out what was not rated")


def _times(given: np.ndarray, dtype: torch.dtype) -> Tensor:
    """Numbers as they are; dates and what reads as such as days since 1970."""
    given = numbers_of(given, axis="rating")
    found = as_tensor(as_numbers(given, axis="rating"), torch.promote_types(dtype, torch.float64))
    if not bool(torch.isfinite(found).all()):
        raise DataError("times that are missing or infinite", axis="rating", expected="a time of every rating")
    return found.to(dtype)


def number_labels(
    given: Column, axis: str, size: int | None = None, labels: Sequence[Hashable] | None = None
) -> tuple[np.ndarray, int, list[Any] | None]:
    """The places of users or items, how many there are, and their labels, None where these are 0, 1, ...

    size, labels: what is known of them. Raises DataError for others, by ``axis``.
    """
    given = _whole(to_column(given), axis)
    if labels is not None:
        names = plain(labels)
        if size is not None and size != len(names):
            raise DataError(f"{len(names)} labels", axis=axis, expected=f"{size}, as their number says")
        return places_of(given, names, len(names), axis), len(names), labels_of(names)
    if size is not None:
        if not is_whole(size) or size < 1:
            raise DataError(f"{size!r} of them", axis=axis, expected="a whole number of at least 1")
        out = np.ones(len(given), bool) if given.dtype.kind not in "iu" else (given < 0) | (given >= size)
        if out.any():
            found = f"{int(out.sum())} ratings of {axis}s out of range (the first: {plain(given[out])[0]!r})"
            raise DataError(found, axis=axis, expected=f"whole numbers from 0 to {size - 1}")
        return given.astype(np.int64), int(size), None
    if given.dtype.kind in "iu":
        names, place = np.unique(given, return_inverse=True)
        return place.astype(np.int64), len(names), labels_of(names)
    place, found = pd.factorize(given)
    warn_of_twins(found, axis)
    return place.astype(np.int64), len(found), labels_of(found)


def _whole(given: np.ndarray, axis: str) -> np.ndarray:
    """Whole numbers as such, where all are; otherwise labels, none of them missing."""
    if given.dtype.kind in "iub":
        return given.astype(np.int64)
    missing = pd.isna(given)
    if missing.any():
        found = f"the {axis} of rating {int(np.flatnonzero(missing)[0])} is missing"
        raise DataError(found, axis=axis, expected="a label of every user and item")
    if given.dtype.kind == "f" and bool((given == given.round()).all()):
        return given.astype(np.int64)
    return given


def _matrix(source: Source, time: Times | None, how: _Sizes, dtype: torch.dtype | None) -> Ratings:
    """The ratings of a matrix (U, I)."""
    if time is not None:
        raise DataError("times beside a matrix", axis="rating", expected="columns user, item and rating beside time")
    coords: dict[str, list[Any]] = {}
    if isinstance(source, Data):
        source, coords = source.x_with_nan, source.coords
    shape = [*getattr(source, "shape", ())]
    if sparse.is_matrix(source):
        part = scipy.sparse.coo_array(sparse.scipy_of(source))
        user, item, value = part.row, part.col, as_numbers(part.data)
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
        size = len(labels) if labels is not None else size
        if size is not None and size != shape[place]:
            raise DataError(f"a matrix of shape {tuple(shape)}", axis=axis, expected=f"{size} {axis}s")
        plausible_size(shape[place], len(rated), axis)
        if labels is not None:
            names = labels_of(labels)
            coords = {**coords, **({key: names} if names is not None else {})}
    users, items = np.asarray(user, np.int64), np.asarray(item, np.int64)
    return ratings_of(users, items, rated, num_users=shape[0], num_items=shape[1], coords=dict(coords))


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
