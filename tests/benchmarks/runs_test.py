"""Benchmarks at a size at which they take no time: calibration, model criticism, streaming."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks.quality import calibration, model_criticism
from benchmarks.quality._calibration_cases import (
    APPROXIMATIONS,
    EXACT,
    SPOILED,
    Case,
    fit_cases,
    local_cases,
    one_rate,
    problem,
)
from benchmarks.quality._calibration_methods import OneRate
from benchmarks.speed import streaming
from benchmarks.speed._stream_problem import CASES, documents, images, write
from benchmarks.speed._stream_worker import measured
from custom_inference.methods import methods_for
from ppl_models import MODELS, ModelError, row_blocks


def test_every_model_has_its_exact_engine_among_the_cases():
    cases = local_cases()
    summed = {name for name in MODELS if "exact" in methods_for(problem(name))}  # under proper priors
    assert len(summed) > 15
    assert {case.title for case in cases if case.method.name == "Exact"} == summed
    for name, methods in APPROXIMATIONS.items():
        assert set(methods) <= set(methods_for(MODELS[name].example().model))
    assert sum(case.known == SPOILED for case in cases) == 4 and len(fit_cases()) > 20


def test_a_report_says_what_should_be(tmp_path, monkeypatch):
    def two() -> list[Case]:
        return [Case("one rate", one_rate(), OneRate(), "globals", EXACT, 5),
                Case("one rate", one_rate(), OneRate(narrow=9.0), "globals", SPOILED, 5)]  # fmt: skip

    monkeypatch.setattr(calibration, "PARTS", {"fits": (two, "Fits", ""), "locals": (lambda: two()[:1], "Locals", "")})
    calibration.report(40, tmp_path)
    counts, fits, _ = json.loads((tmp_path / "calibration.json").read_text())["tables"]
    assert [row["as it should"] for row in fits["rows"]] == ["yes", "yes"]
    assert fits["rows"][1]["finding"] == "over-confident" and fits["rows"][1]["simulations"] == 40
    counted = {(row["part"], row["posterior"]): row for row in counts["rows"]}
    assert counted["Fits", SPOILED]["over-confident"] == 1 and counted["Fits", EXACT]["as it should"] == "1 of 1"
    assert (tmp_path / "calibration_fits.png").is_file() and (tmp_path / "calibration_locals.png").is_file()
    assert "one rate" in (tmp_path / "calibration.md").read_text()


def test_problems_have_proper_priors():
    from custom_inference.checks.calibration.simulate import require_proper

    for case in (case for case in fit_cases() if case.of == "globals"):
        require_proper(case.model)
    with pytest.raises(ModelError, match="improper priors"):
        require_proper(MODELS["cvq"].example().model)


def test_quick_writes_every_table_and_figure(tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "set_num_threads", lambda number: None)
    model_criticism.main(["--quick"], folder=tmp_path)
    tables = {one["title"]: one for one in json.loads((tmp_path / "model_criticism.json").read_text())["tables"]}
    checks, loo = tables["Posterior predictive checks"]["rows"], tables["Leave-one-out"]["rows"]
    assert [row["data"] for row in checks] == ["binary", "binary", "counts", "counts"]
    assert [row["found wanting"] for row in checks][1::2] == ["1 of 1", "1 of 1"]  # the models that are too simple
    assert len(tables["p-values of the right models"]["rows"]) == 2 and len(loo) == 6
    assert abs(loo[0]["exact"] - loo[0]["loo"]) < 1.0
    for figure in ("counts", "rootogram", "loo"):
        assert (tmp_path / f"model_criticism_{figure}.png").is_file()
    assert (tmp_path / "model_criticism.md").is_file()


def test_rows_are_drawn_as_said():
    found = documents(30, 1)
    assert found.shape == (30, 2000) and (found.sum(1) == 100).all()
    x = images(400, 1)
    assert x.shape == (400, 64) and set(np.unique(x)) == {0.0, 1.0}


@pytest.mark.filterwarnings("ignore::ppl_models.DataWarning")
def test_files_hold_the_same_rows_and_fits_are_measured(tmp_path):
    case = replace(CASES["mixture"], rows=120, block_rows=50)
    files = write(case, 120, tmp_path)
    whole = [case.whole(row_blocks(path, block_rows=50)) for path in files.values()]
    np.testing.assert_array_equal(whole[0], whole[1])
    each = {kind: {120: measured(case, path, False)} for kind, path in files.items()}
    each["in memory"] = {120: measured(case, files["npy"], True)}
    assert all(found[120]["rows"] == 120 and found[120]["passes"] == 3 for found in each.values())
    memory, speed = streaming.tables({"mixture": each})
    assert len(memory.rows) == len(speed.rows) == 3
    assert CASES["lda_online"].passes(3) == 4
