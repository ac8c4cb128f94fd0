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
from matplotlib.figure import Figure

from custom_inference.methods import every_method
from ppl_models import IRM, MODELS, AspectBernoulliIndicator
from tests.support.documentation import ROOT

DOCS = ROOT / "docs"
PARTS = (
    "api",
    "checks",
    "docstrings",
    "examples",
    "formulas",
    "gallery",
    "mathml",
    "models",
    "words",
    "pictures",
    "references",
    "staging",
    "tables",
)


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


def test_every_model_says_what_its_numbers_methods_and_other_names_are(site):
    models, words, purposes = site["models"], site["words"].IN_WORDS, site["models"].method_purposes()
    for kind in (*MODELS.values(), IRM):
        model = kind.example().model
        for name in model.sites:
            assert models._general(name) in words, f"{kind.__name__}: {name}"
            assert models.meaning(kind, name) or name in ("user", "user_bias"), f"{kind.__name__}: {name}"  # in parts
        assert len(models.other_names([kind])) > 8, kind.__name__
        assert models.references(f"{inspect.getdoc(inspect.getmodule(kind))}")[:-1], kind.__name__
    assert set(purposes) == set(every_method())


def test_an_example_runs_once_for_the_code_it_runs(site, tmp_path, monkeypatch):
    examples, runs = site["examples"], []
    monkeypatch.setattr(examples, "run", lambda code: (runs.append(code), ("converged", Figure()))[1])
    for _ in range(2):
        printed, figure = examples.made(MODELS["noca"], tmp_path)
        assert printed == "converged" and figure.is_file() and len(runs) == 1
    monkeypatch.setattr(examples, "_digest", lambda: "other sources")
    examples.made(MODELS["noca"], tmp_path)
    assert len(runs) == 2 and len(list(tmp_path.glob("NOCA-*.png"))) == 1


def test_an_example_is_the_lines_that_are_shown(site):
    printed, figure = site["examples"].run(site["examples"].lines(MODELS["gaussian_pca"]))
    assert printed
    assert isinstance(figure, Figure)


def test_no_docstring_cites_a_source_by_number(site):
    cited = {
        where: re.findall(r"(?i)\bsources? 00\d|\(00[0-4][,;)]", text) for where, text in _docstrings(site).items()
    }
    assert not {where: found for where, found in cited.items() if found}


def test_names_of_functions_and_relations_are_drawn_as_such(site):
    drawn = site["mathml"].to_mathml(r"x \sim \operatorname{Normal}(\max_i y, \underbrace{a}_b) \log p", "inline")
    assert "<mo>&#x0223C;</mo>" in drawn and "<mi>Normal</mi><mo" in drawn
    assert '<mi>log</mi><mspace width="0.17em"/><mi>p</mi>' in drawn and "<msub><mi>max</mi><mi>i</mi></msub>" in drawn
    assert '<mo stretchy="true">&#x23DF;</mo>' in drawn


def test_cards_have_the_first_figure_of_their_notebooks(site, tmp_path):
    gallery = site["gallery"]
    (tmp_path / "01_noca.html").write_text('<img alt="x" src="../_images/a.png"><img src="../_images/b.png">')
    filled = gallery.filled("".join(gallery.cards()), tmp_path)
    assert filled.count('class="card"') == len(list((ROOT / "notebooks").glob("*.ipynb")))
    assert filled.count("<img") == 1 and 'src="../_images/a.png"' in filled
    assert all(
        title and text.endswith((".", "?")) for title, text in map(gallery.about, gallery.NOTEBOOKS.glob("*.ipynb"))
    )


