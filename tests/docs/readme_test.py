"""README.md and docs tell the truth: code and commands run, tables are those of the code and of the results."""

import re
import shlex
import sys
import tomllib
import warnings

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from benchmarks import readme_results
from benchmarks._reproductions import filled
from custom_inference.faces.command_line import output
from custom_inference.faces.command_line.app import app
from ppl_models import DataWarning
from tests.support.documentation import ROOT, module_for, python_blocks, run

README = (ROOT / "README.md").read_text("utf-8")

PAGES = sorted(page.relative_to(ROOT).as_posix() for page in (ROOT / "docs").glob("*.md"))
#: ``tests/faces/sklearn`` runs docs/sklearn.md, a build of the site the cells whose output it shows.
DOCUMENTS = ["README.md", *(page for page in PAGES if python_blocks(page) and page != "docs/sklearn.md")]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_python_runs_as_printed(document, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = f"document_{DOCUMENTS.index(document)}"
    module = module_for(name)
    try:
        for number, block in enumerate(python_blocks(document)):
            run(block, module, f"{document}: block {number + 1}")
    finally:
        del sys.modules[name]


def _papers(path):
    """A small labelled file with what real files have: names, and an entry missing."""
    random = np.random.default_rng(0)
    code = random.random((120, 4)) < 0.35
    on = 1 - 0.98 * np.prod(1 - 0.85 * code[:, :, None] * np.eye(4).repeat(3, axis=1)[None], axis=1)
    frame = pd.DataFrame((random.random((120, 12)) < on).astype(float), columns=[f"author{j}" for j in range(12)])
    frame.iloc[3, 5] = np.nan
    frame.insert(0, "paper", [f"paper{n}" for n in range(120)])
    frame.to_csv(path, index=False)


def _friends(path):
    """An edge list: two circles of friends, and one friendship between them."""
    circles = [["Ann", "Bob", "Cyd", "Dan", "Eve"], ["Fay", "Gus", "Hal", "Ida", "Jim"]]
    pairs = [(a, b) for circle in circles for n, a in enumerate(circle) for b in circle[:n]] + [("Eve", "Fay")]
    path.write_text("".join(f"{a} {b}\n" for a, b in pairs), encoding="utf-8")


def _movielens(path):
    """Ratings as MovieLens has them: user, item, rating, time, by tabs, without a header."""
    random = np.random.default_rng(1)
    taste, kind = random.standard_normal((40, 2)), random.standard_normal((30, 2))
    pairs = [(user, item) for user in range(40) for item in sorted(random.choice(30, 12, replace=False))]
    stars = [int(np.clip(np.rint(3 + 1.2 * taste[user] @ kind[item]), 1, 5)) for user, item in pairs]
    lines = (
        f"{u + 1}\t{i + 1}\t{r}\t{881250949 + n}\n" for n, ((u, i), r) in enumerate(zip(pairs, stars, strict=True))
    )
    path.write_text("".join(lines), encoding="utf-8")


def _shops(path):
    """Counts with a column of ids and one of notes."""
    random = np.random.default_rng(2)
    rate = np.where(random.random(60) < 0.5, 1.0, 6.0)[:, None] * np.array([1, 0.5, 2, 1])
    frame = pd.DataFrame(random.poisson(rate), columns=["tea", "milk", "bread", "jam"])
    frame.assign(shop=np.arange(1001, 1061), note="open").to_csv(path, index=False)


def _commands(document):
    """The lines of a document's ``sh`` blocks that begin with ``ppl``, or with ``python -c``."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", (ROOT / document).read_text("utf-8"), re.DOTALL | re.MULTILINE)
    lines = (line.removeprefix(".venv/bin/") for block in blocks for line in block.splitlines())
    return [line for line in lines if line.startswith(("ppl ", "python -c "))]


def test_commands_run_as_printed(tmp_path, monkeypatch):
    _papers(tmp_path / "papers.csv")
    _friends(tmp_path / "friends.txt")
    _movielens(tmp_path / "u.data")
    _shops(tmp_path / "shops.csv")
    monkeypatch.chdir(tmp_path)
    for block in python_blocks("docs/command_line.md"):  # which writes files that its commands read
        exec(block, {})
    # Tests of the command line look at the figures, and at what is written of draws.
    monkeypatch.setattr(output, "figures", lambda *_: {})
    monkeypatch.setattr(output, "_DRAWS", 10)
    monkeypatch.setattr(output, "_COPIES", 3)
    lines = dict.fromkeys(line for document in ["README.md", *PAGES] for line in _commands(document))
    assert len(lines) > 5
    for line in lines:
        if line.startswith("python"):
            exec(shlex.split(line)[2], {})
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DataWarning)
            result = CliRunner().invoke(app, shlex.split(line)[1:], catch_exceptions=False)
        assert result.exit_code == 0, f"{line}\n{result.output}"
    for name in ("fit.safetensors", "posterior.nc", "summary.csv", "components.csv", "loading.csv", "membership.csv"):
        assert (tmp_path / "papers_fit" / name).is_file()
    assert (tmp_path / "papers.json").is_file()
    assert (tmp_path / "papers_aspects" / "fit.safetensors").is_file()
    for folder in ("friends_blocks", "karate_blocks", "u_factors", "shops_kinds", "survey_kinds", "texts_by_year"):
        assert (tmp_path / folder / "fit.safetensors").is_file()


@pytest.mark.parametrize("marker", ["models", "results"])
def test_marked_blocks_are_up_to_date(marker):
    content = readme_results.blocks()[marker]
    assert readme_results.updated(README, {marker: content}) == README, "run: python -m benchmarks.readme_results"


def test_figures_are_looked_up_and_those_that_are_not_there_are_refused():
    rows = [{"set": "A", "found": 7, "CPU s": "1 / 2 / 3"}, {"set": "B", "found": 7.25, "CPU s": None}]
    report = {"tables": [{"title": "Fits, all", "rows": rows}]}
    text = "{Fits[A; 7][CPU s]:median} s, {Fits[B][found]:.1f}, {Fits[*][found]}"
    assert filled(text, report) == "2 s, 7.2, 7, 7.250"
    for wrong, message in (
        ("{Other[A][found]}", "no table 'Other'.*Fits, all"),
        ("{Fits[C][found]}", "0 rows with .'C'."),
        ("{Fits[A][lost]}", "no column 'lost'.*found"),
    ):
        with pytest.raises(LookupError, match=message):
            filled(wrong, report)


def test_install_lines_are_those_of_the_makefile():
    makefile = (ROOT / "Makefile").read_text("utf-8").replace("--quiet ", "")
    pages = [README, (ROOT / "docs" / "index.md").read_text("utf-8")]
    lines = {line for page in pages for line in page.splitlines() if line.startswith("pip install")}
    assert lines
    assert all(line in makefile for line in lines)
    targets = set(re.findall(r"\bmake (\w+)", "\n".join(re.findall(r"`+[^`]*`+", README))))
    assert all(f"\n{target}:" in makefile for target in targets)


def test_links_and_version():
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", README):
        assert (ROOT / target).exists(), target
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    sources = (ROOT / "docs" / "project" / "sources.md").read_text("utf-8")
    assert f'"{project["name"]}, version {project["version"]}"' in sources
