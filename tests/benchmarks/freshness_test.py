"""Digests of models see formulas, wherever these stand, and neither names of locals nor words and checks."""

import ast
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import _freshness
from benchmarks._canonical import canonical, text_of

#: Every way to bind a local, in a function of one, whose locals are called {a} to {z}.
_BINDINGS = '''
def step(given, *, rate=1.0, **{k}):
    """{words}"""
    from numpy import exp as {a}, log
    import scipy.special as {b}
    {c}: float = {a}(given.{attribute}) + rate + {k}["x"]
    ({d}, [{e}, *{f}]), {c} = given, {b}.gammaln({c})
    for {g} in range({e}):
        {c} += {g} * sum({h} * {i} for {h} in {f} if ({i} := {h} + {g}))
    with open({d}) as {j}:
        {l} = [{m}.read(rate={c}) for {m} in {j} for {m} in {m}]
    try:
        {n} = {{{o}: {p} for {o}, {p} in {l}}}
    except ValueError as {q}:
        {n} = {q}.args
    match {n}:
        case [{r}, *{s}] | {{"x": {r}, **{s}}}:
            {c} = {r} * len({s})
        case Point(x={r}) as {t}:
            {c} = {r} - {t}.y

    def {u}(x, /, y):
        nonlocal {c}
        global rows
        rows = {c} = {c} + x * y
        {v} = lambda {w}, *, key: {w} ** key + {c}
        return {v}({c}, key=2)

    class {x}:
        value = {c}

        def of(self):
            return {c} + value + self.value

    {y} = f"a text of {{given}}"
    if {c} < 0:
        raise DataError(f"{{{y}}}: {words}", expected={c})
    return {x}().of(), {u}(1, y={c}), sorted({f}, key=lambda {z}: {z}.{attribute})
'''
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def spelled(text: str, **changed: str) -> str:
    """The canonical text of a function, with names for its locals."""
    names = {letter: f"local_{letter}" for letter in _LETTERS} | {"attribute": "size", "words": "Some words."}
    return text_of(canonical(ast.parse(text.format(**names | changed)).body[0]))


def test_names_of_locals_count_for_nothing_whatever_binds_them():
    first = spelled(_BINDINGS)
    assert "local_" not in first and "words" not in first and "rate=" in first and "y=" in first and "key=" in first
    for letter in _LETTERS:
        assert spelled(_BINDINGS, **{letter: "other"}) == first, letter
    # With the names of one another, and with those that attributes have elsewhere.
    swapped = {letter: f"local_{other}" for letter, other in zip(_LETTERS, reversed(_LETTERS), strict=True)}
    assert spelled(_BINDINGS, words="Others, of it.", **swapped) == first
    assert spelled(_BINDINGS, c="size", z="of", v="gammaln", g="args") == first
    assert spelled(_BINDINGS, attribute="width") != first


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a = x; b = y; return a - b", "a = x; b = y; return b - a"),
        ("return x.mean", "return x.sum"),
        ("return f(scale=x)", "return f(rate=x)"),
        ("return [y for z in x]", "return [z for z in x]"),
        ("return [y for y in x if y]", "return [y for y in x if x]"),
        ("return lambda z: z", "return lambda z: y"),
        ("from a import one as z; return z", "from a import two as z; return z"),
        ("total = x; return total", "global total; total = x; return total"),
        ("if x > 0: raise PriorError('no')", "if x > 1: raise PriorError('no')"),  # upon which another engine fits
        ("return x['mode']", "return x['mean']"),
    ],
)
def test_what_is_computed_counts(before, after):
    texts = [text_of(canonical(ast.parse(f"def f(x, y):\n    {body}"))) for body in (before, after)]
    assert texts[0] != texts[1]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("if x > 0: raise DataError('no')\n    return y", "return y"),
        ("bad = x.valid(y); found = f'{bad}'\n    if bad.any(): raise DataError(found)\n    return y", "return y"),
        ("require_whole(x); self.check(y); warn_caller('few rows')\n    return y", "return y"),
        ("with about(x):\n        warn_of_data('few rows')\n    return y", "return y"),
        ("z: Tensor = y\n    return z", "z = y\n    return z"),
        ("from ppl_models.a import f; return f(y)", "from ppl_models.b.c import f as g; return g(y)"),
    ],
)
def test_checks_and_where_things_stand_count_for_nothing(before, after):
    texts = [text_of(canonical(ast.parse(f"def f(x, y):\n    {body}"))) for body in (before, after)]
    assert texts[0] == texts[1]


