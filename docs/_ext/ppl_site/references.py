"""What names in docstrings and signatures refer to: public names, wherever they are defined; others are plain text."""

from __future__ import annotations

import builtins
import importlib
import sys
from typing import Any

from docutils import nodes

from ppl_site import api

#: Packages of others, whose documentation is not looked up: a build needs no network.
_OTHERS = (
    "torch", "pyro", "numpy", "np", "pandas", "pd", "scipy", "sklearn", "networkx", "nx", "xarray", "arviz", "az",
    "matplotlib", "typing", "collections", "abc", "pathlib", "enum", "functools", "dataclasses",
)  # fmt: skip


def resolve(app: Any, env: Any, node: Any, contnode: nodes.Element) -> nodes.Node | None:
    """A link to the public name, or plain text for what exists but is not public here; None: a broken reference."""
    if node.get("refdomain") != "py":
        return None
    target = node["reftarget"]
    last = target.rsplit(".", 1)[-1]
    domain = env.get_domain("py")
    for package in api.PACKAGES:
        for full in (f"{package.__name__}.{last}", f"{package.__name__}.{'.'.join(target.split('.')[-2:])}"):
            if full in domain.objects:
                return domain.resolve_xref(env, node["refdoc"], app.builder, "obj", full, node, contnode)
    return contnode if exists(target) else None


def exists(target: str) -> bool:
    """Whether a name is something of another package, or means something in any module of these."""
    first = target.split(".")[0]
    if first in _OTHERS or hasattr(builtins, first):
        return True
    ours = [module for name, module in sys.modules.items() if name.split(".")[0] in ("ppl_models", "custom_inference")]
    return _importable(target) or any(_reaches(module, target.split(".")) for module in list(ours))


def _importable(path: str) -> bool:
    parts = path.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            value: Any = importlib.import_module(".".join(parts[:cut]))
        except ImportError:
            continue
        return _reaches(value, parts[cut:])
    return False


def _reaches(value: Any, parts: list[str]) -> bool:
    for part in parts:
        if not hasattr(value, part):
            return False
        value = getattr(value, part)
    return True
