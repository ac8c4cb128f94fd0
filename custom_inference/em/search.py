"""Good starting values: several informed starts on some of the rows, in single precision; the best goes on.

Local optima are the main difficulty of these models. Each family knows how to ``propose`` a start that avoids the
typical ones; this module runs the proposals, lets them settle, and keeps the best by its bound on all rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from custom_inference.core.capabilities import acceleration_of, extrapolated_of
from custom_inference.core.engine import Engine
from custom_inference.core.progress import Progress
from custom_inference.core.proposals import Proposals
from custom_inference.core.states import moved
from custom_inference.em.loop import Run, run_em
from custom_inference.em.restarts import CLIMB, Search, Starts, Task
from ppl_models import Model


@dataclass
class Found:
    """The best start, what the starts scored (bound a row, on all rows), and how many are the same solution.

    locals: where these are part of the solution (``Accelerated.extrapolated``), to go on with.
    """

    state: Any
    scores: list[float] = field(default_factory=list)
    agreeing: int = 1
    interrupted: bool = False
    locals: dict[str, Tensor] | None = None

    @property
    def agreement(self) -> str:
        if len(self.scores) == 1:
            return "one start"
        return f"{self.agreeing} of {len(self.scores)} starts found these components"


def _in_turn(task: Task, generator: torch.Generator, bar: Progress) -> Starts:
    for attempt in range(task.restarts):
        bar.label(f"start {attempt + 1} of {task.restarts}")
        yield task.start(attempt, generator, bar)


def _at_once(task: Task, generator: torch.Generator, bar: Progress) -> Starts:
    from custom_inference.em.parallel_search import starts

    return starts(task, generator, bar)


def search(
    proposals: Proposals, model: Model, rows: Any, settings: Search, generator: torch.Generator, bar: Progress
) -> Found:
    """Propose, settle, judge; then the best climbs on all rows in single precision."""
    engine: Engine = proposals.engine
    suggested_restarts, suggested_rows = proposals.search_size(model, len(rows))
    restarts, size = settings.restarts or suggested_restarts, min(settings.rows or suggested_rows, len(rows))
    single = rows.to(torch.float32)
    task = Task(engine, proposals, model, single, settings, size, restarts)
    best, scores, agreeing = None, [], 0
    settled: list[Run] = []
    starts = _in_turn(task, generator, bar) if settings.processes is None else _at_once(task, generator, bar)
    try:
        for run, score in starts:
            scores.append(score)
            settled.append(run)
            best = settled[max(range(len(scores)), key=scores.__getitem__)]
            agreeing = sum(proposals.same_solution(model, best.state, other.state) for other in settled)
            if run.interrupted:
                raise KeyboardInterrupt
            if len(scores) >= 3 and agreeing >= settings.agree:
                break
    except KeyboardInterrupt:
        start = best.state if best is not None else engine.initial(model, single, generator)
        return Found(moved(start, rows.like), scores, agreeing, interrupted=True)
    finally:
        starts.close()
    assert best is not None
    run, state, interrupted = best, best.state, False
    try:
        bar.label("all rows")
        if not task.alone:
            # Most of the remaining climb costs half in single precision; the caller finishes in its own.
            run = run_em(
                engine, model, single, best.state, max_iterations=CLIMB, tolerance=1e-4, generator=generator,
                progress=bar, accelerate=acceleration_of(engine), warm=best.step.locals if task.carried else None,
            )  # fmt: skip
        state, interrupted = run.state, run.interrupted
        if settings.prune and not interrupted:
            state = proposals.refine(model, single, state)
    except KeyboardInterrupt:
        interrupted = True
    kept = state is run.state and bool(extrapolated_of(engine)) and (task.alone or run is not best)
    locals_ = {k: v.to(rows.like) for k, v in run.step.locals.items()} if kept else None
    return Found(moved(state, rows.like), scores, agreeing, interrupted=interrupted, locals=locals_)
