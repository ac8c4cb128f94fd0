"""The benchmark of calibration: its cases, its lines, and what it keeps of an earlier report."""

from __future__ import annotations

import json

import pytest

from benchmarks.quality import calibration as benchmark
from benchmarks.quality._calibration_cases import APPROXIMATIONS, EXACT, SPOILED, Case, fit_cases, local_cases, one_rate
from benchmarks.quality._calibration_methods import OneRate
from custom_inference.methods import methods_for
from ppl_models import MODELS, ModelError


def test_every_model_has_its_exact_engine_among_the_cases():
    cases = local_cases()
    summed = {name for name, kind in MODELS.items() if "exact" in methods_for(kind.example().model)}
    assert len(summed) > 15
    assert {case.title for case in cases if case.method.name == "Exact"} == summed
    for name, methods in APPROXIMATIONS.items():
        assert set(methods) <= set(methods_for(MODELS[name].example().model))
    assert sum(case.known == SPOILED for case in cases) == 4 and len(fit_cases()) > 20


def test_a_report_says_what_should_be_and_keeps_the_parts_that_are_not_measured(tmp_path, monkeypatch):
    def two() -> list[Case]:
        return [Case("one rate", one_rate(), OneRate(), "globals", EXACT, 5),
                Case("one rate", one_rate(), OneRate(narrow=9.0), "globals", SPOILED, 5)]  # fmt: skip

    _, title, note = benchmark.PARTS["fits"]
    monkeypatch.setitem(benchmark.PARTS, "fits", (two, title, note))
    monkeypatch.setitem(benchmark.PARTS, "locals", (lambda: two()[:1], "Locals", ""))
    benchmark.report(["fits", "locals"], 40, tmp_path)
    benchmark.report(["locals"], 2, tmp_path)
    tables = json.loads((tmp_path / "calibration.json").read_text())["tables"]
    fits = next(table["rows"] for table in tables if table["title"] == title)
    assert [row["as it should"] for row in fits] == ["yes", "yes"] and fits[1]["finding"] == "over-confident"
    assert [row["simulations"] for row in fits] == [40, 40]
    counted = {(row["part"], row["posterior"]): row for row in tables[0]["rows"]}
    assert counted[title, SPOILED]["over-confident"] == 1 and counted[title, EXACT]["as it should"] == "1 of 1"
    assert (tmp_path / "calibration_fits.png").is_file() and (tmp_path / "calibration_locals.png").is_file()
    assert "one rate" in (tmp_path / "calibration.md").read_text()


def test_problems_have_proper_priors():
    from custom_inference.checks.calibration.simulate import require_proper

    for case in (case for case in fit_cases() if case.of == "globals"):
        require_proper(case.model)
    with pytest.raises(ModelError, match="improper priors"):
        require_proper(MODELS["cvq"].example().model)
