"""Code without what its numbers do not depend on: docstrings, comments, layout, names of locals, annotations of
functions, words, and checks that only refuse or warn.

A local is what a function binds: by assignments, loops, ``with``, ``except``, ``match``, imports, nested functions and
classes, comprehensions, and parameters that nobody can give by name (``*args``, ``**others``, positional ones and those
of a lambda). Each has a number in place of its name, by where it is met first. Attributes, names of arguments, of what
a class or a module defines, and other parameters keep their names.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterable, Iterator
from typing import Any

#: What a local's number is written behind: no name has it.
MARK = "§"
#: Packages whose modules may move, so that a function's imports say only what they import of them.
OWN = ("custom_inference", "ppl_models")
#: Errors upon which another method fits, or another engine: where they are raised decides on numbers.
_DECIDING = ("PriorError", "CapacityError")
#: How names of functions begin that only refuse, or warn.
_CHECKS = re.compile(r"_*(require|refuse|check|warn)(_|$)")
_Function = ast.FunctionDef | ast.AsyncFunctionDef
_Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
_Scoped = _Function | ast.ClassDef | ast.Lambda | _Comprehension


def canonical(node: ast.AST) -> ast.AST:
    """A copy of a piece of code, with marks in place of locals, without words and checks."""
    tree, before = _Bare().visit(_Marked().visit(_copied(node))) or ast.Pass(), -1
    while before != (before := sum(1 for _ in ast.walk(tree))):
        tree = _Pruned(tree).visit(tree) or ast.Pass()
    for one in ast.walk(tree):
        if isinstance(one, ast.stmt | ast.ExceptHandler | ast.match_case) and getattr(one, "body", None) == []:
            one.body = [ast.Pass()]  # pyright: ignore[reportAttributeAccessIssue]
    return tree


def _copied(value: Any) -> Any:
    """Nodes anew, all the way down; ``copy.deepcopy`` takes more than twice the time."""
    if isinstance(value, list):
        return [_copied(one) for one in value]
    if not isinstance(value, ast.AST):
        return value
    node = type(value)()
    vars(node).update({name: _copied(one) for name, one in vars(value).items()})
    return node


def text_of(node: ast.AST) -> str:
    """The text of canonical code, locals numbered by where they are met first."""
    numbers: dict[str, str] = {}
    text = re.sub(rf"{MARK}\d+", lambda at: numbers.setdefault(at[0], f"{MARK}{len(numbers)}"), ast.unparse(node))
    return re.sub(rf"from (?:{'|'.join(OWN)})[\w.]* import", "import", text)


# ----- locals -----------------------------------------------------------------------------------------------------


class _OfClass(dict[str, str]):
    """What a class defines, which its functions do not see."""


class _Marked(ast.NodeTransformer):
    """Puts marks in place of the names of locals."""

    def __init__(self) -> None:
        self.scopes: list[dict[str, str]] = []
        self.numbers = itertools.count()

    def marks(self, names: Iterable[str]) -> dict[str, str]:
        return {name: f"{MARK}{next(self.numbers)}" for name in names}

    def named(self, name: str) -> str:
        return next((scope[name] for scope in reversed(self.scopes) if name in scope), name)

    def within(self, scope: dict[str, str], nodes: Iterable[ast.AST]) -> list[Any]:
        """Visit what stands in a scope of its own."""
        outer, of_class = self.scopes, isinstance(scope, _OfClass)
        self.scopes = [*(one for one in outer if of_class or not isinstance(one, _OfClass)), scope]
        found = [self.visit(node) for node in nodes]
        self.scopes = outer
        return found

    def visit_FunctionDef(self, node: Any) -> ast.AST:
        node.name = self.named(node.name)
        node.decorator_list = [self.visit(one) for one in node.decorator_list]
        given = self._parameters(node.args, keep=node.args.args)
        bound, elsewhere = _bound(node.body)
        here = self.marks(name for name in dict.fromkeys(bound) if name not in given and name not in elsewhere)
        node.body = self.within({**here, **given, **elsewhere}, node.body)
        return node

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        given = self._parameters(node.args, keep=[])
        (node.body,) = self.within(given, [node.body])
        return node

    def _parameters(self, given: ast.arguments, keep: list[ast.arg]) -> dict[str, str]:
        """Visit the defaults, out of the function; the function's names of its parameters."""
        given.defaults = [self.visit(one) for one in given.defaults]
        given.kw_defaults = [one and self.visit(one) for one in given.kw_defaults]
        kept = [*keep, *given.kwonlyargs]
        every = [*given.posonlyargs, *given.args, *filter(None, (given.vararg, given.kwarg))]
        marks = self.marks(one.arg for one in every if one not in kept)
        for one in every:
            one.arg = marks.get(one.arg, one.arg)
        return {**marks, **{one.arg: one.arg for one in kept}}

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        node.name = self.named(node.name)
        for field in ("decorator_list", "bases", "keywords"):
            setattr(node, field, [self.visit(one) for one in getattr(node, field)])
        bound, elsewhere = _bound(node.body)
        node.body = self.within(_OfClass({name: name for name in bound} | elsewhere), node.body)
        return node

    def visit_ListComp(self, node: Any) -> ast.AST:
        first = self.visit(node.generators[0].iter)  # which does not see the names that follow
        node.generators[0].iter = ast.Constant(None)
        scope = self.marks(dict.fromkeys(name for one in node.generators for name in _stored(one.target)))
        fields = ("generators", "key", "value") if isinstance(node, ast.DictComp) else ("generators", "elt")
        parts = [part for field in fields for part in _listed(getattr(node, field))]
        self.within(scope, parts)  # in place: names stay nodes
        node.generators[0].iter = first
        return node

    visit_SetComp = visit_DictComp = visit_GeneratorExp = visit_ListComp

    def visit_Name(self, node: ast.Name) -> ast.AST:
        node.id = self.named(node.id)
        return node

    def visit_Nonlocal(self, node: ast.Nonlocal) -> ast.AST:
        node.names = [self.named(name) for name in node.names]
        return node

    def visit_ExceptHandler(self, node: Any) -> ast.AST:
        node.name = node.name and self.named(node.name)
        return self.generic_visit(node)

    visit_MatchAs = visit_MatchStar = visit_ExceptHandler

    def visit_MatchMapping(self, node: ast.MatchMapping) -> ast.AST:
        node.rest = node.rest and self.named(node.rest)
        return self.generic_visit(node)

    def visit_alias(self, node: ast.alias) -> ast.AST:
        here = node.asname or node.name.partition(".")[0]
        node.asname = self.named(here) if self.named(here) != here else node.asname
        return node


