"""How fast is an iteration of NOCA's engines? Seconds of each on one thread, beside the arithmetic floor.

    python -m benchmarks.speed.noca_speed

PPL_DATA, where set, is a folder with noisyor_bench/IMG.npz: then its patterns are used. Writes
``benchmarks/results/noca_speed.{md,json}``.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks._report import Table, write_report
from benchmarks.speed import _image_problem as problem
from benchmarks.speed import _rates as rates
from custom_inference.core.engine import Engine
from custom_inference.families.noca.exact import NocaExact
from custom_inference.families.noca.factorized import NocaFactorized
from custom_inference.families.noca.mean_field import NocaMeanField, exponential_sum
from custom_inference.families.noca.truncated import NocaTruncated
from ppl_models import NOCA

_SIZE = (problem.NUM_ROWS, problem.NUM_FEATURES)
#: Iterations measured for each engine.
_MEASURED = 9


def iteration_seconds(steps: Engine, sources: int, x: Tensor, dtype: torch.dtype) -> tuple[float, float]:
    """Median CPU seconds of an E step and of an M step, between the 6th and the last iteration from a random start."""
    model = NOCA(num_components=sources, num_features=problem.NUM_FEATURES)
    rows, generator = steps.rows(model, model.prepare(x, dtype=dtype)), torch.Generator().manual_seed(0)
    params, locals_, e_steps, m_steps = steps.initial(model, rows, generator), None, [], []
    for iteration in range(_MEASURED + 5):
        begin = time.process_time()
        step = steps.e_step(model, params, rows, locals_, generator=generator)
        middle = time.process_time()
        params, locals_ = steps.m_step(model, params, step, rows), step.locals
        if iteration >= 5:
            e_steps.append(middle - begin)
            m_steps.append(time.process_time() - middle)
    return statistics.median(e_steps), statistics.median(m_steps)


def _work_of(steps: Engine, sources: int, x: Tensor) -> rates.Work:
    """The unavoidable arithmetic of an engine's iteration on this data."""
    ones = int(x.sum())
    if isinstance(steps, NocaExact):
        return rates.exact_work(*_SIZE, sources, steps.inner_steps)
    if isinstance(steps, NocaFactorized):
        return rates.factorized_work(*_SIZE, sources, ones, steps.inner_steps)
    if isinstance(steps, NocaMeanField):
        nodes = len(exponential_sum(0.01, steps.tolerance).nodes)
        return rates.mean_field_work(sources, ones, nodes, steps.sweeps)
    assert isinstance(steps, NocaTruncated)
    return rates.truncated_work(*_SIZE, sources, ones, steps.free, steps.refresh_every)


def iterations(x: Tensor) -> Table:
    """Seconds per iteration of every engine, and how far from the floor."""
    single, double = torch.float32, torch.float64
    cases: list[tuple[str, Callable[[], Engine], int, torch.dtype]] = [
        *(("exact EM", NocaExact, k, dtype) for k in (8, 10, 12) for dtype in (single, double)),
        *((name, engine, 8, double) for name, engine in _BOUNDS.items()),
        *((name, engine, 16, double) for name, engine in _BOUNDS.items()),
    ]
    lines, speed = [], {}
    for name, engine, sources, dtype in cases:
        steps, key = engine(), (2**sources if engine is NocaExact else 256, dtype)
        if key not in speed:
            speed[key] = rates.measured_rates(*_SIZE, *key)
        floor = speed[key].floor(_work_of(steps, sources, x))
        e_step, m_step = iteration_seconds(steps, sources, x, dtype)
        total = e_step + m_step
        lines.append([name, sources, str(dtype)[6:], *(1e3 * v for v in (e_step, m_step, total, floor)), total / floor])
        print(lines[-1], flush=True)
    columns = ["engine", "K", "precision", "E step ms", "M step ms", "iteration ms", "floor ms", "ratio"]
    return Table("Seconds per iteration and the arithmetic floor", columns, lines, note=_floor_note(speed))


_BOUNDS: dict[str, Callable[[], Engine]] = {
    "factorized (the paper's)": NocaFactorized,
    "mean field": NocaMeanField,
    "truncated": NocaTruncated,
}


def _floor_note(speed: dict[tuple[int, torch.dtype], rates.Rates]) -> str:
    parts = [
        f"{codes} codes, {str(dtype)[6:]}: {r.flops / 1e9:.0f} GFLOP/s in the two products; exp, log and multiply "
        f"{r.exponential * 1e9:.2f}, {r.logarithm * 1e9:.2f} and {r.multiplication * 1e9:.2f} ns"
        for (codes, dtype), r in speed.items()
    ]
    return (
        "The floor is the time of the unavoidable arithmetic alone (`benchmarks/speed/_rates.py` counts it) at rates "
        "measured in the same process, one thread, arrays in cache: " + "; ".join(parts) + ". The factorized M step is "
        "counted as one Newton step, and needs several."
    )


def main() -> None:
    torch.set_num_threads(1)
    truth, origin = problem.true_parameters()
    with torch.no_grad():
        table = iterations(problem.draw(truth, 0))
    meta = {"problem": f"IMG, N = {_SIZE[0]}, D = {_SIZE[1]}, patterns of {origin}, pi .25, p .9, leak .01"}
    print(write_report("noca_speed", "NOCA: speed", [table], meta, intro="CPU seconds on one thread."))


if __name__ == "__main__":
    main()
