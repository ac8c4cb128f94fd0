"""The rows of all processes, as an M step that needs them reads them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from custom_inference.core.states import Params


class AllRows:
    """Rows in memory in one process. Of rows that are read block by block, or divided between processes, a subclass
    gives the pieces and the sums over all."""

    def __init__(self, rows: Any):
        self.rows = rows

    @property
    def weights(self) -> Tensor | None:
        """How often each row counts, (N,), of rows in memory that have weights: what is summed over rows goes by it."""
        return None

    def pieces(self, warm: Params) -> Iterable[tuple[Any, Params]]:
        """This process's rows, each with their locals of the E step that gave ``warm``: in memory, at once."""
        return [(self.rows, warm)]

    def total(self, *values: Tensor) -> tuple[Tensor, ...]:
        """The sums over the processes."""
        return values

    @classmethod
    def of(cls, rows: Any) -> AllRows:
        """Rows in memory are taken as they are."""
        return rows if isinstance(rows, AllRows) else cls(rows)
