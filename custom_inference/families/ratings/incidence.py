"""Ratings by user and by item: two compressed copies, which the two halves of a sweep read."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True)
class ByRow:
    """Ratings of rows of one side. start (N + 1,), index and value (M,): those of row n at start[n]..start[n + 1].

    weight: precisions of each, where they differ, else (0,)."""

    start: NDArray[np.int64]
    index: NDArray[np.int32]
    value: Array
    weight: Array = field(default_factory=lambda: np.zeros(0))

    @classmethod
    def of(cls, row: NDArray, other: NDArray, value: Array, rows: int) -> ByRow:
        from custom_inference.families.ratings.kernels import sort_by_row

        start = np.zeros(rows + 1, np.int64)
        np.cumsum(np.bincount(row, minlength=rows), out=start[1:])
        index, sorted_value = np.empty(len(row), np.int32), np.empty(len(row))
        sort_by_row(
            row.astype(np.int64, copy=False), other.astype(np.int64, copy=False), value, start[:-1].copy(), index,
            sorted_value,
        )  # fmt: skip
        return cls(start, index, sorted_value)

    @property
    def counts(self) -> NDArray[np.int64]:
        return np.diff(self.start)

    def parts(self, number: int) -> list[tuple[int, int]]:
        """Split the rows into ``number`` ranges, first to last, with about as many ratings and rows each."""
        work = self.start + np.arange(len(self.start)) * 16
        cuts = np.searchsorted(work, np.linspace(0, work[-1], number + 1))
        cuts[-1] = len(self.start) - 1
        return [(int(a), int(b)) for a, b in pairwise(cuts) if b > a]


@dataclass(frozen=True)
class Incidence:
    """Ratings as two compressed copies. centre: the mean rating, which both have less."""

    users: ByRow
    items: ByRow
    centre: float

    @classmethod
    def of(cls, user: NDArray, item: NDArray, value: NDArray, num_users: int, num_items: int) -> Incidence:
        """List ratings: user, item, value (M,)."""
        centre = float(value.mean())
        rest = value - centre
        return cls(ByRow.of(user, item, rest, num_users), ByRow.of(item, user, rest, num_items), centre)

    @property
    def num_ratings(self) -> int:
        return len(self.users.index)

    def copy(self) -> Incidence:
        """Return a copy whose values a chain may change."""
        sides = [replace(side, value=side.value.copy()) for side in (self.users, self.items)]
        return replace(self, users=sides[0], items=sides[1])
