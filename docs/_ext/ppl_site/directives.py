"""Directives that put generated tables and pictures into pages.

```{models} binary            the models of one kind of data
```{methods}                  the named methods and the models they apply to
```{method-settings}          the methods' settings
```{figures} REPORT           a table of benchmarks/results/REPORT.json
:table: beginning of its title
:columns: some | of them
:rows: texts | in the first cells of those wanted
```{reports}                  all reports
```{available}                those lines "name: text" of its content whose name is public in custom_inference
```{model-picture} NOCA       the graph of a model's program
```{model-pictures}           those of all models
```{model-example} NOCA       a few lines that fit a model, run when the site is built, with their figure
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives as options
from docutils.statemachine import StringList
from sphinx.util.docutils import SphinxDirective

import ppl_models
from ppl_models import MODELS
from ppl_site import examples, pictures, tables


class Generated(SphinxDirective):
    """A directive that is replaced by Markdown."""

    optional_arguments = 1
    final_argument_whitespace = True

    def markdown(self) -> str:
        raise NotImplementedError

    def run(self) -> list[nodes.Node]:
        try:
            text = self.markdown()
        except tables.UnknownEntry as problem:
            raise self.error(str(problem)) from problem
        container = nodes.Element()
        source, _ = self.get_source_info()
        self.state.nested_parse(StringList(text.splitlines(), source=source), self.content_offset, container)
        return container.children


def _table(make: Callable[..., str]) -> type[Generated]:
    def markdown(self: Generated) -> str:
        return make(*self.arguments)

    return type("GeneratedTable", (Generated,), {"markdown": markdown})


class Figures(Generated):
    """A table of figures, from the results of the benchmarks alone."""

    required_arguments = 1
    optional_arguments = 0
    option_spec: ClassVar[dict[str, Any]] = {
        "table": options.unchanged_required, "columns": options.unchanged, "rows": options.unchanged}  # fmt: skip

    def markdown(self) -> str:
        if "table" not in self.options:
            raise tables.UnknownEntry("needs the option 'table', the beginning of a table's title")
        text = tables.figures(self.arguments[0], self.options["table"], self._parts("columns"), self._parts("rows"))
        self.env.note_dependency(str(tables.result_files(self.arguments[0])))
        return text

    def _parts(self, option: str) -> list[str]:
        return [part.strip() for part in self.options.get(option, "").split("|") if part.strip()]


class Available(Generated):
    """What is said of names that exist: pages may speak of what is being built."""

    optional_arguments = 0
    has_content = True

    def markdown(self) -> str:
        return tables.available(list(self.content))


def _image(directive: SphinxDirective, model: str) -> list[nodes.Node]:
    source = Path(directive.env.app.srcdir)
    path = pictures.picture(model, source / "api" / "images")
    if path is None:
        return []
    image = nodes.image(uri=f"/{path.relative_to(source).as_posix()}", alt=f"the graph of the program of {model}")
    directive.env.note_dependency(str(path))
    return [image]


class ModelPicture(SphinxDirective):
    """The graph of a model's program, where it can be drawn."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        return _image(self, self.arguments[0])


class ModelExample(SphinxDirective):
    """A few lines that fit a model, what they print, and their figure."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        kind = getattr(ppl_models, self.arguments[0])
        source = Path(self.env.app.srcdir)
        kept = Path(self.env.app.doctreedir) / "examples"
        printed, figure = examples.made(kind, kept)
        shown = source / "api" / "images" / f"example-{kind.__name__}.png"
        shown.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(figure, shown)
        code = nodes.literal_block(examples.lines(kind), examples.lines(kind), language="python")
        output = nodes.literal_block(printed, printed, language="text", classes=["example-output"])
        image = nodes.image(uri=f"/{shown.relative_to(source).as_posix()}", alt=f"what {kind.__name__} found")
        image["classes"] = ["example-figure"]
        return [code, output, image]


class ModelPictures(SphinxDirective):
    """A section for every model, with its picture."""

    def run(self) -> list[nodes.Node]:
        found: list[nodes.Node] = []
        for model in MODELS.values():
            if image := _image(self, model.__name__):
                section = nodes.section(ids=[nodes.make_id(model.__name__)])
                section += nodes.title(text=model.__name__)
                section += nodes.paragraph(text=f"{model.summary[:1].upper()}{model.summary[1:]}.")
                section += image
                found.append(section)
        return found or [nodes.paragraph(text="Nothing on the machine that built this site draws models.")]


def add(app: Any) -> None:
    app.add_directive("models", _table(tables.models_table))
    app.add_directive("methods", _table(tables.applicability_table))
    app.add_directive("method-settings", _table(tables.settings_table))
    app.add_directive("reports", _table(tables.reports_table))
    app.add_directive("figures", Figures)
    app.add_directive("available", Available)
    app.add_directive("model-picture", ModelPicture)
    app.add_directive("model-example", ModelExample)
    app.add_directive("model-pictures", ModelPictures)
