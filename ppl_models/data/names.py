"""Labels and classes of documents by their names: as numbers, with the names in their order.

What is a tensor, or holds numbers alone, is read as before, by positions. Beside names that are known already, those of
a fit, other names are an error, and so are numbers that are no tensor's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ppl_models.core.errors import DataError, list_some
from ppl_models.data.held import MatrixLike, are_numbers, has_text, is_listed, objects, plain, sorted_values
from ppl_models.data.labels import index_of, order_of
from ppl_models.data.lazy import is_pandas
from ppl_models.data.lazy import pandas as pd


def encode_classes(given: MatrixLike, known: Sequence[Any] | None) -> tuple[Any, list[Any] | None]:
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
    if known is None and categories is None and are_numbers(values[~missing]):
        return given, None
    names = _as_list(known) or categories or sorted_values(values[~missing].tolist())
    numbers = _places(values[~missing], names)
    found = np.full(len(values), np.nan)
    found[~missing] = numbers
    return (found if index is None else pd.Series(found, index)), names


def encode_labels(given: MatrixLike, number: int | None, known: Sequence[Any] | None) -> tuple[Any, list[Any] | None]:
    """Labels of rows by their names, as indicators (N, L), and the names of the L columns.

    given: for every row a name or a list of names, None or nothing where it has none; or a table of 0 and 1 whose
        columns have names, made of what ``sklearn.preprocessing.MultiLabelBinarizer`` gives. Labels are the names that
        occur, sorted, or the columns. What holds numbers alone comes back as it is, with the names that are ``known``.
    number: of labels that the model has, if there is a model.

    Raises DataError for names that are not known, and tables without some of those that are.
    """
    if is_pandas(given, "DataFrame") and all(map(pd.api.types.is_numeric_dtype, given.dtypes)):
        single = given.shape[1] == 1 and number != 1
        return (given, _as_list(known)) if single or not has_text(given.columns) else _columns(given, known)
    listed = _list_rows(given, several=True)
    if listed is None:
        return given, _as_list(known)
    values, index, categories = listed
    rows = [_names_of(value) for value in values]
    every = [name for row in rows for name in row]
    if known is None and categories is None and are_numbers(every):
        if not any(map(_is_several, values)):
            return given, None
        below = number is not None and all(one in range(number) for one in every)
        names = list(range(number)) if below and number else sorted_values(every)
    else:
        names = _as_list(known) or categories or sorted_values(every)
    table = np.zeros((len(rows), len(names)))
    row = np.repeat(np.arange(len(rows)), [len(one) for one in rows])
    table[row, _places(objects(every), names)] = 1.0
    return pd.DataFrame(table, index), (None if names == list(range(len(names))) else names)


def _list_rows(given: Any, *, several: bool = False) -> tuple[np.ndarray, Any, list[Any] | None] | None:
    """The rows one by one, the labels of rows that have some, and the categories of a Categorical; None of what holds
    numbers: tensors, tables, with ``several`` lists of equally many numbers of 0 and 1."""
    if is_pandas(given, "DataFrame"):
        if given.shape[1] != 1:
            found = f"a table of {given.shape[1]} columns of words"
            raise DataError(found, expected="one name or a list of names a row, or columns of 0 and 1 with names")
        given = given.iloc[:, 0]
    if is_pandas(given, "Categorical", "Series"):
        column = pd.Series(given)
        categories = plain(column.cat.categories) if is_pandas(column.dtype, "CategoricalDtype") else None
        return objects(column.astype(object).tolist()), column.index, categories
    if isinstance(given, np.ndarray):
        of_words = given.ndim == 2 and given.dtype.kind in "USO"
        given = given[:, 0] if of_words and given.shape[1] == 1 else given
        if given.ndim != 1 and not (of_words and has_text(given.flat)):
            return None
    elif not is_listed(given) and not is_pandas(given, "Index"):
        return None
    values = list(given)
    rows = [value for value in values if _is_several(value)]
    if rows and not several:
        return None
    listed = len(rows) == len(values) > 0 and all(hasattr(row, "__getitem__") for row in rows)
    if listed and len({len(row) for row in rows}) == 1 and are_numbers(name for row in rows for name in row):
        return None  # a table of numbers
    return objects(values), None, None


def _is_several(value: Any) -> bool:
    """Whether a value holds several names of one row: a list, a set, an array."""
    return isinstance(value, list | tuple | set | frozenset | np.ndarray)


def _names_of(value: Any) -> list[Any]:
    """The names of one row."""
    if _is_several(value):
        return plain(value)
    return [] if pd.isna(value) else [value]


def _columns(table: pd.DataFrame, known: Sequence[Any] | None) -> tuple[Any, list[Any]]:
    """A table of indicators with names, its columns in the order of those that are known."""
    names = plain(table.columns)
    index_of(names, "label")
    if known is None:
        return table.astype(np.float64), names
    order = order_of(names, known, "label", "{} columns are missing")
    return table.iloc[:, order].astype(np.float64), list(known)


def _places(values: np.ndarray, names: Sequence[Any]) -> np.ndarray:
    """The positions of names among all."""
    place = index_of(names, "label").get_indexer(pd.Index(values, tupleize_cols=False)) if len(values) else values
    unknown = [one for one, at in zip(values.tolist(), place, strict=True) if at < 0]
    if unknown:
        told = f"{len(unknown)} labels are unknown (the first: {unknown[0]!r})"
        raise DataError(told, axis="label", expected=f"one of {list_some(names, show=repr)}")
    return np.asarray(place, dtype=np.int64)


def _as_list(names: Sequence[Any] | None) -> list[Any] | None:
    return None if names is None else list(names)
