"""First fits are measured in processes of their own, the second of which finds what the first has compiled."""

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


def test_every_model_has_a_process_that_compiles_and_one_that_does_not(tmp_path, monkeypatch):
    asked = []

    def process(what, module, *arguments, **environment):
        asked.append((arguments[-1], environment["NUMBA_CACHE_DIR"]))
        return {"imports": 1.0, "fit": 2.0 * len(asked), "compiled": 6.0 if what == "lda" else 0.5}

    monkeypatch.setattr(first_touch, "in_a_process", process)
    monkeypatch.setattr(first_touch, "commands", lambda: first_touch.Table("Commands", ("command",)))
    monkeypatch.setattr(first_touch, "ALL", {name: first_touch.ALL[name] for name in ("noca", "lda")})
    first_touch.main([], results=tmp_path)
    tables = json.loads((tmp_path / "first_touch.json").read_text())["tables"]
    fits = next(table for table in tables if table["title"] == "First fits")
    assert [(row["model"], row["asked"]) for row in fits["rows"]] == [("lda", "no"), ("noca", "yes")]
    assert fits["rows"][1]["first fit"] == 2.0 and fits["rows"][1]["next process"] == 4.0
    assert "which 1 of 2 keep to" in fits["note"]
    caches = [cache for _, cache in asked]
    assert caches[0] == caches[1] != caches[2], "the second process finds what the first has compiled"
