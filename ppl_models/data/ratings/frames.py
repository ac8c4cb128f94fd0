"""Frames of ratings: what their columns are called, whether they are lists or tables, and users and items that are the
levels of an index."""

from __future__ import annotations

from typing import Any

import numpy as np

from ppl_models.core.errors import DataError, list_some
from ppl_models.data.containers import frame_values
from ppl_models.data.files.headers import plain_name
from ppl_models.data.held import Source, is_listed
from ppl_models.data.lazy import is_pandas
from ppl_models.data.lazy import pandas as pd

#: What the columns of frames of ratings may be called, without case, ``_`` and blanks.
NAMES = {
    "user": ("user", "userid"),
    "item": ("item", "itemid", "movie", "movieid"),
    "value": ("rating", "value", "stars", "score"),
    "time": ("time", "timestamp", "date", "datetime", "day", "when"),
}
_TOLD = "user, item and rating, or columns=[user, item, rating] (--columns USER,ITEM,RATING)"
#: Numbers of columns of lists of ratings, without times and with them.
WIDTHS = (3, 4)
#: Ids go beyond this, and beyond twice the highest rating, where the columns of a table have one scale.
_SCALE = 10
#: From so many rows on one sign of a list is enough, of fewer two are.
_ROWS = 8


def with_columns(source: Any) -> pd.DataFrame:
    """A frame whose users and items are columns, where they are the two levels of its index, as ``groupby`` makes them
    (a Series then holds the ratings); any other frame as it is.

    Raises DataError for an index of other numbers of levels.
    """
    levels = source.index
    if not is_pandas(levels, "MultiIndex"):
        return source
    frame = source.to_frame("rating") if is_pandas(source, "Series") else source
    if frame.shape[1] > 2:  # a matrix, whose users are called by several words each
        return source
    if levels.nlevels != 2 or not frame.shape[1]:
        found = f"an index of {levels.nlevels} levels beside {frame.shape[1]} columns"
        raise DataError(found, axis="rating", expected="two levels, users and items, beside ratings and perhaps times")
    called = [plain_name(name) for name in levels.names]
    swapped = called[0] in NAMES["item"] or called[1] in NAMES["user"]
    user, item = (levels.get_level_values(n) for n in ((1, 0) if swapped else (0, 1)))
    names = [plain_name(name[-1] if is_listed(name) else name) for name in frame.columns]
    at = next((n for n, name in enumerate(names) if name in NAMES["value"]), 0)
    found = {"user": user.to_numpy(), "item": item.to_numpy(), "rating": frame.iloc[:, at].to_numpy()}
    found |= {"time": frame.iloc[:, 1 - at].to_numpy()} if frame.shape[1] == 2 else {}
    return pd.DataFrame(found)


def find_columns(frame: pd.DataFrame) -> dict[str, Any]:
    """Column by what it is called; None where there is none."""
    called = {plain_name(column): column for column in reversed(frame.columns)}
    return {kind: next((called[one] for one in names if one in called), None) for kind, names in NAMES.items()}


def columns_by_name(frame: pd.DataFrame) -> dict[str, Any] | None:
    """Column by what it is; None for a frame with items for columns. In a list of three or four columns those without
    known names are user, item, rating, time, in this order.

    Raises DataError where the columns may be either.
    """
    found = find_columns(frame)
    if found["user"] is not None and found["item"] is not None:
        return found
    named = [kind for kind in ("user", "item", "value") if found[kind] is not None]
    if frame.shape[1] not in WIDTHS:
        if len(named) == 2:
            lacking = "user" if found["user"] is None else "item"
            problem = f"no column of {lacking}s among {list_some(list(frame.columns))}"
            raise DataError(problem, axis=lacking, expected=f"columns {_TOLD}")
        return None
    listed = True if found["item"] is not None or found["value"] is not None else is_list(frame)
    if listed is None:
        found = f"{frame.shape[1]} columns, {list_some(list(frame.columns))}, that may be a list of ratings, or a table"
        table = "of a table, the labels of the users in the index, as frame.set_axis(users), or read_csv(index_col=0)"
        raise DataError(found, axis="rating", expected=f"of a list, columns {_TOLD}; {table}")
    if not listed:
        return None
    others = iter([column for column in frame.columns if column not in found.values()])
    return {kind: next(others, None) if column is None else column for kind, column in found.items()}


