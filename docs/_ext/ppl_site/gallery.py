"""The gallery: a card for each notebook, with a figure of its own, its title and what it is about."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from ppl_site.staging import NOTEBOOKS

#: Where a card's figure goes: known once the notebooks have been executed.
_FIGURE = "figure-of-"
_IMAGE = re.compile(r'<img\b[^>]*\bsrc="(\.\./_images/[^"]+\.png)"')


def about(path: Path) -> tuple[str, str]:
    """The title of a notebook, and the first sentence below it, in plain text."""
    first = nbformat.read(path, as_version=4).cells[0].source
    title, _, text = first.partition("\n")
    paragraph = " ".join(text.strip().split("\n\n")[0].split())
    sentence = re.split(r"(?<=[.?])\s|:\s|;\s", paragraph)[0].rstrip(".:;")
    end = "" if sentence.endswith("?") else "."
    return title.removeprefix("# "), re.sub(r"[*$`]", "", sentence) + end


def cards() -> Iterator[str]:
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        title, text = map(html.escape, about(path))
        image = f'<img alt="a figure of {title}" loading="lazy" src="{_FIGURE}{path.stem}">'
        yield f'<a class="card" href="{path.stem}.html">{image}<strong>{title}</strong><span>{text}</span></a>'


class Cards(SphinxDirective):
    """A card for each notebook."""

    def run(self) -> list[nodes.Node]:
        self.env.note_dependency(str(NOTEBOOKS))
        return [nodes.raw("", f'<div class="cards">{"".join(cards())}</div>', format="html")]


def fill(app: Any, exception: Exception | None) -> None:
    """Give every card the first figure of its page."""
    index = Path(app.outdir) / "gallery" / "index.html"
    if exception is None and app.builder.format == "html" and index.is_file():
        index.write_text(filled(index.read_text("utf-8"), index.parent), "utf-8")


def filled(text: str, folder: Path) -> str:
    """The page with the first figure of every notebook's page in the folder; without one, without the image."""
    for name in re.findall(rf'src="{_FIGURE}(\w+)"', text):
        page = folder / f"{name}.html"
        found = _IMAGE.search(page.read_text("utf-8")) if page.is_file() else None
        if found:
            text = text.replace(f'src="{_FIGURE}{name}"', f'src="{found[1]}"')
        else:
            text = re.sub(rf'<img [^>]*src="{_FIGURE}{name}">', "", text)
    return text


def add(app: Any) -> None:
    app.add_directive("gallery-cards", Cards)
    app.connect("build-finished", fill)
