"""Good starting values: several informed starts on some of the rows, in single precision; the best goes on.

Local optima are the main difficulty of these models. Each engine knows how to ``propose`` a start that avoids the
typical ones; this module runs the proposals, lets them settle, and keeps the best by its bound on all rows.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from custom_inference._loop import Run, linear_schedule, run_em
from custom_inference._progress import Progress
from custom_inference._settings import require_whole
from custom_inference.steps._protocol import Params, Steps
from ppl_models import MethodError, Model

#: Iterations on all rows in single precision, at most.
_CLIMB = 50


@dataclass(frozen=True, kw_only=True)
class Search:
    """How starting values are found.

    restarts: at most this many starts; None: as many as the engine suggests.
    agree: stop once this many of at least three starts found the best one's components.
    rows: how many random rows each start uses; None: the engine's suggestion.
    settle: EM iterations of each start before it is judged.
    temperature: the likelihood's exponent at the first of these iterations, rising to 1 over half of them (1: no
        annealing, which the proposals here do not need).
    prune: shut off sources that are not worth their price on all rows, where the engine can tell (models of many
        components); False keeps whatever the starts found.
    informed: False draws every start at random (``Steps.initial``), as a baseline.
    processes: make the starts in so many processes at once, each start with random numbers of its own, so that what is
        found does not depend on how many processes there are; None: one after the other, here, from one stream. It pays
        for searches that take longer than processes take to start (``benchmarks/results/distributed.md``).
    """

    restarts: int | None = None
    agree: int = 2
    rows: int | None = None
    settle: int = 10
    temperature: float = 1.0
    prune: bool = True
    informed: bool = True
    processes: int | None = None

    def __post_init__(self) -> None:
        for name in ("restarts", "agree", "rows", "settle", "processes"):
            if getattr(self, name) is not None:
                require_whole(name, getattr(self, name))
        if not 0 < self.temperature <= 1:
            raise MethodError(f"temperature = {self.temperature}, expected in (0, 1]")


@dataclass
class Found:
    """The best start, what the starts scored (bound a row, on all rows), and how many are the same solution.

    locals: where these are part of the solution (``Steps.extrapolated``), to go on with.
    """

    params: Params
    scores: list[float] = field(default_factory=list)
    agreeing: int = 1
    interrupted: bool = False
    locals: dict[str, Tensor] | None = None

    @property
    def agreement(self) -> str:
        if len(self.scores) == 1:
            return "one start"
        return f"{self.agreeing} of {len(self.scores)} starts found these components"


class Start(NamedTuple):
    """A start that has settled, and its bound a row on all rows."""

    run: Run
    score: float


Starts = Generator[Start, None, None]


@dataclass(frozen=True)
class Task:
    """What a start is made from; ``rows`` are in single precision, and ``size`` of them are used."""

    steps: Steps
    model: Model
    rows: Any
    settings: Search
    size: int
    restarts: int

    @property
    def carried(self) -> bool:
        """Whether locals belong to the solution, and go on with it."""
        return self.size == len(self.rows) and bool(self.steps.extrapolated)

    @property
    def alone(self) -> bool:
        """A single start of such an engine is not interrupted to be judged, which would cost it what its acceleration
        has learned."""
        return self.carried and self.restarts == 1

    def start(self, attempt: int, generator: torch.Generator, bar: Progress | None = None) -> Start:
        """Propose, settle, judge."""
        rows = self.rows
        index = torch.randperm(len(rows), generator=generator)[: self.size]
        part = rows if self.size == len(rows) else rows.select(index.to(rows.like.device))
        more = _CLIMB if self.alone else 0
        run = _settled(self.steps, self.model, part, self.settings, generator, attempt, bar, more)
        bound = run.step.bound if self.carried else self.steps.e_step(run.params, rows, generator=generator).bound
        return Start(run, self.steps.objective(self.model, run.params, bound) / len(rows))


def _in_turn(task: Task, generator: torch.Generator, bar: Progress) -> Starts:
    for attempt in range(task.restarts):
        bar.label(f"start {attempt + 1} of {task.restarts}")
        yield task.start(attempt, generator, bar)


def _at_once(task: Task, generator: torch.Generator, bar: Progress) -> Starts:
    from custom_inference._parallel_search import starts

    return starts(task, generator, bar)


def search(
    steps: Steps, model: Model, rows: Any, settings: Search, generator: torch.Generator, bar: Progress
) -> Found:
    """Propose, settle, judge; then the best climbs on all rows in single precision."""
    suggested_restarts, suggested_rows = steps.search_size(model, len(rows))
    restarts, size = settings.restarts or suggested_restarts, min(settings.rows or suggested_rows, len(rows))
    single = rows.to(torch.float32)
    task = Task(steps, model, single, settings, size, restarts)
    best, scores, agreeing = None, [], 0
    settled: list[Run] = []
    starts = _in_turn(task, generator, bar) if settings.processes is None else _at_once(task, generator, bar)
    try:
        for run, score in starts:
            scores.append(score)
            settled.append(run)
            best = settled[max(range(len(scores)), key=scores.__getitem__)]
            agreeing = sum(steps.same_solution(best.params, other.params) for other in settled)
            if run.interrupted:
                raise KeyboardInterrupt
            if len(scores) >= 3 and agreeing >= settings.agree:
                break
    except KeyboardInterrupt:
        start = best.params if best is not None else steps.initial(model, single, generator)
        return Found({k: v.to(rows.like) for k, v in start.items()}, scores, agreeing, interrupted=True)
    finally:
        starts.close()
    assert best is not None
    run, params, interrupted = best, best.params, False
    try:
        bar.label("all rows")
        if not task.alone:
            # Most of the remaining climb costs half in single precision; the caller finishes in its own.
            run = run_em(
                steps, model, single, best.params, max_iterations=_CLIMB, tolerance=1e-4, generator=generator,
                progress=bar, accelerate=steps.accelerate, locals_=best.step.locals if task.carried else None,
            )  # fmt: skip
        params, interrupted = run.params, run.interrupted
        if settings.prune and not interrupted:
            params = steps.refine(model, single, params)
    except KeyboardInterrupt:
        interrupted = True
    kept = params is run.params and bool(steps.extrapolated) and (task.alone or run is not best)
    locals_ = {k: v.to(rows.like) for k, v in run.step.locals.items()} if kept else None
    found = {k: v.to(rows.like) for k, v in params.items()}
    return Found(found, scores, agreeing, interrupted=interrupted, locals=locals_)


def _settled(
    steps: Steps,
    model: Model,
    part: Any,
    settings: Search,
    generator: torch.Generator,
    attempt: int,
    bar: Progress | None,
    more: int,
) -> Run:
    """One start and its first EM iterations, and ``more`` of them."""
    if settings.informed:
        params = steps.propose(model, part, generator, attempt)
    else:
        params = steps.initial(model, part, generator)
    schedule = linear_schedule(settings.temperature, settings.settle // 2) if settings.temperature < 1 else None
    return run_em(
        steps,
        model,
        part,
        params,
        max_iterations=settings.settle + more,
        tolerance=1e-4 if more else 1e-5,
        schedule=schedule,
        accelerate=steps.accelerate,
        generator=generator,
        progress=bar,
    )
