"""The command line: what it writes, what it prints, and how it refuses."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch
import xarray as xr
from typer.testing import CliRunner

from custom_inference.core.evaluate import component_order
from custom_inference.core.fit import Fit
from custom_inference.faces.command_line import demo as _demo
from custom_inference.faces.command_line import run as _cli_run
from custom_inference.faces.command_line import source as _cli_source
from custom_inference.faces.command_line.app import app
from custom_inference.families.noca.exact import NocaExact
from custom_inference.methods import every_method
from ppl_models import MODELS, NOCA

NAMES = ["ant", "bee", "cat", "dog", "elk", "fox"]
ROWS = [f"site {n}" for n in range(60)]
QUICK = ["--method", "em", "--set", "search=null", "--set", "max_iterations=5"]


def ppl(*arguments: Any) -> Any:
    return CliRunner().invoke(app, [str(a) for a in arguments])


def done(*arguments: Any) -> str:
    """The output of a command that must succeed, without a traceback behind it."""
    result = ppl(*arguments)
    assert result.exit_code == 0, result.output
    return result.output


def example_frame() -> pd.DataFrame:
    """Sixty sites by six animals, 0 or 1."""
    x = NOCA.example().data.x.numpy().astype(int)
    return pd.DataFrame(x, index=pd.Index(ROWS, name="site"), columns=NAMES)


@pytest.fixture
def frame() -> pd.DataFrame:
    return example_frame()


@pytest.fixture
def csv(frame: pd.DataFrame, tmp_path: Path) -> Path:
    frame.to_csv(tmp_path / "animals.csv")
    return tmp_path / "animals.csv"


def written(frame: pd.DataFrame, kind: str, folder: Path) -> Path:
    """The matrix in a file of the given kind, with its labels."""
    path = folder / f"animals.{kind.split()[0]}"
    matrix, labels = frame.to_numpy(), {"animal": np.array(NAMES), "site": np.array(ROWS)}
    if kind == "csv":
        frame.to_csv(path)
    elif kind == "parquet":
        frame.reset_index().to_parquet(path)
    elif kind == "npz dense":
        np.savez(path, X=matrix, **labels)
    else:
        sparse = scipy.sparse.csr_matrix(matrix)
        parts = {"indices": sparse.indices, "indptr": sparse.indptr, "data": sparse.data}
        np.savez(path, **parts, shape=np.array(sparse.shape), format=np.array(b"csr"), **labels)
    return path


@pytest.mark.parametrize("kind", ["csv", "parquet", "npz dense", "npz sparse"])
def test_fit_reads_every_format_with_labels_and_writes_everything(kind, frame, tmp_path, request):
    if kind != "csv":  # figures of the same fit
        request.getfixturevalue("no_figures")
    out, report = tmp_path / "out", tmp_path / "report.json"
    output = done("fit", "noca", written(frame, kind, tmp_path), "-k", 3, *QUICK, "--out", out, "--json", report)
    assert "NOCA fitted to 60 rows x 6 features by EM" in output
    tables = {"summary.csv", "components.csv", "loading.csv", "membership.csv"}
    expected = {"report.html", "fit.safetensors", "posterior.nc", *tables}
    figures = {f"{name}.png" for name in ("components", "loading", "source", "elbo")} if kind == "csv" else set()
    assert {path.name for path in out.iterdir()} == expected | figures

    fit = Fit.load(out / "fit.safetensors")
    assert fit.data.coords == {"row": ROWS, "feature": NAMES}
    membership = pd.read_csv(out / "membership.csv", index_col="row")
    assert membership.index.tolist() == ROWS
    order = pd.read_csv(out / "components.csv", index_col="component").index.tolist()
    assert membership.columns.tolist() == order == [f"s{k}" for k in component_order(fit)]
    np.testing.assert_allclose(membership[fit.component_names], fit.transform(), atol=1e-5)
    loading = pd.read_csv(out / "loading.csv", index_col="component")
    assert loading.index.tolist() == [*order, "leak"]
    assert loading.columns.tolist() == NAMES
    np.testing.assert_allclose(loading.loc["leak"], fit.params["leak"], atol=1e-5)
    summary = pd.read_csv(out / "summary.csv", index_col=0)
    assert summary.loc["loading[1, cat]", "estimate"] == pytest.approx(float(fit.params["loading"][1, 2]), abs=1e-5)
    with xr.open_dataset(out / "posterior.nc", group="point_estimates", engine="h5netcdf") as points:
        assert points["feature"].values.tolist() == NAMES

    payload = json.loads(report.read_text())
    assert payload["params"] == {"source_prior": [3], "loading": [3, 6], "leak": [6]}
    assert payload["log_likelihood_per_row"] == pytest.approx(float(fit.evidence.mean()))
    assert payload["log_likelihood_bound"] == "exact"
    assert payload["bic"] == pytest.approx(fit.bic())
    assert payload["status"] == fit.status
    assert not payload["interrupted"]
    assert all(Path(path).is_file() for path in payload["files"].values())
    for line in payload["components"]:
        assert f"{line['component']}  prior {line['prior']:.3f}  {line['strongest']}" in output


def test_fit_with_the_default_method_names_its_folder_after_the_file(csv, tmp_path, monkeypatch, no_figures):
    monkeypatch.chdir(tmp_path)
    output = done("fit", "NOCA", csv, "-k", 3, "--no-progress")
    assert (tmp_path / "animals_noca_k3" / "fit.safetensors").is_file()
    assert "written to animals_noca_k3/" in output


def test_the_same_seed_gives_the_same_fit(csv, tmp_path, no_figures):
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        done("fit", "noca", csv, "-k", 3, *QUICK, "--seed", seed, "--out", tmp_path / name)
    a, b, c = (Fit.load(tmp_path / name / "fit.safetensors").params["loading"] for name in "abc")
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


def test_images_are_drawn_for_an_image_shape(csv, tmp_path):
    done("fit", "noca", csv, "-k", 2, *QUICK, "--out", tmp_path / "out", "--image-shape", "2x3")
    result = ppl("fit", "noca", csv, "-k", 2, *QUICK, "--out", tmp_path / "no", "--image-shape", "4x4")
    assert (result.exit_code, result.output.count("\n")) == (1, 1)
    assert "4x4 does not hold the 6 columns" in result.output
    assert not (tmp_path / "no").exists()


def test_sampled_globals_are_summarised(csv, tmp_path, no_figures):
    done("fit", "noca", csv, "-k", 2, "--method", "svi_normal", "--set", "steps=20", "--out", tmp_path)
    summary = pd.read_csv(tmp_path / "summary.csv", index_col=0)
    assert list(summary.columns) == ["mean", "sd", "q5", "q95"]
    bee = Fit.load(tmp_path / "fit.safetensors").draws["leak"][:, :, 1].numpy()
    found = summary.loc["leak[bee]"]
    assert found[["mean", "sd"]].to_numpy() == pytest.approx([bee.mean(), bee.std(ddof=1)], rel=1e-4)
    assert (bee < found["q5"]).mean() == pytest.approx(0.05, abs=0.01) == (bee > found["q95"]).mean()


@pytest.mark.quick
def test_a_part_of_the_output_that_fails_costs_none_of_the_others(csv, tmp_path, monkeypatch):
    """Such as ArviZ's file where what writes it is not installed, a figure, or a table that the page shows."""

    def fail(self: Fit, kind: str = "", **_: Any) -> Any:
        if kind in ("", "source"):
            raise ImportError("No module named 'h5py'\nin a second line")
        return plot(self, kind)

    plot = Fit.plot
    monkeypatch.setattr(Fit, "to_arviz", fail)
    monkeypatch.setattr(Fit, "plot", fail)
    monkeypatch.setattr(Fit, "summary", lambda fit: fit.no_such_name)
    report = tmp_path / "report.json"
    result = ppl("fit", "noca", csv, "-k", 2, *QUICK, "--out", tmp_path / "out", "--json", report)
    missing = {"posterior.nc", "summary.csv", "source.png"}
    assert result.exit_code == 1 and "written to" in result.output
    told = next(line for line in result.output.splitlines() if line.startswith("error"))
    assert "posterior.nc (ImportError: No module named 'h5py'); summary.csv (AttributeError: " in told
    assert "source.png (ImportError" in told and told.endswith(f"all else is in {tmp_path / 'out'}/")
    there = {"fit.safetensors", "components.csv", "loading.csv", "membership.csv", "components.png", "loading.png",
             "elbo.png", "report.html"}  # fmt: skip
    assert {path.name for path in (tmp_path / "out").iterdir()} == there
    files = json.loads(report.read_text())["files"]
    assert {Path(path).name for path in files.values()} == there and not missing & there
    assert (tmp_path / "out" / "report.html").read_text("utf-8").count("<img") == 3


