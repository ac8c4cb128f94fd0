"""Every model by every method on its toy problem: how far from the truth, whether calibrated, how long.

    python -m benchmarks.quality.scoreboard                      # all of it
    python -m benchmarks.quality.scoreboard --models noca,cvq    # some lines anew, the others as they are
    python -m benchmarks.quality.scoreboard --quick              # a look

Writes benchmarks/results/scoreboard.{json,md,png}.
"""

from __future__ import annotations

import argparse
import math
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks._report import QUICK, RESULTS, Table, read_tables, write_report
from benchmarks.quality._scoreboard_figure import draw
from benchmarks.quality._scoreboard_toys import NODES, NODES_OF_MEMBERSHIPS, toy
from custom_inference import compare, simulation_based_calibration
from custom_inference.methods import methods_for, resolve_method
from ppl_models import MODELS, DataWarning, PPLError

COLUMNS = (
    "model", "method", "evidence gap a row", "KL a row", "worst marginal error", "calibration", "simulations",
    "fit", "fit CPU s",
)  # fmt: skip
TITLE = "Models by methods"
#: Settings smaller than the defaults, where those are made for real data.
SETTINGS: dict[str, dict[str, Any]] = {
    "svi": {"steps": 400}, "svi_factorized": {"steps": 400}, "amortized": {"steps": 400},
    "svi_delta": {"steps": 400}, "svi_normal": {"steps": 400},
    "nuts": {"num_samples": 100, "warmup": 100, "chains": 1, "max_tree_depth": 6},
    "gibbs": {"num_samples": 200, "warmup": 200, "chains": 2},
}  # fmt: skip
#: Simulations of a calibration, fewer of methods that optimise or sample anew for each; none of NUTS.
SIMULATIONS = 60
SLOW_SIMULATIONS = {"svi": 10, "svi_factorized": 10, "amortized": 10, "gibbs": 20, "svi_delta": 20, "nuts": 0}
#: Methods whose fits compile nothing.
OPTIMISED = ("svi", "amortized", "nuts")
NOTE = (
    "One line for each model and method that applies, on the model's `example()`; of graphs on the edges among "
    f"{NODES} of its nodes ({NODES_OF_MEMBERSHIPS} for `mmsb`), few enough for the exact posterior. Gap, divergence "
    "and error are of the posterior of the local latents at the TRUE globals, against the exact one (`compare`): the "
    "gap is (log evidence - bound) / rows, the divergence KL(method || exact) / rows, the error the largest "
    "difference of posterior means (of graphs a row is a node). Points have an infinite divergence and no bound; "
    "samplers no bound. Calibration is that of the same posterior over data drawn from the model "
    '(`simulation_based_calibration`, of="locals", 10 rows; level .01 for all quantities together): few simulations '
    "find gross faults only, `calibration.md` has many. Fit is a whole fit with default search: the objective's name "
    "and last value, and CPU seconds without compilation. SVI takes 400 steps here, NUTS 100 draws after 100; "
    "given globals NUTS has the exact posterior, and `calibration.md` has whole fits by it. Empty: not to be had; of "
    "what failed, `why` above the table says why."
)


def line(name: str, method_name: str, *, simulations: bool = True) -> tuple[list[Any], str]:
    """One line of the table, and what could not be had."""
    example = toy(name)
    method = resolve_method(method_name, **SETTINGS.get(method_name, {}))
    row: dict[str, Any] = dict.fromkeys(COLUMNS)
    row |= {"model": name, "method": method_name}
    problems = []
    for part in (_distance, _calibration if simulations else None, _fit):
        if part is None:
            continue
        try:
            row |= part(example, method, method_name)
        except (PPLError, NotImplementedError) as error:
            problems.append(f"{part.__name__[1:]}: {error}")
    return [row[column] for column in COLUMNS], "; ".join(problems)


