"""README.md tells the truth: its code and commands run, its tables are those of the code and of the results files."""

from __future__ import annotations

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
from custom_inference.faces.command_line.app import app
from custom_inference.methods import every_method
from ppl_models import MODELS, DataWarning
from tests.support.documentation import ROOT, module_for, python_blocks, run

README = (ROOT / "README.md").read_text("utf-8")


def test_python_runs_as_printed(capsys):
    blocks = python_blocks("README.md")
    assert blocks
    module = module_for("readme")
    try:
        for number, block in enumerate(blocks):
            run(block, module, f"README.md: block {number + 1}")
    finally:
        del sys.modules["readme"]
    printed = capsys.readouterr().out
    assert "converged" in printed and "VariationalEM(mean_field)" in printed


def test_ten_lines_swap_a_prior_and_a_guide():
    code = [line for line in python_blocks("README.md")[0].splitlines() if line and "import" not in line]
    assert len(code) <= 10


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


def test_commands_run_as_printed(tmp_path, monkeypatch):
    _papers(tmp_path / "papers.csv")
    _friends(tmp_path / "friends.txt")
    monkeypatch.chdir(tmp_path)
    block = re.search(r"^```sh\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
    assert block
    for line in block[1].splitlines():
        program, *arguments = shlex.split(line)
        assert program == "ppl"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DataWarning)
            result = CliRunner().invoke(app, arguments, catch_exceptions=False)
        assert result.exit_code == 0, f"{line}\n{result.output}"
    for name in ("fit.safetensors", "posterior.nc", "summary.csv", "components.csv", "loading.csv", "membership.csv"):
        assert (tmp_path / "papers_fit" / name).is_file()
    assert (tmp_path / "papers.json").is_file()
    assert (tmp_path / "papers_aspects" / "fit.safetensors").is_file()
    assert (tmp_path / "friends_blocks" / "fit.safetensors").is_file()


@pytest.mark.parametrize("marker", ["models", "results"])
def test_marked_blocks_are_up_to_date(marker):
    content = readme_results.blocks()[marker]
    assert readme_results.updated(README, {marker: content}) == README, "run: python -m benchmarks.readme_results"


def test_table_of_models_names_every_model_and_method():
    block = readme_results.models_block()
    assert all(f"| `{kind.__name__}` | {kind.summary} |" in block for kind in MODELS.values())
    assert all(f"| `{method}` |" in block for method in every_method())


def test_results_without_files_or_with_half_a_file(tmp_path):
    assert "Nothing has been measured yet" in readme_results.results_block(tmp_path)
    half = '{"tables": [{"title": "Default fit, K = 8", "rows": [{"set": "A"}]}, {"title": "Over", "rows": []}]}'
    (tmp_path / "noca_recovery.json").write_text(half)
    block = readme_results.results_block(tmp_path)
    assert "| set |" in block and "[noca_recovery](benchmarks/results/noca_recovery.md): undated" in block


def test_install_lines_are_those_of_the_makefile():
    makefile = (ROOT / "Makefile").read_text("utf-8").replace("--quiet ", "")
    lines = [line for line in README.splitlines() if line.startswith("pip install")]
    assert len(lines) == 2
    assert all(line in makefile for line in lines)
    assert all(f"\n{target}:" in makefile for target in ("demo", "test", "lint"))


def test_links_and_version():
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", README):
        assert (ROOT / target).exists(), target
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert f'"{project["name"]}, version {project["version"]}"' in README
