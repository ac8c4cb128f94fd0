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


def test_surveys_are_read_as_answers_and_options_say_what_a_file_is(tmp_path):
    rng = np.random.default_rng(0)
    group = rng.integers(0, 2, 60)
    on = rng.random((60, 4)) < np.where(group, 0.9, 0.1)[:, None]
    survey = pd.DataFrame(np.where(on, "yes", "no"), columns=list("abcd"))
    survey.assign(who=[f"r{n}" for n in range(60)], age=rng.normal(40, 5, 60)).to_csv(tmp_path / "s.csv", index=False)
    chosen = ["-k", 2, "--models", "mixture_of_categoricals", "--no-progress"]
    result = run("suggest", tmp_path / "s.csv", *chosen, "--id", "who", "--drop", "age")
    assert result.exit_code == 0 and "taken for rows of categories" in result.output, result.output
    result = run("suggest", tmp_path / "s.csv", *chosen, "--kind", "categories", "--columns", "a,b,c")
    assert result.exit_code == 0 and "taken for rows of categories" in result.output, result.output
    result = run("suggest", tmp_path / "s.csv", *chosen)
    assert result.exit_code == 1 and "--drop" in result.output and "site" not in result.output, result.output
    clicks = pd.DataFrame({"user": [f"u{n // 4}" for n in range(40)], "item": [f"i{n % 8}" for n in range(40)]})
    clicks.assign(click=np.arange(40) % 3).to_csv(tmp_path / "c.csv", index=False)
    result = run("suggest", tmp_path / "c.csv", "-k", 1)
    assert result.exit_code == 1 and "--columns USER,ITEM,RATING" in result.output, result.output
    result = run("suggest", tmp_path / "c.csv", "-k", 1, "--columns", "user,item,click", "--models", "pmf")
    assert result.exit_code == 0 and "taken for ratings" in result.output, result.output


def test_weights_of_edges_are_counted_or_left_out(tmp_path):
    import networkx as nx

    nx.write_gml(nx.karate_club_graph(), tmp_path / "k.gml")
    result = run("suggest", tmp_path / "k.gml", "-k", 2, "--models", "poisson_sbm", "--no-progress")
    assert result.exit_code == 0 and "--threshold 0 leaves the weights out" in result.output, result.output
    result = run("suggest", tmp_path / "k.gml", "-k", 2, "--models", "sbm", "--no-progress")
    assert result.exit_code == 1 and "--threshold 0" in result.output, result.output
    result = run("suggest", tmp_path / "k.gml", "-k", 2, "--models", "sbm", "--threshold", 0, "--no-progress")
    assert result.exit_code == 0 and "taken for a graph" in result.output, result.output
