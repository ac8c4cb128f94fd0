"""Work on several threads, with the same result however many there are.

Compiled loops run without the interpreter's lock, so that threads share the processors. What is divided is cut into
parts that depend on the data alone: each has its own random numbers, and sums over parts are taken in their order.
``torch.set_num_threads`` says how many threads there are.

What libraries divide by themselves is cut by the number of threads, so that sums are rounded otherwise; and threads
that wait for the next small product hold a processor. Where fits divide their work here, libraries therefore have one
thread each meanwhile (``HeldLibraries``).
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

Part = TypeVar("Part")
Value = TypeVar("Value")

#: Parts that loops are cut into whose passes each see what the others left a pass before.
MOST_SHARDS = 4


#: Whether the present thread shares the work of others, and divides no further.
_shares = threading.local()
#: Threads that help the one that divides its work, by their number: kept, as they start slower than small parts take.
_helpers: dict[int, ThreadPoolExecutor] = {}
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_helpers.clear)  # a child has none of its parent's threads


class HeldLibraries:
    """Linear algebra and torch have one thread between ``hold`` and ``release``, and ``map_in_threads`` theirs.

    Threads take the libraries' number when they first call them, and keep it: helpers of before are not used meanwhile.
    Fits that run at the same time share what is held: the first holds, the last releases.
    """

    _lock, _fits, _threads, _limit = threading.Lock(), 0, 1, None

    @classmethod
    def hold(cls) -> bool:
        """Hold the libraries' threads; return True, as ``release`` is due."""
        with cls._lock:
            if not cls._fits:
                cls._threads = torch.get_num_threads()
                cls._limit = ThreadpoolController().limit(limits=1)
                torch.set_num_threads(1)
                _helpers.clear()
            cls._fits += 1
        return True

    @classmethod
    def release(cls) -> None:
        with cls._lock:
            cls._fits -= 1
            if not cls._fits and cls._limit is not None:
                cls._limit.restore_original_limits()
                torch.set_num_threads(cls._threads)
                _helpers.clear()

    @classmethod
    def count_threads(cls) -> int:
        """Return the number of threads that work is divided among: one within what is a part of it already."""
        if getattr(_shares, "work", False):
            return 1
        return cls._threads if cls._fits else torch.get_num_threads()


def make_pool(number: int) -> ThreadPoolExecutor:
    """Return so many threads; where they are several, none of them divides its work further."""
    return ThreadPoolExecutor(number, initializer=setattr, initargs=(_shares, "work", number > 1))


def map_in_threads(work: Callable[[Part], Value], parts: Iterable[Part], threads: int | None = None) -> list[Value]:
    """Return what ``work`` makes of each part, in their order. threads: at most so many; by default torch's number.

    The calling thread takes its share; the others take gradients as it does. What a part raises ends the others, once
    the parts under way are done.
    """
    given = list(parts)
    most = HeldLibraries.count_threads() if threads is None else threads
    number = min(most, len(given))
    if number <= 1 or getattr(_shares, "work", False):
        return [work(part) for part in given]
    pool = _helpers.get(number - 1)
    if pool is None:
        pool = ThreadPoolExecutor(number - 1, "ppl-helper", initializer=setattr, initargs=(_shares, "work", True))
        _helpers[number - 1] = pool
    return _Division(work, given).run(pool, number - 1)


class _Division(Generic[Part, Value]):
    """Parts that several threads take one after the other until none is left."""

    def __init__(self, work: Callable[[Part], Value], given: list[Part]):
        self.work, self.given, self.places = work, given, itertools.count()
        self.found: dict[int, Value] = {}
        self.errors: dict[int, BaseException] = {}

    def run(self, pool: ThreadPoolExecutor, helpers: int) -> list[Value]:
        running = [pool.submit(self._help, torch.is_grad_enabled()) for _ in range(helpers)]
        _shares.work = True
        try:
            self.take()
        except BaseException as error:  # Ctrl-C between two parts
            self.errors[-1] = error
        finally:
            _shares.work = False
        wait(one for one in running if not one.cancel())  # those that have not begun find nothing left
        if self.errors:
            raise self.errors[min(self.errors)]
        return [self.found[place] for place in range(len(self.given))]

    def _help(self, gradients: bool) -> None:
        with torch.set_grad_enabled(gradients):
            self.take()

    def take(self) -> None:
        for place in self.places:
            if place >= len(self.given) or self.errors:
                return
            try:
                self.found[place] = self.work(self.given[place])
            except BaseException as error:
                self.errors[place] = error


def cut_evenly(ends: NDArray[np.int64] | Sequence[int], number: int) -> list[tuple[int, int]]:
    """Cut rows into at most so many ranges (first, last) of about equal weight. ends: (N + 1,) running sums of the
    rows' weights, from 0 on."""
    inside = np.searchsorted(ends, np.arange(1, number) * (ends[-1] / number))
    cuts = np.unique([0, *inside, len(ends) - 1]).tolist()
    return list(itertools.pairwise(cuts))


def count_shards(work: float, shared: float, least: float) -> int:
    """Return the number of parts, a power of 2, of a loop over ``work`` numbers that each need a copy of ``shared``
    numbers: one where a part had less than ``least`` to do, or not much more than to copy."""
    most = min(work // max(least, shared, 1), MOST_SHARDS)
    return 1 << max(int(most).bit_length() - 1, 0)
