"""The documentation site's own code: nothing is forgotten, nothing is made up, and broken sites are refused.

The pages themselves are checked by building them: ``make docs``, warnings being errors.
"""

import importlib
import inspect
import json
import re
import sys
import textwrap

import nbformat
import pytest

from custom_inference.methods import every_method
from ppl_models import IRM, MODELS, AspectBernoulliIndicator
from tests.support.documentation import ROOT

DOCS = ROOT / "docs"
PARTS = ("api", "checks", "docstrings", "pictures", "references", "staging", "tables")


@pytest.fixture(scope="module")
def site():
    """The modules of the extension, by name."""
    pytest.importorskip("sphinx", reason="the documentation is built with sphinx: pip install '.[docs]'")
    sys.path.insert(0, str(DOCS / "_ext"))
    yield {part: importlib.import_module(f"ppl_site.{part}") for part in PARTS}
    sys.path.remove(str(DOCS / "_ext"))


def test_every_public_name_has_one_place(site):
    text = "\n".join(site["api"].pages().values())
    entry = re.compile(r"^\.\. py:currentmodule:: (\S+)\n\n\.\. (?:autoclass|autofunction|py:data):: (\S+)$", re.M)
    documented = [f"{found[1]}.{found[2]}" for found in entry.finditer(text)]
    public = [f"{name.package}.{name.name}" for name in site["api"].public_names()]
    assert len(public) > 100
    assert sorted(documented) == sorted(public)


def test_every_public_name_says_what_it_is(site):
    for name in site["api"].public_names():
        assert name.text, f"{name.package}.{name.name}"
        assert not name.text.startswith(f"{name.name}("), f"{name.package}.{name.name}"  # what a dataclass makes itself


def test_pages_of_models_show_their_programs(site):
    """Every model that can be run has a page with its program, line by line as the file of its class has it."""
    pages = {path: text for path, text in site["api"].pages().items() if path.startswith("api/models/")}
    for kind in (*MODELS.values(), IRM, AspectBernoulliIndicator):
        (page,) = (text for text in pages.values() if f".. autoclass:: {kind.__name__}\n" in text)
        program = textwrap.dedent(inspect.getsource(kind.__call__))
        shown = textwrap.indent(program, "   ")
        assert f"in ``{kind.__module__.replace('.', '/')}.py``:\n\n.. code-block:: python\n\n{shown}" in page, kind
        stated = [name for name, one in kind.example().model.sites.items() if one.role != "given"]
        missing = [name for name in stated if f'"{name}"' not in program]
        assert kind is IRM or not missing, f"{kind.__name__}: {missing}"


def test_docstring_blocks(site):
    text = (
        "First *Title: of a work* of x_j * y_k and |S| with ``a_b`` and :class:`Fit`, P(x) in R^D_.\n"
        "A 2nd.\n\n    f(x) = a_j * b_k\n\n    more |x|\n\n"
        'name, other: meaning of x_i\n    continued\n"value": another.\nNot an item: no.\n\n'
        "Raises\n------\nDataError: never.\n\n- one\n  more\n- two\n\n1. is no list"
    )
    expected = [
        r"First *Title: of a work* of x\_j \* y\_k and \|S\| with ``a_b`` and :class:`Fit`, P(x) in R^D\_. A 2nd.",
        ".. code-block:: text",
        "    f(x) = a_j * b_k",
        "    more |x|",
        "``name``, ``other``",
        r"    meaning of x\_i continued",
        '``"value"``',
        "    another.",
        "Not an item: no.",
        ".. rubric:: Raises",
        ":exc:`DataError`",
        "    never.",
        "- one more",
        "- two",
        r"\ 1. is no list",
    ]
    assert [line for line in site["docstrings"].to_rst(text) if line] == expected


def _docstrings(site):
    """All docstrings that the reference shows."""
    found = {}
    for name in site["api"].public_names():
        found[f"{name.package}.{name.name}"] = name.text
        found[name.module] = inspect.getdoc(sys.modules[name.module])
        members = vars(name.value).items() if name.is_class else ()
        found.update({f"{name.name}.{member}": value.__doc__ for member, value in members if member[0] != "_"})
    return {where: inspect.cleandoc(text) for where, text in found.items() if text}


def test_no_word_of_a_docstring_is_lost_or_read_as_markup(site):
    """docutils reads what was made of every docstring, without a warning, and finds its words in their order."""
    pytest.importorskip("docutils", reason="docutils comes with sphinx")
    from docutils import nodes
    from docutils.core import publish_doctree
    from docutils.frontend import get_default_settings
    from docutils.parsers.rst import Parser, roles

    names = {role for text in _docstrings(site).values() for role in re.findall(r":([a-z]+):`", text)} | {"exc"}
    for role in names:
        roles.register_local_role(role, lambda role, raw, text, line, inliner, options=None, content=(): (
            [nodes.literal(text=text)], []))  # fmt: skip
    settings = get_default_settings(Parser)  # made once: docutils would make them anew of all its options each time
    settings.report_level = 5
    for where, text in _docstrings(site).items():
        tree = publish_doctree("\n".join(site["docstrings"].to_rst(text)), settings=settings)
        messages = [message.astext() for message in tree.findall(nodes.system_message)]
        assert not messages, f"{where}: {messages}"
        assert _words(tree.astext()) == _words(re.sub(r"(?m)^-{3,}$|:[a-z]+:(?=`)", "", text)), where


def _words(text):
    """Letters and figures: what neither markup nor its removal changes."""
    return re.findall(r"[^\W_]+", text)