def test_docstring_blocks(site):
    text = (
        "First *Title: of a work* of x_j * y_k and |S| with ``a_b`` and :class:`Fit`, P(x) in R^D_.\n"
        "A 2nd, of num_rows and pi.\n\n    f(x) = a_j * b_k\n\n    1. more |x|\n\n"
        'name, other: meaning of x_i\n    continued\n"value": another.\nNot an item: no.\n\n'
        "Raises\n------\nDataError: never.\n\n- one\n  more\n- two\n\n1. is no list"
    )
    expected = [
        r"First *Title: of a work* of :math:`x_{j}` \* :math:`y_{k}` and \|S\| with ``a_b`` and :class:`Fit`, "
        r"P(x) in R^D\_. A 2nd, of num\_rows and :math:`\pi`.",
        ".. code-block:: text",
        "    f(x) = a_j * b_k",
        "    1. more |x|",
        "``name``, ``other``",
        r"    meaning of :math:`x_{i}` continued",
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


@pytest.mark.parametrize(
    ("plain", "typeset"),
    [
        ("x_nj | z_n", r"x_{nj} \mid z_{n}"),
        ("p_nt^x_nt (1 - p_nt)^(1 - x_nt)", "p_{nt}^{x_{nt}} (1 - p_{nt})^{1 - x_{nt}}"),
        ("(x - s W)'(x - s W) / (2 sigma^2)", r"(x - s W)^{\top}(x - s W) / (2 \sigma ^{2})"),
        ("sum_k s_ik b_k^(r)", r"\sum _{k} s_{ik} b_{k}^{(r)}"),
        ("prod_{j<k} (1 - v_j)", r"\prod _{j\lt k} (1 - v_{j})"),
        ("log Gamma(c) - |d_i|^2 e^-eta", r"\log \Gamma (c) - |d_{i}|^{2} e^{-\eta }"),
        ("qbar_i in R^D", r"\bar{q}_{i} \in \mathbb{R}^{D}"),
        ("Cat(softmax(W h))", r"\operatorname{Cat}(\operatorname{softmax}(W h))"),
        ("x_il for a topic k of its label", r"x_{il} \text{ for a topic }k \text{ of its label}"),
        ("q_{i->j} <= A_{z_{l-1}}", r"q_{i\to j} \le A_{z_{l-1}}"),
        ("-1/2 W = user_weight", r"-1/2 W = \text{user_weight}"),
    ],
)
def test_formulas_in_plain_text_are_typeset(site, plain, typeset):
    assert re.sub(r"\s+", " ", site["formulas"].latex(plain)) == re.sub(r"\s+", " ", typeset)


def test_gamma_is_a_law_where_something_is_drawn_from_it_and_a_function_elsewhere(site):
    (drawn,) = site["formulas"].lines_of(["b_kv ~ Gamma(c, d)"])
    assert "operatorname{Gamma}" in site["formulas"].latex(drawn.right)
    assert r"\Gamma (c)" in site["formulas"].latex("= Gamma(c) / Gamma(c + N)")


def test_columns_of_a_block_are_labels_formulas_and_remarks(site):
    block = [
        "binary      c_i | q_i, z_i = 0 ~ Bernoulli(sigmoid(w' q_i)),   pi ~ Dirichlet(a,  b)     which topic  (eq. 3)",
        "            = exp(a)     n = 1..N",
    ]
    lines = [tuple(vars(line).values()) for line in site["formulas"].lines_of(block)]
    assert lines == [
        ("binary", "c_i | q_i, z_i = 0", "~ Bernoulli(sigmoid(w' q_i))", ""),
        ("", "pi", "~ Dirichlet(a, b)", "which topic  (eq. 3)"),
        ("", "", "= exp(a)", "n = 1..N"),
    ]
    for other in (["1. go on until it stops", "2. x = y"], ["starts.bin   int64 (N + 1,)"], ["d = {}", "for k in d:"]):
        assert site["formulas"].lines_of(other) is None


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
    from docutils.parsers.rst import Directive, Parser, directives, roles

    class Formulas(Directive):
        has_content = True

        def run(self):
            return [nodes.literal_block(text="\n".join(self.content))]

    directives.register_directive("formulas", Formulas)
    signs = r"\W(?:top|to|leftarrow|lt|operatorname)\b"
    names = {role for text in _docstrings(site).values() for role in re.findall(r":([a-z]+):`", text)} | {"exc", "math"}
    for role in names:
        roles.register_local_role(role, lambda role, raw, text, line, inliner, options=None, content=(): (
            [nodes.literal(text=re.sub(signs, " ", text) if role == "math" else text)], []))  # fmt: skip
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
    assert "| a" not in tables.figures("speed", "Fits", wanted=["c"], folder=tmp_path)
    for arguments, message in (
        (("speed", "Other"), "no table 'Other'.*Fits, all"),
        (("speed", "Fits", ["hours"]), r"\['hours'\].*method"),
        (("speed", "Fits", [], ["e"]), r"no rows \['e'\]"),
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
