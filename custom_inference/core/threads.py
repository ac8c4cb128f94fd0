"""Work on several threads, with the same result however many there are.

Compiled loops run without the interpreter's lock, so that threads share the processors. What is divided is cut into
parts that depend on the data alone: each has its own random numbers, and sums over parts are taken in their order.
``torch.set_num_threads`` says how many threads there are.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

Part = TypeVar("Part")
Value = TypeVar("Value")

#: Parts that loops are cut into whose passes each see what the others left a pass before.
MOST_SHARDS = 4


def map_in_threads(work: Callable[[Part], Value], parts: Iterable[Part], threads: int | None = None) -> list[Value]:
    """Return what ``work`` makes of each part, in their order. threads: at most so many; by default torch's number."""
    given = list(parts)
    number = min(torch.get_num_threads() if threads is None else threads, len(given))
    if number <= 1:
        return [work(part) for part in given]
    with ThreadPoolExecutor(number) as pool:
        return list(pool.map(work, given))


def cut_evenly(ends: NDArray[np.int64] | Sequence[int], number: int) -> list[tuple[int, int]]:
    """Cut rows into at most so many ranges (first, last) of about equal weight. ends: (N + 1,) running sums of the
    rows' weights, from 0 on."""
    inside = np.searchsorted(ends, np.arange(1, number) * (ends[-1] / number))
    cuts = np.unique([0, *inside, len(ends) - 1]).tolist()
    return list(itertools.pairwise(cuts))


def count_shards(work: float, shared: float, least: float) -> int:
    """Return the number of parts of a loop over ``work`` numbers that each need a copy of ``shared`` numbers: one where
    a part had less than ``least`` to do, or not much more than to copy."""
    return int(min(max(work // max(least, shared), 1), MOST_SHARDS))
