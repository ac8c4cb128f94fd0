"""Files of the repository that are pages of the site too: they are brought into the source folder when it is built.

What is written is ignored by git: ``gallery/*.ipynb``, ``project/results/``, ``api/models``, ``api/names``.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import nbformat

from ppl_site import api

ROOT = Path(__file__).resolve().parents[3]
NOTEBOOKS = ROOT / "notebooks"
RESULTS = ROOT / "benchmarks" / "results"

#: Folder of notebooks that were executed before (by ``tests/docs/notebooks_test.py``), at the small size.
EXECUTED = "PPL_EXECUTED"
SMOKE = "PPL_SMOKE"

_SMALL = "```{note}\nThis page was made at a small size. Run the notebook for the one that it is written for.\n```"


def smoke() -> bool:
    return os.environ.get(SMOKE) == "1"


def write(path: Path, text: str) -> Path:
    """Write a file unless it is there already, so that only what changed is read again."""
    if not path.is_file() or path.read_text("utf-8") != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return path


def _remove_others(folder: Path, pattern: str, keep: set[Path]) -> None:
    for path in folder.glob(pattern):
        if path not in keep:
            path.unlink()


# ----- notebooks --------------------------------------------------------------------------------------------------


def executed_before(path: Path) -> nbformat.NotebookNode | None:
    """The same notebook with outputs, where one was left behind; stale ones, and those of other sizes, do not count."""
    folder = os.environ.get(EXECUTED)
    if not folder or not smoke() or not (Path(folder) / path.name).is_file():
        return None
    stored, found = (nbformat.read(each, as_version=4) for each in (path, Path(folder) / path.name))
    same = [cell.source for cell in stored.cells] == [cell.source for cell in found.cells]
    return found if same else None


def stage_notebooks(source: Path) -> list[str]:
    """Write the pages of the gallery; returns those that need not be executed, relative to the source folder."""
    done, pages = [], set()
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        found = executed_before(path)
        notebook = found or nbformat.read(path, as_version=4)
        _annotate(notebook, path)
        pages.add(write(source / "gallery" / path.name, nbformat.writes(notebook)))
        if found is not None:
            done.append(f"gallery/{path.name}")
    _remove_others(source / "gallery", "*.ipynb", pages)
    return done


def _annotate(notebook: nbformat.NotebookNode, path: Path) -> None:
    """A link to the file itself, and what size the page has; ids of the cells do not depend on when it is built."""
    relative = Path("../..") / path.relative_to(ROOT)
    link = f"---\n\nThis page is a notebook: {{download}}`{path.name} <{relative.as_posix()}>`."
    if smoke():
        notebook.cells.insert(1, nbformat.v4.new_markdown_cell(_SMALL, id="size"))
    notebook.cells.append(nbformat.v4.new_markdown_cell(link, id="download"))


# ----- results, API -----------------------------------------------------------------------------------------------


def stage_results(source: Path) -> None:
    """The reports of the benchmarks with their figures."""
    folder, kept = source / "project" / "results", set()
    folder.mkdir(parents=True, exist_ok=True)
    for path in sorted(RESULTS.glob("*.md")):
        kept.add(write(folder / path.name, path.read_text("utf-8")))
    for path in sorted(RESULTS.glob("*.png")):
        kept.add(Path(shutil.copyfile(path, folder / path.name)))
    _remove_others(folder, "*.*", kept)


def stage_api(source: Path) -> None:
    """The pages of the API reference; pictures of an earlier build go, and are drawn anew."""
    shutil.rmtree(source / "api" / "images", ignore_errors=True)
    kept = {write(source / f"{page}.rst", text) for page, text in api.pages().items()}
    for folder in ("names", "models"):
        _remove_others(source / "api" / folder, "*.rst", kept)
