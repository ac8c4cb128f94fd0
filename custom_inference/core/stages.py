"""What a fit consisted of, one after the other."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Stage:
    """A part of a fit: what ran, for how many seconds, and the objective a row that it came to.

    Of a search the objective is that of its best start, on all rows that it saw; None where nobody looked.
    """

    name: str
    seconds: float
    objective: float | None = None

    def __str__(self) -> str:
        found = "" if self.objective is None else f", {self.objective:.4f} a row"
        return f"{self.name} ({self.seconds:.2f} s{found})"


class Stages(tuple[Stage, ...]):
    """The stages of a fit, in their order."""

    def __repr__(self) -> str:
        return "\n".join(f"{number}. {stage}" for number, stage in enumerate(self, 1))
