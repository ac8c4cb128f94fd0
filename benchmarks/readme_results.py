"""Writes the two blocks of README.md that are not typed by hand: the table of models, and the headlines of the results.

    python -m benchmarks.readme_results           # brings README.md up to date
    python -m benchmarks.readme_results --check   # exit code 1 where it is not

Figures come from benchmarks/results/*.json alone. The pages in docs/results quote whole tables of the same files.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks._headlines import HEADLINES, Headline
from benchmarks._report import RESULTS, cell, markdown_table
from ppl_models import MODELS, Model

README = Path(__file__).resolve().parents[1] / "README.md"

#: What the table says of kinds of data, in its order.
_DATA = {
    "binary": "rows of 0/1",
    "real": "rows of real numbers",
    "counts": "rows of counts",
    "categories": "answers to questions",
    "ratings": "ratings",
    "documents": "documents",
    "graph": "graphs",
    "digraph": "graphs",
    "multigraph": "graphs",
}

_ENTRY = re.compile(r"\{([^\[{}]+)\[([^\]]+)\]\[([^\]]+)\](?::([^}]+))?\}")


# ----- models -----------------------------------------------------------------------------------------------------


def models_block() -> str:
    """The models: what each says, and of which data."""
    rows = [[f"`{kind.__name__}`", kind.summary, _data(kind)] for kind in MODELS.values()]
    order = {data: place for place, data in enumerate(_DATA.values())}
    rows.sort(key=lambda row: order.get(row[-1], len(order)))
    return markdown_table(["model", "what it is", "data"], rows)


def _data(kind: type[Model]) -> str:
    name = kind.example().model.data_kind
    return _DATA.get(name, name)


# ----- results ----------------------------------------------------------------------------------------------------


def results_block(folder: Path = RESULTS) -> str:
    """The headlines, each with a link to its report."""
    return markdown_table(["", "this suite", "beside it", ""], [_line(each, folder) for each in HEADLINES])


def _line(headline: Headline, folder: Path) -> list[str]:
    report = json.loads((folder / f"{headline.report}.json").read_text("utf-8"))
    figures = [filled(text, report) for text in (headline.here, headline.beside)]
    return [headline.question, *figures, f"[report](benchmarks/results/{headline.report}.md)"]


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
