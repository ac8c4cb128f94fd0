"""Answers to questions: words, categories or numbers of any kind, as numbers 0..C_j - 1 of each, with labels."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from ppl_models.core.errors import DataError
from ppl_models.data import sparse
from ppl_models.data.adapt import adapt
from ppl_models.data.containers import unpack
from ppl_models.data.covariates import read_before
from ppl_models.data.held import (
    MatrixLike,
    Source,
    has_text,
    is_listed,
    is_path,
    plain,
    sorted_values,
    to_numpy,
    whole_numbers,
)
from ppl_models.data.lazy import is_pandas
from ppl_models.data.lazy import pandas as pd
from ppl_models.data.matrix import Data, as_matrix

#: What ``Data.coords`` calls the answers: a tuple of labels for every feature.
ANSWERS = "answers"

Labels = list[tuple[Any, ...]]


def answers(data: MatrixLike, *, mask: MatrixLike | None = None, dtype: torch.dtype | None = None) -> Data:
    """A table of answers as numbers of categories, every column by itself, with the answers as labels.

    The categories of a pandas Categorical come in their order, also those that nobody chose; of other columns those
    that occur, sorted: numbers by size (1 to 5 become 0 to 4), words by letters. What is missing (NaN, None) stays so.

    data: (N, D), a DataFrame or an array of numbers or words. mask: (N, D), False where an answer is to count as
        missing. Returns :class:`ppl_models.Data`; ``for_data`` makes models of as many categories as each column has.

    Raises DataError for what is no table, and for a column without any answer.
    """
    data = adapt(data)
    frame = _frame(data)
    frame, labels = encode_answers(frame, [_labels_of(name, column) for name, column in frame.items()])
    found = as_matrix(frame, mask=mask, dtype=dtype)
    return replace(found, coords={**found.coords, ANSWERS: labels})


def labels_in_common(labels: Labels | None, size: int | None) -> list[Any] | None:
    """The labels of ``size`` categories that all columns have in common, those of fewer categories their first ones;
    None where they differ."""
    longest = max(labels or [()], key=len)
    alike = len(longest) == size and all(one == longest[: len(one)] for one in labels or ())
    return list(longest) if alike else None


def has_words(data: Any) -> bool:
    """Whether a container holds something else than numbers: words, or categories with labels."""
    if is_pandas(data, "DataFrame"):
        return any(not pd.api.types.is_numeric_dtype(kind) for kind in data.dtypes)
    if isinstance(data, np.ndarray):
        held = data.dtype.kind == "O" and has_text(data.flat)
        return data.ndim == 2 and (data.dtype.kind in "US" or held)
    lists = is_listed(data) and len(data) > 0 and is_listed(data[0])
    return lists and any(map(has_text, data))


def number_answers(data: Source, categories: tuple[int, ...] | None = None) -> tuple[Any, Labels | None]:
    """A table that nobody has read yet as numbers of categories, and the labels of each column; None where these are
    the numbers themselves.

    Words, Categoricals and numbers are numbered by what occurs, so that none is a category that nobody chose. Numbers
    that are not whole are left as they are, for the model to refuse.

    categories: C_j of each column, where it is known: then 0 to C_j - 1 are numbers of categories; where all columns
        count from 1, 1 to C_j are their labels.
    """
    if is_path(data) or sparse.is_matrix(data):
        return data, None
    if has_words(data):
        frame = _frame(data)
    else:
        values, coords = unpack(data)
        if values.ndim != 2:
            return data, None
        frame = pd.DataFrame(to_numpy(values), coords.get("row"), coords.get("feature"))
    numeric = [pd.api.types.is_numeric_dtype(kind) for kind in frame.dtypes]
    columns = [column.dropna() for j, (_, column) in enumerate(frame.items()) if numeric[j]]
    values = [column.to_numpy(np.float64) for column in columns]
    if not all(bool((np.isfinite(one) & (one == np.round(one))).all()) for one in values):
        return data, None
    known: list[Any] = [None] * frame.shape[1]
    if categories is not None and len(categories) == len(known):
        known = _of_known_sizes(frame, numeric, categories)
    columns = zip(frame.items(), known, strict=True)
    labels = [_labels_of(name, column) if one is None else one for (name, column), one in columns]
    if all(one == tuple(range(len(one))) for one in labels):
        return data if all(numeric) else encode_answers(frame, labels)[0], None
    return encode_answers(frame, labels)


def _of_known_sizes(frame: pd.DataFrame, numeric: list[bool], categories: tuple[int, ...]) -> list[Any]:
    """The labels of columns of numbers of a model that says how many categories each has; None of words, which what
    occurs says."""
    columns = zip(frame.items(), numeric, categories, strict=True)
    found = [(set(column.dropna()), size) for (_, column), is_one, size in columns if is_one]
    from_one = all(seen <= set(range(1, size + 1)) for seen, size in found)
    within = all(seen <= set(range(size)) for seen, size in found)
    first = 1 if from_one and not within else 0
    sizes = zip(numeric, categories, strict=True)
    return [tuple(range(first, size + first)) if is_one else None for is_one, size in sizes]


def encode_answers(data: Source, labels: Labels) -> tuple[Any, Labels]:
    """A frame of the numbers of answers among the labels of each column, NaN where they are missing; and the labels.

    Raises DataError for answers that are none of these, naming feature and answer.
    """
    frame = _frame(data)
    if len(labels) != frame.shape[1]:
        return frame, labels  # the model says what is wrong with other numbers of columns
    columns = [_numbers(name, column, one) for (name, column), one in zip(frame.items(), labels, strict=True)]
    return pd.DataFrame(np.stack(columns, 1), index=frame.index, columns=frame.columns), labels


def answers_by_label(data: Data, labels: Labels) -> pd.DataFrame:
    """The table of the answers that data hold the numbers of, None where they are missing."""
    numbers = _frame(data)
    named = [[None if c != c else one[int(c)] for c in numbers.iloc[:, j]] for j, one in enumerate(labels)]
    return pd.DataFrame(dict(enumerate(named)), numbers.index, dtype=object).set_axis(numbers.columns, axis=1)


def _frame(data: Source) -> Any:
    if is_pandas(data, "DataFrame"):
        return data
    own = read_before(data)
    if own is not None:
        return pd.DataFrame(own.x_with_nan.cpu().numpy(), own.coords.get("row"), own.coords.get("feature"))
    try:
        values = to_numpy(data) if hasattr(data, "dtype") else np.array(data, dtype=object)
    except ValueError:
        values = np.empty(0, dtype=object)
    if values.ndim != 2:
        raise DataError(f"{values.ndim} dimensions, shape {tuple(values.shape)}", expected="a table (N, D) of answers")
    return pd.DataFrame(values).infer_objects()


def _labels_of(name: Hashable, column: pd.Series) -> tuple[Any, ...]:
    """The possible answers of a column, in their order."""
    if is_pandas(column.dtype, "CategoricalDtype"):
        return tuple(whole_numbers(column.cat.categories))
    found = plain(column.dropna().unique())
    if not found:
        raise DataError(
            f"no answer at all in column {name!r}", axis="feature", expected="at least one; drop the column"
        )
    return tuple(whole_numbers(sorted_values(found)))


def _numbers(name: Hashable, column: pd.Series, labels: tuple[Any, ...]) -> np.ndarray:
    """The places of the answers among the labels."""
    if pd.api.types.is_numeric_dtype(column) and labels == tuple(range(len(labels))):
        return column.to_numpy(np.float64, na_value=np.nan)  # numbers of categories, which the model checks
    place = {label: float(c) for c, label in enumerate(labels)}
    values = column.astype(object)
    found = values.map(lambda one: place.get(one, -1.0), na_action="ignore").to_numpy(np.float64, na_value=np.nan)
    wrong = np.flatnonzero(found == -1)
    if len(wrong):
        first, listed = plain([values.iloc[int(wrong[0])]])[0], ", ".join(map(repr, labels))
        told = f"{len(wrong)} answers that are none of those of {name!r} (the first: {first!r} in row {wrong[0]})"
        raise DataError(told, axis="feature", expected=f"one of {listed}")
    return found
