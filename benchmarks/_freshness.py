"""What a report measured, as digests of code, so that it can be told later whether that has changed.

A report measures the models that its command's code reaches. What stands for a model is its program and its family's
room: the modules of :mod:`custom_inference.families` that the room's record reaches by imports. Comments, docstrings
and layout count for nothing. The drivers that all families share (``em``, ``gibbs``, ``core``) are left out: a change
there that changes fits shows in ``benchmarks.frozen_fits``, and concerns every report.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from custom_inference.families import ROOMS

ROOT = Path(__file__).resolve().parents[1]
_FAMILIES, _BENCHMARKS = "custom_inference.families", "benchmarks"


def commit() -> str:
    """The commit of the engines, with "+" behind it where the packages differ from it; "" outside of a repository."""
    said = [_git("rev-parse", "--short=10", "HEAD"), _git("status", "--porcelain", "custom_inference", "ppl_models")]
    return said[0] + ("+" if said[1] else "")


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


# ----- digests of models ------------------------------------------------------------------------------------------


@functools.cache
def digest(model: str, root: Path = ROOT) -> str:
    """Eight letters for the code of a model: its program and the engines of its family's room."""
    parts = [_bare(_programs(root)[model]), *_room_code(ROOMS[model], root)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:8]


@functools.cache
def _programs(root: Path) -> dict[str, Path]:
    """The file of every class of the models."""
    paths = (root / "ppl_models").rglob("*.py")
    return {name: path for path in paths for name in re.findall(r"^class (\w+)\(", path.read_text("utf-8"), re.M)}


@functools.cache
def _room_code(room: str, root: Path) -> list[str]:
    return [hashlib.sha256(_bare(path).encode()).hexdigest() for path in _room(room, root)]


def _room(room: str, root: Path) -> list[Path]:
    """The modules that a room's record reaches within the families, in the order of their names."""
    found: set[str] = set()
    queue = [f"{_FAMILIES}.{room}"]
    while queue:
        module = queue.pop()
        path = _path(module, root)
        if module in found or path is None:
            continue
        found.add(module)
        for base, name, _ in _aliases(_tree(path)):
            queue += [one for one in (base, f"{base}.{name}") if one.startswith(f"{_FAMILIES}.")]
    return [path for path in (_path(module, root) for module in sorted(found)) if path is not None]


@functools.cache
def _bare(path: Path) -> str:
    """The code of a module without docstrings, which comments and layout are no part of."""
    tree = ast.parse(path.read_text("utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    return ast.dump(tree)


# ----- models that a command reaches ------------------------------------------------------------------------------


def models_of(module: str, root: Path = ROOT) -> list[str]:
    """The models that the code of a benchmark reaches: by name, through what it imports of other benchmarks."""
    found: set[str] = set()
    seen: set[tuple[str, str]] = set()
    queue: list[tuple[str, str]] = [(module, "")]
    while queue:
        here, name = queue.pop()
        path = _path(here, root)
        if (here, name) in seen or path is None:
            continue
        seen.add((here, name))
        tree = _tree(path)
        imported = {alias: (base, original) for base, original, alias in _aliases(tree)}
        own = {one: node for node in tree.body for one in _defined(node)}
        for used in _used(own.get(name, tree)):
            base, original = imported.get(used, ("", used))
            if used in own and used not in imported:
                queue.append((here, used))
            elif base == "ppl_models" or original in ROOMS:
                found |= set(ROOMS) if original in ("MODELS", "") and base == "ppl_models" else {original} & set(ROOMS)
            elif base.startswith(_BENCHMARKS) or used.startswith(f"{_BENCHMARKS}."):
                whole = f"{base}.{original}" if base else used
                queue += [(whole, "")] if _path(whole, root) is not None else [(base, original)]
    return sorted(found)


def _used(node: ast.AST) -> Iterator[str]:
    """Names, attributes, and texts that may name a module, in a piece of code."""
    for one in ast.walk(node):
        if isinstance(one, ast.Name):
            yield one.id
        elif isinstance(one, ast.Attribute):
            yield one.attr
        elif isinstance(one, ast.Constant) and isinstance(one.value, str) and one.value.startswith(f"{_BENCHMARKS}."):
            yield one.value


def _defined(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)]


def _aliases(tree: ast.Module) -> Iterator[tuple[str, str, str]]:
    """(module, name or "", name here) of every import."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield from ((node.module or "", one.name, one.asname or one.name) for one in node.names)
        elif isinstance(node, ast.Import):
            yield from ((one.name, "", one.asname or one.name) for one in node.names)


@functools.cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


@functools.cache
def _path(module: str, root: Path) -> Path | None:
    """The file of a module; None where there is none."""
    place = root.joinpath(*module.split("."))
    return next((path for path in (place.with_suffix(".py"), place / "__init__.py") if path.is_file()), None)
