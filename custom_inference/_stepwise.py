"""Stepwise (online) EM: minibatches, with running averages of the expected statistics (Cappe & Moulines 2009)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from custom_inference._loop import Run, run_em
from custom_inference._progress import Progress
from custom_inference.steps._protocol import EStep, Params, Steps
from ppl_models import MethodError, Model


def require_additive(steps: Steps) -> None:
    """Raises MethodError for steps whose statistics do not determine the M step."""
    if not steps.additive:
        raise MethodError(f"the {steps.bound_name} M step needs every row at once; use batch_size=None")


def run_stepwise(
    steps: Steps,
    model: Model,
    rows: Any,
    params: Params,
    *,
    batch_size: int,
    max_iterations: int,
    tolerance: float,
    generator: torch.Generator,
    progress: Progress | None = None,
    forgetting: float = 0.6,
    delay: float = 2.0,
) -> Run:
    """Passes over shuffled minibatches: s <- (1 - rho_t) s + rho_t (N / B) s_batch, rho_t = (t + delay)^-forgetting.

    Ends when a pass gains less than ``tolerance`` per row (by the sum of its minibatch bounds), or after
    ``max_iterations`` passes; then two full iterations give bound, locals and parameters that belong together.
    """
    require_additive(steps)
    running: dict[str, Tensor] = {}
    trace: list[float] = []
    count = 0
    try:
        for _ in range(max_iterations):
            bounds = []
            for index in torch.randperm(len(rows), generator=generator).split(batch_size):
                batch = rows.select(index)
                step = steps.e_step(params, batch, generator=generator)
                rate = (count + delay) ** -forgetting if count else 1.0
                scaled = {k: v * (len(rows) / len(index)) for k, v in step.statistics.items()}
                running = {k: (1 - rate) * running.get(k, v) + rate * v for k, v in scaled.items()}
                params = steps.m_step(model, params, EStep(running, {}, step.bound), batch)
                bounds.append(step.bound)
                count += 1
            trace.append(steps.objective(model, params, torch.cat(bounds)))
            if progress is not None:
                progress.advance(trace[-1] / len(rows))
            if len(trace) > 1 and abs(trace[-1] - trace[-2]) <= tolerance * len(rows):
                break
        note = f"stepwise EM made {len(trace)} passes of minibatches of {batch_size}"
    except KeyboardInterrupt:
        note = f"interrupted after {len(trace)} passes of minibatches; this is the state at that point"
    final = run_em(steps, model, rows, params, max_iterations=2, tolerance=tolerance, generator=generator)
    final.trace, final.outcome = trace + final.trace, note
    return final
