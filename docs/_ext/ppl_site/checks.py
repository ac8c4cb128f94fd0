"""What must hold of the finished site: links inside lead somewhere, pages have titles and load nothing from a network,
paths of a machine stay out."""

from __future__ import annotations

import html
import re
import sys
import tempfile
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sphinx.util import logging

from ppl_site.staging import ROOT

logger = logging.getLogger(__name__)

_LINK = re.compile(r'(?:href|src)="([^"]*)"')
#: What a page loads: scripts, pictures, style sheets.
_LOADED = re.compile(
    r'<(?:script|img|iframe|source)\b[^>]*\bsrc="([^"]*)"|<link\b[^>]*\brel="stylesheet"[^>]*\bhref="([^"]*)"'
)
_ID = re.compile(r'\b(?:id|name)="([^"]*)"')
_TITLE = re.compile(r"<title>(.*?)</title>", re.DOTALL)


def forbidden_paths() -> list[str]:
    """Folders of this machine that must not be told of."""
    folders = [ROOT, Path(sys.prefix), Path(tempfile.gettempdir()), Path.home()]
    return sorted({f"{folder}/" for folder in folders if len(folder.parts) > 1})


def problems(site: Path) -> Iterator[str]:
    """What is wrong with the pages of a site, a line each."""
    pages = {path: path.read_text("utf-8") for path in sorted(site.rglob("*.html"))}
    anchors = {path: set(map(html.unescape, _ID.findall(text))) for path, text in pages.items()}
    titles: dict[str, Path] = {}
    for path, text in pages.items():
        name = path.relative_to(site).as_posix()
        title = " ".join((_TITLE.search(text) or ["", ""])[1].split())
        if not title:
            yield f"{name}: no title"
        elif title in titles and "genindex" not in name:
            yield f"{name}: the same title as {titles[title].relative_to(site)}: {title}"
        titles[title] = path
        yield from (f"{name}: {problem}" for problem in _broken(path, text, anchors))
        for source in sorted({one or other for one, other in _LOADED.findall(text)}):
            if urllib.parse.urlsplit(source).netloc:
                yield f"{name}: loads {source} from the network"
    for path in sorted(site.rglob("*")):
        if path.suffix in (".html", ".js", ".txt", ".json", ".ipynb", ".svg"):
            text = path.read_text("utf-8")
            if at := [text.index(folder) for folder in forbidden_paths() if folder in text]:
                yield f"{path.relative_to(site)}: a path of this machine: {text[max(0, at[0] - 40) : at[0] + 80]!r}"


def _broken(path: Path, text: str, anchors: dict[Path, set[str]]) -> Iterator[str]:
    for link in sorted(set(map(html.unescape, _LINK.findall(text)))):
        parts = urllib.parse.urlsplit(link)
        if parts.scheme or parts.netloc:
            continue
        target = (path.parent / urllib.parse.unquote(parts.path)).resolve() if parts.path else path.resolve()
        if not target.exists():
            yield f"a link to {link}, which does not exist"
        elif parts.fragment and target in anchors and urllib.parse.unquote(parts.fragment) not in anchors[target]:
            yield f"a link to {link}: no such place on that page"


def check_site(app: Any, exception: Exception | None) -> None:
    """Warn of what is wrong, which fails a build whose warnings are errors."""
    if exception is not None or app.builder.format != "html":
        return
    for problem in problems(Path(app.outdir).resolve()):
        logger.warning("%s", problem, type="site")
