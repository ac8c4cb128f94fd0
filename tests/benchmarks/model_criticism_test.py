"""The benchmark of model criticism, at a size at which it takes seconds: its tables and figures."""

import json

import torch

from benchmarks.quality import model_criticism as benchmark


def test_quick_writes_every_table_and_figure(tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "set_num_threads", lambda number: None)
    benchmark.main(["--quick"], folder=tmp_path)
    tables = {one["title"]: one for one in json.loads((tmp_path / "model_criticism.json").read_text())["tables"]}
    checks, loo = tables["Posterior predictive checks"]["rows"], tables["Leave-one-out"]["rows"]
    assert [row["data"] for row in checks] == ["binary", "binary", "counts", "counts"]
    assert [row["found wanting"] for row in checks][1::2] == ["1 of 1", "1 of 1"]  # the models that are too simple
    assert len(tables["p-values of the right models"]["rows"]) == 2 and len(loo) == 6
    assert abs(loo[0]["exact"] - loo[0]["loo"]) < 1.0
    for figure in ("counts", "rootogram", "loo"):
        assert (tmp_path / f"model_criticism_{figure}.png").is_file()
    assert (tmp_path / "model_criticism.md").is_file()
