"""The command line: what it writes, what it prints, and how it refuses."""

from __future__ import annotations

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

from custom_inference import _cli_run, _demo
from custom_inference._methods import METHODS, methods_for, named_method
from custom_inference.cli import app
from custom_inference.fit import Fit
from custom_inference.steps.noca_exact import NocaExact
from custom_inference.vem import EM, VariationalEM
from ppl_models import MODELS, NOCA, MethodError

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


@pytest.fixture
def frame() -> pd.DataFrame:
    x = NOCA.example().data.x.numpy().astype(int)
    return pd.DataFrame(x, index=pd.Index(ROWS, name="site"), columns=NAMES)


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


# ----- fit ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["csv", "parquet", "npz dense", "npz sparse"])
def test_fit_reads_every_format_with_labels_and_writes_everything(kind, frame, tmp_path):
    out, report = tmp_path / "out", tmp_path / "report.json"
    output = done("fit", "noca", written(frame, kind, tmp_path), "-k", 3, *QUICK, "--out", out, "--json", report)
    assert "NOCA fitted to 60 rows x 6 features by EM" in output
    expected = {"fit.safetensors", "posterior.nc", "summary.csv", "components.csv", "loading.csv", "membership.csv"}
    figures = {f"{kind}.png" for kind in ("components", "loading", "source", "elbo")}
    assert {path.name for path in out.iterdir()} == expected | figures

    fit = Fit.load(out / "fit.safetensors")
    assert fit.data.coords == {"row": ROWS, "feature": NAMES}
    membership = pd.read_csv(out / "membership.csv", index_col="row")
    assert membership.index.tolist() == ROWS
    assert membership.columns.tolist() == ["s0", "s1", "s2"]
    np.testing.assert_allclose(membership, fit.transform(), atol=1e-5)
    loading = pd.read_csv(out / "loading.csv", index_col="component")
    assert loading.columns.tolist() == NAMES
    np.testing.assert_allclose(loading.loc["leak"], fit.params["leak"], atol=1e-5)
    summary = pd.read_csv(out / "summary.csv", index_col=0)
    assert summary.loc["loading[1, cat]", "estimate"] == pytest.approx(float(fit.params["loading"][1, 2]), abs=1e-5)
    with xr.open_dataset(out / "posterior.nc", group="posterior", engine="h5netcdf") as posterior:
        assert posterior["feature"].values.tolist() == NAMES

    payload = json.loads(report.read_text())
    assert payload["params"] == {"source_prior": [3], "loading": [3, 6], "leak": [6]}
    assert payload["log_likelihood_per_row"] == pytest.approx(float(fit.evidence.mean()))
    assert payload["log_likelihood_bound"] == "evidence"
    assert payload["bic"] == pytest.approx(fit.bic())
    assert payload["status"] == fit.status
    assert not payload["interrupted"]
    assert all(Path(path).is_file() for path in payload["files"].values())
    for line in payload["components"]:
        assert f"{line['component']}  prior {line['prior']:.3f}  {line['strongest']}" in output


