"""Factors among covariates: words and Categoricals as indicators of their levels, which a fit keeps."""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ppl_models.core.errors import DataError, about, list_some, warn_of_data
from ppl_models.data.held import MatrixLike, Source, is_listed, is_number, is_string, is_whole, plain, sorted_values
from ppl_models.data.labels import order_of
from ppl_models.data.lazy import is_pandas
from ppl_models.data.lazy import pandas as pd

#: Between the name of a factor and that of a level.
OF_LEVEL = " = "
#: What stands in the place of the levels of a block of numbers, several columns of one name.
BLOCK = "block"
#: What reads as a number, with commas too.
_NUMBER = re.compile(r"[-+]?[\d.,' ]*\d[\d.,' ]*[%$€]?")


@dataclass
class Factors:
    """What is known of the columns that stand beside rows: site -> (name, levels) of each column in its order; levels
    None: its numbers are the values. The first level is the baseline, which has no indicator.

    named: site -> the names of its values, where the columns have names.
    """

    columns: dict[str, list[list[Any]]] = field(default_factory=dict)
    named: dict[str, list[str]] = field(default_factory=dict)

    def encode(self, site: str, given: MatrixLike) -> Any:
        """Return numbers in the place of what is given of a site, and learn its columns where none are known.

        Columns come in the order of those that are known, by their names. Of a single column of a site without an axis
        of its own see :meth:`number`. What holds unnamed numbers, and mappings of blocks, come back as they are.

        Raises DataError for unknown levels and columns, for those that are missing, and for cells without a level.
        """
        if type(given) is dict:  # of blocks, which are numbers
            self.columns[site] = [[str(name), BLOCK] for name in given]
            return given
        table = _table(given)
        if table is None:
            return given
        with about(site):
            known = self.columns.get(site)
            if known and known[0][1] == BLOCK:
                told = f"a table, where the fit has blocks of numbers: {list_some([name for name, _ in known])}"
                raise DataError(told, expected="such blocks, made as those of the fit were")
            if known is None:
                known = [[_name(name), _levels(_name(name) or site, column)] for name, column in table.items()]
            else:
                table = _in_order(table, known)
            parts, names = [], []
            for (name, column), (_, levels) in zip(table.items(), known, strict=True):
                values, called = _encode(_name(name) or site, column, levels)
                parts.append(values)
                names += called
        self.columns[site] = known
        if all(name is not None for name, _ in known) or any(levels for _, levels in known):
            self.named[site] = names
        return pd.DataFrame(np.concatenate(parts, 1), index=table.index)

    def number(self, site: str, given: MatrixLike, *, real: bool) -> Any:
        """Return numbers 0, ..., L - 1 in the place of L levels, one a row. real: they are values, and no places: then
        there may be two. Raises DataError for more."""
        table = _table(given)
        if table is None or table.shape[1] != 1:
            return given
        column = table.iloc[:, 0]
        with about(site):
            known = self.columns.get(site) or [[site, _levels(site, column)]]
            levels = known[0][1]
            if levels is None:
                return given
            if real and len(levels) > 2:
                expected = "two levels, or a site with an axis, which takes an indicator of each level but the first"
                raise DataError(f"{len(levels)} levels ({list_some(levels)}) of one number a row", expected=expected)
            self.columns[site] = known
            return pd.Series(_places(site, column, levels), table.index)

    def number_two_valued(self, site: str, given: Source) -> Any:
        """Return a table of 0, 1 and NaN in the place of one that has columns of two words each; the first word by the
        alphabet, or of a Categorical, is 0, which a DataWarning says where it is decided.

        Tables with columns of more words come back as they are, for the model to refuse.
        """
        table: Any = given if is_pandas(given, "DataFrame") else _table(given)
        if table is None:
            return given
        words = [name for name, column in table.items() if not pd.api.types.is_numeric_dtype(column.dtype)]
        known = {name: levels for name, levels in self.columns.get(site, ()) if levels is not None}
        found = {_key(name): known.get(_key(name)) or list_levels(table[name]) for name in words}
        new = [name for name in words if _key(name) not in known]
        if table.columns.has_duplicates or not all(is_two_valued(table[name]) for name in new):
            return given
        if not known and found:
            name, levels = next(iter(found.items()))
            more = f" and so in {len(found) - 1} more columns of two words" if len(found) > 1 else ""
            warn_of_data(f"column {name!r} is read as 0 = {levels[0]!r} and 1 = {levels[1]!r}{more}")
        self.columns[site] = [[_key(name), found.get(_key(name))] for name in table.columns]
        numbers = table.copy(deep=False)
        for name in words:
            numbers[name] = _places(str(name), table[name], found[_key(name)], missing=True)
        return numbers


def _key(name: Hashable) -> Any:
    """The name of a column as files keep it."""
    return name if is_string(name) or is_whole(name) else str(name)


def is_two_valued(column: pd.Series) -> bool:
    """Whether a column holds two words, or is a Categorical of two."""
    return len(list_levels(column)) == 2 and not are_written_numbers(column)