def _bound(body: Iterable[ast.AST]) -> tuple[list[str], dict[str, str]]:
    """The names that a body binds, in their order, and those that it declares global, as they are, or nonlocal."""
    bound: list[str] = []
    elsewhere: dict[str, str] = {}
    outer: set[str] = set()
    for node in _own_nodes(body):
        bound += _binds(node)
        if isinstance(node, ast.Global):
            elsewhere |= {name: name for name in node.names}
        elif isinstance(node, ast.Nonlocal):
            outer |= set(node.names)
    return [name for name in bound if name not in outer], elsewhere


def _own_nodes(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """All nodes of a scope, without those of scopes within, but for what these bind here (by ``:=``)."""
    for node in nodes:
        yield node
        if isinstance(node, _Comprehension):
            yield from (one.target for one in ast.walk(node) if isinstance(one, ast.NamedExpr))
        elif not isinstance(node, _Scoped):
            yield from _own_nodes(ast.iter_child_nodes(node))


def _binds(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Name):
        return _stored(node)
    if isinstance(node, _Function | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.alias):
        return [node.asname or node.name.partition(".")[0]]
    if isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar):
        return [node.name] if node.name else []
    return [node.rest] if isinstance(node, ast.MatchMapping) and node.rest else []


def _stored(node: ast.AST) -> list[str]:
    return [one.id for one in ast.walk(node) if isinstance(one, ast.Name) and not isinstance(one.ctx, ast.Load)]


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


# ----- words and checks -------------------------------------------------------------------------------------------


class _Bare(ast.NodeTransformer):
    """Takes docstrings, words, annotations of functions and locals, what is raised, and checks out of marked code."""

    def generic_visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, ast.Module | ast.ClassDef | _Function) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
        return super().generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        kind = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
        return ast.Raise(kind if isinstance(kind, ast.Name) and kind.id in _DECIDING else None)

    def visit_Assert(self, node: ast.Assert) -> None:
        return None

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        self.generic_visit(node)
        call = node.value
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name | ast.Attribute):
            name = call.func.id if isinstance(call.func, ast.Name) else call.func.attr
            return None if _CHECKS.match(name) else node
        return None if isinstance(call, ast.Constant) else node

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: Any) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        if _is_local(node.target):
            plain = node.value and ast.copy_location(ast.Assign([node.target], node.value), node)
            return plain and self.visit(plain)
        node.annotation = ast.Constant("ClassVar" in ast.unparse(node.annotation))
        return self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST | None:
        self.generic_visit(node)
        return None if _is_text(node.value) else node

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST:
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        words = isinstance(node.value, str) and re.search(r"\s", node.value)
        return ast.Constant("") if words else ast.Constant(node.value)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        return ast.Constant("")

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        return ast.Constant("") if _is_text(node.left) or _is_text(node.right) else node

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        self.generic_visit(node)
        return ast.Constant("") if _is_text(node.body) and _is_text(node.orelse) else node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        match node.func:
            case ast.Attribute(value=ast.Constant(), attr="join" | "format"):
                return ast.Constant("")
        return self.generic_visit(node)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value == ""


def _is_local(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id.startswith(MARK)


class _Pruned(ast.NodeTransformer):
    """Takes out what is left of checks: branches and loops that only refuse or do nothing, and what only they read."""

    def __init__(self, tree: ast.AST) -> None:
        names = (one for one in ast.walk(tree) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load))
        self.read = {one.id for one in names}

    def visit_Assign(self, node: ast.Assign) -> ast.AST | None:
        names = [one.id for one in node.targets if _is_local(one) and isinstance(one, ast.Name)]
        return None if len(names) == len(node.targets) and self.read.isdisjoint(names) else node

    def visit_If(self, node: Any) -> ast.AST | None:
        self.generic_visit(node)
        refuses = all(isinstance(one, ast.Raise) and one.exc is None for one in node.body)
        return None if refuses and not getattr(node, "orelse", None) else node

    visit_For = visit_With = visit_If
