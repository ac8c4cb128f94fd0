"""Which rows are within reach of an exact sum over NOCA's sources, and by which: all codes, or subsets of their ones.

A row with M ones takes about c_1 K M 2^M ns by the subsets of its ones (``subsets``) and 2^K (c_2 D + c_3) ns by all
codes, on one processor, beside c_4 2^K D for the codes' tables, which all rows share. Both have a limit in memory, and
one in time.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from custom_inference.core.capacity import code_table_bytes, memory_limit
from custom_inference.core.engine import EXACT_UP_TO
from custom_inference.families.common.enumerated import LEAST_ROWS
from custom_inference.families.rows.matrix import BinaryRows
from ppl_models import CapacityError, Data, Model
from ppl_models.distributions.basic import MAX_ENUMERABLE_BITS

#: Nanoseconds of a term of the recursion, of a code and feature, of a code, and of an entry of its table, as measured.
_TERM, _FEATURE, _CODE, _TABLE = 1.5, 0.5, 6.0, 250.0
#: Nanoseconds that a row may take, and that all rows may take together where an exact sum is a default.
_MOST, _CHEAP = 4e9, 4e9
#: No row has so many ones that its subsets are counted in floating point.
_ENDLESS = 500


class Reach(NamedTuple):
    """within: the rows that are within reach (N,); by_codes: those of them that all codes take less time for (N,);
    seconds (N,) of each, and ``most_ones``: how many ones a row may have."""

    within: Tensor
    by_codes: Tensor
    seconds: Tensor
    most_ones: int

    def require(self, model: Model, rows: BinaryRows, allowed: float) -> None:
        """Raise CapacityError where some rows are out of reach; say how many, and what the limits are."""
        beyond = ~self.within
        if not bool(beyond.any()):
            return
        number, ones = model.shapes["source_prior"][0], count_ones(rows)[beyond]
        needed = min(8.0 * 2.0**number * rows.like.shape[1], float(_subset_bytes(number, ones.max())))
        raise CapacityError(
            f"the exact sums of {len(ones)} of {len(rows)} rows are out of reach: they have up to {int(ones.max())} "
            f"ones, and beside {number} sources the subsets of up to {self.most_ones} ones a row are summed over; "
            f"enumerating the 2^{number} codes needs at most {MAX_ENUMERABLE_BITS} sources; use a bound instead",
            needed_bytes=needed,
            allowed_bytes=allowed,
        )


def find_reach(model: Model, rows: BinaryRows, max_bytes: float | None = None) -> Reach:
    """Tell of every row whether an exact sum is within reach, and by what.

    max_bytes: memory allowed; half of what is free by default.
    """
    number, features = model.shapes["loading"]
    allowed, ones = memory_limit(max_bytes), count_ones(rows).double()
    subsets = _subset_time(number, ones)
    few = (subsets <= _MOST) & (_subset_bytes(number, ones) <= allowed)
    codes = 2.0**number * (_FEATURE * features + _CODE)
    room = code_table_bytes(number, features, min(len(rows), LEAST_ROWS))
    fits = number <= MAX_ENUMERABLE_BITS and room <= allowed and codes <= _MOST
    table, gain = _TABLE * 2.0**number * features, torch.where(few, subsets - codes, 0.0).clamp(min=0).sum()
    worth = bool((~few).any()) or float(gain) > table
    by_codes = torch.full_like(few, fits) & (~few | (worth & (codes < subsets)))
    codes += table / max(1, int(by_codes.sum()))
    every = torch.arange(_ENDLESS, dtype=torch.float64)
    most = int(((_subset_time(number, every) <= _MOST) & (_subset_bytes(number, every) <= allowed)).sum()) - 1
    return Reach(few | by_codes, by_codes, torch.where(by_codes, codes, subsets) / 1e9, most)


def rows_within_reach(model: Model, data: Data, max_bytes: float | None = None) -> Tensor:
    """Return which rows have an exact sum over their sources within reach, (N,) bool: those of few sources all, those
    of many where they have few ones. Of others log p(x) is bounded or estimated.

    max_bytes: memory allowed; half of what is free by default.
    """
    if model.shapes["source_prior"][0] <= EXACT_UP_TO:
        return torch.ones(len(data), dtype=torch.bool, device=data.x.device)
    return find_reach(model, BinaryRows.of(data), max_bytes).within


def time_rows(model: Model, data: Data) -> Tensor:
    """Estimate the seconds (N,) that the exact sum of every row takes, infinite where it is out of reach."""
    reach = find_reach(model, BinaryRows.of(data))
    return torch.where(reach.within, reach.seconds, torch.inf)


def is_cheap_on(model: Model, data: Data) -> bool:
    """Whether exact sums of all rows are a default: within reach, and a few seconds of work together."""
    reach = find_reach(model, BinaryRows.of(data))
    return bool(reach.within.all()) and 1e9 * float(reach.seconds.sum()) <= _CHEAP


def count_ones(rows: BinaryRows) -> Tensor:
    """Count the observed ones of every row, (N,)."""
    return rows.ones.sum(-1).round().clamp(max=_ENDLESS)


def _subset_time(number: int, ones: Tensor) -> Tensor:
    return _TERM * number * (ones + 1) * torch.exp2(ones)


def _subset_bytes(number: int, ones: Tensor) -> Tensor:
    """Return the memory that one row takes: f or h after every source, and the stages of one."""
    return 8.0 * (number + ones + 5) * torch.exp2(ones)
