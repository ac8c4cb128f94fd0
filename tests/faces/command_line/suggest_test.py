"""``ppl suggest`` and ``ppl fit auto``: which model predicts best what was held out."""

import json

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from custom_inference.core.fit import Fit
from custom_inference.faces.command_line.app import app
from ppl_models import MixtureOfBernoullis

pytestmark = pytest.mark.usefixtures("no_figures")


def run(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


@pytest.fixture
def table(tmp_path):
    rng = np.random.default_rng(0)
    on = np.array([[0.9] * 4 + [0.1] * 4, [0.1] * 4 + [0.9] * 4])
    rows = (rng.random((120, 8)) < on[rng.integers(0, 2, 120)]).astype(int)
    pd.DataFrame(rows, columns=list("abcdefgh")).to_csv(tmp_path / "rows.csv", index=False)
    return tmp_path / "rows.csv"


def test_models_are_compared_and_written(table, tmp_path):
    chosen = ["--models", "mixture_of_bernoullis, logistic_pca", "--json", tmp_path / "found.json", "--no-progress"]
    result = run("suggest", table, "-k", 2, *chosen)
    assert result.exit_code == 0 and "taken for rows of 0/1 entries" in result.output, result.output
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["kind"] == "binary" and found["table"][0]["name"] == "mixture_of_bernoullis"
    assert found["table"][0]["score"] - found["baseline"] == pytest.approx(found["table"][0]["gain"])


def test_auto_fits_the_best(table, tmp_path):
    result = run("fit", "auto", table, "-k", 2, "--out", tmp_path / "out", "--no-progress")
    assert result.exit_code == 0 and "mixture_of_bernoullis predicts best" in result.output, result.output
    assert isinstance(Fit.load(tmp_path / "out" / "fit.safetensors").model, MixtureOfBernoullis)


def test_files_of_texts_and_of_graphs_are_what_they_are(tmp_path):
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(["cat dog cat dog cat dog"] * 20 + ["sun sea sun sea sun sea"] * 20))
    result = run("suggest", texts, "-k", 2, "--models", "mixture_of_multinomials", "--no-progress")
    assert result.exit_code == 0 and "documents: counts of words" in result.output, result.output
    edges = "".join(f"edge [source {i} target {j}]\n" for i in range(8) for j in range(i) if i // 4 == j // 4)
    nodes = "".join(f'node [id {i} label "{i}"]\n' for i in range(8))
    (tmp_path / "cliques.gml").write_text(f"graph [\n{nodes}{edges}]\n")
    result = run("suggest", tmp_path / "cliques.gml", "-k", 2, "--models", "sbm", "--no-progress")
    assert result.exit_code == 0 and "taken for a graph" in result.output, result.output


@pytest.mark.parametrize(
    ("command", "options", "message"),
    [
        ("suggest", ["--kind", "pictures"], "unknown kind of data"),
        ("suggest", ["--models", "lda"], "unknown model"),
        ("fit", ["--method", "em"], "no --block-rows and no --method"),
    ],
)
def test_refusals(table, tmp_path, command, options, message):
    model = ["auto"] if command == "fit" else []
    result = run(command, *model, table, "-k", 2, *options, "--no-progress")
    assert result.exit_code == 1 and message in " ".join(result.output.split())
