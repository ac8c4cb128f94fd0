"""What a report measured, as digests of code, so that it can be told later whether that has changed.

A report measures the models that its command's code reaches. What stands for a model is its program and the engines of
its family's record: the functions, classes and constants of :mod:`custom_inference.families` that the record reaches by
their names. Comments, docstrings, layout and what errors say count for nothing. The drivers that all families share
(``em``, ``gibbs``, ``core``) are left out: a change there that changes fits shows in ``benchmarks.frozen_fits``, and
concerns every report.
"""

from __future__ import annotations

import ast
import copy
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


#: A module and a name that it defines; "" for all of it.
_Place = tuple[str, str]


@functools.cache
def digest(model: str, root: Path = ROOT) -> str:
    """Eight letters for the code of a model: its program, and what its family's record reaches."""
    parts = [_bare(_tree(_programs(root)[model])), *_record_code(model, root)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:8]


@functools.cache
def _programs(root: Path) -> dict[str, Path]:
    """The file of every class of the models."""
    paths = (root / "ppl_models").rglob("*.py")
    return {name: path for path in paths for name in re.findall(r"^class (\w+)\(", path.read_text("utf-8"), re.M)}


def _record_code(model: str, root: Path) -> list[str]:
    """The code that the records of a model and of its bases reach within the families, in the order of its places."""
    room = f"{_FAMILIES}.{ROOMS[model]}"
    records = _records(model, room, root)
    found = {(room, f"record {number}"): _bare(record) for number, record in enumerate(records)}
    queue = [place for record in records for place in _reached(room, record, root)]
    while queue:
        place = queue.pop()
        if place not in found and _path(place[0], root) is not None:
            found[place], further = _code_of(*place, root)
            queue += further
    return [f"{' '.join(place)}\n{found[place]}" for place in sorted(found)]


@functools.cache
def _code_of(module: str, name: str, root: Path) -> tuple[str, list[_Place]]:
    """The code of a place, and the places that it names."""
    nodes: list[ast.AST] = [*_named(module, root).get(name, ())] if name else [_tree_of(module, root)]
    # What a module does not define itself it imports.
    reached = [place for node in nodes or [ast.Name(name)] for place in _reached(module, node, root)]
    return "\n".join(map(_bare, nodes)), reached


def _records(model: str, room: str, root: Path) -> list[ast.AST]:
    """The expressions among a room's records that speak of a model or of one of its bases."""
    named = _named(room, root)
    every: list[ast.expr] = []
    for node in named.get("FAMILIES", ()):
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        every += value.elts if isinstance(value, ast.Tuple) else [value] if value is not None else []
    whole: list[ast.AST] = [named[one.id][0] if isinstance(one, ast.Name) and one.id in named else one for one in every]
    return [one for one in whole if _ancestry(model, root) & set(_used(one))] or whole


def _ancestry(model: str, root: Path) -> set[str]:
    """A model's class and its bases, by name."""
    found, queue = set(), [model]
    while queue:
        name = queue.pop()
        if name in found or name not in _programs(root):
            continue
        found.add(name)
        for node in _tree(_programs(root)[name]).body:
            if isinstance(node, ast.ClassDef) and node.name == name:
                queue += [base for one in node.bases for base in _used(one)]
    return found


def _reached(module: str, node: ast.AST, root: Path) -> list[_Place]:
    """The places in the families that a piece of a module's code names."""
    own, imported = _named(module, root), _imported(module, root)
    found: list[_Place] = []
    for used in dict.fromkeys(_used(node)):
        base, name = imported.get(used, ("", ""))
        if used in own:
            found.append((module, used))
        elif base.startswith(f"{_FAMILIES}.") or f"{base}.{name}".startswith(f"{_FAMILIES}."):
            whole = f"{base}.{name}" if name else base
            found.append((base, name) if _path(whole, root) is None else (whole, ""))
    return found


@functools.cache
def _named(module: str, root: Path) -> dict[str, list[ast.stmt]]:
    """The statements of a module that define each name."""
    found: dict[str, list[ast.stmt]] = {}
    for node in _tree_of(module, root).body:
        for name in _defined(node):
            found.setdefault(name, []).append(node)
    return found


@functools.cache
def _imported(module: str, root: Path) -> dict[str, tuple[str, str]]:
    """What a module imports: the name here -> (module, name or "")."""
    return {alias: (base, name) for base, name, alias in _aliases(_tree_of(module, root))}


def _tree_of(module: str, root: Path) -> ast.Module:
    path = _path(module, root)
    return ast.Module([], []) if path is None else _tree(path)


def _bare(node: ast.AST) -> str:
    """Code without docstrings and what errors say; comments and layout are no part of it."""
    return ast.unparse(_Bare().visit(copy.deepcopy(node)))


class _Bare(ast.NodeTransformer):
    """Takes docstrings, and what is raised, out of code."""

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        return ast.copy_location(ast.Raise(), node)

    def generic_visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
        return super().generic_visit(node)


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
    one = isinstance(node, ast.AnnAssign | ast.AugAssign)
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if one else []
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
