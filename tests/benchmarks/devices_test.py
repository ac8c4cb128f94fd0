"""The benchmark of devices, at a size at which it takes no time: what it writes, with a device and without one."""

import json

import pytest
import torch

from benchmarks.speed import devices
from tests.support.pretend_device import pretend_device

QUICK = ["--quick", "--runs", "1", "--iterations", "1"]


def test_with_a_device_it_writes_ratio_and_difference(tmp_path, monkeypatch):
    few = (devices.noca_exact, devices.lda_vb, devices.mmsb_vb, devices.noca_svi)
    monkeypatch.setattr(devices, "CASES", few)
    with pretend_device():
        path = devices.main(QUICK, folder=tmp_path)
    (table,) = json.loads(path.with_suffix(".json").read_text())["tables"]
    assert len(table["rows"]) == len(devices.CASES) and "pretend device" in table["note"]
    for row in table["rows"]:
        assert row["CPU / GPU"] == pytest.approx(row["CPU s"] / row["GPU s"])
        if "SVI" not in row["engine"] and "LDA" not in row["engine"]:
            assert row["relative difference"] < 1e-10, row["engine"]


def test_without_a_device_it_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(devices, "CASES", devices.CASES[:1])
    path = devices.main(QUICK, folder=tmp_path)
    text = path.read_text()
    assert "No GPU was to be had" in text and "GPU s" not in text and "| CPU s |" in text
