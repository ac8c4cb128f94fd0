"""Markdown tables made of the code and of the results of the benchmarks: no entry is typed."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any

import custom_inference
from benchmarks._report import RESULTS, markdown_table
from benchmarks.stale import stale
from custom_inference.core.registry import presentation_of
from custom_inference.methods import default_method, every_method, methods_for
from ppl_models import MODELS, Model


class UnknownEntry(ValueError):
    """A page asks for a report, a table or a kind of data that does not exist."""


# ----- models -----------------------------------------------------------------------------------------------------


def kind_of(model: type[Model]) -> str:
    """The kind of data that a model is for: a heading of "Choose a model"."""
    kind = model.example().model.data_kind
    if kind.endswith("graph"):
        return "graphs"
    return {"categories": "responses", "sequences": "documents"}.get(kind, kind)


KINDS = ("binary", "real", "counts", "documents", "responses", "ratings", "graphs")


def models_table(kind: str) -> str:
    """The models of one kind of data: what each says, its local latents, its default method."""
    if kind not in KINDS:
        raise UnknownEntry(f"unknown kind of data {kind!r}; valid: {', '.join(KINDS)}")
    rows = []
    for model in MODELS.values():
        if kind_of(model) == kind:
            example = model.example()
            default = default_method(example.model, example.data)
            local = f"`{example.model.local_site}`: {presentation_of(example.model).local}"
            rows.append([_linked(model), model.summary.split(": ", 1)[-1], local, f"`{default.name}`"])
    return markdown_table(["model", "what it says", "`fit.transform` gives", "default method (of its example)"], rows)


def _linked(model: type[Model]) -> str:
    return f"{{py:class}}`~ppl_models.{model.__name__}`"


def applicability_table() -> str:
    """Which named methods apply to which model: a row a method, a column a kind of data, where they differ."""
    applicable = {model: methods_for(model.example().model) for model in MODELS.values()}
    rows = []
    for method in every_method():
        models = [model for model, names in applicable.items() if method in names]
        which = "every model" if len(models) == len(MODELS) else ", ".join(_linked(model) for model in models)
        rows.append([f"`{method}`", _call(method), which])
    return markdown_table(["name", "in Python", "applies to"], rows)


def _call(name: str) -> str:
    """What a method's name stands for in Python."""
    if name == "default":
        return "`fit(model, x)`"
    make = every_method()[name]
    if isinstance(make, functools.partial):
        settings = ", ".join(f'{key}="{value}"' for key, value in make.keywords.items())
        return f"`{make.func.__name__}({settings})`"  # pyright: ignore[reportFunctionMemberAccess]
    return f"`{make.__name__}()`"


def settings_table() -> str:
    """The methods' classes and their settings with defaults."""
    kinds = dict.fromkeys(getattr(make, "func", make) for make in every_method().values())
    rows = [
        [f"{{py:class}}`~custom_inference.{kind.__name__}`", ", ".join(map(_setting, fields(kind)))]
        for kind in kinds
        if kind.__name__ in custom_inference.__all__ and is_dataclass(kind)
    ]
    return markdown_table(["method", "settings"], rows)


def _setting(entry: Any) -> str:
    return f"`{entry.name}`" if entry.default is MISSING else f"`{entry.name}={entry.default!r}`"


def available(lines: Sequence[str]) -> str:
    """A list of the lines "name: text" whose name is public in ``custom_inference``, linked."""
    split = [line.partition(":") for line in lines if line.strip()]
    return "\n".join(
        f"- {{py:obj}}`~custom_inference.{name.strip()}`. {text.strip()}"
        for name, _, text in split
        if name.strip() in custom_inference.__all__
    )


# ----- results ----------------------------------------------------------------------------------------------------


def result_files(report: str, folder: Path = RESULTS) -> Path:
    path = folder / f"{report}.json"
    if not path.is_file():
        known = ", ".join(sorted(each.stem for each in folder.glob("*.json")))
        raise UnknownEntry(f"no report {report!r}; there are {known}")
    return path


def figures(
    report: str, title: str, columns: Sequence[str] = (), wanted: Sequence[str] = (), folder: Path = RESULTS
) -> str:
    """A table of a report, by the beginning of its title, with its source.

    columns: selects and orders them. wanted: the rows whose first cell has one of these texts in it; by default all.
    """
    content = json.loads(result_files(report, folder).read_text("utf-8"))
    tables = [table for table in content["tables"] if table["title"].startswith(title) and table["rows"]]
    if not tables:
        raise UnknownEntry(f"no table {title!r} in {report}; there are {[t['title'] for t in content['tables']]}")
    rows, known = tables[0]["rows"], list(tables[0]["rows"][0])
    wrong = [column for column in columns if column not in known]
    if wrong:
        raise UnknownEntry(f"no columns {wrong} in {report}, {title!r}; there are {known}")
    chosen = [row for row in rows if not wanted or any(text in str(row[known[0]]) for text in wanted)]
    if not chosen:
        raise UnknownEntry(f"no rows {wanted} in {report}, {title!r}")
    measured = [[row[column] for column in columns or known] for row in chosen if row.get("runs") != 0]
    table = markdown_table(columns or known, [[_one_line(value) for value in row] for row in measured])
    return f"*{tables[0]['title']}.* {tables[0]['note']}\n\n{table}\n\n{_source(report, content, tables[0])}"


def _one_line(value: Any) -> Any:
    return value.replace("\n", " ") if isinstance(value, str) else value


def _source(name: str, report: dict[str, Any], table: dict[str, Any]) -> str:
    """Where figures come from: report, date, versions, machine, command."""
    versions = report.get("versions", {})
    stamp = [
        str(table.get("measured") or report.get("date", "undated")),
        *(f"{package} {versions[package]}" for package in ("python", "torch") if package in versions),
        f"{report.get('cores', '?')} cores, {report.get('threads', '?')} thread(s)",
        f"`{report.get('command', name)}`",
    ]
    return f"[{report.get('title', name)}](/project/results/{name}.md): {'; '.join(stamp)}"


def reports(folder: Path = RESULTS) -> list[tuple[str, dict[str, Any]]]:
    """Name and content of every report, in the order of their names."""
    return [(path.stem, json.loads(path.read_text("utf-8"))) for path in sorted(folder.glob("*.json"))]


def reports_table(folder: Path = RESULTS) -> str:
    """Every report, when it was measured, whether what it measures has changed, and the command that wrote it."""
    old = {one.report for one in stale(folder)}
    rows = [
        [f"[{content['title']}](/project/results/{name}.md)", content.get("date", "undated"),
         "has changed" if name in old else "as it is", f"`{content['command']}`"]
        for name, content in reports(folder)
    ]  # fmt: skip
    return markdown_table(["report", "measured", "the code since", "command"], rows)