def test_every_model_and_method_is_in_the_tables(site):
    tables = site["tables"]
    kinds = {one: tables.kind_of(one) for one in MODELS.values()}
    listed = {kind: tables.models_table(kind) for kind in set(kinds.values())}
    assert all(f"ppl_models.{one.__name__}`" in listed[kind] for one, kind in kinds.items())
    methods = tables.applicability_table()
    assert all(f"| `{name}` |" in methods for name in every_method())
    with pytest.raises(tables.UnknownEntry, match=r"'mushrooms'.*binary"):
        tables.models_table("mushrooms")


@pytest.mark.quick
def test_kinds_of_data(site):
    kinds = {name: site["tables"].kind_of(kind) for name, kind in MODELS.items()}
    expected = {"noca": "binary", "cvq": "real", "mixture_of_poissons": "counts", "lda": "documents", "sbm": "graphs"}
    assert expected.items() <= kinds.items() and kinds["user_rating_profile"] == "responses"


def test_figures_are_those_of_the_reports(site, tmp_path):
    tables = site["tables"]
    rows = [{"method": "a | b", "seconds": 1.23456}, {"method": "c", "seconds": 2.0}]
    content = {"title": "Speed", "command": "run", "tables": [{"title": "Fits, all", "note": "Of all.", "rows": rows}]}
    (tmp_path / "speed.json").write_text(json.dumps(content))
    text = tables.figures("speed", "Fits", ["seconds", "method"], folder=tmp_path)
    assert "| seconds | method |" in text and "| 1.235 | a \\| b |" in text.replace("\\\\", "\\")
    assert "](/project/results/speed.md)" in text and "*Fits, all.* Of all." in text
    for arguments, message in (
        (("speed", "Other"), "no table 'Other'.*Fits, all"),
        (("speed", "Fits", ["hours"]), r"\['hours'\].*method"),
        (("slow", "Fits"), "no report 'slow'; there are speed"),
    ):
        with pytest.raises(tables.UnknownEntry, match=message):
            tables.figures(*arguments, folder=tmp_path)


def test_only_names_that_exist_are_spoken_of(site):
    text = site["tables"].available(["compare: one call", "divine: another", ""])
    assert text == "- {py:obj}`~custom_inference.compare`. one call"


def test_executed_notebooks_are_used_if_they_are_the_same(site, tmp_path, monkeypatch):
    staging, path = site["staging"], sorted((ROOT / "notebooks").glob("*.ipynb"))[0]
    monkeypatch.setenv("PPL_EXECUTED", str(tmp_path / "executed"))
    monkeypatch.setenv("PPL_SMOKE", "1")
    assert staging.executed_before(path) is None
    notebook = nbformat.read(path, as_version=4)
    code = next(cell for cell in notebook.cells if cell.cell_type == "code")
    code.outputs = [nbformat.v4.new_output("stream", text="42")]
    (tmp_path / "executed").mkdir()
    nbformat.write(notebook, tmp_path / "executed" / path.name)
    assert staging.executed_before(path) is not None
    done = staging.stage_notebooks(tmp_path / "source")
    assert done == [f"gallery/{path.name}"]
    pages = sorted((tmp_path / "source" / "gallery").glob("*.ipynb"))
    assert [page.name for page in pages] == [each.name for each in sorted((ROOT / "notebooks").glob("*.ipynb"))]
    page = nbformat.read(pages[0], as_version=4)
    nbformat.validate(page)
    assert "small size" in page.cells[1].source and path.name in page.cells[-1].source
    monkeypatch.setenv("PPL_SMOKE", "0")
    assert staging.executed_before(path) is None
    monkeypatch.setenv("PPL_SMOKE", "1")
    code.source += "  # changed"
    nbformat.write(notebook, tmp_path / "executed" / path.name)
    assert staging.executed_before(path) is None


def test_broken_sites_are_refused(site, tmp_path):
    checks = site["checks"]
    (tmp_path / "a.html").write_text('<title>A</title><a id="x" href="b.html#y">b</a><a href="https://pyro.ai">p</a>')
    (tmp_path / "b.html").write_text('<title>B</title><p id="y"><a href="a.html#x">a</a></p>')
    assert list(checks.problems(tmp_path)) == []
    (tmp_path / "c.html").write_text(f'<title>B</title><a href="no.html">n</a><a href="a.html#z">z</a>{ROOT}/x.py')
    (tmp_path / "d.html").write_text('<p>nothing</p><script async src="https://cdn.example/math.js"></script>')
    found = "\n".join(checks.problems(tmp_path))
    expected = ("c.html: the same title as b.html", "no.html, which does not exist", "#z: no such place")
    expected += ("d.html: no title", "c.html: a path of this machine", "d.html: loads https://cdn.example/math.js")
    assert all(problem in found for problem in expected)


def test_references_are_to_what_exists(site):
    exists = site["references"].exists
    assert all(map(exists, ("Tensor", "torch.Tensor", "int", "ppl_models.data.matrix.Data", "evaluate.recovered")))
    assert not any(map(exists, ("Tensro", "custom_inference.fitt", "ppl_models.NOCA.leek")))


def test_what_pages_ask_for_exists(site):
    """Every report, table and column that a page quotes."""
    asked = 0
    for page in sorted(DOCS.glob("**/*.md")):
        if page.parent.parent.name == "project":  # reports, brought here by a build
            continue
        for block in re.finditer(r"^```\{figures\} (\S+)\n(.*?)^```", page.read_text("utf-8"), re.M | re.S):
            settings = dict(re.findall(r"^:(\w+): (.*)$", block[2], re.M))
            columns = [column.strip() for column in settings.get("columns", "").split("|") if column.strip()]
            assert site["tables"].figures(block[1], settings["table"], columns)
            asked += 1
    assert asked
