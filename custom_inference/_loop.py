"""One run of EM, whatever the model: E step, bound, convergence, M step, and what happens when it is interrupted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from custom_inference._progress import Progress
from custom_inference.steps._protocol import EStep, Params, Steps
from ppl_models import Model

Schedule = Callable[[int], float]


@dataclass
class Run:
    """Where a run got to: parameters, the E step taken at them, and the objective of every iteration."""

    params: Params
    step: EStep
    trace: list[float] = field(default_factory=list)
    outcome: str = ""
    interrupted: bool = False

    @property
    def objective(self) -> float:
        return self.trace[-1]


def linear_schedule(start: float, iterations: int) -> Schedule:
    """The likelihood's exponent: from ``start`` to 1 over ``iterations``, 1 from then on."""

    def temperature(iteration: int) -> float:
        return 1.0 if iteration >= iterations else start + (1 - start) * iteration / iterations

    return temperature


def objective_of(model: Model, params: Params, bound: Tensor) -> float:
    """What EM climbs: the bound on the log-likelihood, plus the log prior density of the globals."""
    return float(bound.sum() + model.log_prior(params))


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
    generator: torch.Generator | None = None,
    progress: Progress | None = None,
) -> Run:
    """Iterate until the objective gains less than ``tolerance`` per row, at temperature 1.

    The returned parameters are those of the last completed E step, so that bound, locals and parameters belong
    together. Ctrl-C ends the run with what it has.
    """
    run: Run | None = None
    trace: list[float] = []
    still = 0
    try:
        for iteration in range(max_iterations):
            temperature = schedule(iteration) if schedule else 1.0
            step = steps.e_step(params, rows, locals_, temperature=temperature, generator=generator)
            trace.append(objective_of(model, params, step.bound))
            run, locals_ = Run(params, step, trace), step.locals
            if progress is not None:
                progress.advance(trace[-1] / len(rows))
            settled = iteration > 0 and (not schedule or schedule(iteration - 1) == 1.0)
            still = still + 1 if settled and abs(trace[-1] - trace[-2]) <= tolerance * len(rows) else 0
            if still >= steps.patience:
                run.outcome = f"converged after {len(trace)} iterations (gain below {tolerance:g} a row)"
                return run
            if iteration + 1 < max_iterations:
                params = steps.m_step(model, params, step, rows)
    except KeyboardInterrupt:
        if run is None:
            raise
        run.outcome, run.interrupted = f"interrupted after {len(trace)} iterations; this is the best state so far", True
        return run
    if run is None:
        raise ValueError("max_iterations must be at least 1")
    gain = (trace[-1] - trace[-2]) / len(rows) if len(trace) > 1 else float("nan")
    run.outcome = f"stopped at the limit of {max_iterations} iterations (last gain {gain:.2g} a row)"
    return run
