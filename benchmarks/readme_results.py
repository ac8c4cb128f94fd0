"""Writes the two blocks of README.md that are not typed by hand: the table of models, and that of models beside peers.

    python -m benchmarks.readme_results           # brings README.md up to date
    python -m benchmarks.readme_results --check   # exit code 1 where it is not

Figures come from benchmarks/results/peers.json alone, of rows that are fresh (``benchmarks.stale``). The pages in
docs/results quote whole tables of all reports.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from benchmarks._report import markdown_table, read_tables
from benchmarks.stale import is_fresh
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

#: Rows of the report on peers that README.md has, by their lines; the page on what is measured has all.
_FIRST = (
    "NOCA(",
    "CVQ(",
    "AspectBernoulli(",
    "fit(LDA(num_topics=20), x)",
    "method='learned'",
    "CTM(",
    "HDP(",
    "SupervisedLDA(",
    "PoissonPCA(",
    "MixtureOfBernoullis(",
    "PMF(num_components=10), ratings)",
    "DegreeCorrectedSBM(",
    "MMSB(",
    "RTM(",
    "RBM(",
)
_COLUMNS = {
    "lines": "lines",
    "on what": "score",
    "score": "this suite",
    "theirs": "beside it",
    "CPU s": "CPU s",
    "theirs: CPU s": "beside it, CPU s",
    "peer": "what is beside it",
}


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
    """The models beside their peers, those of ``_FIRST`` that the code that is there has been measured by."""
    tables = read_tables("peers").values()
    rows = [dict(zip(table.columns, row, strict=True)) for table in tables for row in table.rows]
    fresh = [row for row in rows if any(part in row["lines"] for part in _FIRST) and is_fresh(row)]
    return markdown_table(list(_COLUMNS.values()), [[row[column] for column in _COLUMNS] for row in fresh])


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
