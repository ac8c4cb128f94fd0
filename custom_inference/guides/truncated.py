"""Truncated posteriors: the exact posterior restricted to a few likely codes per row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from custom_inference.engines import steps_for
from custom_inference.guides._protocol import Guide
from custom_inference.steps import Steps
from ppl_models import MethodError, Model


@dataclass(frozen=True, kw_only=True)
class Truncated(Guide):
    """Q(s_n) in proportion to p(x_n, s_n) on a set of codes that evolves per row; for VariationalEM.

    The bound log sum over the set of p(x_n, s) never exceeds log p(x_n) and grows whenever the set improves.

    free: sources per row that take all their values, 2^free codes, during EM. New rows, which start from the empty
        code, get at least 2^6.
    """

    free: int = 4
    bound_name: ClassVar[str] = "truncated"

    def __post_init__(self) -> None:
        if not 1 <= self.free <= 12:
            raise MethodError(f"free = {self.free}, expected 1 to 12 (2^free codes a row)")

    def steps(self, model: Model) -> Steps:
        return steps_for(model, self.bound_name, free=self.free)

    def local_steps(self, model: Model) -> Steps:
        return steps_for(model, self.bound_name, free=max(self.free, 6))