def _distance(example: Any, method: Any, name: str) -> dict[str, Any]:
    del name
    truth = {site: example.truth[site] for site in example.model.global_sites}
    [found] = compare([method], example.model, example.data, at=truth, progress=False).table.to_dict("records")
    return {
        "evidence gap a row": _number(found["gap_per_row"]),
        "KL a row": _number(found["kl_per_row"]),
        "worst marginal error": _number(found["worst_marginal_error"]),
    }


def _number(value: float) -> float | str | None:
    """JSON has no infinity; rounding below 1e-12 is none."""
    if math.isnan(value):
        return None
    return "infinite" if math.isinf(value) else value if abs(value) > 1e-12 else 0.0


def _calibration(example: Any, method: Any, name: str) -> dict[str, Any]:
    number = SLOW_SIMULATIONS.get(name, SIMULATIONS)
    if not number:
        return {}
    rows = None if example.model.is_graph else 10
    found = simulation_based_calibration(
        example.model, method, of="locals", num_simulations=number, num_rows=rows, progress=False
    )
    return {"calibration": found.verdict.split(":")[0], "simulations": number}


def _fit(example: Any, method: Any, name: str) -> dict[str, Any]:
    fit, seconds = _timed(example, method)
    if not name.startswith(OPTIMISED):  # the first may have compiled something
        fit, seconds = _timed(example, method)
    last = f" {float(fit.elbo[-1]):.1f}" if len(fit.elbo) else ""
    return {"fit": f"{fit.bound_name}{last}", "fit CPU s": seconds}


def _timed(example: Any, method: Any) -> tuple[Any, float]:
    begin = time.process_time()
    fit = method.fit(example.model, example.data, seed=0, progress=False)
    return fit, time.process_time() - begin


def board(models: Sequence[str], methods: Sequence[str] | None, *, simulations: bool) -> tuple[Table, dict[str, str]]:
    """The lines asked for."""
    table, why = Table(TITLE, COLUMNS, note=NOTE), {}
    for name in models:
        for method in methods_for(toy(name).model):
            if methods is not None and method not in methods:
                continue
            begin = time.perf_counter()
            found, problem = line(name, method, simulations=simulations)
            table.rows.append(found)
            if problem:
                why[f"{name} {method}"] = problem
            seconds = time.perf_counter() - begin
            print(f"{name:28s} {method:16s} {seconds:6.1f} s  {found[2:]}  {problem[:90]}", flush=True)
    return table, why


def merged(table: Table, before: dict[str, Table]) -> Table:
    """With the lines of an earlier report that were not measured again, in the order of MODELS."""
    old = before.get(TITLE)
    if old is None or list(old.columns) != list(COLUMNS):
        return table
    fresh = {(row[0], row[1]) for row in table.rows}
    rows = [*table.rows, *(row for row in old.rows if (row[0], row[1]) not in fresh)]
    order = list(MODELS)
    table.rows = sorted(rows, key=lambda row: order.index(row[0]))
    return table


def main(arguments: Sequence[str] | None = None, *, folder: Path | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", help="names, separated by commas; by default all")
    parser.add_argument("--methods", help="names, separated by commas; by default all")
    parser.add_argument("--quick", action="store_true", help="without calibration")
    given = parser.parse_args(arguments)
    warnings.simplefilter("ignore", DataWarning)
    torch.set_num_threads(1)
    folder = folder or (QUICK if given.quick else RESULTS)
    models = given.models.split(",") if given.models else list(MODELS)
    methods = given.methods.split(",") if given.methods else None
    table, why = board(models, methods, simulations=not given.quick)
    table = merged(table, read_tables("scoreboard", folder=folder))
    folder.mkdir(parents=True, exist_ok=True)
    draw([dict(zip(COLUMNS, row, strict=True)) for row in table.rows], folder / "scoreboard.png")
    table.figures = ["scoreboard.png"]
    meta = {"why": str(why)} if why else {}
    write_report("scoreboard", "Scoreboard: every model by every method", [table], meta, folder=folder)


if __name__ == "__main__":
    main()
