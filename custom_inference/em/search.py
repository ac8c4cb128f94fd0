"""Good starting values: several informed starts on some of the rows, large data in single precision; the best goes on.

Local optima are the main difficulty of these models. Each family knows how to ``propose`` a start that avoids the
typical ones; this module runs the proposals, lets them settle, and keeps the best by its bound on all rows.

With ``Search.processes``, start i draws from a generator whose seed is the i-th number that the caller's generator
gives, so that what it finds is the same in whichever process and beside whichever others. They are taken in their
order: where enough of the first agree, the rest is stopped and does not count.
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
from custom_inference.core.capabilities import acceleration_of, extrapolated_of, objective_at
from custom_inference.core.engine import Engine
from custom_inference.core.progress import Progress
from custom_inference.core.proposals import Proposals
from custom_inference.core.settings import require_whole
from custom_inference.core.states import moved
from custom_inference.em.loop import Position, Run, run_em
from ppl_models import MethodError, Model, ProcessError

#: Rows up to which searches keep the precision of the data: half of little time is less than compiling for both takes.
_FEW_ROWS = 500


@dataclass(frozen=True, kw_only=True)
class Search:
    """How starting values are found.

    restarts: at most this many starts; None: as many as the engine suggests.
    agree: stop once this many of at least three starts found the best one's components.
    rows: how many random rows each start uses; None: the engine's suggestion.
    settle: EM iterations of each start before it is scored.
    climb: at most so many further ones of the best start on all rows, before the fit goes on.
    temperature: the likelihood's exponent at the first of these iterations, rising to 1 over half of them (1: no
        annealing, which the proposals here do not need).
    refine: improve the best start by other means than EM, where the family has some: shut off sources that are not
        worth their price on all rows (models of many components), split and merge classes (mixtures); False keeps
        whatever the starts found.
    informed: False draws every start at random (``Engine.initial``), as a baseline.
    processes: make the starts in so many processes at once, each start with random numbers of its own, so that what is
        found does not depend on how many processes there are; None: one after the other, here, from one stream. It pays
        for searches that take longer than processes take to start (``benchmarks/results/distributed.md``).
    """

    restarts: int | None = None
    agree: int = 2
    rows: int | None = None
    settle: int = 10
    climb: int = 50
    temperature: float = 1.0
    refine: bool = True
    informed: bool = True
    processes: int | None = None

    def __post_init__(self) -> None:
        for name in ("restarts", "agree", "rows", "settle", "processes"):
            if getattr(self, name) is not None:
                require_whole(name, getattr(self, name))
        require_whole("climb", self.climb, 0)
        if not 0 < self.temperature <= 1:
            raise MethodError(f"temperature = {self.temperature}, expected in (0, 1]")

    def annealing(self, iteration: int) -> float:
        """The likelihood's exponent."""
        hot, start = self.settle // 2, self.temperature
        return 1.0 if iteration >= hot else start + (1 - start) * iteration / hot


@dataclass
class Found:
    """The best start, what the starts scored (a row, on all rows: the bound, unless the family weighs modes otherwise),
    and how many are the same solution.

    remark: what has to be said of it. locals: where these are part of the solution (``Accelerated.extrapolated``), to
    go on with.
    """

    state: Any
    scores: list[float] = field(default_factory=list)
    agreeing: int = 1
    interrupted: bool = False
    locals: dict[str, Tensor] | None = None
    remark: str = ""

    @property
    def agreement(self) -> str:
        several = f"{self.agreeing} of {len(self.scores)} starts found these components"
        found = "one start" if len(self.scores) == 1 else several
        return f"{found}; {self.remark}" if self.remark else found


class _Start(NamedTuple):
    """A start that has settled; what starts are compared by, and the objective, a row, on all rows."""

    run: Run
    score: float
    objective: float


_Starts = Generator[_Start, None, None]


