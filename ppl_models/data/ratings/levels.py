"""Frames of ratings: what their columns are called, and users and items that are the levels of an index."""

from __future__ import annotations

from typing import Any

from ppl_models.core.errors import DataError
from ppl_models.data.files.headers import plain_name
from ppl_models.data.held import is_listed
from ppl_models.data.lazy import is_pandas
from ppl_models.data.lazy import pandas as pd

#: What the columns of frames of ratings may be called, without case, ``_`` and blanks.
NAMES = {
    "user": ("user", "userid"),
    "item": ("item", "itemid", "movie", "movieid"),
    "value": ("rating", "value", "stars", "score"),
    "time": ("time", "timestamp"),
}


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
