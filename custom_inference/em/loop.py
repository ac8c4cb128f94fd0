"""One run of EM, whatever the model: E step, bound, convergence, M step, and interrupts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from custom_inference.core.ended import Ended
from custom_inference.core.engine import Engine, EStep
from custom_inference.core.process_group import ALONE, Pool
from custom_inference.core.progress import Progress
from custom_inference.em.steps import Position, make_step
from ppl_models import Model

#: The likelihood's exponent in an iteration.
Schedule = Callable[[int], float]


@dataclass
class Run:
    """The outcome of a run: the engine's state, the E step taken at it, and the objective of every iteration.

    outcome: how it ended, in words. evaluations: E steps taken, which are more than iterations where extrapolations had
    to be taken back. details: what else the run has to report (JSON-able).
    """

    state: Any
    step: EStep
    trace: list[float] = field(default_factory=list)
    outcome: str = ""
    ended: Ended = Ended.UNKNOWN
    evaluations: int = 0
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def objective(self) -> float:
        return self.trace[-1]

    @property
    def interrupted(self) -> bool:
        return self.ended is Ended.INTERRUPTED

    def cut(self) -> Run:
        """Return the run as Ctrl-C leaves it."""
        self.outcome = f"interrupted after {len(self.trace)} iterations; this is the best state so far"
        self.ended = Ended.INTERRUPTED
        return self


#: Is shown every position that a run comes to.
Watcher = Callable[[Position], None]


def run_em(
    engine: Engine,
    model: Model,
    rows: Any,
    start: Any,
    *,
    max_iterations: int,
    tolerance: float,
    schedule: Schedule | None = None,
    accelerate: str | None = None,
    generator: torch.Generator | None = None,
    progress: Progress | None = None,
    watcher: Watcher | None = None,
    processes: Pool = ALONE,
) -> Run:
    """Iterate until the objective gains less than ``tolerance`` per row, at temperature 1.

    start: a state, or the :class:`Position` of an earlier run to go on from. watcher: is called with every position.
    accelerate: "squarem" or "anderson" extrapolate the iterations where that does not lower the objective (see
        ``accelerate``); None takes plain steps. There is no extrapolation during annealing.

    The returned state is that of the last completed E step, so that bound, locals and state belong together. Ctrl-C
    ends the run with its present state. Several processes run in step: rows, locals and bounds are this process's,
    states and objectives are common to all.
    """
    if max_iterations < 1:
        raise ValueError("max_iterations must be at least 1")
    step, at = make_step(engine, model, rows, processes, generator, accelerate), Position.at(start)
    step.restore(at.acceleration)
    size, run = step.size, None
    try:
        while True:
            iteration = len(at.trace)
            temperature = schedule(iteration) if schedule else 1.0
            taken = step.evaluate(at, temperature)
            at.trace.append(taken.value)
            run = Run(taken.start[0], taken.step, list(at.trace), evaluations=at.evaluations)
            if progress is not None:
                progress.advance(taken.value / size)
            stalls = _stalls(at.trace, step.cycle, schedule, tolerance * size, taken.step.bound)
            at.stalled = at.stalled + 1 if stalls else 0
            if at.stalled >= engine.patience:
                run.ended = Ended.CONVERGED
                run.outcome = f"converged after {len(at.trace)} iterations (gain below {tolerance:g} a row)"
                return run
            if iteration + 1 >= max_iterations:
                run.ended = Ended.LIMIT
                run.outcome = f"stopped at the limit of {max_iterations} iterations"
                if len(run.trace) > 1:
                    run.outcome += f" (last gain {(run.trace[-1] - run.trace[-2]) / size:.2g} a row)"
                return run
            at.start, at.fallback = step.advance(taken, temperature)
            if watcher is not None:
                at.acceleration = step.remember()
                watcher(at)
    except KeyboardInterrupt:
        if run is None:
            raise
        return run.cut()


def _stalls(trace: list[float], cycle: int, schedule: Schedule | None, least: float, bound: Tensor) -> bool:
    """Whether the last ``cycle`` iterations, all at temperature 1, gained less than ``least``."""
    before = len(trace) - 1 - cycle
    if before < 0 or (schedule and schedule(before) != 1.0):
        return False
    # Gains below the rounding of the terms cannot be told from none.
    return abs(trace[-1] - trace[before]) <= max(least, torch.finfo(bound.dtype).eps * abs(trace[-1]))
