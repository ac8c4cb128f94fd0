"""Good starting values: several informed starts on some of the rows, large data in single precision; the best goes on.

Local optima are the main difficulty of these models. Each family knows how to ``propose`` a start that avoids the
typical ones; this module runs the proposals, lets them settle, and keeps the best by its bound on all rows.

Where starts are made in threads or processes, start i draws from a generator whose seed is the i-th number that the
caller's generator gives, so that what it finds is the same in whichever of them and beside whichever others. They are
taken in their order: where enough of the first agree, the rest is stopped and does not count.

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
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from custom_inference.core import processes
from custom_inference.core.ended import Ended
from custom_inference.core.engine import Engine
from custom_inference.core.isolation import seed_of
from custom_inference.core.progress import Progress
from custom_inference.core.proposals import Proposals
from custom_inference.core.registry import family_of, proposals_for
from custom_inference.core.stages import Stage
from custom_inference.core.states import move_state
from custom_inference.core.threads import HeldLibraries, map_in_threads
from custom_inference.em.any_prior import complete_state, for_starts
from custom_inference.em.loop import Run, run_em
from custom_inference.em.rows import FitRows
from custom_inference.em.starts import Search as Search
from custom_inference.em.starts import Start, Task
from custom_inference.em.steps import Position
from ppl_models import Model, ProcessError

#: Of random starts one in so many, the best, goes on once all have settled.
_RACED = 8
#: A random start is better than the best informed one by so much a row.
_BETTER = 1e-6
#: Starts whose scores differ by no more than this a row are said to have reached the same, if nothing else is known.
_SAME = 1e-3
#: So many starts are made at once at most, in threads: three may be all that there are.
_TOGETHER = 4


@dataclass
class Found:
    """The best start, the scores of all starts (per row, on all rows: the bound, unless the family weighs modes
    otherwise), and how many of them are the same solution: the same components, or where nothing compares these
    (``by_score``) nearly the same score.

    fell: the largest loss of an iteration of theirs that should have gained.
    random: how many of the starts were random, and how many of those are the same solution. remark: what has to be said
    of it. locals: where these are part of the solution (``Engine.extrapolated``), to go on with.
    """

    state: Any
    scores: list[float] = field(default_factory=list)
    agreeing: int = 1
    by_score: bool = False
    random: tuple[int, int] = (0, 0)
    interrupted: bool = False
    locals: dict[str, Tensor] | None = None
    remark: str = ""
    fell: float = 0.0
    stages: tuple[Stage, ...] = ()

    @property
    def agreement(self) -> str:
        same = f"came within {_SAME:g} a row of the best" if self.by_score else "found these components"
        several = f"{self.agreeing} of {len(self.scores)} starts {same}"
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
    stages: tuple[Stage, ...] = ()


#: What makes each start: called by the search itself, one after the other.
_Starts = Generator[Callable[[], Start], None, None]


def find_start(
    method: Any, engine: Engine, model: Model, rows: FitRows, generator: torch.Generator, bar: Progress
) -> Found:
    """Find where a fit by a ``VariationalEM`` starts: propose, settle, score; the best climbs on all rows; random
    starts compete with it. Without a search it starts at a random state."""
    settings, chosen = method.search, rows.choose_for_search(generator, shuffle=method.shuffle)
    if settings is None:
        return Found(engine.initial(model, chosen, generator))
    plain, proposals = for_starts(engine, model), proposals_for(model, engine)
    family, name = family_of(model), engine.plain.name
    ways: Any = {"divided": family.divides_work(name), "stages": family.stages_before(name)}
    task = Task.of(proposals, plain, chosen, settings, guarded=engine.may_lower, **ways)
    settled: list[Start] = []
    best, mates, made, begin = None, [], 0, time.perf_counter()
    try:
        with contextlib.closing(_starts(task, generator, bar)) as starts:
            for make in starts:
                start = make()
                settled.append(start)
                made += 1
                top = max(settled, key=lambda one: one.score)
                mates = [proposals.same_solution(plain, top.run.state, one.run.state) for one in settled]
                same = [one for one, mate in zip(settled, mates, strict=True) if mate]
                # Within one solution scores may differ by how well they are known.
                leader = max([top, *same], key=lambda one: one.objective)
                best = leader.run
                settled = [one if one is leader else one.without_locals() for one in settled]
                if start.run.interrupted:
                    raise KeyboardInterrupt
                if len(settled) >= 3 and sum(mates) >= settings.agree:
                    break
        assert best is not None
        highest = max(one.objective for one in settled)
        informed = Stage(f"{made} x {task.stages[0]}, EM of each", time.perf_counter() - begin, highest)
        agreed = sum(mates) >= max(settings.agree, 2)  # of one start alone nothing follows
        climbed = _climb(task, best, generator, bar, agreed)
        climbed = climbed._replace(stages=(informed, *climbed.stages))
        if not climbed.interrupted:
            climbed, settled, mates = _contest(task, climbed, settled, mates, generator, bar)
    except KeyboardInterrupt:
        state = best.state if best is not None else proposals.engine.initial(plain, task.rows, generator)
        climbed = _Climbed(state, None, True)
    by_score = not proposals.compares(plain, climbed.state)
    if by_score and settled:
        best_score = max(one.score for one in settled)
        mates = [one.score >= best_score - _SAME for one in settled]
    drawn = [mate for number, mate in enumerate(mates) if number >= made or task.at_random(number)]
    state = move_state(climbed.state, chosen.like)
    kept = climbed.locals if chosen is rows.held else None  # else they are of other rows
    place = chosen.like.device if proposals.engine.hands_on_locals else chosen.like
    return Found(
        state if plain is model else complete_state(engine, model, state),
        [one.score for one in settled], sum(mates), by_score, random=(len(drawn), sum(drawn)),
        interrupted=climbed.interrupted, fell=max((one.run.fell for one in settled), default=0.0),
        locals=kept and {name: value.to(place) for name, value in kept.items()},
        remark="" if climbed.interrupted else proposals.remark(plain, climbed.state), stages=climbed.stages,
    )  # fmt: skip


def _climb(task: Task, best: Run, generator: torch.Generator, bar: Progress, agreed: bool) -> _Climbed:
    """Run the best start on all rows."""
    engine, run, state, interrupted = task.proposals.engine, best, best.state, False
    stages: list[Stage] = []
    try:
        bar.label("all rows")
        if not task.alone and task.settings.climb:
            begin = time.perf_counter()
            # Of large data most of the remaining climb costs half in single precision; the caller finishes in its own.
            run = run_em(
                engine, task.model, task.rows, Position((state, (best.step.locals if task.carried else None) or None)),
                max_iterations=task.settings.climb, tolerance=task.proposals.tolerance, generator=generator,
                progress=bar, accelerate=engine.accelerate,
            )  # fmt: skip
            stages.append(Stage("EM of the best start", time.perf_counter() - begin, run.objective / len(task.rows)))
        state, interrupted = run.state, run.interrupted
        if task.settings.refine and not interrupted:
            begin = time.perf_counter()
            state = task.proposals.refine(task.model, task.rows, state, generator, agreed)
            if type(task.proposals).refine is not Proposals.refine:
                stages.append(Stage((*task.stages, "refinement")[1], time.perf_counter() - begin))
    except KeyboardInterrupt:
        interrupted = True
    kept = state is run.state and task.solves_locals and (task.alone or run is not best)
    return _Climbed(state, run.step.locals if kept else None, interrupted, tuple(stages))


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
    begin, before = time.perf_counter(), climbed.stages
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
        plural = "" if number == 1 else "s"
        random = Stage(f"{number} random start{plural}, EM of each", time.perf_counter() - begin, top.objective)
        climbed = climbed._replace(stages=(*before, random))
        if top.score > best.score + least:
            climbed, origin = _climb(task, top.run, own, bar, False), top
            climbed = climbed._replace(stages=(*before, random, *climbed.stages))
            mates = [proposals.same_solution(model, top.run.state, one.run.state) for one in settled]
    except KeyboardInterrupt:
        climbed = climbed._replace(interrupted=True)
    # The start that has climbed on counts, however far it went.
    same = [one is origin or proposals.same_solution(model, climbed.state, one.run.state) for one in drawn]
    return climbed, settled + drawn, mates + same


def _starts(task: Task, generator: torch.Generator, bar: Progress) -> _Starts:
    """Yield the starts in order; closing the generator, or Ctrl-C, leaves no process behind."""
    number = task.settings.processes
    if number is None and not task.long:
        for attempt in range(task.restarts):
            bar.label_start(attempt, task.restarts)
            yield functools.partial(task.start, attempt, generator, bar)
        return
    seeds = torch.randint(2**62, (task.restarts,), generator=generator).tolist()
    if number is not None and min(number, task.restarts) > 1:
        yield from _from_workers(task, seeds, min(number, task.restarts), bar)
        return
    together = 1 if number is not None else min(HeldLibraries.count_threads(), _TOGETHER)
    for first in range(0, task.restarts, together):
        bar.label_start(first, task.restarts)
        attempts = list(enumerate(seeds))[first : first + together]
        for start in map_in_threads(lambda attempt: _start_of(task, *attempt), attempts):
            bar.advance(start.score)
            yield lambda made=start: made


def _start_of(task: Task, attempt: int, seed: int) -> Start:
    """Make a start in another process or thread, with random numbers of its own."""
    with torch.no_grad():
        return task.start(attempt, torch.Generator().manual_seed(seed))


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
            yield lambda made=start: made
    except KeyboardInterrupt:
        done = [one for one in running[taken:] if one.done() and not one.cancelled() and one.exception() is None]
        if not done:
            raise
        start = max((one.result() for one in done), key=lambda start: start.score)  # what has ended counts
        start = start._replace(run=replace(start.run, ended=Ended.INTERRUPTED))
        yield lambda: start
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
    start = _start_of(task, attempt, seed)
    # Only what the search goes on with comes back.
    step = start.run.step._replace(statistics={}, locals=start.run.step.locals if task.carried else {})
    return start._replace(run=replace(start.run, step=step))