# ----- a copy of the packages -------------------------------------------------------------------------------------

#: A model with likelihoods and EM; one of documents, with EM; one whose record has neither engines nor a sampler.
_ASPECTS, _DOCUMENTS, _GRAPHS = "AspectBernoulli", "HDP", "GraphModel"


def digests(root: Path, *models: str) -> dict[str, str]:
    """The digests by the code that is there now."""
    for one in vars(_freshness).values():
        if hasattr(one, "cache_clear"):
            one.cache_clear()
    return {model: _freshness.digest(model, root) for model in models}


@pytest.fixture(scope="module")
def copied(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("copied")
    for package in ("ppl_models", "custom_inference"):
        shutil.copytree(_freshness.ROOT / package, root / package, ignore=shutil.ignore_patterns("__pycache__"))
    return root


@pytest.fixture(scope="module")
def known(copied) -> dict[str, str]:
    return digests(copied, _ASPECTS, _DOCUMENTS, _GRAPHS)


@pytest.fixture
def edited(copied) -> Iterator[Path]:
    """The copy, and what a test writes there taken back."""
    before = {path: path.read_text("utf-8") for path in copied.rglob("*.py")}
    yield copied
    for path, text in before.items():
        if path.read_text("utf-8") != text:
            path.write_text(text, "utf-8")


def replace(path: Path, before: str, after: str) -> None:
    text = path.read_text("utf-8")
    assert before in text, f"{path.name} has no {before!r}"
    path.write_text(text.replace(before, after), "utf-8")


def local_of(function: ast.FunctionDef) -> str | None:
    """A local of a function that is nothing else in it: no parameter, argument, attribute, or import."""
    stored = [one for one in ast.walk(function) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)]
    fields = ("arg", "attr", "name", "asname")
    others = {getattr(one, field, None) for one in ast.walk(function) for field in fields}
    inner = any(isinstance(one, ast.ClassDef | ast.Global) for one in ast.walk(function))
    return next((one.id for one in stored if one.id not in others and not inner), None)


def test_no_digest_goes_by_locals_docstrings_and_words_of_errors(edited, known):
    """One local of every function there is renamed, and every docstring and error says something else."""
    renamed, places = 0, ("ppl_models/[al]*.py", "custom_inference/em/*.py", "custom_inference/families/aspects/*.py")
    for path in (path for place in places for path in edited.glob(place)):
        tree = ast.parse(path.read_text("utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                node.exc.args = [ast.Constant("other words")]
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node):
                node.body[0] = ast.Expr(ast.Constant("Other words."))
            if isinstance(node, ast.FunctionDef) and (name := local_of(node)):
                renamed += 1
                for one in ast.walk(node):
                    if isinstance(one, ast.Name) and one.id == name:
                        one.id = f"another_{name}"
                    elif isinstance(one, ast.Nonlocal):
                        one.names = [f"another_{name}" if each == name else each for each in one.names]
        path.write_text(ast.unparse(ast.fix_missing_locations(tree)), "utf-8")
    assert renamed > 100
    assert digests(edited, _ASPECTS) == {_ASPECTS: known[_ASPECTS]}


@pytest.mark.parametrize(
    ("file", "before", "after", "changed", "same"),
    [
        ("ppl_models/likelihoods.py", "self.total / 4", "self.total / 3", [_ASPECTS], [_DOCUMENTS]),
        ("ppl_models/likelihoods.py", "eta.square() / 2", "eta.square() / 3", [], [_ASPECTS]),  # of the Gaussian
        ("ppl_models/distributions/tokens.py", "lgamma(", "digamma(", [_DOCUMENTS], [_GRAPHS]),
        ("custom_inference/em/accelerate.py", "first + 2 * length", "first + 3 * length", [_ASPECTS], [_GRAPHS]),
        ("custom_inference/em/loop.py", "interrupted after", "cut after", [], [_ASPECTS]),
        ("custom_inference/core/progress.py", "1", "2", [], [_ASPECTS]),
    ],
)
def test_a_change_of_a_formula_changes_the_digests_of_the_models_that_reach_it(
    edited, known, file, before, after, changed, same
):
    replace(edited / file, before, after)
    found = digests(edited, *changed, *same)
    assert {model: found[model] == known[model] for model in found} == dict.fromkeys(changed, False) | dict.fromkeys(
        same, True
    )
