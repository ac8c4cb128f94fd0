"""One run of EM, whatever the model: E step, bound, convergence, M step, and what happens when it is interrupted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from custom_inference._accelerate import Accelerator, accelerator
from custom_inference._progress import Progress
from custom_inference.steps._protocol import EStep, Params, Steps
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
_State = tuple[Params, dict[str, Tensor] | None]


class _Climb:
    """E steps and their objectives, and leaps that are taken back where they lowered it."""

    def __init__(
        self, steps: Steps, model: Model, rows: Any, leaper: Accelerator | None, generator: torch.Generator | None
    ):
        self.steps, self.model, self.rows, self.leaper, self.generator = steps, model, rows, leaper, generator
        self.evaluations = 0

    @property
    def cycle(self) -> int:
        """Iterations to judge convergence by: a single one between two leaps may gain next to nothing."""
        return 1 if self.leaper is None else 3

    def evaluated(
        self, state: _State, temperature: float, fallback: _State | None, trace: list[float]
    ) -> tuple[_State, EStep, float]:
        """The E step at a state; or at the plain step, ``fallback``, where the leap there lowered the objective."""
        step, value = self._at(state, temperature)
        if self.leaper is None or fallback is None:
            return state, step, value
        accepted = value >= trace[-1]
        self.leaper.judge(accepted=accepted)
        return (state, step, value) if accepted else (fallback, *self._at(fallback, temperature))

    def _at(self, state: _State, temperature: float) -> tuple[EStep, float]:
        params, locals_ = state
        step = self.steps.e_step(params, self.rows, locals_, temperature=temperature, generator=self.generator)
        self.evaluations += 1
        return step, self.steps.objective(self.model, params, step.bound)

    def leap(self, state: _State, following: tuple[Params, dict[str, Tensor]], temperature: float) -> _State | None:
        """Where to go instead of ``following``; None for nowhere, as while annealing."""
        return self.leaper.leap(state, following) if self.leaper is not None and temperature == 1 else None


def run_em(
    steps: Steps,
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
) -> Run:
    """Iterate until the objective gains less than ``tolerance`` per row, at temperature 1.

    accelerate: "squarem" or "anderson" extrapolate the iterations where that does not lower the objective (see
        ``_accelerate``); None iterates plainly. While annealing there is no extrapolation.

    The returned parameters are those of the last completed E step, so that bound, locals and parameters belong
    together. Ctrl-C ends the run with what it has.
    """
    if max_iterations < 1:
        raise ValueError("max_iterations must be at least 1")
    climb = _Climb(steps, model, rows, accelerator(accelerate, steps, model), generator)
    state: _State = (params, locals_)
    fallback: _State | None = None
    run: Run | None = None
    trace: list[float] = []
    still = 0
    try:
        for iteration in range(max_iterations):
            temperature = schedule(iteration) if schedule else 1.0
            state, step, value = climb.evaluated(state, temperature, fallback, trace)
            trace.append(value)
            run = Run(state[0], step, trace, evaluations=climb.evaluations)
            if progress is not None:
                progress.advance(value / len(rows))
            settled = iteration >= climb.cycle and (not schedule or schedule(iteration - climb.cycle) == 1.0)
            # Gains below the rounding of the terms cannot be told from none.
            least = max(tolerance * len(rows), torch.finfo(step.bound.dtype).eps * abs(value))
            still = still + 1 if settled and abs(value - trace[-1 - climb.cycle]) <= least else 0
            if still >= steps.patience:
                run.outcome = f"converged after {len(trace)} iterations (gain below {tolerance:g} a row)"
                return run
            if iteration + 1 < max_iterations:
                following = steps.m_step(model, state[0], step, rows), step.locals
                leap = climb.leap(state, following, temperature)
                state, fallback = (following, None) if leap is None else (leap, following)
    except KeyboardInterrupt:
        if run is None:
            raise
        run.outcome, run.interrupted = f"interrupted after {len(trace)} iterations; this is the best state so far", True
        return run
    assert run is not None
    gain = (trace[-1] - trace[-2]) / len(rows) if len(trace) > 1 else float("nan")
    run.outcome = f"{AT_LIMIT} of {max_iterations} iterations (last gain {gain:.2g} a row)"
    return run

