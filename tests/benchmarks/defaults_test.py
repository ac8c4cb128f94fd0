"""The report of defaults beside other methods: what is put beside what, how it is scored, and what is kept."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest

from benchmarks.quality import _default_sets as sets
from benchmarks.quality import defaults
from benchmarks.quality.defaults import SET_COLUMNS, Found
from custom_inference.checks.model_choice.held import Scores
from ppl_models import LDA, MethodError


def _scores(*folds: list[float]) -> list[Scores]:
    return [Scores(np.array(one), np.ones(len(one)), "row") for one in folds]


def test_rivals_are_fast_methods_beside_the_default():
    found = defaults.rivals(LDA.example().model)
    assert "vb" in found and not {"default", "exact", "nuts", "svi_delta", "cvb0"} & {*found}


def test_every_model_has_three_sets_that_it_takes():
    for name in sets.ALL:
        found = [make() for _, make in sets.data_sets(name)]
        assert len(found) == 3
        for model, data in found:
            assert len(model.prepare(data)) == len(data)


def test_drawn_sets_are_larger_than_the_example_and_differ():
    found = [make()[1].dense().x for _, make in sets.data_sets("gaussian_pca")]
    assert [len(one) for one in found] == [60, 200, 200] and not found[1].equal(found[2])


def test_every_fold_is_scored_once():
    model, data = [*sets.data_sets("mixture_of_bernoullis")][2][1]()
    score = sets.scorer("mixture_of_bernoullis", model, model.prepare(data))
    assert sum(len(score(fold, "em").value) for fold in range(sets.FOLDS)) == len(data)


def test_cells_of_relations_are_scored_by_what_is_predicted_of_them():
    model, data = next(iter(sets.data_sets("irm")))[1]()
    score = sets.scorer("irm", model, data)
    found = score(0, "vb")
    assert len(found.value) == -(-len(data) // sets.FOLDS)
    assert -np.log(2) < found.mean < 0  # better than a coin


def test_the_best_method_of_a_part_is_chosen_by_the_others():
    lucky = _scores([0.0, 0.0], [-5.0, -5.0], [-5.0, -5.0])  # best in the first part, worst in the others
    found = {"em": Found(_scores([-2.0, -2.0], [-2.0, -2.0], [-2.0, -2.0]), 1.0), "lucky": Found(lucky, 1.0),
             "good": Found(_scores([-1.0, -1.5], [-1.0, -1.5], [-1.0, -1.0]), 1.0)}  # fmt: skip
    short, error = defaults.compare(found)
    gap = np.array([1.0, 0.5, 1.0, 0.5, 1.0, 1.0])
    assert short == pytest.approx(100 * gap.mean() / (7 / 6))
    assert error == pytest.approx(100 * gap.std(ddof=1) / np.sqrt(6) / (7 / 6))


def test_a_default_that_is_best_is_not_short():
    found = {"em": Found(_scores([-1.0], [-1.0], [-1.0]), 1.0), "vb": Found(_scores([-2.0], [-1.5], [-2.0]), 1.0)}
    assert defaults.compare(found) == (0.0, 0.0)


def test_methods_that_refuse_or_take_too_long_say_so(monkeypatch):
    def refuse(fold: int, method: str | None) -> Scores:
        raise MethodError("no steps\nfor this")

    def dawdle(fold: int, method: str | None) -> Scores:
        end = time.process_time() + 5
        while time.process_time() < end:
            pass
        return _scores([0.0])[0]

    monkeypatch.setattr(defaults, "_SECONDS", 0.2)
    assert defaults.run(refuse, "em").refusal == "no steps"
    assert defaults.run(dawdle, "em").refusal == "more than 0.2 CPU s"


def _row(name: str, short: float | None, error: float | None = 0.1) -> list[object]:
    own = {"model": name, "default": "em", "short by, %": short, "error, %": error, "best": "vb"}
    own["without a score"] = "nothing is held out" if short is None else ""
    return [own.get(column) for column in SET_COLUMNS]


def test_summaries_count_models_by_the_mean_over_their_sets():
    rows = [_row("one", 0.2), _row("one", 3.0), _row("two", 0.9), _row("two", 1.05), _row("three", None)]
    models = defaults.by_model(rows)
    assert [row[0] for row in models] == ["one", "two", "three"]
    assert models[0][4] == "1 of 2" and models[1][4] == "0 of 2"
    expected = "Within 1 %: 1 of 2; not one (1.6 ± 0.1). Without a score: three."
    assert defaults.summarise(models) == expected


def test_rows_of_other_models_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(defaults, "measure", lambda name, sets: iter([_row(name, 0.0)]))
    defaults.main(["--models", "lda"], results=tmp_path)
    defaults.main(["--models", "noca"], results=tmp_path)
    models, rows = json.loads((tmp_path / "defaults.json").read_text())["tables"]
    assert {row["model"] for row in rows["rows"]} == {"lda", "noca"}
    assert models["note"] == "Within 1 %: 2 of 2."
