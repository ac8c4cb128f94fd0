"""What a source shows, and the numbers of a report that decide whether it holds, for ``benchmarks.reproductions``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks._report import cell

_ENTRY = re.compile(r"\{([^\[{}]+)\[([^\]]+)\]\[([^\]]+)\](?::([^}]+))?\}")


@dataclass(frozen=True)
class Item:
    """A figure or table of a source.

    ours: what is found here, with entries of the report as :func:`filled` looks them up. rules: the claims in
    words that numbers of the report decide, each with a function of them. Without rules there is a picture or a list to
    look at. figures: beside the report. run: how it is made, where no report has it.
    """

    what: str
    claim: str
    report: str = ""
    ours: str = ""
    rules: Sequence[tuple[str, Callable[[Numbers], bool]]] = ()
    figures: Sequence[str] = ()
    run: str = ""


class Numbers:
    """The entries of a report as numbers: of "a of b" the share, of "a / b / c" the median, else the first in it."""

    def __init__(self, report: dict[str, Any]):
        self.report = report

    def rows(self, title: str, cells: str = "") -> list[dict[str, Any]]:
        """The rows of the table whose title begins so, those that have all these cells, ";" between them."""
        table = next((one for one in self.report["tables"] if one["title"].startswith(title)), None)
        if table is None:
            raise LookupError(f"no table {title!r} in {self.report['title']!r}")
        wanted = {text.strip() for text in cells.split(";")} - {""}
        rows = [row for row in table["rows"] if wanted <= set(map(cell, row.values()))]
        if not rows:
            raise LookupError(f"no row with {sorted(wanted)} in {title!r}")
        return rows

    def column(self, title: str, column: str, cells: str = "") -> list[float]:
        return [number(row[column]) for row in self.rows(title, cells)]

    def __call__(self, title: str, column: str, cells: str = "") -> float:
        """One entry."""
        found = self.column(title, column, cells)
        if len(found) != 1:
            raise LookupError(f"{len(found)} rows with {cells!r} in {title!r}, expected one")
        return found[0]

    def across(self, title: str, beginning: str, cells: str) -> list[float]:
        """The entries of one row in the columns whose names begin so, those that there are."""
        (row,) = self.rows(title, cells)
        return [number(value) for name, value in row.items() if name.startswith(beginning) and value]

    def note(self, title: str, pattern: str) -> float:
        """What the group of a pattern matches in the note above a table."""
        note = next(one["note"] for one in self.report["tables"] if one["title"].startswith(title))
        found = re.search(pattern, note)
        if found is None:
            raise LookupError(f"no {pattern!r} in the note of {title!r}")
        return number(found[1])


def number(value: Any) -> float:
    if isinstance(value, int | float):
        return float(value)
    text = str(value).replace(",", "")
    share = re.fullmatch(r"(\d+) of (\d+)", text)
    if share:
        return int(share[1]) / int(share[2])
    parts = text.split(" / ")
    found = re.search(r"-?\d+(\.\d+)?(e[-+]?\d+)?", parts[len(parts) // 2])
    if found is None:
        raise LookupError(f"no number in {value!r}")
    return float(found[0])


# ----- entries of reports ----------------------------------------------------------------------------------------


def filled(text: str, report: Mapping[str, Any]) -> str:
    """``text`` with the entries of a report that it names; a LookupError says which entry is not there.

    ``{beginning of a table's title[cells of the row][column]}`` is an entry of a table. The cells, one or more with ";"
    between, have to name one row; "*" is all rows. After ":" comes a format, or "median", which is the second of "min /
    median / max".
    """
    return _ENTRY.sub(lambda found: _entry(report, *found.groups()), text)


def _entry(report: Mapping[str, Any], title: str, cells: str, column: str, form: str | None) -> str:
    tables = [table for table in report["tables"] if table["title"].startswith(title)]
    if not tables:
        raise LookupError(f"no table {title!r}; there are {[table['title'] for table in report['tables']]}")
    rows = tables[0]["rows"]
    if cells != "*":
        wanted = {text.strip() for text in cells.split(";")}
        rows = [row for row in rows if wanted <= set(map(cell, row.values()))]
        if len(rows) != 1:
            raise LookupError(f"{len(rows)} rows with {sorted(wanted)} in {title!r}, expected one")
    if column not in rows[0]:
        raise LookupError(f"no column {column!r} in {title!r}; there are {list(rows[0])}")
    return ", ".join(_formatted(row[column], form) for row in rows)


def _formatted(value: Any, form: str | None) -> str:
    if form == "median":
        return value.split(" / ")[1]
    return format(value, form) if form else cell(value)