@dataclass(frozen=True)
class _Task:
    """What a start is made from; ``rows`` are in the search's precision, and ``size`` of them are used."""

    proposals: Proposals
    model: Model
    rows: Any
    settings: Search
    size: int
    restarts: int

    @property
    def carried(self) -> bool:
        """Whether locals belong to the solution, and go on with it."""
        return self.size == len(self.rows) and bool(extrapolated_of(self.proposals.engine))

    @property
    def alone(self) -> bool:
        """A single such start climbs on: being scored would cost it what its acceleration has learned."""
        return self.carried and self.restarts == 1

    def start(self, attempt: int, generator: torch.Generator, bar: Progress | None = None) -> _Start:
        """Propose, settle, score."""
        engine, model, rows, settings = self.proposals.engine, self.model, self.rows, self.settings
        index = torch.randperm(len(rows), generator=generator)[: self.size]
        part = rows if self.size == len(rows) else rows.select(index.to(rows.like.device))
        if settings.informed:
            state = self.proposals.propose(model, part, generator, attempt)
        else:
            state = engine.initial(model, part, generator)
        annealing = settings.annealing if settings.temperature < 1 else None
        most, tolerance = (
            (settings.settle + settings.climb, self.proposals.tolerance) if self.alone else (settings.settle, 1e-5)
        )
        run = run_em(
            engine, model, part, state, max_iterations=most, tolerance=tolerance, schedule=annealing,
            accelerate=acceleration_of(engine), generator=generator, progress=bar,
        )  # fmt: skip
        bound = run.step.bound if self.carried else engine.e_step(model, run.state, rows, generator=generator).bound
        objective = float(objective_at(engine, model, run.state, bound))
        score = self.proposals.weigh(model, run.state, rows, objective)
        return _Start(run, score / len(rows), objective / len(rows))


def search(
    proposals: Proposals, model: Model, rows: Any, settings: Search, generator: torch.Generator, bar: Progress
) -> Found:
    """Propose, settle, score; then the best climbs on all rows."""
    engine: Engine = proposals.engine
    suggested_restarts, suggested_rows = proposals.search_size(model, len(rows))
    restarts, size = settings.restarts or suggested_restarts, min(settings.rows or suggested_rows, len(rows))
    rows_of_search = rows if len(rows) <= _FEW_ROWS else rows.to(torch.float32)
    task = _Task(proposals, model, rows_of_search, settings, size, restarts)
    settled: list[_Start] = []
    best, agreeing = None, 0
    try:
        with contextlib.closing(_starts(task, generator, bar)) as starts:
            for start in starts:
                settled.append(start)
                top = max(settled, key=lambda one: one.score)
                mates = [one for one in settled if proposals.same_solution(model, top.run.state, one.run.state)]
                # Within one solution scores may differ by how well they are known.
                best, agreeing = max([top, *mates], key=lambda one: one.objective).run, len(mates)
                if start.run.interrupted:
                    raise KeyboardInterrupt
                if len(settled) >= 3 and agreeing >= settings.agree:
                    break
        assert best is not None
        agreed = agreeing >= max(settings.agree, 2)  # of one start alone nothing follows
        found = _climbed(task, best, rows.like, generator, bar, agreed)
        return replace(found, scores=[one.score for one in settled], agreeing=agreeing)
    except KeyboardInterrupt:
        state = best.state if best is not None else engine.initial(model, task.rows, generator)
        return Found(moved(state, rows.like), [one.score for one in settled], agreeing, interrupted=True)


def _climbed(task: _Task, best: Run, like: Tensor, generator: torch.Generator, bar: Progress, agreed: bool) -> Found:
    """Where the best start gets to on all rows; in the dtype of ``like``."""
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
    kept = state is run.state and bool(extrapolated_of(engine)) and (task.alone or run is not best)
    locals_ = {name: value.to(like) for name, value in run.step.locals.items()} if kept else None
    remark = task.proposals.remark(task.model, state)
    return Found(moved(state, like), interrupted=interrupted, locals=locals_, remark=remark)


def _starts(task: _Task, generator: torch.Generator, bar: Progress) -> _Starts:
    """The starts in order; closing it, or Ctrl-C after the last that has ended, leaves no process behind."""
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


def _from_workers(task: _Task, seeds: list[int], number: int, bar: Progress) -> _Starts:
    processes.check_startable()
    before = {child.pid for child in multiprocessing.active_children()}
    workers: list[Any] = []
    with tempfile.TemporaryDirectory(prefix="ppl-search-") as folder:
        path = Path(folder) / "task"
        path.write_bytes(processes.packed(task))  # once, however many starts there are
        settings: Any = {"initializer": processes.begun, "initargs": (processes.Surroundings.of(number),)}
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


def _in_order(running: list[Future[_Start]], workers: list[Any], bar: Progress) -> _Starts:
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
            raise processes.unguarded() from None
        raise ProcessError(f"a process of the search died after {taken} of {len(running)} starts ({codes})") from None


@functools.cache
def _task_of_worker(path: Path) -> _Task:
    """Read once in a worker; not by what initialises it, whose errors would not be told."""
    return processes.unpacked(path.read_bytes())


def _start_of_worker(path: Path, attempt: int, seed: int) -> _Start:
    task = _task_of_worker(path)
    with torch.no_grad():
        start = task.start(attempt, torch.Generator().manual_seed(seed))
    # Only what the search goes on with comes back.
    step = start.run.step._replace(statistics={}, locals=start.run.step.locals if task.carried else {})
    return start._replace(run=replace(start.run, step=step))
