"""Relations of a type with itself: the diagonal, and what makes one symmetric, as graphs have it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ppl_models.core.errors import DataError, warn_of_data
from ppl_models.data.graphs.edges import FEW, Array, EdgeList, dyad_key, warn_of_one_way
from ppl_models.data.held import labels_of

_LISTED = "symmetric=True (--undirected) reads them as undirected, and symmetric=False (--directed) as they are"
_TRIANGLE = "take x + x.T if the relation is undirected, and symmetric=False if it is not"
#: Differences of two real cells that are rounding.
_ROUNDING = 1e-6


class Dyads(NamedTuple):
    """The listed cells of a relation of a type with itself. zero: whether other cells are 0, rather than missing.
    listed: whether it is a long table, which may have each pair once, rather than a matrix.

    symmetric: whether it is said to be, None where nothing is said. sure: whether it is said of this relation, rather
    than of others alone.
    """

    name: str
    row: Array
    column: Array
    value: Array
    size: int
    labels: Sequence[Any]
    zero: bool
    listed: bool
    symmetric: bool | None
    sure: bool

    def only(self, kept: Array) -> Dyads:
        return self._replace(row=self.row[kept], column=self.column[kept], value=self.value[kept])

    def settle(self) -> Dyads:
        """Each pair once, from the smaller number, where the relation is symmetric: said to be, or a matrix that is
        its transpose where both directions were observed. Else as it is, with a DataWarning where that is doubtful."""
        folded, problem = self._fold()
        if self.symmetric is None and not self.listed:
            return folded if problem is None else self._as_directed()
        if self.symmetric:
            if problem is not None:
                raise DataError(f"not symmetric: {problem}", axis=self.name, expected="both alike, or symmetric=False")
            return folded
        if not (self.sure or self.listed) and problem is None and len(folded.row) >= FEW:
            warn_of_data(
                f"'{self.name}' is symmetric but read as directed, so that every pair counts twice; "
                f"symmetric=({self.name!r},) of relations(...) and of the model reads it as undirected"
            )
        return self._as_directed() if self.symmetric is None else self._replace(symmetric=False)

    def _as_directed(self) -> Dyads:
        seen = self.only(~np.isnan(self.value) & ((self.value != 0) | (not self.zero)))
        names = labels_of(self.labels)
        edges = EdgeList(seen.row, seen.column, seen.value, self.size, names=names, listed=self.listed)
        warn_of_one_way(edges, _LISTED if self.listed else _TRIANGLE, f"cells of '{self.name}'")
        return self._replace(symmetric=False)

    def _fold(self) -> tuple[Dyads, str | None]:
        """Every pair once; and in words the first that differs between its directions, None where none does."""
        if len(np.unique(dyad_key(self.row, self.column, self.size))) < len(self.row):
            return self, None  # cells that are listed twice are refused
        low, high = np.minimum(self.row, self.column), np.maximum(self.row, self.column)
        order = np.lexsort((np.isnan(self.value), dyad_key(low, high, self.size)))
        key, value, missing = dyad_key(low, high, self.size)[order], self.value[order], np.isnan(self.value[order])
        again = np.zeros(len(key), dtype=bool)
        again[1:] = key[1:] == key[:-1]
        differs = again & ~missing & ~np.isclose(value, np.roll(value, 1), rtol=_ROUNDING, atol=0)
        alone = ~again & (low < high)[order] & ~np.append(again[1:], False)
        if self.zero and not self.listed:  # the other direction is 0
            differs |= alone & ~missing & (value != 0)
            again |= alone & missing
        elif not self.listed and alone.all() and not self._is_triangle():  # nothing was seen in both directions
            differs |= alone
        problem = None
        if differs.any():
            at = int(np.flatnonzero(differs)[0])
            i, j = (self.labels[int(ends[order[at]])] for ends in (self.row, self.column))
            shown = f"{i!r} -> {j!r} has {value[at]:g}"
            problem = f"{shown}, {j!r} -> {i!r} has {value[at - 1] if again[at] else 0:g}"
        kept = order[~again]
        folded = self._replace(row=low[kept], column=high[kept], value=self.value[kept], symmetric=True)
        return folded, problem

    def _is_triangle(self) -> bool:
        return bool((self.row <= self.column).all() or (self.row >= self.column).all())
