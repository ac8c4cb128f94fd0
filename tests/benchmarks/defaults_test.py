"""The report of defaults beside other methods: what is put beside what, and what is kept."""

from __future__ import annotations

import json

from benchmarks.quality import defaults
from ppl_models import LDA


def test_rivals_are_fast_methods_beside_the_default():
    found = defaults.rivals(LDA.example().model)
    assert "vb" in found and not {"default", "exact", "nuts", "svi_delta"} & {*found}


def test_every_model_has_three_sets():
    assert all(len([*defaults.data_sets(name)]) == 3 for name in defaults.ALL)


def test_summaries_count_models_by_the_set_they_do_worst_on():
    rows = [[name, "set", "row", "em", -1.0, -1.1, short, 1.0, 1.0] for name, short in
            (("one", 0.2), ("one", 3.0), ("two", 0.9), ("three", None))]  # fmt: skip
    assert defaults.summarise(rows) == "Within 1 %: 1 of 2; not one."


def test_rows_of_other_models_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(
        defaults, "measure", lambda name, sets: iter([[name, "set", "row", "em", -1, -1, 0.0, 1, sets]])
    )
    defaults.main(["--models", "lda"], results=tmp_path)
    defaults.main(["--models", "noca"], results=tmp_path)
    table = json.loads((tmp_path / "defaults.json").read_text())["tables"][0]
    assert {row["model"] for row in table["rows"]} == {"lda", "noca"}
    assert table["note"].endswith("Within 1 %: 2 of 2.")
