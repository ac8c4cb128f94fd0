"""Good starting values: several annealed, over-complete starts on some of the rows, pruned; the best goes on.

Local optima are the main difficulty of these models, and the good optimum is cheap to find: see
``benchmarks/quality``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from custom_inference._loop import Run, linear_schedule, run_em
from custom_inference._progress import Progress
from custom_inference.steps._protocol import Params, Steps
from ppl_models import Model


@dataclass(frozen=True, kw_only=True)
class Search:
    """restarts: independent starts. rows: how many random rows the starts use.
    surplus: components added at the start and pruned away. temperature, anneal, iterations: the likelihood's
    exponent rises from ``temperature`` to 1 over ``anneal`` of ``iterations`` iterations. polish: iterations after
    pruning.
    """

    restarts: int = 2
    rows: int = 600
    surplus: int = 2
    temperature: float = 0.1
    anneal: int = 60
    iterations: int = 90
    polish: int = 30


@dataclass
class Found:
    """The best start, and how far the starts agreed; ``run`` only if the search was interrupted."""

    params: Params
    agreement: str
    run: Run | None = None
    details: dict[str, Any] = field(default_factory=dict)


def search(
    steps: Steps, model: Model, rows: Any, settings: Search, generator: torch.Generator, bar: Progress
) -> Found:
    from custom_inference.steps.noca_common import prune, widened

    num_components = model.shapes["source_prior"][0]
    wide = widened(model, min(num_components + settings.surplus, model.shapes["loading"][1]))
    scores, best = [], None
    for start in range(settings.restarts):
        bar.label(f"start {start + 1} of {settings.restarts}")
        index = torch.randperm(len(rows), generator=generator)[: settings.rows]
        part = rows.select(index)
        params = steps.initial(wide, part, generator)
        run = run_em(steps, wide, part, params, max_iterations=settings.iterations, tolerance=1e-5,
                     schedule=linear_schedule(settings.temperature, settings.anneal), generator=generator, progress=bar)
        params = prune(run.params, num_components)
        run = run_em(steps, model, part, params, max_iterations=settings.polish, tolerance=1e-5,
                     generator=generator, progress=bar)
        score = float(steps.e_step(run.params, rows, generator=generator).bound.mean())
        scores.append(score)
        if best is None or score > max(scores[:-1]):
            best = run.params
    assert best is not None
    close = sum(s > max(scores) - 0.05 for s in scores)
    return Found(best, f"{close} of {len(scores)} starts agreed", details={"start_scores": scores})