def are_written_numbers(column: pd.Series) -> bool:
    """Whether all texts of a column read as numbers, with commas among their digits or a unit behind."""
    return all(_NUMBER.fullmatch(str(value)) for value in column.dropna().unique())


def list_levels(column: pd.Series) -> list[Any]:
    """The different values of a column, those of a Categorical in their order, others by size or their letters."""
    if is_pandas(column.dtype, "CategoricalDtype"):
        return plain(column.cat.categories)
    return sorted_values(column.dropna())


def _table(given: Source) -> pd.DataFrame | None:
    """What is given as a table of columns; None of numbers without names, and of what is no table."""
    if is_pandas(given, "DataFrame", "Series"):
        table = given if given.ndim == 2 else given.to_frame()
        numbers = all(map(pd.api.types.is_numeric_dtype, table.dtypes))
        return None if numbers and not any(map(is_string, table.columns)) else table
    if is_pandas(given, "Categorical"):
        return pd.Series(given).to_frame()
    if not is_listed(given) and getattr(getattr(given, "dtype", None), "kind", "") not in ("U", "O", "S"):
        return None
    try:
        values = np.array(given, dtype=object)
    except ValueError:
        return None
    words = values.ndim in (1, 2) and any(map(is_string, values.flat))
    return pd.DataFrame(values).infer_objects() if words else None


def _name(name: Hashable) -> str | None:
    """The name of a column; None of a number, its place."""
    return str(name) if is_string(name) else None


def _levels(name: str, column: pd.Series) -> list[Any] | None:
    """The levels of a factor, those of a Categorical in their order, others sorted; None of a column of numbers."""
    if column.dtype.kind in "mM":
        expected = "numbers, as column.dt.year or days since a date; or words, as column.astype(str)"
        raise DataError(f"column {name!r} of dates", expected=expected)
    is_categorical = is_pandas(column.dtype, "CategoricalDtype")
    if not is_categorical and not any(map(is_string, column.dropna().astype(object))):
        return None
    found = list_levels(column)
    if len(found) < 2:
        raise DataError(f"column {name!r} has one level alone, {list_some(found)}", expected="two or more")
    return [one if is_string(one) or is_number(one) else str(one) for one in found]


def _encode(name: str, column: pd.Series, levels: Sequence[Any] | None) -> tuple[np.ndarray, list[str]]:
    """The values (N, P) of a column and their names: of a factor indicators of all levels but the first."""
    if levels is not None:
        place = _places(name, column, levels)
        names = [f"{name}{OF_LEVEL}{level}" for level in levels[1:]]
        return (place[:, None] == np.arange(1, len(levels))).astype(np.float64), names
    try:
        values = column.to_numpy(np.float64, na_value=np.nan)
    except (ValueError, TypeError):
        first = next(one for one in column.dropna() if is_string(one))
        found = f"column {name!r} has words (the first: {first!r}) where the fit has numbers"
        raise DataError(found, expected="finite numbers") from None
    wrong = np.flatnonzero(~np.isfinite(values))
    if len(wrong):
        told = f"{len(wrong)} cells of column {name!r} are empty or not finite (the first: of row {wrong[0]})"
        raise DataError(told, expected="finite numbers; fill in missing covariates first")
    return values[:, None], [name]


def _places(name: str, column: pd.Series, levels: Sequence[Any], *, missing: bool = False) -> np.ndarray:
    """The position of each cell's level, (N,). missing: empty cells are NaN, and no error."""
    empty = np.flatnonzero(column.isna().to_numpy())
    if len(empty) and not missing:
        told = f"{len(empty)} cells of column {name!r} are empty (the first: of row {empty[0]})"
        raise DataError(told, expected="a level in each; fill in missing ones, or drop their rows")
    cells = plain(column.astype(object))
    position = {level: place for place, level in enumerate(levels)} | {str(one): k for k, one in enumerate(levels)}
    place = np.array([position.get(one, position.get(str(one), -1)) for one in cells], dtype=np.float64)
    place[empty] = np.nan
    if (place < 0).any():
        unknown = list(dict.fromkeys(one for one, at in zip(cells, place.tolist(), strict=True) if at < 0))
        listed = list_some(unknown, 4, show=repr)
        told = f"column {name!r} has {len(unknown)} levels that the fit does not have ({listed})"
        raise DataError(told, expected=f"some of {list_some(list(levels), show=repr)}")
    return place


def _in_order(table: pd.DataFrame, known: Sequence[Sequence[Any]]) -> pd.DataFrame:
    """The columns that are known, in their order, by their names where both sides have some."""
    names = [name for name, _ in known]
    own = [_name(name) for name in table.columns]
    if None not in names and None not in own and own != names:
        return table.iloc[:, order_of(own, names, "covariate", "{} columns are missing")]
    if len(own) != len(names):
        told = f"{len(own)} columns"
        raise DataError(told, expected=f"{len(names)}: {list_some([name or 'numbers' for name in names])}")
    return table
