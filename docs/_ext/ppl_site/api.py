"""The pages of the API reference: every name of the packages' ``__all__``, sorted into pages by rules.

No name is typed here. A name that no rule knows goes to the last page of its package.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import custom_inference
import ppl_models
from ppl_site import models
from ppl_site.docstrings import inline, to_rst


def _packages() -> list[types.ModuleType]:
    """Where public names are: the four packages, the rooms with an ``__all__``, and the protocols of extensions."""
    rooms = pkgutil.walk_packages(custom_inference.__path__, "custom_inference.")
    parts = (importlib.import_module(room.name) for room in rooms if room.ispkg)
    named = (part for part in parts if hasattr(part, "__all__"))
    protocols = (importlib.import_module(f"custom_inference.core.{name}") for name in ("engine", "method", "registry"))
    extend = importlib.import_module("custom_inference.extend")
    return [ppl_models, ppl_models.datasets, ppl_models.distributions, custom_inference, *named, *protocols, extend]


def _names_of(package: types.ModuleType) -> list[str]:
    """What the package says is public; of a module that says nothing, what is defined there."""
    own = (name for name, value in vars(package).items() if getattr(value, "__module__", None) == package.__name__)
    return getattr(package, "__all__", None) or sorted(name for name in own if not name.startswith("_"))


PACKAGES = _packages()


@dataclass(frozen=True)
class Name:
    """A public name: of which package, and what it is."""

    package: str
    name: str
    value: Any

    @property
    def module(self) -> str:
        """Where it is defined."""
        known = self.is_class or self.is_function
        return self.value.__module__ if known else self.package

    @property
    def summary(self) -> str:
        """The first paragraph of its docstring, up to the end of its first sentence."""
        first = " ".join(self.text.split("\n\n")[0].split())
        return re.split(r"\.\s+(?=[A-Z`:])", first)[0].removesuffix(".")

    @property
    def text(self) -> str:
        """Its docstring; of a value the comment before it that begins with ``#:``."""
        if self.is_class or self.is_function:
            return inspect.getdoc(self.value) or ""
        pattern = re.compile(rf"((?:^#: .*\n)+){self.name}\b", re.M)
        for name, module in sorted(sys.modules.items()):
            if name.startswith(self.package) and (comment := pattern.search(inspect.getsource(module))):
                return " ".join(line.removeprefix("#: ") for line in comment[1].splitlines())
        return ""

    @property
    def is_class(self) -> bool:
        return inspect.isclass(self.value)

    @property
    def is_function(self) -> bool:
        return inspect.isroutine(self.value)


@dataclass(frozen=True)
class Group:
    """A page of names of one package; of all parts of a package where its name ends with a stop."""

    page: str
    title: str
    package: str
    belongs: Callable[[Name], bool]
    intro: str = ""
    names: list[Name] = field(default_factory=list)

    def takes(self, name: Name) -> bool:
        inside = name.package.startswith(self.package) if self.package[-1] == "." else name.package == self.package
        return inside and self.belongs(name)


def _is(value: Any, kind: type) -> bool:
    return inspect.isclass(value) and issubclass(value, kind)


def _is_method(name: Name) -> bool:
    return inspect.isclass(name.value) and inspect.isroutine(getattr(name.value, "fit", None))


def _is_guide(name: Name) -> bool:
    return _is(name.value, custom_inference.Guide) or ".guide" in name.module


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
        ("guides", "Guides", inference, _is_guide),
        ("documents", "Documents", inference, _from("custom_inference.documents")),
        ("graphs", "Graphs", inference, _from("custom_inference.graphs")),
        ("aspects", "Presences and absences", inference, _from("custom_inference.families.aspects.explain")),
        ("fits", "Fits", inference, _from(*(f"custom_inference.{name}" for name in ("core", "em", "methods")))),
        ("pictures", "Pictures", inference, _from("custom_inference.faces.pictures", "custom_inference.faces.plots")),
        ("validation", "Validation and scores", inference, lambda n: True),
        ("estimators", "scikit-learn estimators", "custom_inference.faces.sklearn", lambda n: True),
        ("posteriors", "Posteriors", "custom_inference.core.posteriors", lambda n: True),
        ("extending", "Extending the methods", "custom_inference.", lambda n: True, _EXTENDING),
    ]
    return [Group(*row) for row in rows]


