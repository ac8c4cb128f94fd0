"""Writes the two blocks of README.md that are not typed by hand: the table of models, and the headlines of the results.

    python -m benchmarks.readme_results           # brings README.md up to date
    python -m benchmarks.readme_results --check   # exit code 1 where it is not

Figures come from benchmarks/results/*.json alone. The pages in docs/results quote whole tables of the same files.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks._headlines import HEADLINES, Headline
from benchmarks._report import RESULTS, cell, markdown_table
from ppl_models import IRM, MODELS
from ppl_models.kinds.ratings import RatingModel

README = Path(__file__).resolve().parents[1] / "README.md"

#: What the table says of kinds of data, in its order.
_GROUPS = {
    "rows of a table": ("binary", "real", "counts", "categories"),
    "documents": ("documents", "sequences"),
    "ratings and relations": ("ratings", "relations"),
    "graphs": ("graph", "digraph", "multigraph"),
}

#: The reports of which the README has a line; the page on what is measured has them all.
_FIRST = (
    "noca_recovery",
    "cvq_bars",
    "aspect_speed",
    "topics_speed",
    "ratings",
    "polblogs",
    "overlapping",
    "calibration",
)

_ENTRY = re.compile(r"\{([^\[{}]+)\[([^\]]+)\]\[([^\]]+)\](?::([^}]+))?\}")


# ----- models -----------------------------------------------------------------------------------------------------


def models_block() -> str:
    """The models by what they are for, a line for each kind of data."""
    kinds = [*MODELS.values(), IRM]
    of_kind = {kind: kind.example().model.data_kind for kind in kinds}
    of_kind |= {kind: "ratings" for kind in kinds if issubclass(kind, RatingModel)}  # a choice is a category, too
    rows = []
    for group, data in _GROUPS.items():
        names = [kind.__name__ for kind in sorted(kinds, key=lambda one: one.__name__.lower()) if of_kind[kind] in data]
        rows.append([group, ", ".join(f"`{name}`" for name in names)])
    return markdown_table(["data", "models"], rows)


# ----- results ----------------------------------------------------------------------------------------------------


def results_block() -> str:
    """The headlines of a few reports, each with a link."""
    return headlines([each for each in HEADLINES if each.report in _FIRST], "benchmarks/results")


def headlines(chosen: Sequence[Headline], reports: str) -> str:
    """A table of headlines, with links to the reports in the folder ``reports``."""
    return markdown_table(["", "this suite", "beside it", ""], [_line(each, reports) for each in chosen])


def _line(headline: Headline, reports: str) -> list[str]:
    report = json.loads((RESULTS / f"{headline.report}.json").read_text("utf-8"))
    figures = [filled(text, report) for text in (headline.here, headline.beside)]
    return [headline.question, *figures, f"[report]({reports}/{headline.report}.md)"]


def filled(text: str, report: Mapping[str, Any]) -> str:
    """``text`` with the entries of a report that it names; a LookupError says which entry is not there."""
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


# ----- README -----------------------------------------------------------------------------------------------------


def blocks() -> dict[str, str]:
    """Marker -> text between ``<!-- marker -->`` and ``<!-- /marker -->``."""
    return {"models": models_block(), "results": results_block()}


def updated(text: str, contents: dict[str, str]) -> str:
    """``text`` with the marked blocks replaced."""
    for marker, content in contents.items():
        pattern = re.compile(rf"(<!-- {marker} -->\n).*?(<!-- /{marker} -->)", re.DOTALL)
        if len(pattern.findall(text)) != 1:
            raise ValueError(f"expected one block between <!-- {marker} --> and <!-- /{marker} -->")
        text = pattern.sub(lambda found, content=content: f"{found[1]}{content}\n{found[2]}", text)
    return text


def main() -> int:
    parser = argparse.ArgumentParser(description="bring the marked blocks of README.md up to date")
    parser.add_argument("--check", action="store_true", help="change nothing; exit code 1 where a block is out of date")
    arguments = parser.parse_args()
    before = README.read_text("utf-8")
    after = updated(before, blocks())
    if not arguments.check:
        README.write_text(after, "utf-8")
    return int(arguments.check and before != after)


if __name__ == "__main__":
    raise SystemExit(main())
