"""What people hold, in one form: columns as arrays, rows as lists, values as Python's own; and what a value is."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from ppl_models.data.lazy import is_pandas
from ppl_models.data.lazy import pandas as pd


def is_text(value: Any) -> bool:
    """Whether a value is a string or undecoded bytes, rather than something that holds several."""
    return isinstance(value, str | bytes)


def is_path(value: Any) -> bool:
    """Whether a value may be the name of a file."""
    return isinstance(value, str | os.PathLike)


def is_number(value: Any) -> bool:
    """Whether a value is a number, Python's or numpy's; truth values are."""
    return isinstance(value, int | float | np.number | np.bool_)


def is_whole(value: Any) -> bool:
    """Whether a value is a whole number, Python's or numpy's; truth values are none."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def is_listed(value: Any) -> bool:
    """Whether a value is a list or a tuple."""
    return isinstance(value, list | tuple)


def holds_several(value: Any) -> bool:
    """Whether a value can be gone through and is no text."""
    return isinstance(value, Iterable) and not is_text(value) and getattr(value, "ndim", 1) > 0


def has_text(values: Iterable[Any]) -> bool:
    """Whether some value is a string."""
    return any(isinstance(value, str) for value in values)


def are_numbers(values: Iterable[Any]) -> bool:
    """Whether all values are numbers."""
    return all(map(is_number, values))


def plain(values: Iterable[Any]) -> list[Any]:
    """Python's own values in place of numpy's."""
    return [value.item() if isinstance(value, np.generic) else value for value in values]


def whole_numbers(values: Iterable[Any]) -> list[Any]:
    """The values, whole numbers as such where all of them are."""
    found = plain(values)
    whole = all(isinstance(one, float) and one.is_integer() for one in found)
    return [int(one) for one in found] if whole else found


def sorted_values(values: Iterable[Any]) -> list[Any]:
    """The different values, numbers by size, others by their letters."""
    found = plain(dict.fromkeys(values))
    return sorted(found) if are_numbers(found) else sorted(found, key=str)


def objects(values: Sequence[Any]) -> np.ndarray:
    """An array of the values as they are: tuples stay labels, and numbers beside strings stay numbers."""
    array = np.empty(len(values), dtype=object)
    array[:] = plain(values)
    return array


def to_numpy(values: Any) -> np.ndarray:
    """A tensor, a column of a frame, an array, or lists of one type as an array of numpy's."""
    if isinstance(values, Tensor):
        return values.detach().cpu().numpy()
    return values.to_numpy() if is_pandas(values, "Series", "Index", "DataFrame") else np.asarray(values)


def to_column(values: Any) -> np.ndarray:
    """Values (M,) as an array; lists of other than numbers as they are, see :func:`objects`."""
    if is_listed(values):
        found = objects(values)
        kinds = set(map(type, found.tolist()))
        return np.asarray(values) if kinds <= {int, float} or kinds <= {bool} else found
    return to_numpy(values)


def to_list(values: Any) -> list[Any]:
    """A row or a column of any kind as a list, of an array with Python's own values."""
    return values.tolist() if hasattr(values, "tolist") else list(values)


def labels_of(index: Iterable[Any]) -> list[Any] | None:
    """Labels that say more than the position does; dates as text."""
    values = plain(str(one) if isinstance(one, np.datetime64 | np.timedelta64) else one for one in index)
    return None if values == list(range(len(values))) else values


def is_name(name: Any) -> bool:
    """Whether something can be a name: hashable, not missing, not undecoded."""
    try:
        hash(name)
    except TypeError:
        return False
    return not isinstance(name, bytes) and not (pd.api.types.is_scalar(name) and pd.isna(name))


def describe(value: Any) -> str:
    """A value and its type, for messages."""
    text = repr(value)
    return f"{text if len(text) <= 40 else text[:39] + '…'} ({type(value).__name__})"
