"""Tables as people write them: comments above the header, blanks around fields, decimal commas, ids with leading zeros,
and the index that pandas writes beside a frame."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ppl_models.core.errors import warn_of_data
from ppl_models.data.files.headers import fields_of, find_header, plain_name
from ppl_models.data.held import is_string
from ppl_models.data.lazy import pandas as pd

#: Columns of lists of edges, ratings and cells that hold numbers, whatever zeros these begin with.
_VALUES = frozenset(["weight", "rating", "value", "stars", "score", "time", "timestamp", "date", "year", "count"])
_LEADING = r"[+-]?0\d+"
_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
#: 3,5 and ,5 and 1.024,5; and what may be either a decimal or 1,024 as a thousand and twenty-four.
_DECIMAL = r"[+-]?(?:\d+|\d{1,3}(?:\.\d{3})+)?,\d+(?:[eE][+-]?\d+)?"
_THOUSANDS = r"[+-]?[1-9]\d{0,2}(?:,\d{3})+"


def comment_lines(lines: Sequence[str], between: str) -> int:
    """How many of the first lines, none of them blank, are comments (# or %) above a table.

    The last one is the header itself where it has as many fields as the lines below, of which none looks like one:
    ``# FromNodeId,ToNodeId``.
    """
    number = next((n for n, line in enumerate(lines) if line.lstrip()[:1] not in ("#", "%")), 0)
    if not number:
        return 0
    below = fields_of(lines[number:], between)
    last = fields_of([lines[number - 1].lstrip("#% ")], between)
    width = len(below[0]) if below else 0
    alike = width > 1 and bool(last) and len(last[0]) == width
    return number - 1 if alike and not find_header(below, lists=(width,), custom=False).header else number


def without_lines(text: str, number: int) -> str:
    """A text without its first ``number`` lines that are not blank, and the blank ones among them."""
    while number:
        line, _, text = text.partition("\n")
        number -= bool(line.strip())
    return text


def strip_blanks(frame: pd.DataFrame, text: str, between: str) -> pd.DataFrame:
    """The table without blanks at the ends of its texts and names, unless quotes say that they are meant."""
    mark = re.escape(between)
    if len(between) > 1 or not re.search(rf"[ \t]+(?:{mark}|\n|\Z)", text):
        return frame
    if re.search(rf'(?:^|{mark})"[ \t]|[ \t]"(?:{mark}|$)', text, re.MULTILINE):
        return frame
    frame = frame.rename(columns=lambda name: name.strip() if is_string(name) else name)
    return _replace_columns(frame, {place: _texts(frame.iloc[:, place]).str.strip() for place in _text_places(frame)})


def with_decimals(frame: pd.DataFrame, between: str) -> pd.DataFrame:
    """The table with columns of numbers that have decimal commas (3,5) as numbers, where fields are not kept apart by
    commas; as it is where all of them may have commas between thousands (1,024)."""
    if between not in (";", "\t"):
        return frame
    found = {}
    for place in _text_places(frame):
        column = _texts(frame.iloc[:, place])
        given = column.dropna()
        if len(given) and given.str.fullmatch(f"{_NUMBER}|{_DECIMAL}").all() and given.str.contains(",").any():
            found[place] = column
    if all(column.dropna().str.fullmatch(f"{_NUMBER}|{_THOUSANDS}").all() for column in found.values()):
        return frame
    return _replace_columns(frame, {place: _decimal(column) for place, column in found.items()})


def _decimal(column: pd.Series) -> pd.Series:
    has_comma = column.str.contains(",").fillna(False).astype(bool)
    points = column.str.replace(".", "", regex=False).str.replace(",", ".", regex=False)
    found: Any = pd.to_numeric(column.where(~has_comma, points))
    return found


def with_ids(
    frame: pd.DataFrame, texts: pd.DataFrame, *, lists: bool, header: bool, known: Sequence[Any] = ()
) -> pd.DataFrame:
    """The table with ids that have leading zeros as texts: 007 and 7 are two.

    texts: the same table with every field as a text. lists: whether it may be a list of edges, ratings or cells, whose
    columns hold ids but for those of known values; of other tables the first column does, where no other has leading
    zeros, and those that are called so.
    """
    padded = [
        bool(pd.api.types.is_numeric_dtype(frame.iloc[:, j]))
        and bool(texts.iloc[:, j].str.strip().str.fullmatch(_LEADING).fillna(False).any())
        for j in range(frame.shape[1])
    ]
    names = [plain_name(name) for name in frame.columns]
    if lists:
        ids = [name not in _VALUES if header else j < 2 for j, name in enumerate(names)]
    else:
        told = set(map(str, known))
        called = [str(frame.columns[j]) in told or (header and name.endswith(("id", "index", "name", "label", "code")))
                  for j, name in enumerate(names)]  # fmt: skip
        ids = [called[j] or (j == 0 and not any(padded[1:])) for j in range(len(names))]
    return _replace_columns(frame, {j: texts.iloc[:, j].str.strip() for j in range(len(names)) if padded[j] and ids[j]})


def may_have_zeros(text: str, between: str) -> bool:
    """Whether some field of a text may begin with a zero that is no number's."""
    return re.search(rf'(?:^|"|{between if len(between) > 1 else re.escape(between)})[ \t]*0\d', text, re.M) is not None


def without_index(frame: pd.DataFrame, where: str | Path = "the table", asked: Iterable[Any] = ()) -> pd.DataFrame:
    """The table without the numbers of its rows, 0 to n - 1, in a first column without a name or called "index", as
    ``to_csv`` and ``reset_index`` write them; a DataWarning says so. asked: names that are asked for, and stay."""
    while frame.shape[1] > 1 and (name := frame.columns[0]) not in asked and str(name) not in asked:
        unnamed = str(name).startswith("Unnamed: 0") or str(name) in ("", "nan")
        column = frame.iloc[:, 0]
        is_whole = pd.api.types.is_integer_dtype(column) and not column.isna().any()
        if not (unnamed or (plain_name(name) == "index" and len(frame) > 1)) or not is_whole or not len(frame):
            break
        if not np.array_equal(column.to_numpy(), np.arange(len(frame))):
            break
        warn_of_data(
            f"{where}: the first column ({'unnamed' if unnamed else repr(name)}) numbers the rows from 0 to "
            f"{len(frame) - 1}: it is taken for the index of a frame and left out"
        )
        frame = frame.iloc[:, 1:]
    return frame


def _text_places(frame: pd.DataFrame) -> list[int]:
    return [j for j, kind in enumerate(frame.dtypes) if pd.api.types.is_string_dtype(kind) or kind.kind == "O"]


def _texts(column: pd.Series) -> pd.Series:
    return column.astype("str") if column.dtype == object else column


def _replace_columns(frame: pd.DataFrame, columns: dict[int, pd.Series]) -> pd.DataFrame:
    """The table with other columns at these places: names may occur twice."""
    for place, column in columns.items():
        frame.isetitem(place, column)
    return frame
