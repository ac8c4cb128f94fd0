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
from custom_inference.em.steps import Position, make_step, require_sites
from ppl_models import Model

#: What an objective may seem to lose by rounding, as a part of its value: in single, and in double precision.
_ROUNDING = (1e-4, 1e-6)
#: The likelihood's exponent in an iteration.
Schedule = Callable[[int], float]


@dataclass
class Run:
    """The outcome of a run: the engine's state, the E step taken at it, and the objective of every iteration.

    outcome: how it ended, in words. evaluations: E steps taken, which are more than iterations where extrapolations had
    to be taken back. fell: the largest loss of an iteration that should have gained. details: what else the run has to
    report (JSON-able).
    """

    state: Any
    step: EStep
    trace: list[float] = field(default_factory=list)
    outcome: str = ""
    ended: Ended = Ended.UNKNOWN
    evaluations: int = 0
    fell: float = 0.0
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def objective(self) -> float:
        return self.trace[-1]

    @property
    def interrupted(self) -> bool:
        return self.ended is Ended.INTERRUPTED

    def stop(self, most: int, size: float) -> Run:
        """Return the run of ``size`` rows as the limit of ``most`` iterations ends it."""
        self.outcome, self.ended = f"stopped at the limit of {most} iterations", Ended.LIMIT
        if len(self.trace) > 1:
            self.outcome += f" (last gain {(self.trace[-1] - self.trace[-2]) / size:.2g} a row)"
        return self

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

    The returned state is that of the last completed E step, whose bound and locals belong to it; Ctrl-C ends with it.
    Several processes run in step: rows, locals and bounds are this process's, states and objectives common to all.
    """
    if max_iterations < 1:
        raise ValueError("max_iterations must be at least 1")
    step, at = make_step(engine, model, rows, processes, generator, accelerate), Position.at(start)
    require_sites(engine, model, at.start[0], "initial")
    step.restore(at.acceleration)
    size, run, fell = step.size, None, 0.0
    if progress is not None:
        progress.expect(max_iterations)
    try:
        while True:
            iteration = len(at.trace)
            temperature = schedule(iteration) if schedule else 1.0
            taken = step.evaluate(at, temperature)
            at.trace.append(taken.value)
            if not (accelerate or engine.may_lower or engine.objective == "estimate"):
                fell = max(fell, _loss(at.trace, schedule, tolerance * size, taken.step.bound))
            run = Run(taken.start[0], taken.step, list(at.trace), evaluations=at.evaluations, fell=fell)
            if progress is not None:
                progress.advance(taken.value / size)
            stalls = _stalls(at.trace, step.cycle, schedule, tolerance * size, taken.step.bound)
            at.stalled = at.stalled + 1 if stalls else 0
            if at.stalled >= engine.patience:
                run.ended = Ended.CONVERGED
                run.outcome = f"converged after {len(at.trace)} iterations (gain below {tolerance:g} a row)"
                return run
            if iteration + 1 >= max_iterations:
                return run.stop(max_iterations, size)
            at.start, at.fallback = step.advance(taken, temperature)
            del taken  # and the locals that it started from, before the next E step makes its own
            if watcher is not None:
                at.acceleration = step.remember()
                watcher(at)
    except KeyboardInterrupt:
        if run is None:
            raise
        return run.cut()


def _loss(trace: list[float], schedule: Schedule | None, least: float, bound: Tensor) -> float:
    """Return what the last iteration lost, at temperature 1; 0 where it may be rounding, or less than ``least``."""
    before = len(trace) - 2
    if before < 0 or (schedule and schedule(before) != 1.0):
        return 0.0
    lost = trace[before] - trace[-1]
    rounding = _ROUNDING[bound.dtype == torch.float64] * abs(trace[-1])
    return lost if lost > max(least, rounding) else 0.0


def _stalls(trace: list[float], cycle: int, schedule: Schedule | None, least: float, bound: Tensor) -> bool:
    """Whether the last ``cycle`` iterations, all at temperature 1, gained less than ``least``."""
    before = len(trace) - 1 - cycle
    if before < 0 or (schedule and schedule(before) != 1.0):
        return False
    # Gains below the rounding of the terms cannot be told from none.
    return abs(trace[-1] - trace[before]) <= max(least, torch.finfo(bound.dtype).eps * abs(trace[-1]))
