"""The pages of the API reference: every name of the packages' ``__all__``, sorted into pages by rules.

No name is typed here. A name that no rule knows goes to the last page of its package.
"""

from __future__ import annotations

import inspect
import re
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import custom_inference
import ppl_models
from custom_inference._methods import methods_for
from ppl_site.docstrings import inline, to_rst

PACKAGES = (ppl_models, ppl_models.datasets, ppl_models.distributions, custom_inference)


@dataclass(frozen=True)
class Name:
    """A public name: of which package, and what it is."""

    package: str
    name: str
    value: Any

    @property
    def module(self) -> str:
        """Where it is defined."""
        return getattr(self.value, "__module__", None) or self.package

    @property
    def summary(self) -> str:
        """The first paragraph of its docstring, up to the end of its first sentence."""
        text = inspect.getdoc(self.value) or "" if callable(self.value) else ""
        first = " ".join(text.split("\n\n")[0].split())
        return re.split(r"\.\s+(?=[A-Z`:])", first)[0].removesuffix(".") or "See below"


@dataclass(frozen=True)
class Group:
    """A page of names of one package."""

    page: str
    title: str
    package: str
    belongs: Callable[[Name], bool]
    intro: str = ""
    names: list[Name] = field(default_factory=list)


def _is(value: Any, kind: type) -> bool:
    return inspect.isclass(value) and issubclass(value, kind)


def _is_method(name: Name) -> bool:
    return inspect.isclass(name.value) and all(hasattr(name.value, part) for part in ("fit", "local_posterior", "name"))


def _from(*modules: str) -> Callable[[Name], bool]:
    return lambda name: any(name.module == module or name.module.startswith(f"{module}.") for module in modules)


def groups() -> list[Group]:
    """The pages other than those of single models, each with the rule for its names, in order: the first rule wins."""
    models, inference = "ppl_models", "custom_inference"
    rows = [
        ("errors", "Errors", models, lambda n: _is(n.value, Exception), "What is raised on purpose."),
        ("protocol", "The protocol of models", models, lambda n: _is(n.value, ppl_models.Model) or n.name in _PROTOCOL),
        ("data", "Data", models, lambda n: True, "What data become before a model sees them."),
        ("datasets", "Data sets", "ppl_models.datasets", lambda n: True),
        ("distributions", "Distributions", "ppl_models.distributions", lambda n: True),
        ("methods", "Methods", inference, _is_method),
        ("guides", "Guides", inference, _from("custom_inference.guides")),
        ("documents", "Documents", inference, _from("custom_inference.documents")),
        ("graphs", "Graphs", inference, _from("custom_inference.graphs")),
        ("aspects", "Presences and absences", inference, _from("custom_inference.aspects")),
        ("estimators", "scikit-learn estimators", inference, _from("custom_inference.sklearn")),
        ("fits", "Fits", inference, _from(*(f"custom_inference.{name}" for name in _FITS))),
        ("validation", "Validation and scores", inference, lambda n: True),
    ]
    return [Group(*row) for row in rows]


_PROTOCOL = ("Example", "MODELS")
#: Modules whose names are about making and handling fits.
_FITS = ("default", "fit", "vem", "_search", "align")


def public_names() -> Iterator[Name]:
    """Every name that a package says is public, but for sub-packages, which are packages of their own."""
    for package in PACKAGES:
        for name in package.__all__:
            value = getattr(package, name)
            if not isinstance(value, types.ModuleType):
                yield Name(package.__name__, name, value)


def model_modules() -> dict[str, list[Name]]:
    """Module that defines models of ``MODELS`` -> its public models, those of ``MODELS`` first."""
    known = set(ppl_models.MODELS.values())
    modules = {kind.__module__ for kind in known}
    found: dict[str, list[Name]] = {}
    for name in public_names():
        if name.package == "ppl_models" and name.module in modules:
            found.setdefault(name.module, []).append(name)
    return {module: sorted(names, key=lambda n: n.value not in known) for module, names in found.items()}


def grouped() -> list[Group]:
    """The groups with their names; models of ``MODELS`` have pages of their own."""
    pages, models = groups(), set(model_modules())
    for name in public_names():
        if name.package != "ppl_models" or name.module not in models:
            next(g for g in pages if g.package == name.package and g.belongs(name)).names.append(name)
    return [page for page in pages if page.names]


# ----- pages ------------------------------------------------------------------------------------------------------


def pages() -> dict[str, str]:
    """Path of a page without suffix, relative to the source folder -> its reStructuredText."""
    written = {f"api/names/{group.page}": _group_page(group) for group in grouped()}
    for module, names in model_modules().items():
        written[f"api/models/{module.rsplit('.', 1)[1]}"] = _model_page(module, names)
    return written


def _group_page(group: Group) -> str:
    intro = [group.intro, ""] if group.intro else []
    modules: dict[str, list[Name]] = {}
    for name in group.names:
        modules.setdefault(name.module, []).append(name)
    entries = [line for module, names in modules.items() for line in [*_module_text(module), *_entries(names)]]
    return "\n".join([*_title(group.title), *intro, *_summary(group.names), *entries])


def _model_page(module: str, names: list[Name]) -> str:
    known = set(ppl_models.MODELS.values())
    shown = [name for name in names if name.value in known]
    title = ", ".join(name.name for name in shown)
    pictures = [line for name in shown for line in (f".. model-picture:: {name.name}", "")]
    facts = [line for name in shown for line in (_facts(name), "")]
    return "\n".join([*_title(title), *_module_text(module), *facts, *pictures, *_summary(names), *_entries(names)])


def _facts(name: Name) -> str:
    """The name of a model for ``MODELS`` and the command line, and the methods that apply to it."""
    known = next(known for known, kind in ppl_models.MODELS.items() if kind is name.value)
    methods = ", ".join(f"``{method}``" for method in methods_for(name.value.example().model))
    return f"{name.name} is ``{known}`` on the command line. Methods: {methods}."


def _title(text: str) -> list[str]:
    return [text, "=" * len(text), ""]


def _module_text(module: str) -> list[str]:
    """What the module says of itself, if that is more than a line: the mathematics, mostly."""
    text = inspect.getdoc(sys.modules[module]) or ""
    return [*to_rst(text), ""] if len(text.strip().splitlines()) > 1 else []


def _summary(names: list[Name]) -> list[str]:
    if len(names) < 2:
        return []
    rows = [".. list-table::", "   :widths: 30 70", ""]
    for name in sorted(names, key=lambda n: n.name.lower()):
        rows += [f"   * - :py:obj:`{name.name} <{name.package}.{name.name}>`", f"     - {inline(name.summary)}"]
    return [*rows, ""]


def _entries(names: list[Name]) -> list[str]:
    lines: list[str] = []
    for name in names:
        lines += [f".. py:currentmodule:: {name.package}", ""]
        if inspect.isclass(name.value):
            bases = [] if name.value.__bases__ == (object,) else ["   :show-inheritance:"]
            lines += [f".. autoclass:: {name.name}", "   :members:", *bases, ""]
        elif callable(name.value):
            lines += [f".. autofunction:: {name.name}", ""]
        else:
            lines += [f".. autodata:: {name.name}", "   :no-value:", ""]
    return lines
