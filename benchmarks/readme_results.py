"""Writes the two blocks of README.md that are not typed by hand: the table of models, and what was measured.

    python -m benchmarks.readme_results           # brings README.md up to date
    python -m benchmarks.readme_results --check   # exit code 1 where it is not

Figures come from benchmarks/results/*.json alone; a benchmark that has not been run is left out.
"""

from __future__ import annotations

import argparse
import functools
import json
import re
from pathlib import Path
from typing import Any

from benchmarks._readme_quotes import QUOTES, Quote
from benchmarks._report import RESULTS, markdown_table
from custom_inference.methods import every_method, methods_for
from ppl_models import MODELS

README = Path(__file__).resolve().parents[1] / "README.md"

#: What the table says of names that are no method object's.
_CALLS = {"default": "`fit(model, x)`"}


# ----- models x methods -------------------------------------------------------------------------------------------


def models_block() -> str:
    """The models, the methods, and which of these apply to which: those of every model are named once."""
    applicable = {kind: methods_for(kind.example().model) for kind in MODELS.values()}
    everywhere = [method for method in every_method() if all(method in names for names in applicable.values())]
    models = [
        [f"`{kind.__name__}`", kind.summary, ", ".join(f"`{name}`" for name in names if name not in everywhere) or "-"]
        for kind, names in applicable.items()
    ]
    methods = [[f"`{method}`", _call(method)] for method in every_method()]
    parts = [
        markdown_table(["model", "what it says", "methods"], models),
        f"Methods of every model: {', '.join(f'`{name}`' for name in everywhere)}. What the names stand for:",
        markdown_table(["name", "in Python"], methods),
    ]
    return "\n\n".join(parts)


def _call(name: str) -> str:
    if name in _CALLS:
        return _CALLS[name]
    make = every_method()[name]
    if isinstance(make, functools.partial):
        settings = ", ".join(f'{key}="{value}"' for key, value in make.keywords.items())
        return f"`{make.func.__name__}({settings})`"  # pyright: ignore[reportFunctionMemberAccess]
    return f"`{make.__name__}()`"


# ----- what is measured -------------------------------------------------------------------------------------------


def results_block(folder: Path = RESULTS) -> str:
    """The quoted tables, each with its source, and a list of all reports."""
    reports = {path.stem: json.loads(path.read_text("utf-8")) for path in sorted(folder.glob("*.json"))}
    parts = [text for quote in QUOTES if (text := _quoted(quote, reports.get(quote.report)))]
    if reports:
        parts.append("All reports:")
        listed = (f"- {_link(name, report)}, `{report.get('command', name)}`" for name, report in reports.items())
        parts.append("\n".join(listed))
    else:
        parts.append("Nothing has been measured yet: see `CONTRIBUTING.md` for how to run the benchmarks.")
    return "\n\n".join(parts)


def _quoted(quote: Quote, report: dict[str, Any] | None) -> str | None:
    tables = [table for table in (report or {}).get("tables", []) if table["title"].startswith(quote.title)]
    if report is None or not tables or not tables[0]["rows"]:
        return None
    lines = tables[0]["rows"]
    columns = [column for column in quote.columns if column in lines[0]]
    measured = [line for line in lines if line.get("runs") != 0]
    rows = [[_one_line(line.get(column)) for column in columns] for line in measured]
    return f"{quote.sentence}\n\n{markdown_table(columns, rows)}\n\n{_source(quote.report, report)}"


def _one_line(value: Any) -> Any:
    return value.replace("|", "\\|").replace("\n", " ") if isinstance(value, str) else value


def _link(name: str, report: dict[str, Any]) -> str:
    return f"[{report.get('title', name)}](benchmarks/results/{name}.md)"


def _source(name: str, report: dict[str, Any]) -> str:
    """Where figures come from: report, date, versions, machine, command."""
    versions = report.get("versions", {})
    stamp = [
        str(report.get("date", "undated")),
        *(f"{package} {versions[package]}" for package in ("python", "torch") if package in versions),
        f"{report.get('cores', '?')} cores, {report.get('threads', '?')} thread(s)",
        f"`{report.get('command', name)}`",
    ]
    return f"{_link(name, report)}: {'; '.join(stamp)}"


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