_EXTENDING = (
    "What own closed-form steps, guides and samplers are made of, wherever it is defined: "
    "``from custom_inference.extend import ...`` has it all. See :doc:`/project/add_a_model`."
)
_PROTOCOL = ("Example", "MODELS", "Site")


def public_names() -> Iterator[Name]:
    """Every name that a package says is public, once: sub-packages, and what a package takes from them, are theirs, and
    what ``extend`` gathers has its place where else it is public."""
    seen: set[int] = set()
    for package in PACKAGES:
        for name in _names_of(package):
            value = getattr(package, name)
            above = package.__name__.startswith("custom_inference.") and name in custom_inference.__all__
            elsewhere = package.__name__ == "custom_inference.extend" and id(value) in seen
            if not isinstance(value, types.ModuleType) and not above and not elsewhere:
                seen.add(id(value))
                yield Name(package.__name__, name, value)


def model_modules() -> dict[str, list[Name]]:
    """Return the modules that define models, wherever they are, each with its public models, those of ``MODELS`` first.

    What a module defines beside models is on its page too.
    """
    known = set(ppl_models.MODELS.values())
    names = [name for name in public_names() if name.package == "ppl_models"]
    modules = {name.module for name in names if _is_program(name.value)}
    found: dict[str, list[Name]] = {}
    for name in names:
        if name.module in modules:
            found.setdefault(name.module, []).append(name)
    return {module: sorted(names, key=lambda n: n.value not in known) for module, names in found.items()}


def _is_program(value: Any) -> bool:
    """Return whether this is a model that can be run: of ``MODELS``, or one that its list leaves out."""
    return _is(value, ppl_models.Model) and value.has_example()


def grouped() -> list[Group]:
    """The groups with their names; models of ``MODELS`` have pages of their own."""
    pages, models = groups(), set(model_modules())
    for name in public_names():
        if name.package != "ppl_models" or name.module not in models:
            next(group for group in pages if group.takes(name)).names.append(name)
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
    programs = [name for name in names if _is_program(name.value)]
    shown = [name for name in programs if name.value in known] or programs
    title = ", ".join(name.name for name in shown)
    text = "\n".join(inspect.getdoc(one) or "" for one in (sys.modules[module], *(name.value for name in names)))
    kinds = [name.value for name in shown]
    parts: list[list[str]] = [_module_text(module), _summary(names)]
    stated: set[type] = set()
    for name in programs:
        program = _program(name, stated)
        own = models.sections(name.value, program) if name in shown else [*program]
        parts += [_heading(name.name), own] if len(programs) > 1 else [own]
    parts += [
        _heading("The same things elsewhere"), models.other_names(kinds),
        _heading("Reference"), _entries(names),
        _heading("Papers"), models.references(text),
    ]  # fmt: skip
    return "\n".join([*_title(title), *(line for part in parts for line in part)])


def _program(name: Name, stated: set[type]) -> list[str]:
    """The program of a model as it stands in its file, once of those that share it."""
    owner = next(kind for kind in name.value.__mro__ if "__call__" in vars(kind))
    file = f"{owner.__module__.replace('.', '/')}.py"
    linked = f":py:obj:`{name.name} <{name.package}.{name.name}>`"
    if owner in stated:
        return [f"The program of {linked} is that of :py:obj:`~ppl_models.{owner.__name__}`, with other priors.", ""]
    stated.add(owner)
    lines = [f"The program of {linked}, in ``{file}``:", "", ".. code-block:: python", ""]
    return [*lines, *(f"   {line}".rstrip() for line in models.program_source(owner).splitlines()), ""]


def _heading(text: str) -> list[str]:
    return [text, "-" * len(text), ""]


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
        if name.is_class:
            bases = [] if name.value.__bases__ == (object,) else ["   :show-inheritance:"]
            lines += [f".. autoclass:: {name.name}", "   :members:", *bases, ""]
        elif name.is_function:
            lines += [f".. autofunction:: {name.name}", ""]
        else:
            lines += [f".. py:data:: {name.name}", "", *(f"   {line}" for line in to_rst(name.text)), ""]
    return lines
