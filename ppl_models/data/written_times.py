"""Times that are written as texts, and the order that they have: numbers, dates, months, weekdays, weeks."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from ppl_models.core.errors import DataError, warn_of_data
from ppl_models.data.lazy import pandas as pd

_MONTHS = ("january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november",
           "december")  # fmt: skip
_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?")
#: A year with a month, and perhaps more; day, month and year by numbers.
_YEAR_FIRST = re.compile(r"\d{4}[-/.]\d{1,2}(\D|$)")
_YEAR_LAST = re.compile(r"(\d{1,2})([-/.])(\d{1,2})[-/.](\d{4}|\d{2})(\D|$)")


def order_keys(texts: Sequence[str]) -> list[Any] | None:
    """What times that are texts are sorted by, equal for one time that is written in two ways; None where nothing tells
    their order.

    >>> order_keys(["Mar", "January", "feb"])
    [2, 0, 1]
    >>> order_keys(["week 10", "week 9"])
    [(10.0,), (9.0,)]
    >>> order_keys(["before", "after"]) is None
    True
    """
    words = [text.strip().lower() for text in texts]
    if all(map(_NUMBER.fullmatch, words)):
        return [float(word) for word in words]
    for names in (_MONTHS, _WEEKDAYS):
        places = [_match_name(word, names) for word in words]
        if None not in places:
            return places
    moments = moments_of(words)
    return _by_numbers(words) if moments is None else moments.tolist()


def _match_name(word: str, names: Sequence[str]) -> int | None:
    """Which of the names a word, or its first three letters or more, is."""
    word = word.rstrip(".")
    return next((n for n, name in enumerate(names) if len(word) >= 3 and name.startswith(word)), None)


def _by_numbers(words: Sequence[str]) -> list[Any] | None:
    """The numbers in texts that differ in nothing else, years of four digits before all others; None for others."""
    if len({re.sub(r"\d+(\.\d+)?", "#", word) for word in words}) > 1:
        return None
    groups = [re.findall(r"\d+(?:\.\d+)?", word) for word in words]
    years = [n for n in range(len(groups[0])) if all(len(group[n]) == 4 for group in groups)]
    order = [*years, *(n for n in range(len(groups[0])) if n not in years)]
    return [tuple(float(group[n]) for n in order) for group in groups] if order else None


def moments_of(texts: Sequence[str]) -> np.ndarray | None:
    """Days since 1970 (M,), float64, of texts that are dates, perhaps with hours; None where some are none.

    Numbers 3/14/2021 have the month first, unless another date shows that it is the day, which dots (14.3.2021) say:
    a DataWarning where nothing tells. Raises DataError where some have the one first and some the other.
    """
    words = [text.strip().lower() for text in texts]
    if not all(map(_is_date, words)):
        return None
    numbers = [_YEAR_LAST.match(word) for word in words]
    first = _has_day_first([one for one in numbers if one])
    where = np.array([one is not None for one in numbers], dtype=bool)
    column, found = np.array(words, dtype=object), np.empty(len(words))
    with warnings.catch_warnings(action="ignore"):
        try:
            for part, day_first in ((where, first), (~where, False)):
                read = pd.to_datetime(pd.Series(column[part]), format="mixed", dayfirst=day_first, utc=True)
                found[part] = days_of(read)
        except (ValueError, OverflowError):
            return None
    return found


def days_of(moments: pd.Series) -> np.ndarray:
    """Days since 1970, to the microsecond, of dates in UTC."""
    return moments.dt.tz_localize(None).to_numpy().astype("datetime64[us]").astype(np.int64) / 86_400_000_000


def _is_date(word: str) -> bool:
    if _YEAR_FIRST.match(word) or _YEAR_LAST.match(word):
        return True
    named = any(_match_name(one, _MONTHS) is not None for one in re.findall(r"[a-z]+", word))
    return named and re.search(r"\b\d{4}\b", word) is not None


def _has_day_first(numbers: Sequence[re.Match[str]]) -> bool:
    """Whether dates by numbers have the day before the month."""
    day = next((one[0] for one in numbers if int(one[1]) > 12), None)
    month = next((one[0] for one in numbers if int(one[3]) > 12), None)
    if day is not None and month is not None:
        found = f"dates {day.strip()!r}, whose day is first, and {month.strip()!r}, whose month is"
        raise DataError(found, expected="one order; 2020-01-31 can be read in one way alone")
    unclear = next((one[0] for one in numbers if one[1] != one[3] and one[2] != "."), None)
    if day is None and month is None and unclear is not None:
        warn_of_data(
            f"dates such as {unclear.strip()!r} are read as month, day and year; "
            "pandas.to_datetime(time, dayfirst=True), or 2020-01-31, says otherwise"
        )
    return day is not None or (month is None and all(one[2] == "." for one in numbers))
