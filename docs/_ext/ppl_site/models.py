"""The page of a model: mathematics, and for every model what its numbers are, its program, an example that is run, the
methods that apply, names that others have for the same things, and the papers.

The mathematics, the program and what a site is come from the model's file; what methods are for, from "Choose a
method"; other names and papers, from their pages. Nothing is said twice.
"""

from __future__ import annotations

import functools
import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import ppl_models
from custom_inference.methods import default_method, every_method, methods_for
from ppl_models import Model
from ppl_site.docstrings import inline
from ppl_site.words import IN_WORDS

DOCS = Path(__file__).resolve().parents[2]

#: What a site is, by its role.
_ROLES = {
    "global": "parameter",
    "latent": "latent, of every {plate}",
    "observed": "data",
    "given": "given with the data",
}
_ENTRY = re.compile(r"((?:[a-z]\w*(?:_[A-Z]+)?)(?:, [a-z]\w*(?:_[A-Z]+)?)*): (?=\S)")


def rubric(text: str) -> list[str]:
    return [f".. rubric:: {text}", ""]


def table(header: Sequence[str], rows: Sequence[Sequence[str]], widths: str) -> list[str]:
    """A table of cells that are reStructuredText."""
    lines = [".. list-table::", "   :header-rows: 1", f"   :widths: {widths}", "   :class: facts", ""]
    for row in [header, *rows]:
        lines += [f"   {'* -' if not place else '  -'} {cell}".rstrip() for place, cell in enumerate(row)]
    return [*lines, ""]


# ----- one model --------------------------------------------------------------------------------------------------


def sections(kind: type[Model], program: Sequence[str]) -> list[str]:
    """What is said of one model, under headings of its own."""
    parts = [
        [inline(_sentence(kind.summary)), ""],
        rubric("An example"), [f".. model-example:: {kind.__name__}", ""],
        rubric("What its numbers are"), numbers(kind),
        rubric("The program"), list(program), picture(kind),
        rubric("Methods"), methods(kind),
    ]  # fmt: skip
    return [line for part in parts for line in part]


def picture(kind: type[Model]) -> list[str]:
    return [f".. model-picture:: {kind.__name__}", ""] if kind in ppl_models.MODELS.values() else []


def numbers(kind: type[Model]) -> list[str]:
    """The sites of a model: what each is in words, its role, and the names of its axes."""
    model = kind.example().model
    rows = []
    for name, site in model.sites.items():
        role = _ROLES[site.role].format(plate=" and ".join(site.plates) or "row")
        said = re.sub(r":meth:`(\w+)`", rf":meth:`~ppl_models.{kind.__name__}.\1`", meaning(kind, name))
        rows.append(
            [
                f"``{name}``",
                f"{_sentence(IN_WORDS[_general(name)])} {inline(said)}".strip(),
                role,
                " × ".join(site.axes) or "one number",
            ]
        )
    where = f"Parameters are in ``fit.params``; the posterior mean of ``{model.local_site}`` is ``fit.transform()``."
    shown = table(["site", "what it is", "role", "axes"], rows, "20 46 18 16")
    return [where, "", *shown] if kind in ppl_models.MODELS.values() else shown


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def meaning(kind: type[Model], name: str) -> str:
    """What a docstring says of a site: the model's own, or that of one that it refers to or descends from."""
    model = kind.example().model
    names = [*model.sites, *map(_general, model.sites)]
    for wanted in (name, _general(name)):
        for text in docstrings_about(kind):
            said = entries(text, names).get(wanted, "")
            if other := re.match(r"as (?:of )?:class:`(\w+)`", said):
                return meaning(getattr(ppl_models, other[1]), name)
            if said:
                return said
    return ""


def _general(name: str) -> str:
    """The name under which a docstring speaks of all sites of a kind: ``bias_l``, ``cluster_TYPE``."""
    kinds = ((r"_\d+$", "_l"), (r"^(edge_[a-z]+)_\w+$", r"\1_RELATION"), (r"^cluster_\w+$", "cluster_TYPE"))
    return (
        next((kind for each in kinds if (kind := re.sub(*each, name)) != name), name) if name not in IN_WORDS else name
    )


def docstrings_about(kind: type[Model]) -> Iterator[str]:
    own = inspect.getdoc(kind) or ""
    yield own
    for other in re.findall(r":class:`(\w+)`", own):
        yield inspect.getdoc(getattr(ppl_models, other, object)) or ""
    yield from (
        vars(base).get("__doc__") or "" for base in kind.__mro__[1:] if base.__module__.startswith("ppl_models")
    )


