"""Good starting values: several informed starts on some of the rows, large data in single precision; the best goes on.

Local optima are the main difficulty of these models. Each family knows how to ``propose`` a start that avoids the
typical ones; this module runs the proposals, lets them settle, and keeps the best by its bound on all rows.

With ``Search.processes``, start i draws from a generator whose seed is the i-th number that the caller's generator
gives, so that what it finds is the same in whichever process and beside whichever others. They are taken in their
order: where enough of the first agree, the rest is stopped and does not count.

Informed starts may agree because they are alike: what they are made from leads them all to one optimum, which need not
be the best. So random starts compete with the best of them once it has climbed, many where rows are few: there optima
are many, and a start costs milliseconds. They have a stream of random numbers of their own, and change nothing where
they find nothing better.
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import tempfile
from collections.abc import Generator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from custom_inference.core import processes
from custom_inference.core.capabilities import acceleration_of, locals_to_extrapolate
from custom_inference.core.engine import Engine
from custom_inference.core.isolation import seed_of
from custom_inference.core.progress import Progress
from custom_inference.core.proposals import Proposals
from custom_inference.core.states import move_state
from custom_inference.em.loop import Position, Run, run_em
from custom_inference.em.starts import Search, Start, Task
from ppl_models import Model, ProcessError

#: Rows up to which searches keep the precision of the data: half of little time is less than compiling for both takes.
_FEW_ROWS = 500
#: Of random starts one in so many, the best, goes on once all have settled.
_RACED = 8
#: A random start is better than the best informed one by so much a row.
_BETTER = 1e-6


@dataclass
class Found:
    """The best start, the scores of all starts (per row, on all rows: the bound, unless the family weighs modes
    otherwise), and how many of them are the same solution.

    random: how many of the starts were random, and how many of those are the same solution. remark: an addition to the
    status. locals: the locals to go on with, if they are part of the solution (``Accelerated.extrapolated``).
    """

    state: Any
    scores: list[float] = field(default_factory=list)
    agreeing: int = 1
    random: tuple[int, int] = (0, 0)
    interrupted: bool = False
    locals: dict[str, Tensor] | None = None
    remark: str = ""

    @property
    def agreement(self) -> str:
        several = f"{self.agreeing} of {len(self.scores)} starts found these components"
        number, agreeing = self.random
        if number:
            several += f" ({agreeing} of {number} at random)"
        found = "one start" if len(self.scores) == 1 else several
        return f"{found}; {self.remark}" if self.remark else found


class _Climbed(NamedTuple):
    """The end of the iterations on all rows: the state, and the locals if they belong to the solution."""

    state: Any
    locals: dict[str, Tensor] | None
    interrupted: bool


_Starts = Generator[Start, None, None]


def search(
    proposals: Proposals, model: Model, rows: Any, settings: Search, generator: torch.Generator, bar: Progress
) -> Found:
    """Propose, run and score starts; run the best on all rows, and let random starts compete with it."""
    engine: Engine = proposals.engine
    suggested_restarts, suggested_rows = proposals.search_size(model, len(rows))
    restarts, size = settings.restarts or suggested_restarts, min(settings.rows or suggested_rows, len(rows))
    rows_of_search = rows if len(rows) <= _FEW_ROWS else rows.to(torch.float32)
    task = Task(proposals, model, rows_of_search, settings, size, restarts)
    settled: list[Start] = []
    best, mates, made = None, [], 0
    try:
        with contextlib.closing(_starts(task, generator, bar)) as starts:
            for start in starts:
                settled.append(start)
                made += 1
                top = max(settled, key=lambda one: one.score)
                mates = [proposals.same_solution(model, top.run.state, one.run.state) for one in settled]
                same = [one for one, mate in zip(settled, mates, strict=True) if mate]
                # Within one solution scores may differ by how well they are known.
                best = max([top, *same], key=lambda one: one.objective).run
                if start.run.interrupted:
                    raise KeyboardInterrupt
                if len(settled) >= 3 and sum(mates) >= settings.agree:
                    break
        assert best is not None
        agreed = sum(mates) >= max(settings.agree, 2)  # of one start alone nothing follows
        climbed = _climb(task, best, generator, bar, agreed)
        if not climbed.interrupted:
            climbed, settled, mates = _contest(task, climbed, settled, mates, generator, bar)
    except KeyboardInterrupt:
        state = best.state if best is not None else engine.initial(model, task.rows, generator)
        climbed = _Climbed(state, None, True)
    drawn = [mate for number, mate in enumerate(mates) if number >= made or task.at_random(number)]
    return Found(
        move_state(climbed.state, rows.like), [one.score for one in settled], sum(mates),
        random=(len(drawn), sum(drawn)), interrupted=climbed.interrupted,
        locals=climbed.locals and {name: value.to(rows.like) for name, value in climbed.locals.items()},
        remark="" if climbed.interrupted else proposals.remark(model, climbed.state),
    )  # fmt: skip


def _climb(task: Task, best: Run, generator: torch.Generator, bar: Progress, agreed: bool) -> _Climbed:
    """Run the best start on all rows."""
    engine, run, state, interrupted = task.proposals.engine, best, best.state, False
    try:
        bar.label("all rows")
        if not task.alone and task.settings.climb:
            # Of large data most of the remaining climb costs half in single precision; the caller finishes in its own.
            run = run_em(
                engine, task.model, task.rows, Position((state, best.step.locals if task.carried else None)),
                max_iterations=task.settings.climb, tolerance=task.proposals.tolerance, generator=generator,
                progress=bar, accelerate=acceleration_of(engine),
            )  # fmt: skip
        state, interrupted = run.state, run.interrupted
        if task.settings.refine and not interrupted:
            state = task.proposals.refine(task.model, task.rows, state, generator, agreed)
    except KeyboardInterrupt:
        interrupted = True
    kept = state is run.state and bool(locals_to_extrapolate(engine)) and (task.alone or run is not best)
    return _Climbed(state, run.step.locals if kept else None, interrupted)


def _contest(
    task: Task, climbed: _Climbed, settled: list[Start], mates: list[bool], generator: torch.Generator, bar: Progress
) -> tuple[_Climbed, list[Start], list[bool]]:
    """Return the best informed start, or a better random one, with all starts and which of them are the same solution.
    Ctrl-C keeps what there is.
    """
    proposals, model, number = task.proposals, task.model, task.num_random(len(settled))
    if not number:
        return climbed, settled, mates
    own = torch.Generator().manual_seed(seed_of(generator.initial_seed(), "random starts"))
    best, drawn, origin = task.level_of(climbed.state, climbed.locals, own), [], None
    try:
        for i in range(number):
            bar.label(f"random start {i + 1} of {number}")
            drawn.append(task.random_start(own))
            bar.advance(drawn[-1].score)
        drawn.sort(key=lambda one: -one.score)
        for i in range(-(-number // _RACED)):
            # Of few starts one that is there already need not go on; of many it may be another optimum of much the
            # same components.
            if number >= _RACED or not proposals.same_solution(model, climbed.state, drawn[i].run.state):
                drawn[i] = task.race(drawn[i], best.objective, own, bar)
                if drawn[i].run.interrupted:
                    raise KeyboardInterrupt
        top = max(drawn, key=lambda one: one.score)
        # What differs by less than climbing on would gain is no other optimum.
        least = proposals.tolerance if proposals.same_solution(model, climbed.state, top.run.state) else _BETTER
        if top.score > best.score + least:
            climbed, origin = _climb(task, top.run, own, bar, False), top
            mates = [proposals.same_solution(model, top.run.state, one.run.state) for one in settled]
    except KeyboardInterrupt:
        climbed = climbed._replace(interrupted=True)
    # The start that has climbed on counts, however far it went.
    same = [one is origin or proposals.same_solution(model, climbed.state, one.run.state) for one in drawn]
    return climbed, settled + drawn, mates + same


def _starts(task: Task, generator: torch.Generator, bar: Progress) -> _Starts:
    """Yield the starts in order; closing the generator, or Ctrl-C, leaves no process behind."""
    generators, number = [generator] * task.restarts, task.settings.processes
    if number is not None:
        seeds = torch.randint(2**62, (task.restarts,), generator=generator).tolist()
        if min(number, task.restarts) > 1:
            yield from _from_workers(task, seeds, min(number, task.restarts), bar)
            return
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    for attempt, own in enumerate(generators):
        bar.label(f"start {attempt + 1} of {task.restarts}")
        yield task.start(attempt, own, bar)


def _from_workers(task: Task, seeds: list[int], number: int, bar: Progress) -> _Starts:
    processes.check_startable()
    before = {child.pid for child in multiprocessing.active_children()}
    workers: list[Any] = []
    with tempfile.TemporaryDirectory(prefix="ppl-search-") as folder:
        path = Path(folder) / "task"
        path.write_bytes(processes.pack(task))  # once, however many starts there are
        settings: Any = {"initializer": processes.begin_worker, "initargs": (processes.Surroundings.of(number),)}
        pool = ProcessPoolExecutor(number, mp_context=processes.context(), **settings)
        try:
            running = [pool.submit(_start_of_worker, path, attempt, seed) for attempt, seed in enumerate(seeds)]
            workers = [child for child in multiprocessing.active_children() if child.pid not in before]
            bar.label(f"{len(seeds)} starts in {number} processes")
            yield from _in_order(running, workers, bar)
        finally:
            # By the pool: it takes a future that was cancelled behind its back, then loses its processes, for a fault.
            pool.shutdown(wait=False, cancel_futures=True)
            processes.stop(workers)
            pool.shutdown(wait=True)


def _in_order(running: list[Future[Start]], workers: list[Any], bar: Progress) -> _Starts:
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
        start = max((one.result() for one in done), key=lambda start: start.score)  # what has ended counts
        yield start._replace(run=replace(start.run, interrupted=True))
    except BrokenProcessPool:
        processes.stop(workers)
        codes = [worker.exitcode for worker in workers]
        if processes.UNGUARDED in codes:
            raise processes.missing_main_guard() from None
        raise ProcessError(f"a process of the search died after {taken} of {len(running)} starts ({codes})") from None


@functools.cache
def _task_of_worker(path: Path) -> Task:
    """Read the task once in a worker, not in the pool's initialiser, whose errors would not be reported."""
    return processes.unpack(path.read_bytes())


def _start_of_worker(path: Path, attempt: int, seed: int) -> Start:
    task = _task_of_worker(path)
    with torch.no_grad():
        start = task.start(attempt, torch.Generator().manual_seed(seed))
    # Only what the search goes on with comes back.
    step = start.run.step._replace(statistics={}, locals=start.run.step.locals if task.carried else {})
    return start._replace(run=replace(start.run, step=step))
