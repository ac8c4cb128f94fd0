"""Less of what costs time, in all tests of the command line: what is written of more draws is the same."""

from __future__ import annotations

import pytest

from custom_inference.faces.command_line import output
from custom_inference.faces.command_line.report import neighbours


@pytest.fixture(autouse=True)
def _few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "_DRAWS", 10)
    monkeypatch.setattr(output, "_COPIES", 3)
    monkeypatch.setattr(neighbours, "LONGEST", -1.0)  # no further fits beside the one that is looked at


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """For commands of which something else is looked at."""
    monkeypatch.setattr(output, "figures", lambda *_: {})
