"""What the project says of itself: one version, bounds that are tested, rooms that exist, names that authors import."""

from __future__ import annotations

import json
import re
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import custom_inference
import ppl_models
from custom_inference.faces.command_line.app import app
from tests.support.documentation import ROOT

pytestmark = pytest.mark.quick

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
#: Where the packages are: beside the tests, or installed.
PACKAGES = Path(str(ppl_models.__file__)).parents[1]
#: Modules that authors of models and engines may import, beside the packages themselves.
PUBLIC = {
    "ppl_models.datasets", "ppl_models.distributions", "ppl_models.likelihoods", "custom_inference.extend",
    "custom_inference.documents", "custom_inference.graphs", "custom_inference.ratings", "custom_inference.distributed",
    "custom_inference.plots", "custom_inference.sklearn", "custom_inference.arviz",
}  # fmt: skip


def test_the_version_is_one():
    version = PROJECT["version"]
    assert version == ppl_models.__version__ == custom_inference.__version__
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text("utf-8")
    changes = re.findall(r"^## (\S+?),? ", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert changes[0] == version
    assert f'version {version}"' in (ROOT / "docs/project/sources.md").read_text("utf-8")
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.output) == (0, f"ppl-models {version}\n")


def test_both_packages_are_typed():
    assert all((PACKAGES / name / "py.typed").is_file() for name in ("ppl_models", "custom_inference"))


def bounds(requirements: list[str]) -> dict[str, str]:
    """Package -> lowest version."""
    found = (re.match(r"([\w-]+)>=([\w.]+)", one) for one in requirements)
    return {one[1]: one[2] for one in found if one}


def release(version: str) -> list[int]:
    """The version, without zeros at its end."""
    numbers = [int(part) for part in version.split(".")]
    while numbers and not numbers[-1]:
        numbers.pop()
    return numbers


def test_every_lower_bound_is_tested():
    """What is required, by default and for tests, is listed with the version that it has at least."""
    lines = (ROOT / "constraints-lowest.txt").read_text("utf-8").splitlines()
    listed = dict(line.split("==") for line in lines if not line.startswith("#"))
    required = bounds(PROJECT["dependencies"])
    assert len(required) == len(PROJECT["dependencies"]) and required.keys() <= listed.keys()
    declared = bounds(PROJECT["optional-dependencies"]["test"]) | required
    wrong = {name: low for name, low in declared.items() if name in listed and release(listed[name]) != release(low)}
    assert not wrong, wrong


def test_what_is_tested_is_within_the_bounds():
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pinned = dict(line.split("==") for line in lines if "==" in line)
    below = [name for name, low in bounds(PROJECT["dependencies"]).items() if release(pinned[name]) < release(low)]
    assert not below, below


def test_rooms_that_contributors_are_told_of_exist():
    """Each, and every folder of the packages is in a room."""
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8").partition("## The rooms")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)
    rooms = [room for cell in cells for room in re.findall(r"`([^`]+)`", cell)]
    assert len(rooms) > 15
    for room in rooms:
        base = ROOT if room.partition("/")[0] == "tests" else PACKAGES
        assert list(base.glob(re.sub(r"<\w+>", "*", room))), room
    for package in ("ppl_models", "custom_inference"):
        inside = (path for path in (PACKAGES / package).iterdir() if (path / "__init__.py").is_file())
        untold = [path.name for path in inside if not any(room.startswith(f"{package}/{path.name}") for room in rooms)]
        assert not untold, f"{package}: {untold}"


def imported_in(text: str) -> set[str]:
    return set(re.findall(r"(?:^|[\"'])\s*(?:from|import) ((?:ppl_models|custom_inference)[\w.]*)", text, re.MULTILINE))


def test_authors_import_nothing_from_deep_modules():
    """Every page, this repository's guide for authors, and every notebook."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    texts = {page.name: page.read_text("utf-8") for page in pages if "results" not in page.parts}
    for notebook in (ROOT / "notebooks").glob("*.ipynb"):
        cells = json.loads(notebook.read_text("utf-8"))["cells"]
        texts[notebook.name] = "\n".join("".join(cell["source"]) for cell in cells)
    known = {
        "ppl_models",
        "custom_inference",
        "ppl_models.zero_inflated_mixture",
    } | PUBLIC  # the one that is written there
    found = {(name, module) for name, text in texts.items() for module in imported_in(text) - known}
    assert not found, found
    assert any("custom_inference.extend" in text for text in texts.values())


def test_what_authors_import_is_there_once():
    extend = import_module("custom_inference.extend")
    assert extend.__all__ == sorted(extend.__all__) and all(hasattr(extend, name) for name in extend.__all__)
