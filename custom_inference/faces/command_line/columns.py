"""Columns of a file that go with the rows of a model: responses, covariates, times, labels, weights."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.distributions import constraints

from ppl_models import DataError, Model
from ppl_models.data.files.reading import naming
from ppl_models.data.files.tables import columns_called
from ppl_models.data.held import plain
from ppl_models.data.lazy import pandas as pd
from ppl_models.data.names import encode_classes

#: Between the labels of one row.
BETWEEN_LABELS = "|"
#: Kinds of values that are classes.
_CLASSES = ("binary", "categorical")


@dataclass(frozen=True)
class Beside:
    """What one ``--with NAME=WHERE`` says: a file, or columns of FILE, and what kind of values they hold, if that was
    said (``stars:real``)."""

    text: str
    file: Path | None
    columns: list[str]
    kind: str | None = None


def select_columns(frame: pd.DataFrame, names: Sequence[str], path: Path) -> pd.DataFrame:
    """Columns of a table. Raises DataError for one that it does not have."""
    with naming(path):
        return frame.loc[:, columns_called(frame, names)]


def values(
    model: Model, site: str, frame: pd.DataFrame, kind: str | None = None
) -> tuple[torch.Tensor, list[Any] | None]:
    """Columns as values (N, P) of a site, in float64, NaN where a cell is empty; and their names: of classes or labels
    all that there are, of others those of the P columns, None where numbers are all that is known.

    Numbers stay what they are. Words are categories, sorted: numbered from 0 for a site of one value a row; for a
    binary site indicators of each, of several in a cell between ``|``; for covariates indicators of each but the first.

    kind: of a response: of "binary" and "categorical" ones different numbers are names of classes too, but for 0 and 1;
        others are numbers.

    Raises DataError, naming the column, for words where numbers are expected, and covariates that are missing.
    """
    declared = model.sites.get(site)
    parts, names = [], []
    single = declared is not None and not declared.dims
    for name, column in frame.items():
        numeric = pd.api.types.is_numeric_dtype(column)
        if single and len(frame.columns) == 1 and (not numeric or kind in _CLASSES):
            return _classes(site, name, column, kind)
        if numeric:
            found, called = column.to_numpy(np.float64)[:, None], [name]
        elif single:
            found, called = encode_classes(column, None)[0].to_numpy()[:, None], [name]
        else:
            binary = declared is not None and declared.support is constraints.boolean
            found, called = _indicators(site, name, column, binary)
        if declared is not None and declared.role == "given" and declared.support is constraints.real:
            wrong = np.flatnonzero(~np.isfinite(found).all(1))
            if len(wrong):
                told = f"{len(wrong)} cells of column {name!r} are empty or not finite (the first: of row {wrong[0]})"
                raise DataError(told, site=site, expected="a finite number or a word in each")
        parts.append(found)
        names += called
    indicators = declared is not None and declared.support is constraints.boolean and declared.dims
    listed = bool(indicators) and len(names) > 1
    known = listed or (declared is not None and bool(declared.dims) and not indicators)
    return torch.from_numpy(np.concatenate(parts, 1)), [str(name) for name in names] if known else None


def _classes(site: str, name: Hashable, column: pd.Series, kind: str | None) -> tuple[torch.Tensor, list[Any] | None]:
    """One class a row: its number, and the names of all."""
    if kind not in (None, *_CLASSES):
        first = next(iter(column.dropna()), None)
        raise DataError(f"column {name!r} holds words (the first: {first!r})", site=site, expected=f"numbers of {kind}")
    if pd.api.types.is_numeric_dtype(column):
        found = sorted(plain(column.dropna().unique()))
        if found == list(range(len(found))):
            return torch.from_numpy(column.to_numpy(np.float64, copy=True)[:, None]), None
        column = pd.Series(pd.Categorical(column, found))
        column = column.cat.rename_categories([int(one) if one == round(one) else one for one in found])
    numbers, names = encode_classes(column, None)
    return torch.from_numpy(np.array(numbers, dtype=np.float64)[:, None]), names


def _indicators(site: str, name: Hashable, column: pd.Series, binary: bool) -> tuple[np.ndarray, list[Any]]:
    """Indicators of words: of labels each, of covariates each but the first."""
    known = column.reset_index(drop=True).dropna().astype(str).str.get_dummies(BETWEEN_LABELS)
    found = known.reindex(range(len(column)), fill_value=0)
    words = list(found.columns) if binary else list(found.columns)[1:]
    if not words:
        raise DataError(f"column {name!r} has one value alone", site=site, expected="two values or more")
    missing = np.nan if not binary else 0.0  # no labels, but no known covariate
    table = np.where(column.isna().to_numpy()[:, None], missing, found[words].to_numpy(np.float64))
    return table, words if binary else [f"{name} = {word}" for word in words]


def weights(frame: pd.DataFrame) -> np.ndarray:
    """How often each row counts, (N,). Raises DataError for a column of words, naming it."""
    column, expected = frame.iloc[:, 0], "one column of finite numbers of at least 0"
    if frame.shape[1] != 1 or not pd.api.types.is_numeric_dtype(column):
        listed = ", ".join(map(repr, frame.columns))
        raise DataError(f"weights in {listed}, which hold no numbers or are several", axis="row", expected=expected)
    found = column.to_numpy(np.float64)
    wrong = np.flatnonzero(~(np.isfinite(found) & (found >= 0)))
    if len(wrong):
        told = f"{len(wrong)} weights in column {column.name!r} are negative or not finite"
        raise DataError(f"{told} (the first: {found[wrong[0]]:g} of row {wrong[0]})", axis="row", expected=expected)
    return found