def test_an_interrupted_fit_is_written_all_the_same(csv, tmp_path, monkeypatch, no_figures):
    calls, original = [], NocaExact.m_step

    def interrupted(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return original(*arguments)

    monkeypatch.setattr(NocaExact, "m_step", interrupted)
    report = tmp_path / "report.json"
    result = ppl("fit", "noca", csv, "-k", 3, *QUICK, "--out", tmp_path / "out", "--json", report)
    assert result.exit_code == 130
    assert "interrupted after 3 iterations" in result.output
    assert json.loads(report.read_text())["interrupted"]
    assert len(Fit.load(tmp_path / "out" / "fit.safetensors").elbo) == 3


def test_an_interrupt_before_there_is_a_fit_is_one_line(csv, monkeypatch):
    def interrupted(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(_cli_source, "read_matrix", interrupted)
    result = ppl("fit", "noca", csv, "-k", 3)
    assert (result.exit_code, result.output) == (130, "error: interrupted before there was anything to keep\n")


def source(path: Path, **settings: Any) -> Any:
    return _cli_run.Source(path, **settings).read()


def test_a_transposed_file_swaps_its_labels(frame, tmp_path):
    frame.T.to_csv(tmp_path / "t.csv")
    data = source(tmp_path / "t.csv", transpose=True)
    assert data.coords == {"row": ROWS, "feature": NAMES}
    np.testing.assert_array_equal(data.x, frame)


@pytest.mark.quick
def test_a_mask_value_and_empty_cells_are_missing(frame, tmp_path):
    values = frame.astype(float)
    values.iloc[0, 0], values.iloc[1, 1] = -9, np.nan
    values.to_csv(tmp_path / "m.csv")
    mask = source(tmp_path / "m.csv", mask_value=-9).mask
    assert (~mask).nonzero().tolist() == [[0, 0], [1, 1]]


def test_a_threshold_binarises_and_leaves_missing_entries_missing(tmp_path):
    (tmp_path / "c.csv").write_text("a,b,c\n0,3,1\n-1,,7\n")
    data = source(tmp_path / "c.csv", threshold=1, mask_value=-1)
    assert data.x.tolist() == [[0, 1, 0], [0, 0, 1]]
    assert data.mask.tolist() == [[True, True, True], [False, False, True]]


def test_empty_rows_are_dropped_and_the_others_keep_their_names(tmp_path):
    (tmp_path / "e.csv").write_text("a,b\n0,1\n0,0\n1,0\n")
    data = source(tmp_path / "e.csv", drop_empty_rows=True)
    assert data.x.tolist() == [[0, 1], [1, 0]]
    assert data.coords["row"] == [0, 2]


def test_compare_prints_the_table_and_writes_it(csv, tmp_path):
    report = tmp_path / "table.json"
    methods = "exact,factorized,mean_field"
    output = done("compare", "noca", csv, "-k", 2, "--methods", methods, "--rows", 40, "--json", report)
    payload = json.loads(report.read_text())
    assert payload["num_rows"] == 40
    columns = {"method", "what", "posterior", "bound", "standard_error", "evidence", "gap_per_row", "kl_per_row"}
    columns |= {"gap_error", "marginal_error", "worst_marginal_error", "seconds"}
    assert all(set(line) == columns for line in payload["table"])
    assert payload["refused"] == {} and payload["no_exact"] is None
    assert [line["method"] for line in payload["table"]] == [
        "Exact", "VariationalEM(factorized)", "VariationalEM(mean_field)",
    ]  # fmt: skip
    assert all(line["gap_per_row"] > -1e-9 for line in payload["table"])
    for line in payload["table"]:
        assert line["method"] in output


@pytest.mark.quick
def test_models_lists_every_model_with_its_sites(tmp_path):
    output = done("models", "--json", tmp_path / "models.json")
    listed = {entry["name"]: entry for entry in json.loads((tmp_path / "models.json").read_text())["models"]}
    assert list(listed) == sorted({*MODELS, "irm"})
    assert listed["noca"]["sites"]["loading"] == ["component", "feature"]
    assert "loading (component, feature)" in output
    assert set(listed["noca"]["methods"]) <= set(every_method())


def test_the_demo_finds_the_sources_and_draws_them(tmp_path, monkeypatch):
    monkeypatch.setattr(_demo, "_COMPARED", 50)
    report = tmp_path / "demo.json"
    output = done("demo", "--out", tmp_path / "demo", "--rows", 400, "--no-progress", "--json", report)
    payload = json.loads(report.read_text())
    assert payload["sources_found"] == payload["sources"] == 8
    assert "sources found: 8 of 8" in output
    assert payload["log_likelihood_per_row"] > payload["true_log_likelihood_per_row"]
    assert all(line["gap_per_row"] > -1e-9 for line in payload["table"])
    figures = {"true_patterns", "learned_components", "comparison", "objective", "sources_of_images"}
    assert figures | {"fit"} == set(payload["files"])
    for name in figures:
        assert f"{name}.png" in output
        assert (tmp_path / "demo" / f"{name}.png").stat().st_size > 5000


def test_a_reader_that_has_had_enough_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(_: Any) -> None:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr(_cli_run, "list_models", closed)
    result = ppl("models")
    assert (result.exit_code, result.output) == (1, "")
