"""Runs the Python that the project's documents show."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def python_blocks(document: str) -> list[str]:
    """The fenced blocks marked ``python`` of a document in the root, in order."""
    return re.findall(r"^```python\n(.*?)^```$", (ROOT / document).read_text("utf-8"), re.DOTALL | re.MULTILINE)


def module_for(name: str) -> types.ModuleType:
    """An empty module to run blocks in; dataclasses look their own module up, so it is registered."""
    module = types.ModuleType(name)
    sys.modules[name] = module
    return module


def run(source: str, module: types.ModuleType, label: str) -> None:
    """Run one block in the module; a failure names the document and the block."""
    exec(compile(source, label, "exec"), vars(module))
