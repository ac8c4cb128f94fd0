"""Columns of a file that go with the rows of a model: responses, covariates, times, labels, weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
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


def values_of(model: Model, site: str, frame: pd.DataFrame, kind: str | None = None) -> pd.DataFrame | pd.Series:
    """Columns as a model reads the values of a site: one alone as a column, several labels in a cell between ``|`` as
    lists of them.

    kind: of a response: of "binary" and "categorical" ones different numbers are names of classes too, but for 0 and 1;
        others are numbers.

    Raises DataError, naming the column, for words where numbers are expected.
    """
    declared = model.sites.get(site)
    words = [not pd.api.types.is_numeric_dtype(one) for one in frame.dtypes]
    if declared is not None and declared.support is constraints.boolean and declared.dims and any(words):
        rows = frame.astype(object).to_numpy().tolist()
        cells = [[str(cell).split(BETWEEN_LABELS) for cell in row if not pd.isna(cell)] for row in rows]
        return pd.Series([[label for cell in row for label in cell] for row in cells], frame.index)
    if declared is None or declared.dims:
        return frame
    if frame.shape[1] > 1:
        return pd.DataFrame({name: encode_classes(column, None)[0] for name, column in frame.items()})
    column, numeric = frame.iloc[:, 0], not words[0]
    if kind is not None and kind not in _CLASSES and not numeric:
        told = f"column {column.name!r} holds words (the first: {next(iter(column.dropna()), None)!r})"
        raise DataError(told, site=site, expected=f"numbers of {kind}")
    found = sorted(plain(column.dropna().unique())) if numeric and kind in _CLASSES else []
    if found == list(range(len(found))):
        return column
    classes = column.astype(pd.CategoricalDtype(found))
    return classes.cat.rename_categories([int(one) if one == round(one) else one for one in found])


def weights(frame: pd.DataFrame) -> pd.Series:
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
    return column