def entries(text: str, names: Sequence[str]) -> Mapping[str, str]:
    """Name of a site -> what the section on sites says of it; ``names``: those that there may be."""
    _, _, text = inspect.cleandoc(text).partition("Sites\n-----\n")
    found: dict[str, str] = {}
    for paragraph in re.split(r"\n(?=\S)", text.split("\n\n")[0]):
        line = " ".join(paragraph.split())
        starts = [start for start in _ENTRY.finditer(line) if set(start[1].split(", ")) & set(names)]
        for place, start in enumerate(starts):
            end = starts[place + 1].start() if place + 1 < len(starts) else len(line)
            said = line[start.end() : end].strip().rstrip(",")
            found |= {name: said for name in start[1].split(", ") if name not in found}
    return found


def methods(kind: type[Model]) -> list[str]:
    """The methods that apply to a model, with what each is for; that of its example first."""
    example = kind.example()
    if kind not in ppl_models.MODELS.values():
        return ["``fit(model, data)`` takes its search over partitions; there are no others by name.", ""]
    known = next(name for name, one in ppl_models.MODELS.items() if one is kind)
    chosen = default_method(example.model, example.data).name
    called = (
        f"``ppl fit {known} FILE`` on the command line, :py:class:`~custom_inference.sklearn.{kind.__name__}Estimator` "
    )
    first = f"{called}for scikit-learn. The default, here ``{chosen}``, suits most data."
    purposes = method_purposes()
    names = [name for name in methods_for(example.model) if name != "default"]
    return [first, "", *table(["name", "what it is for"], [[f"``{name}``", purposes[name]] for name in names], "24 76")]


@functools.cache
def method_purposes() -> Mapping[str, str]:
    """Name of a method -> what it is for, as "Choose a method" has it, up to its first sentence's end."""
    page = (DOCS / "choose_method.md").read_text("utf-8")
    part = page[page.index("What each is for:") : page.index("## How a fit ended")]
    found = re.findall(r"^`(\w+)`\n: (.*?)(?=\n\n|\Z)", part, re.MULTILINE | re.DOTALL)
    said = {name: restructured(" ".join(text.split())) for name, text in found}
    missing = set(every_method()) - set(said)
    assert not missing, f"docs/choose_method.md does not say what these are for: {sorted(missing)}"
    return said


def restructured(markdown: str) -> str:
    """A line of Markdown as reStructuredText: roles, code, links."""
    text = re.sub(r"\{(py:\w+)\}(`[^`]+`)", r":\1:\2", markdown)
    text = re.sub(r"\[([^\]]*)\]\((\w+)\.md\)", r":doc:`\1 </\2>`", text)
    return re.sub(r"(?<![:`\w])`([^`]+)`(?!`)", r"``\1``", text)


# ----- what models share ------------------------------------------------------------------------------------------


def other_names(kinds: Sequence[type[Model]]) -> list[str]:
    """The table of other names of the section of ``other_names.md`` that lists the models."""
    page = (DOCS / "other_names.md").read_text("utf-8")
    for section in page.split("\n## ")[1:]:
        listed = re.findall(r"`(\w+)`", section.partition("|")[0])
        if any(kind.__name__ in listed for kind in kinds):
            lines = [line for line in section.splitlines() if line.startswith("|")]
            rows = [[restructured(cell.strip()) for cell in line.strip("|").split("|")] for line in lines]
            kept = [row for row in rows[2:] if _is_of(row[0], kinds)]
            return table(rows[0], kept, " ".join(["1"] * len(rows[0])))
    raise LookupError(f"docs/other_names.md lists none of {[kind.__name__ for kind in kinds]}")


def _is_of(cell: str, kinds: Sequence[type[Model]]) -> bool:
    """Whether a row is of what some of these models have: a site, a setting, what is done with a fit."""
    known = {name for kind in kinds for name in (*kind.example().model.sites, *vars(kind.example().model))}
    named = re.findall(r"``([^`]+)``", cell)
    return any(name in known or "(" in name or name.endswith(("_l", "_TYPE")) for name in named)


def references(text: str) -> list[str]:
    """The papers of ``project/sources.md`` that a text cites: the first author's name, and the next year after it."""
    page, text = (DOCS / "project" / "sources.md").read_text("utf-8"), " ".join(text.split())
    cited = []
    for entry in re.findall(r"^- (.*?)(?=\n- |\n\n|\Z)", page, re.MULTILINE | re.DOTALL):
        line = " ".join(entry.split())
        name, year = line.partition(",")[0], re.findall(r"\((\d{4})\)", line)[0]
        if re.search(rf"\b{name}\b(?:(?!\b(?:19|20)\d\d\b).){{0,250}}?\b{year}\b", text):
            cited.append(f"- {inline(line)}")
    return [*cited, ""]


def program_source(owner: type) -> str:
    """The source of a model's program, of the class that defines it, without the indentation of the class."""
    return textwrap.dedent(inspect.getsource(vars(owner)["__call__"]))
