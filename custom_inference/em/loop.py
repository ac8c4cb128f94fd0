"""One run of EM, whatever the model: E step, bound, convergence, M step, and what happens when it is interrupted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from custom_inference.core.engine import Engine, EStep, Params
from custom_inference.core.progress import Progress
from custom_inference.em.accelerate import Accelerator, accelerator
from ppl_models import Model

Schedule = Callable[[int], float]

#: How the outcome of a run that did not converge begins.
AT_LIMIT = "stopped at the limit"


@dataclass
class Run:
    """Where a run got to: parameters, the E step taken at them, and the objective of every iteration.

    evaluations: E steps taken, which are more than iterations where extrapolations had to be taken back.
    details: what else the run has to report (JSON-able).
    """

    params: Params
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


#: Where an iteration starts: parameters, and the locals that warm-start its E step.
State = tuple[Params, dict[str, Tensor] | None]


@dataclass
class Position:
    """Where a run is between two iterations: all that it needs to go on, beside the data.

    state: where the next iteration starts; fallback: where instead, if that is a leap that lowers the objective.
    trace: the objectives so far. still: E steps in a row that gained next to nothing. leaper: what the acceleration
    knows (``Accelerator.state``).
    """

    state: State
    fallback: State | None = None
    trace: list[float] = field(default_factory=list)
    still: int = 0
    evaluations: int = 0
    leaper: dict[str, Tensor] = field(default_factory=dict)


#: Is shown every position that a run comes to.
Watcher = Callable[[Position], None]


class _Taken(NamedTuple):
    """An E step that was taken: from where, what it found on this process's rows and on all, and the objective."""

    state: State
    step: EStep
    whole: EStep
    value: float


class _Climb:
    """E steps and their objectives, and leaps that are taken back where they lowered it."""

    def __init__(
        self, steps: Engine, model: Model, rows: Any, leaper: Accelerator | None, generator: torch.Generator | None
    ):
        self.steps, self.model, self.rows, self.leaper, self.generator = steps, model, rows, leaper, generator
        self.size = steps.num_rows(rows)

    @property
    def cycle(self) -> int:
        """Iterations to judge convergence by: a single one between two leaps may gain next to nothing."""
        return 1 if self.leaper is None else 3

    def evaluated(self, at: Position, temperature: float) -> _Taken:
        """The E step at a position; or at its fallback, the plain step, where the leap there lowered the objective."""
        taken = self._at(at, at.state, temperature)
        if self.leaper is None or at.fallback is None:
            return taken
        accepted = taken.value >= at.trace[-1]
        self.leaper.judge(accepted=accepted)
        return taken if accepted else self._at(at, at.fallback, temperature)

    def _at(self, at: Position, state: State, temperature: float) -> _Taken:
        params, locals_ = state
        step = self.steps.e_steps(params, self.rows, locals_, temperature=temperature, generator=self.generator)
        whole = self.steps.gathered(step)
        at.evaluations += 1
        return _Taken(state, step, whole, self.steps.objective(self.model, params, whole.bound))

    def following(self, taken: _Taken, temperature: float) -> tuple[State, State | None]:
        """Where the next iteration starts, and its fallback where that is a leap; none while annealing."""
        params, _ = taken.state
        plain = self.steps.m_step(self.model, params, taken.whole, self.rows), taken.step.locals
        leap = self.leaper.leap(taken.state, plain) if self.leaper is not None and temperature == 1 else None
        return (plain, None) if leap is None else (leap, plain)


def run_em(
    steps: Engine,
    model: Model,
    rows: Any,
    params: Params,
    *,
    max_iterations: int,
    tolerance: float,
    locals_: dict[str, Tensor] | None = None,
    schedule: Schedule | None = None,
    accelerate: str | None = None,
    generator: torch.Generator | None = None,
    progress: Progress | None = None,
    position: Position | None = None,
    watcher: Watcher | None = None,
) -> Run:
    """Iterate until the objective gains less than ``tolerance`` per row, at temperature 1.

    accelerate: "squarem" or "anderson" extrapolate the iterations where that does not lower the objective (see
        ``_accelerate``); None iterates plainly. While annealing there is no extrapolation.
    position: of an earlier run, to go on from instead of from ``params``. watcher: is shown every position.

    The returned parameters are those of the last completed E step, so that bound, locals and parameters belong
    together. Ctrl-C ends the run with what it has. Where the steps are those of one of several processes, all of them
    run alike: rows, locals and bounds are this process's, parameters and objectives everybody's.
    """
    if max_iterations < 1:
        raise ValueError("max_iterations must be at least 1")
    climb = _Climb(steps, model, rows, accelerator(accelerate, steps, model), generator)
    at = position or Position((params, locals_))
    if climb.leaper is not None and at.leaper:
        climb.leaper.restore(at.leaper)
    run: Run | None = None
    try:
        while True:
            iteration = len(at.trace)
            temperature = schedule(iteration) if schedule else 1.0
            taken = climb.evaluated(at, temperature)
            at.trace.append(taken.value)
            run = Run(taken.state[0], taken.step, list(at.trace), evaluations=at.evaluations)
            if progress is not None:
                progress.advance(taken.value / climb.size)
            at.still = at.still + 1 if _stands_still(at.trace, climb, schedule, tolerance, taken.step.bound) else 0
            if at.still >= steps.patience:
                run.outcome = f"converged after {len(at.trace)} iterations (gain below {tolerance:g} a row)"
                return run
            if iteration + 1 >= max_iterations:
                break
            at.state, at.fallback = climb.following(taken, temperature)
            if watcher is not None:
                at.leaper = climb.leaper.state() if climb.leaper is not None else {}
                watcher(at)
    except KeyboardInterrupt:
        if run is None:
            raise
        run.outcome = f"interrupted after {len(run.trace)} iterations; this is the best state so far"
        run.interrupted = True
        return run
    gain = (run.trace[-1] - run.trace[-2]) / climb.size if len(run.trace) > 1 else float("nan")
    run.outcome = f"{AT_LIMIT} of {max_iterations} iterations (last gain {gain:.2g} a row)"
    return run


def _stands_still(
    trace: list[float], climb: _Climb, schedule: Schedule | None, tolerance: float, bound: Tensor
) -> bool:
    """Whether the last cycle, at temperature 1 from its beginning, gained less than the tolerance a row."""
    before = len(trace) - 1 - climb.cycle
    if before < 0 or (schedule and schedule(before) != 1.0):
        return False
    # Gains below the rounding of the terms cannot be told from none.
    least = max(tolerance * climb.size, torch.finfo(bound.dtype).eps * abs(trace[-1]))
    return abs(trace[-1] - trace[before]) <= least
