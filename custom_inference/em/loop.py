"""One run of EM, whatever the model: E step, bound, convergence, M step, and what happens when it is interrupted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from custom_inference.core.capabilities import patience_of
from custom_inference.core.engine import Engine, EStep, Warm
from custom_inference.core.process_group import ALONE, Pool
from custom_inference.core.progress import Progress
from custom_inference.em.accelerate import Accelerator, accelerator
from custom_inference.em.driver import Driver
from ppl_models import Model

Schedule = Callable[[int], float]

#: How the outcome of a run that did not converge begins.
AT_LIMIT = "stopped at the limit"


@dataclass
class Run:
    """Where a run got to: the engine's state, the E step taken at it, and the objective of every iteration.

    evaluations: E steps taken, which are more than iterations where extrapolations had to be taken back.
    details: what else the run has to report (JSON-able).
    """

    state: Any
    step: EStep
    trace: list[float] = field(default_factory=list)
    outcome: str = ""
    interrupted: bool = False
    evaluations: int = 0
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def objective(self) -> float:
        return self.trace[-1]


def linear_schedule(start: float, iterations: int) -> Schedule:
    """The likelihood's exponent: from ``start`` to 1 over ``iterations``, 1 from then on."""

    def temperature(iteration: int) -> float:
        return 1.0 if iteration >= iterations else start + (1 - start) * iteration / iterations

    return temperature


#: Where an iteration starts: the engine's state, and the locals that warm-start its E step.
Start = tuple[Any, dict[str, Tensor] | None]


@dataclass
class Position:
    """Where a run is between two iterations: all that it needs to go on, beside the data.

    start: where the next iteration starts; fallback: where instead, if that is an extrapolation that lowers the
    objective.
    trace: the objectives so far. stalled: E steps in a row that gained next to nothing.
    acceleration: what the acceleration knows (``Accelerator.state``).
    """

    start: Start
    fallback: Start | None = None
    trace: list[float] = field(default_factory=list)
    stalled: int = 0
    evaluations: int = 0
    acceleration: dict[str, Tensor] = field(default_factory=dict)


#: Is shown every position that a run comes to.
Watcher = Callable[[Position], None]


class _Taken(NamedTuple):
    """An E step that was taken: from where, what it found on this process's rows and on all, and the objective."""

    start: Start
    step: EStep
    whole: EStep
    value: float


@dataclass
class _Climb:
    """E steps and their objectives, and extrapolations that are taken back where they lowered it."""

    driver: Driver
    accelerator: Accelerator | None

    @property
    def cycle(self) -> int:
        """Iterations to judge convergence by: a single one between two extrapolations may gain next to nothing."""
        return 1 if self.accelerator is None else 3

    def evaluated(self, at: Position, temperature: float) -> _Taken:
        """The E step at a position; or at its fallback, the plain step, where extrapolating lowered the objective."""
        taken = self._at(at, at.start, temperature)
        if self.accelerator is None or at.fallback is None:
            return taken
        accepted = taken.value >= at.trace[-1]
        self.accelerator.learn(accepted=accepted)
        return taken if accepted else self._at(at, at.fallback, temperature)

    def _at(self, at: Position, start: Start, temperature: float) -> _Taken:
        step = self.driver.e_step(*start, temperature)
        whole = self.driver.gathered(step)
        at.evaluations += 1
        return _Taken(start, step, whole, self.driver.objective(start[0], whole.bound))

    def following(self, taken: _Taken, temperature: float) -> tuple[Start, Start | None]:
        """Where the next iteration starts, and its fallback where that is extrapolated; none while annealing."""
        plain = self.driver.m_step(taken.start[0], taken.whole), taken.step.locals
        if self.accelerator is None or temperature != 1:
            return plain, None
        extrapolated = self.accelerator.extrapolate(taken.start, plain)
        return (plain, None) if extrapolated is None else (extrapolated, plain)


def run_em(
    engine: Engine,
    model: Model,
    rows: Any,
    state: Any,
    *,
    max_iterations: int,
    tolerance: float,
    warm: Warm = None,
    schedule: Schedule | None = None,
    accelerate: str | None = None,
    generator: torch.Generator | None = None,
    progress: Progress | None = None,
    position: Position | None = None,
    watcher: Watcher | None = None,
    processes: Pool = ALONE,
) -> Run:
    """Iterate until the objective gains less than ``tolerance`` per row, at temperature 1.

    accelerate: "squarem" or "anderson" extrapolate the iterations where that does not lower the objective (see
        ``accelerate``); None iterates plainly. While annealing there is no extrapolation.
    position: of an earlier run, to go on from instead of from ``state``. watcher: is shown every position.

    The returned state is that of the last completed E step, so that bound, locals and state belong together. Ctrl-C
    ends the run with what it has. Several processes all run alike: rows, locals and bounds are this process's, states
    and objectives everybody's.
    """
    if max_iterations < 1:
        raise ValueError("max_iterations must be at least 1")
    driver = Driver(engine, model, rows, processes, generator)
    climb, size = _Climb(driver, accelerator(accelerate, engine, model, processes)), driver.num_rows
    at, patience = position or Position((state, warm)), patience_of(engine)
    if climb.accelerator is not None and at.acceleration:
        climb.accelerator.restore(at.acceleration)
    run: Run | None = None
    try:
        while True:
            iteration = len(at.trace)
            temperature = schedule(iteration) if schedule else 1.0
            taken = climb.evaluated(at, temperature)
            at.trace.append(taken.value)
            run = Run(taken.start[0], taken.step, list(at.trace), evaluations=at.evaluations)
            if progress is not None:
                progress.advance(taken.value / size)
            stalls = _stalls(at.trace, climb.cycle, schedule, tolerance * size, taken.step.bound)
            at.stalled = at.stalled + 1 if stalls else 0
            if at.stalled >= patience:
                run.outcome = f"converged after {len(at.trace)} iterations (gain below {tolerance:g} a row)"
                return run
            if iteration + 1 >= max_iterations:
                break
            at.start, at.fallback = climb.following(taken, temperature)
            if watcher is not None:
                at.acceleration = climb.accelerator.state() if climb.accelerator is not None else {}
                watcher(at)
    except KeyboardInterrupt:
        if run is None:
            raise
        run.outcome = f"interrupted after {len(run.trace)} iterations; this is the best state so far"
        run.interrupted = True
        return run
    gain = (run.trace[-1] - run.trace[-2]) / size if len(run.trace) > 1 else float("nan")
    run.outcome = f"{AT_LIMIT} of {max_iterations} iterations (last gain {gain:.2g} a row)"
    return run


def _stalls(trace: list[float], cycle: int, schedule: Schedule | None, least: float, bound: Tensor) -> bool:
    """Whether the last cycle, at temperature 1 from its beginning, gained less than ``least``."""
    before = len(trace) - 1 - cycle
    if before < 0 or (schedule and schedule(before) != 1.0):
        return False
    # Gains below the rounding of the terms cannot be told from none.
    return abs(trace[-1] - trace[before]) <= max(least, torch.finfo(bound.dtype).eps * abs(trace[-1]))
