"""What notebooks import stands where they say: found out in a second, before any of them is executed."""

import ast
import importlib
import json
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))


def imported_names(path: Path) -> list[tuple[str, str]]:
    """(module, name) of every ``from module import name`` of the project's packages."""
    cells = (cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code")
    lines = "".join(line for cell in cells for line in [*cell["source"], "\n"] if not line.startswith(("%", "!")))
    return [
        (node.module, alias.name)
        for node in ast.walk(ast.parse(lines))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(("ppl_models", "custom_inference"))
        for alias in node.names
    ]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_imports_of_notebooks_resolve(path):
    names = imported_names(path)
    assert names, "a notebook that imports nothing of ours"
    missing = [f"{module}.{name}" for module, name in names if not hasattr(importlib.import_module(module), name)]
    assert missing == []