def is_list(frame: pd.DataFrame) -> bool | None:
    """Whether three or four columns without known names are user, item, rating and perhaps time, one below the other,
    rather than items, with a row a user; None where nothing tells.

    Users and items have no fractions, none is missing, they are beyond the scale of the ratings, or sorted, and no pair
    of them occurs twice. A table has texts in its index, or in its first column, each once, or floating point.
    """
    if is_sparse(frame):
        return False
    numeric = [pd.api.types.is_numeric_dtype(kind) for kind in frame.dtypes]
    labelled = 0 if numeric[0] else 1  # the first column of numbers
    if not all(numeric[labelled:]) or (labelled and frame.iloc[:, 0].duplicated().any()):
        return True
    listed = _has_ids(frame.iloc[:, labelled:].to_numpy(np.float64, na_value=np.nan), 2 - labelled)
    index, first = frame.index, str(frame.columns[0])
    if not pd.api.types.is_numeric_dtype(index.dtype) or plain_name(index.name) in NAMES["user"]:
        return None if listed else False
    nameless = bool(labelled) and (first.startswith("Unnamed: 0") or plain_name(first) in ("", "nan", "index"))
    fractional = all(kind.kind == "f" for kind in frame.dtypes[labelled:2])
    return False if listed is None and (nameless or fractional) else listed


def _has_ids(values: np.ndarray, number: int) -> bool | None:
    """Whether the first columns (M, ``number``) of numbers are ids, and the next one ratings; None: nothing tells."""
    ids, rated = values[:, :number], values[:, number]
    if not len(values) or np.isnan(values[:, : number + 1]).any() or (ids != ids.round()).any():
        return False
    users, items = ids[:, 0], ids[:, -1]
    scale = max(_SCALE, 2 * rated.max())
    beyond = items.max() > scale or (users.max() > scale and len(np.unique(users)) < len(users))
    if beyond and (rated.max() <= _SCALE or len(ids) >= _ROWS):
        return True
    if number == 1:
        return None
    user_steps, item_steps = np.diff(users), np.diff(items)
    in_order = ((user_steps > 0) | ((user_steps == 0) & (item_steps > 0))).all() and (user_steps == 0).any()
    if len(np.unique(ids, axis=0)) < len(ids):
        return False
    pairs = len(ids) * (len(ids) - 1) / 2
    repeats = pairs / (len(np.unique(users)) * len(np.unique(items)))  # pairs that occur twice in a table, by chance
    signs = int(in_order) + int((rated != rated.round()).any()) + int(repeats > _ROWS)
    return True if signs + int(len(ids) >= _ROWS) > 1 else None


def find_entries(frame: pd.DataFrame) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Row, column and value of the entries of a table that are given: what sparse columns do not store, being 0, is
    missing, as what is NaN is."""
    rows, columns, values = [], [], []
    for place in range(frame.shape[1]):
        column: Any = frame.iloc[:, place].array
        if is_pandas(column.dtype, "SparseDtype") and column.fill_value == 0:
            where, value = column.sp_index.to_int_index().indices, np.asarray(column.sp_values)
        else:
            value = frame_values(frame.iloc[:, [place]])[:, 0]
            where = np.flatnonzero(~np.isnan(value))
            value = value[where]
        rows, columns, values = [*rows, where], [*columns, np.full(len(where), place)], [*values, value]
    return np.concatenate(rows), np.concatenate(columns), np.concatenate(values)


def is_sparse(frame: Source) -> bool:
    """Whether something is a frame with sparse columns."""
    return is_pandas(frame, "DataFrame") and any(is_pandas(kind, "SparseDtype") for kind in frame.dtypes)
