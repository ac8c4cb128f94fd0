"""Labels and classes of documents by their names: as numbers, with the names in their order.

What is a tensor, or holds numbers alone, is read as before, by positions. Beside names that are known already, those of
a fit, other names are an error, and so are numbers that are no tensor's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from ppl_models.core.errors import DataError
from ppl_models.data.containers import plain
from ppl_models.data.labels import index_of, objects
from ppl_models.data.lazy import is_pandas
from ppl_models.data.lazy import pandas as pd

#: What holds several names of one row.
_SEVERAL = (list, tuple, set, frozenset, np.ndarray)


def encode_classes(given: Any, known: Sequence[Any] | None) -> tuple[Any, list[Any] | None]:
    """One class a row by its name, as numbers (N,) float64, NaN where it is missing (None, NaN), and all names.

    Classes are the names that occur, sorted; of a pandas Categorical its categories in their order. What holds numbers
    alone comes back as it is, with the names that are ``known``.

    Raises DataError for names that are not known.
    """
    listed = _list_rows(given)
    if listed is None:
        return given, _as_list(known)
    values, index, categories = listed
    missing = pd.isna(values)
    if known is None and categories is None and not _has_words(values[~missing]):
        return given, None
    names = _as_list(known) or categories or _sort_names(values[~missing].tolist())
    numbers = _places(values[~missing], names)
    found = np.full(len(values), np.nan)
    found[~missing] = numbers
    return (found if index is None else pd.Series(found, index)), names


def encode_labels(given: Any, number: int | None, known: Sequence[Any] | None) -> tuple[Any, list[Any] | None]:
    """Labels of rows by their names, as indicators (N, L), and the names of the L columns.

    given: for every row a name or a list of names, None or nothing where it has none; or a table of 0 and 1 whose
        columns have names, made of what ``sklearn.preprocessing.MultiLabelBinarizer`` gives. Labels are the names that
        occur, sorted, or the columns. What holds numbers alone comes back as it is, with the names that are ``known``.
    number: of labels that the model has, if there is a model.

    Raises DataError for names that are not known, and tables without some of those that are.
    """
    if is_pandas(given, "DataFrame") and all(map(_is_numeric, given.dtypes)):
        single = given.shape[1] == 1 and number != 1
        words = any(isinstance(name, str) for name in given.columns)
        return (given, _as_list(known)) if single or not words else _columns(given, known)
    listed = _list_rows(given, several=True)
    if listed is None:
        return given, _as_list(known)
    values, index, categories = listed
    rows = [_names_of(value) for value in values]
    every = [name for row in rows for name in row]
    plainly = not any(isinstance(value, _SEVERAL) for value in values)
    if known is None and categories is None and not _has_words(every):
        if plainly:
            return given, None
        every_number = _whole_below(every, number)
        names = list(range(number)) if every_number and number else _sort_names(every)
    else:
        names = _as_list(known) or categories or _sort_names(every)
    table = np.zeros((len(rows), len(names)))
    row = np.repeat(np.arange(len(rows)), [len(one) for one in rows])
    table[row, _places(objects(every), names)] = 1.0
    return pd.DataFrame(table, index), (None if names == list(range(len(names))) else names)


def _list_rows(given: Any, *, several: bool = False) -> tuple[np.ndarray, Any, list[Any] | None] | None:
    """The rows one by one, the labels of rows that have some, and the categories of a Categorical; None of what holds
    numbers: tensors, tables, with ``several`` lists of equally many numbers of 0 and 1."""
    if isinstance(given, Tensor):
        return None
    if is_pandas(given, "DataFrame"):
        if given.shape[1] != 1:
            found = f"a table of {given.shape[1]} columns of words"
            raise DataError(found, expected="one name or a list of names a row, or columns of 0 and 1 with names")
        given = given.iloc[:, 0]
    if is_pandas(given, "Categorical"):
        given = pd.Series(given)
    if is_pandas(given, "Series"):
        categories = plain(given.cat.categories) if is_pandas(given.dtype, "CategoricalDtype") else None
        return objects(given.astype(object).tolist()), given.index, categories
    if isinstance(given, np.ndarray) and given.ndim == 2 and given.dtype.kind in "USO":
        given = given[:, 0] if given.shape[1] == 1 else [list(row) for row in given]
        if isinstance(given, list) and not any(isinstance(name, str) for row in given for name in row):
            return None
    if isinstance(given, np.ndarray) and given.ndim != 1:
        return None
    if not isinstance(given, np.ndarray | list | tuple) and not is_pandas(given, "Index"):
        return None
    values = list(given)
    rows = [value for value in values if isinstance(value, _SEVERAL)]
    if (rows and not several) or _is_table(rows, len(values)):
        return None
    return objects(values), None, None


def _is_table(rows: list[Any], number: int) -> bool:
    """Whether the lists of names are as many lists of equally many numbers."""
    listed = len(rows) == number > 0 and not any(isinstance(row, set | frozenset) for row in rows)
    return listed and len({len(row) for row in rows}) == 1 and not _has_words(name for row in rows for name in row)


def _names_of(value: Any) -> list[Any]:
    """The names of one row."""
    if isinstance(value, _SEVERAL):
        return plain(value)
    return [] if pd.isna(value) else [value]


def _columns(table: Any, known: Sequence[Any] | None) -> tuple[Any, list[Any]]:
    """A table of indicators with names, its columns in the order of those that are known."""
    names = plain(table.columns)
    index_of(names, "label")
    if known is None:
        return table.astype(np.float64), names
    _places(objects(names), list(known))
    lacking = [name for name in known if name not in set(names)]
    if lacking:
        found = f"{len(lacking)} columns are missing (the first: {lacking[0]!r})"
        raise DataError(found, axis="label", expected=f"one for each of {len(known)} labels")
    return table.loc[:, list(known)].astype(np.float64), list(known)


def _places(values: np.ndarray, names: Sequence[Any]) -> np.ndarray:
    """The positions of names among all."""
    place = index_of(names, "label").get_indexer(pd.Index(values, tupleize_cols=False)) if len(values) else values
    unknown = [one for one, at in zip(values.tolist(), place, strict=True) if at < 0]
    if unknown:
        told = f"{len(unknown)} labels are unknown (the first: {unknown[0]!r})"
        shown = ", ".join(map(repr, names[:8])) + (", ..." if len(names) > 8 else "")
        raise DataError(told, axis="label", expected=f"one of {shown}")
    return np.asarray(place, dtype=np.int64)


def _sort_names(values: Iterable[Any]) -> list[Any]:
    """The different ones, numbers by size, others by their letters."""
    found = plain(dict.fromkeys(values))
    numbers = all(isinstance(one, int | float) for one in found)
    return sorted(found) if numbers else sorted(found, key=str)


def _has_words(values: Iterable[Any]) -> bool:
    return any(not isinstance(value, int | float | np.number | np.bool_) for value in values)


def _whole_below(values: Sequence[Any], number: int | None) -> bool:
    return number is not None and all(isinstance(one, int) and 0 <= one < number for one in values)


def _is_numeric(kind: Any) -> bool:
    return pd.api.types.is_numeric_dtype(kind)


def _as_list(names: Sequence[Any] | None) -> list[Any] | None:
    return None if names is None else list(names)
