"""Every model through the command line, from a file with labels."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from typer.testing import CliRunner

from custom_inference.core.fit import Fit
from custom_inference.core.objectives import objective_line
from custom_inference.core.registry import family_of, presentation_of
from custom_inference.faces.command_line.app import app
from custom_inference.faces.command_line.report.legend import PLAIN, find_entry
from custom_inference.faces.command_line.report.page import find_headings
from custom_inference.methods import methods_for
from ppl_models import MODELS as ALL_MODELS
from ppl_models import GraphModel
from ppl_models.datasets import nine_nodes
from tests.support.cases import small_computations

MODELS = {name: kind for name, kind in ALL_MODELS.items() if not issubclass(kind, GraphModel)}
EXACT = {name for name, kind in MODELS.items() if "exact" in methods_for(kind.example().model)}
#: One of each kind of data and, of these, with an exact posterior and without.
COMPARED = list({(kind.example().model.data_kind, name in EXACT): name for name, kind in MODELS.items()}.values())
#: One of each kind of data and matrix of components: the pictures of every model have tests of their own.
PICTURED = {
    (model.data_kind, presentation_of(model).matrix, hasattr(model, "topics")): name
    for name, model in ((name, kind.example().model) for name, kind in MODELS.items())
}.values()
GRAPHS = [name for name, kind in ALL_MODELS.items() if issubclass(kind, GraphModel) and name != "covariate_sbm"]


@pytest.fixture
def file(request, tmp_path):
    """The name of a model, and the file of its example with the options for what is observed beside it."""
    data = MODELS[request.param].example().data
    frame = pd.DataFrame(data.x.numpy(), columns=[f"feature {j}" for j in range(data.num_features)])
    frame.to_csv(tmp_path / "rows.csv", index=False)
    beside = []
    for site, value in data.others.items():
        columns = value.numpy().reshape(len(value), -1)
        pd.DataFrame(columns).add_prefix(site).to_csv(tmp_path / f"{site}.csv", index=False)
        beside += ["--with", f"{site}={tmp_path / site}.csv"]
    return request.param, [tmp_path / "rows.csv", *beside]


def run(*arguments) -> str:
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exit_code == 0, result.output
    return result.output


def applied(fit: Fit, out: Path, path: list, own: np.ndarray) -> None:
    """The saved fit, looked at again and applied to its own rows: what it prints, their locals, and predictions."""
    lines = run("show", out).splitlines()
    assert lines[0].startswith(f"{type(fit.model).__name__} fitted to") and f"status: {fit.status}" in lines
    given = [option for site in fit.model.sites_of("given") for option in path[2::2] if option.startswith(f"{site}=")]
    rows = [path[0], *(part for option in given for part in ("--with", option))]
    found = pd.read_csv(io.StringIO(run("transform", out, *rows)), index_col="row")
    assert list(found.columns) == fit.local_names
    if set(fit.data.others) <= set(fit.model.sites_of("given")):  # of new rows nobody knows responses and links
        np.testing.assert_allclose(found.to_numpy(), own, atol=1e-4, rtol=1e-4)
    if fit.model.data_kind in ("ratings", "categories") and family_of(fit.model).predict is not None:
        return  # of pairs, which have tests of their own
    if family_of(fit.model).reads_queries and given:  # words, of covariates alone
        rows = [given[0].partition("=")[2]]
    table = pd.read_csv(io.StringIO(run("predict", out, *rows)), index_col="row")
    assert len(table) == len(fit.data) and table.notna().all(axis=None)


@pytest.mark.parametrize("file", MODELS, indirect=True)
def test_fit_writes_and_prints_every_model(file, tmp_path, request):
    name, path = file
    if name not in PICTURED:
        request.getfixturevalue("no_figures")
    out, report = tmp_path / "out", tmp_path / "fit.json"
    with small_computations(name, "default"):
        printed = run("fit", name, *path, "-k", 2, "--out", out, "--json", report, "--no-progress")
    column = "item 1" if name == "choice_pmf" else "feature 1"  # columns of choices are no items
    assert column in printed and "log-likelihood per row" in printed
    written = json.loads(report.read_text())
    assert written["num_components"] == 2 and written["bic"] > 0 and len(written["components"]) == 2
    fit = Fit.load(out / "fit.safetensors")
    page = (out / "report.html").read_text("utf-8")
    assert page.count("<img") == len([*out.glob("*.png")]) and "http" not in page and column in page
    assert all(find_entry(word) or word in PLAIN for word in find_headings(page))
    assert fit.transform().shape == (len(fit.data), len(fit.local_names)) and written["bic"] == pytest.approx(
        fit.bic(), rel=1e-5
    )
    summary = pd.read_csv(out / "summary.csv", index_col=0)
    assert len(summary) == sum(value.numel() for value in fit.globals.values())
    of_documents = fit.model.data_kind == "documents" and ("topic" in fit.params or hasattr(fit.model, "topics"))
    kinds = ("topics", "documents", "elbo") if of_documents else ("components", "loading", "source", "elbo")
    for kind in kinds if name in PICTURED else ():
        assert (out / f"{kind}.png").stat().st_size > 1000
    # A component of a model of categories is a table: its loadings are those of every feature and category.
    loadings = presentation_of(fit.model).matrix(fit.model, fit.params).shape[1]
    for table, shape in (("loading", loadings), ("membership", len(fit.local_names))):
        assert pd.read_csv(out / f"{table}.csv", index_col=0).shape[1] == shape
    locals_ = pd.read_csv(out / "membership.csv", index_col=0)[fit.local_names].to_numpy()
    np.testing.assert_allclose(locals_, fit.transform(fit.data), atol=1e-5, rtol=1e-5)
    if fit.model.local_site in fit.params:
        np.testing.assert_allclose(locals_, fit.params[fit.model.local_site], atol=1e-5, rtol=1e-5)
    assert ": ".join(objective_line(fit)) in printed and objective_line(fit)[1].split()[0] in page
    assert written["prior_term"] == fit.prior_term and written["objective_kind"] == fit.objective
    applied(fit, out, path, locals_)
    if "share" in written["components"][0]:
        assert sum(line["share"] for line in written["components"]) == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("name", ["aspect_bernoulli", "noca"])
def test_sparse_files_stay_sparse_where_the_model_reads_them_so(name, tmp_path, no_figures):
    x = MODELS[name].example().data.x.numpy()
    scipy.sparse.save_npz(tmp_path / "rows.npz", scipy.sparse.csr_matrix(x))
    run("fit", name, tmp_path / "rows.npz", "-k", 2, "--out", tmp_path / "out", "--no-progress")
    fit = Fit.load(tmp_path / "out" / "fit.safetensors")
    assert fit.data.is_sparse == (name == "aspect_bernoulli") and np.array_equal(fit.data.dense().x, x)
    assert fit.predictive(2).shape == (2, *x.shape) and np.isfinite(fit.aic())


@pytest.mark.parametrize("file", COMPARED, indirect=True)
def test_compare_takes_the_families_that_the_model_has(file, tmp_path):
    name, path = file
    printed = run("compare", name, *path, "-k", 2, "--json", tmp_path / "compare.json", "--no-progress")
    written = json.loads((tmp_path / "compare.json").read_text())
    if name in EXACT:
        assert written["methods"][0] == "exact" and written["table"][0]["gap_per_row"] == 0
        bounds = [line for line in written["table"] if line["what"] != "estimate"]  # those may exceed the evidence
        assert all(line["gap_per_row"] is None or line["gap_per_row"] >= -1e-8 for line in bounds)
    else:  # the bounds are there all the same, of all but points; and an estimate, where there is one
        known = [line["evidence"] for line in written["table"]]
        assert all(value is None or value < 0 for value in known)
        assert all(line["bound"] < 0 for line in written["table"] if line["what"] != "point")
        assert written["table"][0]["what"] != "point"
        assert type(MODELS[name].example().model).__name__ in written["no_exact"] and written["no_exact"] in printed


def test_compare_prints_what_was_refused(tmp_path):
    ctm = MODELS["ctm"].example().data.x.numpy()
    pd.DataFrame(ctm).to_csv(tmp_path / "rows.csv", index=False)
    options = ["--methods", "exact,svi_delta", "--json", tmp_path / "compare.json", "--no-progress"]
    printed = run("compare", "ctm", tmp_path / "rows.csv", "-k", 2, *options)
    written = json.loads((tmp_path / "compare.json").read_text())
    assert [line["method"] for line in written["table"]] == ["SVI(delta)"]
    assert list(written["refused"]) == ["Exact"] and written["refused"]["Exact"] in printed


@pytest.mark.parametrize("name", GRAPHS)
def test_fit_reads_edges_and_writes_figures_of_graphs(name, tmp_path):
    example = ALL_MODELS[name].example()
    (row, column), value = example.data.edges().numpy(), example.data.edge_values().int().numpy()
    frame = pd.DataFrame({"source": [f"n{i}" for i in row], "target": [f"n{j}" for j in column], "weight": value})
    frame.to_csv(tmp_path / "edges.csv", index=False)
    way = "--directed" if example.model.directed else "--undirected"
    out, report = tmp_path / "out", tmp_path / "fit.json"
    printed = run("fit", name, tmp_path / "edges.csv", way, "-k", 2, "--out", out, "--json", report, "--no-progress")
    assert "to s1" in printed and "log-likelihood: " in printed
    assert f"fitted to {len(example.data)} nodes, {example.data.num_edges} edges by " in printed
    fit = Fit.load(out / "fit.safetensors")
    assert fit.data.nodes[0].startswith("n") and fit.data.directed == example.model.directed
    assert fit.data.num_edges == example.data.num_edges and fit.transform().shape == (len(fit.data), 2)
    for kind in ("adjacency", "memberships", "blocks", "elbo"):
        assert (out / f"{kind}.png").stat().st_size > 1000
    assert list(pd.read_csv(out / "membership.csv", index_col=0).index) == fit.data.nodes


def test_compare_of_a_small_graph(tmp_path):
    edges = nine_nodes().data.edges().T.numpy()
    np.savetxt(tmp_path / "edges.txt", edges, fmt="%d")
    run("compare", "sbm", tmp_path / "edges.txt", "-k", 3, "--json", tmp_path / "compare.json", "--no-progress")
    written = json.loads((tmp_path / "compare.json").read_text())
    assert written["methods"][0] == "exact" and written["table"][0]["gap_per_row"] == 0
    assert all(line["gap_per_row"] >= -1e-8 for line in written["table"])


def test_covariates_are_for_python(tmp_path):
    np.savetxt(tmp_path / "edges.txt", nine_nodes().data.edges().T.numpy(), fmt="%d")
    result = CliRunner().invoke(app, ["fit", "covariate_sbm", str(tmp_path / "edges.txt"), "-k", "2"])
    assert result.exit_code == 1 and "covariates" in result.output and "Traceback" not in result.output


def test_features_of_nodes_and_what_no_model_takes(tmp_path, no_figures):
    example = ALL_MODELS["covariate_sbm"].example()
    np.savez(tmp_path / "graph.npz", x=example.data.dense().x.numpy())
    features = np.array(example.model.settings()["covariates"])
    pd.DataFrame(features).to_csv(tmp_path / "features.csv", index=False)
    settings = ["--with", f"covariates={tmp_path / 'features.csv'}", "--out", tmp_path / "out", "--no-progress"]
    run("fit", "covariate_sbm", tmp_path / "graph.npz", "-k", 2, *settings)
    found = Fit.load(tmp_path / "out" / "fit.safetensors").model.settings()["covariates"]
    assert np.allclose(found, features)
    for model, text in (("sbm", "unknown --with of SBM 'covariates'"), ("covariate_sbm", "covariates of 10 nodes")):
        pd.DataFrame(features[:10]).to_csv(tmp_path / "features.csv", index=False)
        result = CliRunner().invoke(app, [str(a) for a in ("fit", model, tmp_path / "graph.npz", "-k", 2, *settings)])
        assert result.exit_code == 1 and text in result.output
