"""Whether the first line of a table is a header, and how its fields are kept apart: by what stands in its lines."""

from __future__ import annotations

import csv
import itertools
import re
from collections.abc import Hashable, Sequence
from typing import Any, Literal, NamedTuple

#: True: the first line is a header; False: it is data; "auto": what it looks like.
Header = bool | Literal["auto"]

#: What people call the columns of lists of edges, ratings and cells, without case, ``_`` and blanks.
_KNOWN = frozenset([
    "source", "target", "from", "to", "src", "dst", "sender", "receiver", "fromnodeid", "tonodeid", "node1", "node2",
    "nodea", "nodeb", "ego", "alter", "weight", "user", "userid", "item", "itemid", "movie", "movieid", "rating",
    "stars", "score", "value", "time", "timestamp", "relation", "predicate", "id", "index", "name", "label", "text",
    "document", "docid",
])  # fmt: skip
_MISSING = frozenset(["", "na", "nan", "n/a", "null", "none", "<na>"])
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
#: Lines that are looked at.
_LINES = 500
#: Names of columns occur nowhere below them, where what is below occurs so often and in so many cells.
_REPEATS, _CELLS = 3.0, 20


#: Pairs of names of the two ends of edges.
_ENDS = (("source", "target"), ("from", "to"), ("src", "dst"), ("sender", "receiver"), ("fromnodeid", "tonodeid"),
         ("node1", "node2"), ("nodea", "nodeb"), ("ego", "alter"))  # fmt: skip


class Found(NamedTuple):
    """What the first line was found to be. sure: whether anything speaks for it but custom."""

    header: bool
    why: str
    sure: bool = True


def plain_name(name: Hashable) -> str:
    """A column's name without case, ``_`` and blanks: userId, user_id and User ID are one name."""
    return re.sub(r"[\s_]", "", str(name)).lower().lstrip("#")


def end_columns(names: Sequence[Any]) -> tuple[Any, Any] | None:
    """The columns of a table that hold the ends of edges, by what such columns are called."""
    plain = {plain_name(name): name for name in names}
    return next(((plain[one], plain[other]) for one, other in _ENDS if one in plain and other in plain), None)


def separator(text: str, ending: str) -> str:
    r"""What keeps the fields of a table apart: "," or ";" in CSV, else the first of "::", tab, "," and blanks (``\s+``)
    that cuts all lines into as many fields, two or more; tabs not where fields between them are numbers with blanks."""
    lines = [line for line in text.split("\n") if line.strip()][:_LINES]
    usual = {".csv": [",", ";", "\t"], ".tsv": ["\t"], ".tab": ["\t"]}.get(ending, ["::", "\t", ",", ";", r"\s+"])
    for one in usual:
        rows = fields_of(lines, one)
        widths = {len(fields) for fields in rows}
        several = any(" " in cell and all(map(is_number_text, cell.split())) for row in rows for cell in row)
        if len(widths) == 1 and widths.pop() > 1 and not (several and one == "\t" and r"\s+" in usual):
            return one
    return usual[0] if ending in (".csv", ".tsv", ".tab") else r"\s+"


def fields_of(lines: Sequence[str], between: str) -> list[list[str]]:
    """The fields of lines, without quotes and blanks around them."""
    if len(between) > 1:
        return [re.split(between, line.strip()) for line in lines]
    rows = csv.reader(lines, delimiter=between, skipinitialspace=True)
    return [[field.strip() for field in row] for row in rows if row]


def find_header(rows: Sequence[Sequence[str]], *, lists: Sequence[int] = (), custom: bool = True) -> Found:
    """Whether the first of the rows names the columns of the others.

    It does where it has text above a column of numbers, or names that such tables have; it does not where what it has
    stands below too, or is numbers as below, unless these count the columns (0, 1, 2, ...; 1990, 1991, ...).

    lists: numbers of columns with which a table is a list of pairs, whose numbers are never names. custom: what is
    taken where nothing speaks for either.
    """
    rows = rows[:_LINES]
    first, body = list(rows[0]), [row for row in rows[1:] if len(row) == len(rows[0])]
    listed = len(first) in lists
    columns = [[cell for row in body if not _is_missing(cell := row[j])] for j in range(len(first))]
    numeric = [bool(column) and all(map(is_number_text, column)) for column in columns]
    texts = [j for j, cell in enumerate(first) if not (_is_missing(cell) or is_number_text(cell))]
    above = [first[j] for j in texts if numeric[j]]
    if above:
        return Found(True, f"{above[0]!r} stands above numbers")
    if len(first) > 1 and _is_missing(first[0]) and len(body) > 1:
        if columns[0] == [str(n) for n in range(len(body))]:
            return Found(True, "it has no entry above the numbers of the rows")
        if len(columns[0]) == len(body) == len(set(columns[0])) and set(columns[0]) <= set(first[1:]):
            return Found(True, "it names the rows too")
    pooled = {cell for j in (0, 1) for cell in columns[j]} if listed else set()
    below = [first[j] for j in texts if first[j] in pooled or first[j] in columns[j]]
    known = [first[j] for j in texts if plain_name(first[j]) in _KNOWN]
    numbers = [j for j, cell in enumerate(first) if is_number_text(cell) and (numeric[j] or not body)]
    if known and not below and (not numbers or 2 * len(known) >= len(first)):
        return Found(True, f"{known[0]!r} is what such columns are called")
    if numbers:
        return _of_numbers(first, columns, numbers, listed=listed, labelled=bool(known) or _is_missing(first[0]))
    if below:
        return Found(False, f"{below[0]!r} stands below it too")
    if len(set(first)) < len(first):
        return Found(False, "it has an entry twice")
    if not listed and len(first) > 1 and _is_missing(first[0]):
        return Found(True, "it has no entry above the labels of the rows")
    cells = [cell for j in texts for cell in columns[j]]
    if len(cells) >= _CELLS and len(cells) >= _REPEATS * len(set(cells)):
        return Found(True, f"{first[texts[0]]!r} stands nowhere below, where others stand several times")
    return Found(custom, "nothing tells it from the other lines", sure=not body)


def _of_numbers(
    first: list[str], columns: list[list[str]], numbers: list[int], *, listed: bool, labelled: bool
) -> Found:
    """Numbers above numbers: data, unless they count the columns or are far from what is below."""
    data = Found(False, f"it has numbers where the others have them ({first[numbers[0]]})")
    if listed or not columns[numbers[0]]:
        return data
    values = [float(first[j]) for j in numbers]
    steps = {b - a for a, b in itertools.pairwise(values)}
    if any(value != int(value) for value in values) or any(step <= 0 for step in steps):
        return data
    outside = [
        not min(map(float, columns[j])) <= value <= max(map(float, columns[j]))
        for j, value in zip(numbers, values, strict=True)
    ]
    counts = steps <= {1.0} and (values[0] in (0.0, 1.0) or len(values) > 2)
    if not counts and not (all(outside) and len(values) > 1):
        return data
    span = f"{first[numbers[0]]} to {first[numbers[-1]]}"
    return Found(True, f"it numbers the columns, {span}", sure=any(outside) or labelled or len(values) > 4)


def _is_missing(cell: str) -> bool:
    return cell.lower() in _MISSING


def is_number_text(cell: str) -> bool:
    """Whether a field is a number."""
    return _NUMBER.fullmatch(cell) is not None