def test_fit_with_the_default_method_names_its_folder_after_the_file(csv, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    output = done("fit", "NOCA", csv, "-k", 3, "--no-progress")
    assert (tmp_path / "animals_noca_k3" / "fit.safetensors").is_file()
    assert "written to animals_noca_k3/" in output


def test_the_same_seed_gives_the_same_fit(csv, tmp_path):
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        done("fit", "noca", csv, "-k", 3, *QUICK, "--seed", seed, "--out", tmp_path / name)
    a, b, c = (Fit.load(tmp_path / name / "fit.safetensors").params["loading"] for name in "abc")
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


def test_images_are_drawn_for_an_image_shape(csv, tmp_path):
    done("fit", "noca", csv, "-k", 2, *QUICK, "--out", tmp_path / "out", "--image-shape", "2x3")
    result = ppl("fit", "noca", csv, "-k", 2, *QUICK, "--out", tmp_path / "no", "--image-shape", "4x4")
    assert (result.exit_code, result.output.count("\n")) == (1, 1)
    assert "4x4 does not hold the 6 features" in result.output
    assert not (tmp_path / "no").exists()


def test_sampled_globals_are_summarised_by_arviz(csv, tmp_path):
    done("fit", "noca", csv, "-k", 2, "--method", "svi_normal", "--set", "steps=20", "--out", tmp_path)
    summary = pd.read_csv(tmp_path / "summary.csv", index_col=0)
    assert {"mean", "sd", "r_hat"} <= set(summary.columns)
    assert "leak[bee]" in summary.index


def test_an_interrupted_fit_is_written_all_the_same(csv, tmp_path, monkeypatch):
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

    monkeypatch.setattr(_cli_run, "read_matrix", interrupted)
    result = ppl("fit", "noca", csv, "-k", 3)
    assert (result.exit_code, result.output) == (130, "error: interrupted before there was anything to keep\n")


# ----- what happens to the data ---------------------------------------------------------------------------


def source(path: Path, **settings: Any) -> Any:
    return _cli_run.Source(path, **settings).read()


def test_a_transposed_file_swaps_its_labels(frame, tmp_path):
    frame.T.to_csv(tmp_path / "t.csv")
    data = source(tmp_path / "t.csv", transpose=True)
    assert data.coords == {"row": ROWS, "feature": NAMES}
    np.testing.assert_array_equal(data.x, frame)


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


# ----- compare, models, demo ------------------------------------------------------------------------------


def test_compare_prints_the_table_and_writes_it(csv, tmp_path):
    report = tmp_path / "table.json"
    methods = "exact,factorized,mean_field"
    output = done("compare", "noca", csv, "-k", 2, "--methods", methods, "--rows", 40, "--json", report)
    payload = json.loads(report.read_text())
    assert payload["num_rows"] == 40
    columns = {"method", "bound", "evidence", "gap_per_row", "kl_per_row", "worst_marginal_error", "seconds"}
    assert all(set(line) == columns for line in payload["table"])
    assert [line["method"] for line in payload["table"]] == [
        "Exact", "VariationalEM(factorized)", "VariationalEM(mean_field)",
    ]  # fmt: skip
    assert all(line["gap_per_row"] > -1e-9 for line in payload["table"])
    for line in payload["table"]:
        assert line["method"] in output


def test_models_lists_every_model_with_its_sites(tmp_path):
    output = done("models", "--json", tmp_path / "models.json")
    listed = {entry["name"]: entry for entry in json.loads((tmp_path / "models.json").read_text())["models"]}
    assert set(listed) == set(MODELS)
    assert listed["noca"]["sites"]["loading"] == ["component", "feature"]
    assert "loading (component, feature)" in output
    assert set(listed["noca"]["methods"]) <= set(METHODS)


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


# ----- refusals -------------------------------------------------------------------------------------------


def bad_files(folder: Path) -> dict[str, tuple[Path, str]]:
    contents = {
        "counts": ("count.csv", "a,b\n0,3\n1,0\n", "neither 0 nor 1"),
        "words": ("words.csv", "a,b\n1,red\n0,blue\n", "numbers"),
        "empty column": ("column.csv", "a,b\n1,\n0,\n1,\n", "without any observed entry"),
        "all zero": ("zero.csv", "a,b\n0,0\n0,0\n", "every observed entry is 0"),
        "no rows": ("none.csv", "a,b\n", "no rows"),
        "nothing": ("nothing.csv", "", "not readable as csv"),
        "not an npz": ("broken.npz", "hello", "not readable as npz"),
        "ending": ("data.txt", "1 0", "unknown ending"),
    }
    found = {"missing": (folder / "nowhere.csv", "no such file")}
    for case, (name, text, message) in contents.items():
        (folder / name).write_text(text)
        found[case] = (folder / name, message)
    return found


CASES = ["missing", "counts", "words", "empty column", "all zero", "no rows", "nothing", "not an npz", "ending"]


@pytest.mark.parametrize("case", CASES)
def test_bad_data_is_one_line_and_exit_code_1(case, tmp_path):
    path, message = bad_files(tmp_path)[case]
    result = ppl("fit", "noca", path, "-k", 1, *QUICK, "--out", tmp_path / "out")
    assert result.exit_code == 1, result.output
    lines = [line for line in result.output.splitlines() if not line.startswith("warning: ")]
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    assert message in lines[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fit", "noka", "FILE", "-k", 2], "unknown model 'noka'; valid: noca"),
        (["fit", "noca", "FILE", "-k", 7], "num_components = 7 exceeds num_features = 6"),
        (["fit", "noca", "FILE", "-k", 2, "--method", "magic"], "unknown method 'magic'; valid: "),
        (["fit", "noca", "FILE", "-k", 2, "--set", "speed=3"], "unknown setting of EM 'speed'; valid: "),
        (["fit", "noca", "FILE", "-k", 2, "--set", "speed"], "expected NAME=VALUE"),
        (["fit", "noca", "FILE", "-k", 2, "--out", "FILE"], "is not a folder"),
        (["fit", "noca", "FILE", "-k", 2, "--json", "FOLDER"], "is a folder"),
        (["compare", "noca", "FILE", "-k", 2, "--methods", "exact,magic"], "unknown method 'magic'; valid: "),
        (["compare", "noca", "FILE", "-k", 2, "--methods", ","], "no methods"),
    ],
)
def test_bad_names_and_values_are_one_line_and_exit_code_1(arguments, message, csv, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    replaced = {"FILE": csv, "FOLDER": tmp_path}
    result = ppl(*[replaced.get(a, a) if isinstance(a, str) else a for a in arguments])
    assert result.exit_code == 1, result.output
    assert result.output.count("\n") == 1
    assert result.output.startswith("error: ")
    assert message in result.output


@pytest.mark.parametrize(
    "arguments",
    [
        ["fit", "noca", "FILE"],
        ["fit", "noca"],
        ["fit", "noca", "FILE", "-k", "three"],
        ["fit", "noca", "FILE", "-k", 0],
        ["fit", "noca", "FILE", "-k", 2, "--image-shape", "8by8"],
        ["fit", "noca", "FILE", "-k", 2, "--colour", "red"],
        ["compare", "noca", "FILE", "-k", 2, "--rows", 0],
        ["learn"],
    ],
)
def test_wrong_options_are_exit_code_2(arguments, csv):
    result = ppl(*[csv if a == "FILE" else a for a in arguments])
    assert result.exit_code == 2
    assert "Traceback" not in result.output


def test_warnings_about_the_data_are_one_line_each(frame, tmp_path):
    frame.assign(gnu=0).to_csv(tmp_path / "constant.csv")
    output = done("fit", "noca", tmp_path / "constant.csv", "-k", 2, *QUICK, "--out", tmp_path / "out")
    assert output.startswith("warning: site 'x': 1 of 7 columns are always 0 (the first: 'gnu')")


# ----- methods by name ------------------------------------------------------------------------------------


def test_methods_come_by_name_with_settings():
    assert named_method("em", max_iterations=7) == EM(max_iterations=7)
    assert named_method("factorized") == VariationalEM(guide="factorized")
    method = EM()
    assert named_method(method) is method
    assert named_method(method, tolerance=0.5).tolerance == 0.5
    with pytest.raises(MethodError, match="unknown setting of EM 'speed'; valid: "):
        named_method("em", speed=1)
    with pytest.raises(MethodError, match="is not a method"):
        named_method(EM)


def test_every_method_that_is_listed_for_noca_has_its_steps():
    model = NOCA.example().model
    assert {"default", "exact", "em", "factorized", "mean_field"} <= set(methods_for(model))
