"""What a report measured, as digests of code, so that it can be told later whether that has changed.

A report measures the models that its command's code reaches. What stands for a model is what its class and its
family's record reach by names, and the driver that runs what the record has: ``em`` of engines, ``gibbs`` of a sampler.
The names lead through the model's file and bases, likelihoods, distributions, families and the shared rooms (``core``,
``em``, ``gibbs``, ``svi``), but from engines to no other model, and from a driver, which serves all models, to nothing
of ``ppl_models``. Of shared rooms only functions, methods and settings count that compute: that have arithmetic,
numbers or what tensors compute. Modules that read, check, show and keep (``_ASIDE``), and what is asked of fits, are
not followed. These, plumbing, and generic methods (``SVI``, ``NUTS``) that no family names are left to
``benchmarks.frozen_fits``. In which module something stands, names of locals, docstrings, words, and checks that only
refuse or warn count for nothing (``_canonical``).
"""

from __future__ import annotations

import ast
import functools
import hashlib
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from benchmarks._canonical import canonical, text_of
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
#: What a record names -> the driver that runs it.
_DRIVERS: dict[str, _Place] = {
    "engines": ("custom_inference.em.method", "VariationalEM"),
    "sampler": ("custom_inference.gibbs.method", "CollapsedGibbs"),
}
#: Modules whose classes and functions count whole, where they are reached; of other modules what computes.
_WHOLE = (_FAMILIES, "ppl_models")
_SHARED = ("ppl_models.core", "ppl_models.kinds")
#: Modules that read, check, tell or keep, and what is asked of fits: they are not followed.
_ASIDE = (
    *(f"ppl_models.{room}" for room in ("data", "datasets")),
    *(f"ppl_models.core.{name}" for name in ("bars", "displays", "doors", "errors", "turns", "unsized")),
    *(f"custom_inference.{room}" for room in ("checks", "faces", "methods", "em.checkpoint", "em.unbounded")),
    *(f"custom_inference.core.{name}" for name in ("ended", "evaluate", "fit", "local_inference", "method")),
    *(f"custom_inference.core.{name}" for name in ("posterior_bounds", "presentation", "process", "progress")),
    *(f"custom_inference.core.{name}" for name in ("report_table", "result", "settings", "store", "tensor_files")),
    *(f"custom_inference.core.{name}" for name in ("threads", "unbounded")),
)
#: Rooms that serve all models: what they name of ``ppl_models`` says nothing of the one at hand.
_ANY_MODEL = ("custom_inference.em", "custom_inference.gibbs")
#: What only tensors and arrays compute.
_COMPUTING = {
    "exp",
    "log",
    "log1p",
    "expm1",
    "sqrt",
    "square",
    "sum",
    "mean",
    "prod",
    "cumsum",
    "softmax",
    "log_softmax",
}
_COMPUTING |= {"logsumexp", "sigmoid", "clamp", "lgamma", "digamma"}


@functools.cache
def digest(model: str, root: Path = ROOT) -> str:
    """Eight letters for the code of a model: its program, and what its family's record reaches."""
    return hashlib.sha256("\n".join(sorted(set(_code(model, root).values()))).encode()).hexdigest()[:8]


def _code(model: str, root: Path) -> dict[_Place, str]:
    """The code of a model by its places: what its class reaches, and its records and those of its bases."""
    room = f"{_FAMILIES}.{ROOMS[model]}"
    program = ".".join(_programs(root)[model].relative_to(root).with_suffix("").parts)
    records = [canonical(record) for record in _records(model, room, root)]
    found = {(room, f"record {number}"): text_of(record) for number, record in enumerate(records)}
    queue = [(program, model), *(place for record in records for place in _reached(room, record, root))]
    queue += [driver for named, driver in _DRIVERS.items() if any(named in _settings(one) for one in records)]
    while queue:
        place = queue.pop()
        if place not in found:
            found[place], further = _code_of(*place, root)
            queue += further
    return {place: text for place, text in found.items() if text}


def _settings(node: ast.AST) -> set[str]:
    return {one.arg for one in ast.walk(node) if isinstance(one, ast.keyword) and one.arg}


@functools.cache
def _programs(root: Path) -> dict[str, Path]:
    """The file of every class of the models."""
    paths = (root / "ppl_models").rglob("*.py")
    return {name: path for path in paths for name in re.findall(r"^class (\w+)\(", path.read_text("utf-8"), re.M)}


@functools.cache
def _code_of(module: str, name: str, root: Path) -> tuple[str, list[_Place]]:
    """The code of a place that counts, and the places that it names."""
    nodes: list[ast.AST] = [*_named(module, root).get(name, ())] if name else [_tree_of(module, root)]
    bare = [canonical(node) for node in nodes]
    # What a module does not define itself it imports.
    reached = [place for node in bare or [ast.Name(name)] for place in _reached(module, node, root)]
    return "\n".join(text_of(one) for node in bare for one in _counting(module, node)), reached


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
    """The places that a piece of a module's code names, and that may count."""
    own, imported = _named(module, root), _imported(module, root)
    here = {alias: (base, name) for base, name, alias in _aliases(node)}  # imports within a function
    parts: dict[str, list[str]] = {}
    for one in ast.walk(node):
        if isinstance(one, ast.Attribute) and isinstance(one.value, ast.Name):
            parts.setdefault(one.value.id, []).append(one.attr)
    found: list[_Place] = []
    for used in dict.fromkeys([*_used(node), *here]):
        base, name = here.get(used, imported.get(used, ("", "")))
        if used in own:
            found.append((module, used))
        elif _path(base, root) is not None:
            whole = f"{base}.{name}" if name else base
            module_of = _path(whole, root) is not None
            found += [(whole, part) for part in parts.get(used, [""])] if module_of else [(base, name)]
    aside = (*_ASIDE, "ppl_models") if module.startswith(_ANY_MODEL) else _ASIDE
    mine = module.startswith("ppl_models")
    return [one for one in found if not one[0].startswith(aside) and (mine or one[1] not in ROOMS)]


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


def _counting(module: str, node: ast.AST) -> list[ast.AST]:
    """The pieces of canonical code that count: all, or of shared modules the functions and settings that compute."""
    if module.startswith(_WHOLE) and not module.startswith(_SHARED):
        return [node]
    pieces = node.body if isinstance(node, ast.ClassDef | ast.Module) else [node]
    return [one for one in pieces if any(map(_computes, ast.walk(one)))]


def _computes(node: ast.AST) -> bool:
    """Whether there is arithmetic, a number, or what a tensor computes."""
    if isinstance(node, ast.BinOp | ast.AugAssign):
        return not isinstance(node.op, ast.BitOr | ast.BitAnd)
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int | float) and node.value not in (False, True)
    return isinstance(node, ast.Attribute) and node.attr in _COMPUTING


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


def _aliases(tree: ast.AST) -> Iterator[tuple[str, str, str]]:
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
