"""Every model by every method on its toy problem: how far from the truth, and how long.

    python -m benchmarks.quality.scoreboard
    python -m benchmarks.quality.scoreboard --quick    # two models, no result

Writes benchmarks/results/scoreboard.{json,md,png}.
"""

from __future__ import annotations

import argparse
import math
import time
import warnings
from collections.abc import Sequence
from typing import Any

import torch

from benchmarks._report import QUICK, RESULTS, Table, write_report
from benchmarks.quality._scoreboard_figure import draw
from benchmarks.quality._scoreboard_toys import NODES, NODES_OF_MEMBERSHIPS, toy
from custom_inference import compare
from custom_inference.methods import methods_for, resolve_method
from ppl_models import MODELS, DataWarning, PPLError

COLUMNS = ("model", "method", "evidence gap a row", "KL a row", "worst marginal error", "fit", "fit CPU s")
TITLE = "Models by methods"
#: Settings smaller than the defaults, where those are made for real data.
SETTINGS: dict[str, dict[str, Any]] = {
    "svi": {"steps": 400}, "svi_factorized": {"steps": 400}, "amortized": {"steps": 400},
    "gibbs": {"num_samples": 200, "warmup": 200, "chains": 2},
}  # fmt: skip
#: Beginnings of the names of methods whose whole fits take the gradient steps that they are given.
GIVEN_STEPS = ("svi", "amortized", "nuts", "wake_sleep", "reweighted", "importance_weighted", "reinforce")
NOTE = (
    "One line for each model and method that applies, on the model's `example()`; of graphs on the edges among "
    f"{NODES} of its nodes ({NODES_OF_MEMBERSHIPS} for `mmsb`), few enough for the exact posterior. Gap, divergence "
    "and error are of the posterior of the local latents at the TRUE globals, against the exact one (`compare`): the "
    "gap is (log evidence - bound) / rows, the divergence KL(method || exact) / rows, the error the largest "
    "difference of posterior means (of graphs a row is a node). Points have an infinite divergence and no bound; "
    "samplers no bound; whether they are calibrated is in `calibration.md`. Fit is a whole fit with default search: "
    "the objective's name and last value, and CPU seconds without compilation; not of SVI, NUTS and others that take "
    "as many gradient steps as they are given (400 of SVI's for the posterior of the locals). Empty: not to be had; "
    "of what failed, `why` above the table says why."
)


def line(name: str, method_name: str) -> tuple[list[Any], str]:
    """One line of the table, and what could not be had."""
    example = toy(name)
    method = resolve_method(method_name, **SETTINGS.get(method_name, {}))
    row: dict[str, Any] = dict.fromkeys(COLUMNS)
    row |= {"model": name, "method": method_name}
    problems = []
    for part in (_distance, _fit) if not method_name.startswith(GIVEN_STEPS) else (_distance,):
        try:
            row |= part(example, method)
        except PPLError as error:
            problems.append(f"{part.__name__[1:]}: {error}")
        except Exception as error:  # a fault, to be shown
            problems.append(f"{part.__name__[1:]}: {type(error).__name__}: {error}")
    return [row[column] for column in COLUMNS], "; ".join(problems)


def _distance(example: Any, method: Any) -> dict[str, Any]:
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


def _fit(example: Any, method: Any) -> dict[str, Any]:
    _timed(example, method)  # may compile something
    fit, seconds = _timed(example, method)
    last = f" {float(fit.elbo[-1]):.1f}" if len(fit.elbo) else ""
    return {"fit": f"{fit.bound_name}{last}", "fit CPU s": seconds}


def _timed(example: Any, method: Any) -> tuple[Any, float]:
    begin = time.process_time()
    fit = method.fit(example.model, example.data, seed=0, progress=False)
    return fit, time.process_time() - begin


def board(models: Sequence[str]) -> tuple[Table, dict[str, str]]:
    """All methods of these models."""
    table, why = Table(TITLE, COLUMNS, note=NOTE), {}
    for name in models:
        for method in methods_for(toy(name).model):
            found, problem = line(name, method)
            table.rows.append(found)
            if problem:
                why[f"{name} {method}"] = problem
            print(f"{name:28s} {method:16s} {found[2:]}  {problem[:90]}", flush=True)
    return table, why


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two models: does it run?")
    given = parser.parse_args()
    warnings.simplefilter("ignore", DataWarning)
    torch.set_num_threads(1)
    folder, models = (QUICK, [*MODELS][:2]) if given.quick else (RESULTS, [*MODELS])
    table, why = board(models)
    folder.mkdir(parents=True, exist_ok=True)
    draw([dict(zip(COLUMNS, row, strict=True)) for row in table.rows], folder / "scoreboard.png")
    table.figures = ["scoreboard.png"]
    meta = {"why": str(why)} if why else {}
    write_report("scoreboard", "Scoreboard: every model by every method", [table], meta, folder=folder)


if __name__ == "__main__":
    main()
