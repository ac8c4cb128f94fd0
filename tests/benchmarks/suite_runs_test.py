"""Runs of the tests in random orders: what a run reports, and that reports grow."""

import json

import pytest

from benchmarks.quality import suite_runs

TESTS = """
import os, pytest

@pytest.mark.parametrize("number", range(6))
def test_one(number):
    with open(os.environ["ORDER"], "a") as file:
        file.write(str(number))
    assert number != 3

def test_skipped():
    pytest.skip("no reason")
"""


ORDERED = """
from tests.support.shuffle import pytest_addoption, shuffled

def pytest_collection_modifyitems(config, items):
    shuffled(config, items)
"""


def test_settings_are_the_processors_own(monkeypatch):
    monkeypatch.setattr(suite_runs.torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    drawn = [suite_runs.processor(seed) for seed in range(50)]
    assert drawn == [suite_runs.processor(seed) for seed in range(50)]
    assert {one["ATEN_CPU_CAPABILITY"] for one in drawn} == {"default", "avx2"}
    assert {one["MKL_ENABLE_INSTRUCTIONS"] for one in drawn} == {"SSE4_2", "AVX2"}


def test_runs_are_added_to_the_report(tmp_path, monkeypatch):
    path = tmp_path / "some_test.py"
    path.write_text(TESTS)
    (tmp_path / "conftest.py").write_text(ORDERED)
    monkeypatch.setenv("PYTHONPATH", str(suite_runs._ROOT))
    orders = []
    for place in range(2):
        monkeypatch.setenv("ORDER", str(tmp_path / f"order{place}"))
        suite_runs.main(["--runs", "1", "--workers", "0", "--tests", str(path)], results=tmp_path)
        orders.append((tmp_path / f"order{place}").read_text())
    (table,) = json.loads((tmp_path / "suite_runs.json").read_text())["tables"]
    assert [(row["order"], row["passed"], row["failed"], row["skipped"]) for row in table["rows"]] == [
        (1, 5, 1, 1), (2, 5, 1, 1)]  # fmt: skip
    assert all(row["which failed"] == "some_test::test_one[3]" for row in table["rows"])
    assert "0 of 2 runs without a failure" in table["note"]
    assert sorted(orders[0]) == sorted(orders[1]) and orders[0] != orders[1]


def test_a_run_without_a_report_is_an_error(tmp_path):
    (tmp_path / "conftest.py").write_text("a line that is no Python")
    with pytest.raises(RuntimeError, match="(?s)run with seed 1 ended without a report.*SyntaxError"):
        suite_runs.main(["--runs", "1", "--workers", "0", "--tests", str(tmp_path)], results=tmp_path)
