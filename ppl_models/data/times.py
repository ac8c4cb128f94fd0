"""Times as slices: whatever says when, as the numbers of the different times in their order, with labels."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from torch import Tensor

from ppl_models.core.errors import DataError, about, list_some, warn_of_data
from ppl_models.data.held import are_numbers, has_text, is_number, is_string, plain, to_numpy, whole_numbers
from ppl_models.data.lazy import is_pandas
from ppl_models.data.lazy import pandas as pd
from ppl_models.data.written_times import days_of, moments_of, order_keys

#: Times (M,): numbers, dates or words, in an array, a tensor, a column of a frame, a list.
Times: TypeAlias = "Sequence[Any] | np.ndarray | Tensor | pd.Series | pd.Categorical"
#: How times become fewer slices, as messages say it.
BINNING = "fewer slices, as pandas.Series(time).dt.year, or pandas.cut(time, bins=10), makes them of dates and numbers"
#: No more slices than half the rows, from so many on: nearly every row would have one of its own.
_FEW = 50


def slices_of(time: Times, known: Sequence[Any] | None = None) -> tuple[np.ndarray, list[Any]]:
    """The slice of every row as a whole number, (N,) float64, and the labels of the slices, in their order.

    Slices are the times that occur: numbers by size, also where they are texts, dates, months and weekdays in time, in
    whatever way they are written; other words by letters, with a DataWarning. Of a pandas Categorical they are
    its categories in their order, the empty ones too. Dates and intervals are labelled by their text, texts by
    themselves.

    known: the labels of a fit, whose slices these are.

    Raises DataError for missing times, for ones that are not known (listing those that are), and for nearly as many
    different times as rows.
    """
    series = _series(time)
    missing = np.flatnonzero(series.isna().to_numpy())
    if len(missing):
        found = f"{len(missing)} times are missing (the first: of document {int(missing[0])})"
        raise DataError(found, axis="document", expected="the time of every document; leave those without out")
    if pd.api.types.is_float_dtype(series.dtype) and not np.isfinite(series.to_numpy(np.float64)).all():
        first = int(np.flatnonzero(~np.isfinite(series.to_numpy(np.float64)))[0])
        raise DataError(f"the time of document {first} is infinite", axis="document", expected="finite numbers")
    if is_pandas(series.dtype, "CategoricalDtype"):
        values, labels = _labels(series.cat.categories), series.cat.codes.to_numpy(np.int64)
        if known is None and not series.cat.ordered:
            _warn_of_letters(values)
    else:
        labels, unique = _encode(series, known is None)
        values = _labels(unique)
        if known is None and len(values) > max(_FEW, len(series) // 2):
            raise DataError(f"{len(values)} different times of {len(series)} documents", expected=BINNING)
    if known is None:
        return labels.astype(np.float64), values
    used = _places(values, known)
    wrong = [n for n, one in enumerate(labels) if used[one] is None]
    if wrong:
        first = f"the first: {values[labels[wrong[0]]]!r} of document {wrong[0]}"
        told = f"{len(wrong)} documents of unknown times ({first})"
        raise DataError(told, expected=f"one of {', '.join(map(str, known))}, or no times: those of the last")
    return np.array([used[one] for one in labels], dtype=np.float64), list(known)


def _places(values: Sequence[Any], known: Sequence[Any]) -> list[int | None]:
    """Find times among those of a fit, by their labels, or as the same times that are written otherwise."""
    place = {label: t for t, label in enumerate(known)}
    found = [place.get(value, place.get(str(value))) for value in values]
    if None in found and all(map(is_string, [*known, *values])):
        keys = order_keys([*known, *values])
        if keys is not None:
            written = {key: t for t, key in enumerate(keys[: len(known)])}
            found = [written.get(key) if at is None else at for at, key in zip(found, keys[len(known) :], strict=True)]
    return found


def numbers_of(time: Times, *, axis: str | None = None) -> np.ndarray:
    """Times as numbers (M,): numbers as they are, also where they are texts; dates, and texts of them, as days since
    1970, in UTC, to the microsecond; missing ones NaN.

    Raises DataError for others.
    """
    given = to_numpy(time)
    if given.dtype.kind in "buif":
        return given
    place, unique = pd.factorize(given.ravel())
    values = list(unique)
    found: Any = None
    if are_numbers(values):
        found = np.asarray(values, dtype=np.float64)
    elif all(map(is_string, values)):
        numbers: Any = pd.to_numeric(pd.Series(values), errors="coerce")
        found = moments_of(values) if numbers.isna().any() else numbers.to_numpy(np.float64)
    elif not has_text(values):
        with contextlib.suppress(ValueError, TypeError):
            found = days_of(pd.to_datetime(pd.Series(values), utc=True))
    if found is None:
        raise DataError("times that are neither numbers nor dates", axis=axis, expected="numbers or dates")
    return np.append(found, np.nan)[place].reshape(given.shape)


def count_slices(time: Times) -> int:
    """Count the slices of these times: the categories of a pandas Categorical, else the different ones that occur.

    Raises DataError for times that are missing, or nearly as many as documents.
    """
    with about("time"):
        return max(1, len(slices_of(time)[1]))


def _series(time: Times) -> pd.Series:
    if is_pandas(time, "Series"):
        return time.reset_index(drop=True)
    time = to_numpy(time) if hasattr(time, "detach") else time
    if np.ndim(time) == 2:
        table = pd.DataFrame(time)
        if table.shape[1] != 1:
            raise DataError(f"shape {tuple(table.shape)}", expected="(N,), one time a document")
        time = table.iloc[:, 0]
    elif np.ndim(time) != 1:
        raise DataError(f"{np.ndim(time)} dimensions", expected="(N,), one time a document")
    return pd.Series(time).reset_index(drop=True).infer_objects()


def _encode(series: pd.Series, new: bool) -> tuple[np.ndarray, Any]:
    """Numbers of the values that occur, and these, in their order. new: whether it is not that of a fit."""
    if series.dtype == object:
        kinds = sorted({"number" if is_number(one) else type(one).__name__ for one in plain(series)})
        if len(kinds) > 1:
            found = f"times of the types {', '.join(kinds)}, which have no common order"
            raise DataError(found, expected="numbers, dates or words; a pandas Categorical says their order")
    labels, unique = pd.factorize(series, sort=True)
    values = list(unique)
    if not all(map(is_string, values)):
        return labels, unique
    keys = order_keys(values) or values
    if new and keys is values:
        _warn_of_letters(values)
    order = {key: n for n, key in enumerate(sorted(set(keys)))}  # one slice of one time, however it is written
    written = dict(zip(keys[::-1], values[::-1], strict=True))
    return np.array([order[key] for key in keys])[labels], [written[key] for key in order]


def _warn_of_letters(values: Sequence[Any]) -> None:
    """Warns of words that are ordered by their letters, where time has another order, or nobody knows which."""
    if not all(map(is_string, values)) or list(values) != sorted(values) or len(values) < 2:
        return
    keys = order_keys(values)
    if keys is None or keys != sorted(keys):
        warn_of_data(
            f"the times {list_some(values, 4, show=repr)} are ordered by letters; "
            "pandas.Categorical(time, categories=[...], ordered=True) says their order"
        )


def _labels(values: Any) -> list[Any]:
    """Numbers (whole ones as such) and words as they are, dates and intervals as text, days without the hour."""
    if getattr(getattr(values, "dtype", None), "kind", "") == "M":
        dates = pd.DatetimeIndex(values)
        whole = bool((dates == dates.normalize()).all())
        return [str(one.date()) if whole else str(one) for one in dates]
    return [one if is_number(one) else str(one) for one in whole_numbers(values)]
