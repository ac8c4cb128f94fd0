"""Passes over all entries of x, and the refusal of some, which names the first of them."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ppl_models.core.errors import DataError, digits
from ppl_models.data import sparse

#: Entries of a part: what is made of each stays in a processor's cache.
_PART = 2**15


def split_entries(x: Tensor) -> tuple[Tensor, ...]:
    """Return views of some of the rows of x each, all of them in order: a pass over every entry takes a third of the
    time where what it makes of them is small."""
    return x.split(max(1, _PART * len(x) // max(x.numel(), 1)))


def refuse_entries(x: Tensor, columns: Sequence[object], wrong: Tensor, refusal: tuple[str, str]) -> None:
    """Refuse x, (N,), (N, D), (N, A, B) or sparse, where some of its entries are wrong.

    columns: the names of the columns. wrong: bool, of the shape of x, or of the stored entries of a sparse one.
    refusal: what is said of such entries ("are no counts"), and what is expected.

    Raises DataError, which says how many there are, and names the first.
    """
    if not bool(wrong.any()):
        return
    first = wrong.nonzero()[0].tolist()
    if sparse.is_sparse(x):
        row, column, value = (part[first[0]].item() for part in sparse.triplets(x))
        at = [int(row), int(column)]
    else:
        at, value = first, x[tuple(first)].flatten()[0].item()
    place = "" if len(at) == 1 else f", column {columns[at[1]]!r}" if len(at) == 2 else f", at {tuple(at[1:])}"
    problem = (
        f"{int(wrong.sum())} of {x.numel()} entries {refusal[0]} (the first: {digits(value)} in row {at[0]}{place})"
    )
    raise DataError(problem, expected=refusal[1])
