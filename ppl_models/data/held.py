"""What people hold, in one form: columns as arrays, rows as lists, values as Python's own; and what a value is."""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict, TypeGuard

import numpy as np
import torch
from torch import Tensor

from ppl_models.data.lazy import is_pandas
from ppl_models.data.lazy import pandas as pd

if TYPE_CHECKING:
    import scipy.sparse
    from numpy.typing import ArrayLike


class ReadBefore:
    """The base of data that were read before, :class:`ppl_models.Data`."""

    coords: dict[str, list[Any]]


#: What matrices are held in: all that NumPy makes an array of (lists, tensors, frames, labelled arrays), sparse ones,
#: and data that were read before.
MatrixLike: TypeAlias = "ArrayLike | scipy.sparse.spmatrix | scipy.sparse.sparray | ReadBefore"
#: What documents, graphs, ratings and relations are held in beside: files, and collections of texts, tokens, edges, ...
Source: TypeAlias = "MatrixLike | os.PathLike[str] | Iterable[Any]"
#: Labels or values (M,), in a column of any kind; the words of a vocabulary; and names of columns, or one alone.
Column: TypeAlias = "Sequence[Any] | np.ndarray | Tensor | pd.Series | pd.Index"
Words: TypeAlias = "Sequence[Hashable] | Mapping[Hashable, int] | pd.Index | ReadBefore"
Names: TypeAlias = "Hashable | Sequence[Hashable] | None"
Device: TypeAlias = "torch.device | str | None"


class Reading(TypedDict, total=False):
    """How data are read. mask: True where an entry is observed. dtype, device: of the tensors."""

    mask: MatrixLike | None
    dtype: torch.dtype | None
    device: Device


def is_text(value: Any) -> bool:
    """Whether a value is a string or undecoded bytes, rather than something that holds several."""
    return isinstance(value, str | bytes)


def is_string(value: Any) -> TypeGuard[str]:
    """Whether a value is a string."""
    return isinstance(value, str)


def is_path(value: Any) -> TypeGuard[str | os.PathLike[str]]:
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
    return any(map(is_string, values))


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
    if torch.is_tensor(values):
        return values.detach().cpu().numpy()
    return values.to_numpy() if is_pandas(values, "Series", "Index", "DataFrame") else np.asarray(values)


def to_column(values: Any) -> np.ndarray:
    """Values (M,) as an array; lists of other than numbers as they are, see :func:`objects`."""
    if is_listed(values):
        found = objects(values)
        kinds = set(map(type, found.tolist()))
        array = np.asarray(values) if kinds <= {int, float} or kinds <= {bool} else found
        # Of whole numbers of 64 bits, some without a sign, numpy makes rounded ones.
        return found if kinds == {int} and array.dtype.kind == "f" else array
    return to_numpy(values)


def to_list(values: Any) -> list[Any]:
    """A row or a column of any kind as a list, of an array with Python's own values."""
    return values.tolist() if hasattr(values, "tolist") else list(values)


def index_labels(index: Iterable[Any]) -> list[Any]:
    """Labels as Python's own values; dates, intervals and the like as text, as files keep them."""
    values = plain(index)
    known = (is_number(one) or is_text(one) or one is None or type(one) is tuple for one in values)
    return [one if is_known else str(one) for one, is_known in zip(values, known, strict=True)]


def labels_of(index: Iterable[Any]) -> list[Any] | None:
    """Labels that say more than the position does; dates as text."""
    values = index_labels(index)
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
