"""What of the suite ``make test`` runs: as much of every test as fits its share of ten minutes on two cores.

``seconds.json`` holds the mean CPU seconds of a case of each test that takes a second in all, as measured by

    python -m pytest -m "" --measure tests/support/seconds.json

A test's cases are run up to ``SHARE`` seconds, those between left out evenly, and none of more than ``MOST``: they are
marked slow, which ``make test-all`` runs. The conformance tests share their fits, so that there pairs of models and
methods are left out in all of them: of most models the default alone runs.
"""

from __future__ import annotations

import json
import resource
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cases import FEW

SHARE, MOST = 1.0, 3.0
#: Tests whose seconds are not worth a line.
LEAST = 1.0
SECONDS = Path(__file__).with_name("seconds.json")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--measure", metavar="FILE", help="write the CPU seconds of every test's cases to a file")


def mark_slow(items: list[pytest.Item]) -> None:
    """Mark the cases beyond their test's share."""
    seconds, cases = json.loads(SECONDS.read_text()), defaultdict(list)
    for item in items:
        model, method = _pair_of(item)
        if "conformance" in item.path.parts and method is not None:
            if model not in FEW and method != "default":
                item.add_marker(pytest.mark.slow)
        elif item.get_closest_marker("slow") is None:
            cases[item.nodeid.partition("[")[0]].append(item)
    for name, found in cases.items():
        share, most = (SHARE, MOST) if "conformance" not in name else (3 * SHARE, 2 * MOST)
        each = seconds.get(name, 0.0)
        room = len(found) if each * len(found) <= share else 0 if each > most else max(1, int(share / each))
        chosen = {round(place * len(found) / room) for place in range(room)} if room else set()
        for place, item in enumerate(found):
            if place not in chosen:
                item.add_marker(pytest.mark.slow)


def _pair_of(item: pytest.Item) -> tuple[str | None, str | None]:
    """Return the model and the method that a conformance test is run with."""
    found = getattr(getattr(item, "callspec", None), "params", {})
    model, method = found.get("model", found.get("name")), found.get("method")
    return model if isinstance(model, str) else None, method if isinstance(method, str) else None


def _cpu_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


class Measure:
    """Writes the mean seconds of a case of every test. For runs in one process."""

    def __init__(self, path: Path):
        self.path, self.taken = path, defaultdict(list)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        before = _cpu_seconds()
        result = yield
        self.taken[item.nodeid.partition("[")[0]].append(_cpu_seconds() - before)
        return result

    def pytest_sessionfinish(self) -> None:
        long = {name: taken for name, taken in sorted(self.taken.items()) if sum(taken) >= LEAST}
        means = {name: round(sum(taken) / len(taken), 3) for name, taken in long.items()}
        self.path.write_text(json.dumps(means, indent=0) + "\n")
