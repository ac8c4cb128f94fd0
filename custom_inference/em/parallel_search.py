"""Starts of a search in several processes at once, each from random numbers of its own.

Start i draws from a generator whose seed is the i-th number that the caller's generator gives, so that what it finds is
the same in whichever process and beside whichever others. They are taken in their order: where enough of the first
agree, the rest is stopped and does not count.
"""

from __future__ import annotations

import multiprocessing
import tempfile
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from custom_inference.core.processes import (
    UNGUARDED,
    Surroundings,
    begun,
    check_startable,
    context,
    packed,
    stop,
    unguarded,
    unpacked,
)
from custom_inference.core.progress import Progress
from custom_inference.em.restarts import Start, Starts, Task
from ppl_models import ProcessError

#: Of a worker: where its task is, and the task once it was read.
_GIVEN: dict[str, Any] = {}


def starts(task: Task, generator: torch.Generator, bar: Progress) -> Starts:
    """The starts in order; closing it, or Ctrl-C after the last that has ended, leaves no process behind."""
    seeds = torch.randint(2**62, (task.restarts,), generator=generator).tolist()
    processes = min(task.settings.processes or 1, task.restarts)
    if processes == 1:
        for attempt, seed in enumerate(seeds):
            bar.label(f"start {attempt + 1} of {task.restarts}")
            yield task.start(attempt, torch.Generator().manual_seed(seed), bar)
        return
    check_startable()
    with tempfile.TemporaryDirectory(prefix="ppl-search-") as folder:
        path = Path(folder) / "task"
        path.write_bytes(packed(task))  # once, however many starts there are
        yield from _from_workers(path, seeds, processes, bar)


def _from_workers(path: Path, seeds: list[int], processes: int, bar: Progress) -> Starts:
    before = {child.pid for child in multiprocessing.active_children()}
    given = path, Surroundings.of(processes)
    pool = ProcessPoolExecutor(processes, mp_context=context(), initializer=_begin, initargs=given)
    workers: list[Any] = []
    running: list[Future[Start]] = []
    try:
        for attempt, seed in enumerate(seeds):
            running.append(pool.submit(_start, attempt, seed))
        workers = [child for child in multiprocessing.active_children() if child.pid not in before]
        bar.label(f"{len(seeds)} starts in {processes} processes")
        yield from _in_order(running, workers, bar)
    finally:
        # By the pool: it takes a future that was cancelled behind its back, then loses its processes, for a fault.
        pool.shutdown(wait=False, cancel_futures=True)
        stop(workers)
        pool.shutdown(wait=True)


def _in_order(running: list[Future[Start]], workers: list[Any], bar: Progress) -> Starts:
    taken = 0
    try:
        for future in running:
            start = future.result()
            taken += 1
            bar.advance(start.score)
            yield start
    except KeyboardInterrupt:
        done = [one for one in running[taken:] if one.done() and not one.cancelled() and one.exception() is None]
        if not done:
            raise
        run, score = max((one.result() for one in done), key=lambda start: start.score)  # what has ended counts
        yield Start(replace(run, interrupted=True), score)
    except BrokenProcessPool:
        stop(workers)
        codes = [worker.exitcode for worker in workers]
        if UNGUARDED in codes:
            raise unguarded() from None
        raise ProcessError(f"a process of the search died after {taken} of {len(running)} starts ({codes})") from None


def _begin(path: Path, around: Surroundings) -> None:
    begun(around)
    _GIVEN["path"] = path


def _start(attempt: int, seed: int) -> Start:
    if "task" not in _GIVEN:  # not in the initializer, whose errors would not be told
        _GIVEN["task"] = unpacked(_GIVEN["path"].read_bytes())
    task: Task = _GIVEN["task"]
    with torch.no_grad():
        run, score = task.start(attempt, torch.Generator().manual_seed(seed))
    # Only what the search goes on with comes back.
    step = run.step._replace(statistics={}, locals=run.step.locals if task.carried else {})
    return Start(replace(run, step=step), score)
