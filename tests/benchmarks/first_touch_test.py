"""First fits are measured in processes of their own; rows that are not measured again are kept."""

import json

from numba import njit

from benchmarks.speed import first_touch


def test_what_is_compiled_is_counted_once():
    compiled = first_touch._Compiled()

    @njit
    def inner(x):
        return x + 1

    @njit
    def outer(x):
        return inner(x) + 1

    assert compiled.seconds == 0.0 and outer(1) == 3
    once = compiled.seconds
    assert once > 0.0 and outer(2) == 4 and compiled.seconds == once


def test_rows_of_other_models_are_kept(tmp_path, monkeypatch):
    asked = []

    def process(what, module, *arguments, **environment):
        asked.append((arguments[-1], environment["NUMBA_CACHE_DIR"]))
        return {"imports": 1.0, "fit": 2.0 * len(asked), "compiled": 6.0 if what == "lda" else 0.5}

    monkeypatch.setattr(first_touch, "in_a_process", process)
    monkeypatch.setattr(first_touch, "commands", lambda: first_touch.Table("Commands", ("command",)))
    first_touch.main(["--models", "noca", "lda"], results=tmp_path)
    first_touch.main(["--models", "noca"], results=tmp_path)
    tables = json.loads((tmp_path / "first_touch.json").read_text())["tables"]
    rows = next(table["rows"] for table in tables if table["title"] == "First fits")
    assert [(row["model"], row["asked"]) for row in rows] == [("lda", "no"), ("noca", "yes")]
    assert rows[1]["first fit"] == 10.0 and rows[1]["next process"] == 12.0
    caches = [cache for _, cache in asked]
    assert caches[0] == caches[1] != caches[2], "the second process finds what the first has compiled"
