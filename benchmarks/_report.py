"""Results files of the benchmarks: Markdown to read and JSON to compute with, stamped with where they came from.

from benchmarks._report import Table, write_report  # run as: python -m benchmarks.quality.noca_recovery

write_report("noca_recovery", "Recovery", [Table("Default fit", ["set", "found"], [["IMG", 8]], note="...")])
"""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import math
import os
import platform
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks._freshness import commit, digest, models_of
from ppl_models.data.atomic import write_text

RESULTS = Path(__file__).parent / "results"
#: What ``--quick`` runs write, which are no results.
QUICK = RESULTS / "quick"


@dataclass
class Table:
    """A titled table with a note above it, and figures (file names beside the report) below it.

    measured, commit, engines: when, at which commit, and the digest of every model's code (``_freshness``); filled in
        by the first report that the table is written to, and kept where it is written again.
    """

    title: str
    columns: Sequence[str] = ()
    rows: list[Any] = field(default_factory=list)
    note: str = ""
    figures: Sequence[str] = ()
    measured: str = ""
    commit: str = ""
    engines: dict[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        lines = [dict(zip(self.columns, row, strict=True)) for row in self.rows]
        beside = {"figures": list(self.figures), "measured": self.measured}
        beside |= {"commit": self.commit, "engines": self.engines}
        return {"title": self.title, "note": self.note, "rows": lines, **beside}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Table:
        rows = content["rows"]
        lines = [list(row.values()) for row in rows]
        return cls(**{**content, "columns": list(rows[0]) if rows else [], "rows": lines})


def environment() -> dict[str, Any]:
    """Date, versions, cores and threads, and the command of this process."""
    import torch

    versions = {"python": platform.python_version()}
    for package in ("torch", "pyro-ppl", "numpy", "scipy", "scikit-learn"):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "versions": versions,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "command": _command(),
        "commit": commit(),
    }


def _command() -> str:
    """This process as it is started from the repository's root, with names in place of paths on this machine."""
    script, root = Path(sys.argv[0]).resolve(), Path(__file__).resolve().parents[1]
    arguments = [_named(before, argument) for before, argument in zip(sys.argv, sys.argv[1:], strict=False)]
    if not script.is_relative_to(root):
        return " ".join(["python", script.name, *arguments])
    return " ".join(["python -m", ".".join(script.relative_to(root).with_suffix("").parts), *arguments])


def _engines() -> dict[str, str]:
    """The digest of each model that this process' command measures."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    name = "" if spec is None else str(spec.name)
    return {model: digest(model) for model in models_of(name)} if name.startswith("benchmarks.") else {}


def _named(option: str, argument: str) -> str:
    """An absolute path as the upper-case name of its option, or of what stands before "=": the report shows how it was
    made, not where."""
    name, equal, path = argument.rpartition("=")
    if not Path(path).is_absolute():
        return argument
    return name + equal + (name if equal else option.lstrip("-")).replace("-", "_").upper()


def cell(value: Any) -> str:
    """A table cell: floats to four significant digits (log-likelihoods and the like to three decimals)."""
    if value is None:
        return ""
    if not isinstance(value, float):
        return str(value)
    if not math.isfinite(value):
        return str(value)
    return f"{value:.3f}" if abs(value) >= 1 else f"{value:.4g}"


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(cell(value).replace("|", "\\|") for value in row) + " |" for row in rows]
    return "\n".join(lines)


def _section(table: Table, date: str) -> str:
    parts = [f"## {table.title}"]
    note = table.note if table.measured == date else f"{table.note} (Measured {table.measured}.)".strip()
    if note:
        parts.append(note)
    if table.columns:
        parts.append(markdown_table(table.columns, table.rows))
    parts += [f"![{Path(figure).stem}]({figure})" for figure in table.figures]
    return "\n\n".join(parts)


def read_tables(name: str, *, folder: Path = RESULTS) -> dict[str, Table]:
    """The tables of an earlier report by title, so that a part of it can be measured again; {} where there is none."""
    path = folder / f"{name}.json"
    if not path.is_file():
        return {}
    return {table["title"]: Table.from_json(table) for table in json.loads(path.read_text())["tables"]}


def write_report(
    name: str,
    title: str,
    tables: Sequence[Table],
    meta: Mapping[str, Any] | None = None,
    *,
    intro: str = "",
    folder: Path = RESULTS,
) -> Path:
    """Write ``name``.md and ``name``.json into ``folder`` and return the path of the former."""
    folder.mkdir(parents=True, exist_ok=True)
    stamp = {**environment(), **(meta or {})}
    engines = _engines()
    for table in tables:
        if not table.measured:
            table.measured, table.commit = stamp["date"], stamp["commit"]
            table.engines = table.engines or engines
    versions = ", ".join(f"{package} {version}" for package, version in stamp["versions"].items())
    extra = "".join(f"\n{key}: {cell(value)}  " for key, value in (meta or {}).items())
    head = (
        f"# {title}\n\n`{stamp['command']}`  \n{stamp['date']}; {versions}; "
        f"{stamp['cores']} cores, {stamp['threads']} thread(s); commit {stamp['commit']}  {extra}"
    )
    parts = [head, *([intro] if intro else []), *(_section(table, stamp["date"]) for table in tables)]
    path = folder / f"{name}.md"
    write_text(path, "\n\n".join(parts) + "\n")
    content = {"title": title, **stamp, "intro": intro, "tables": [table.as_json() for table in tables]}
    write_text(folder / f"{name}.json", json.dumps(content, indent=1, default=float) + "\n")
    return path
