"""What a row of the table of peers consists of."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks._lines import Lines
from custom_inference.core.fit import Fit

#: Where programs are that are no packages of this Python: their name -> a Python, a program, or a checkout.
PROGRAMS: dict[str, Path] = {}


class Timed(NamedTuple):
    """What a program of its own found, and the CPU seconds of its fit."""

    found: Any
    seconds: float


@dataclass(frozen=True)
class Row:
    """lines: ours, as readers paste them; what: data and score; better: "less" or "more"; peer: a program and its
    settings; needs: the packages, or ``PROGRAMS``, that have to be there for it; data: read from a folder; ours: from
    the lines and the data to what the score reads, theirs: from the data."""

    lines: Lines
    what: str
    better: str
    peer: str
    needs: tuple[str, ...]
    data: Callable[[Path], Any]
    ours: Callable[[Lines, Any], Any]
    theirs: Callable[[Any], Any]
    score: Callable[[Any, Any], float]

    @property
    def is_runnable(self) -> bool:
        return all(version_of(name) is not None for name in self.needs)


def version_of(name: str) -> str | None:
    """The version of an installed package; "" of a program; None where it is not there."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "" if name in PROGRAMS else None


def once(given: Callable[[Any], dict[str, Any]], read: Callable[[Any, Fit], Any]) -> Callable[[Lines, Any], Any]:
    """Run the lines on what is given of the data, by the names in the lines, and read the fit."""
    return lambda lines, data: read(data, lines.fit(**given(data)))


def given_score(data: Any, found: float) -> float:
    """The score where a fit returns it."""
    del data
    return found
