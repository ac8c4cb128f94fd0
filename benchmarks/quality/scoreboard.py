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
from dataclasses import dataclass
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
    "and error are of the posterior of the local latents at the TRUE globals, against the exact one, or against an "
    "annealed estimate where nothing sums (`compare`): the gap is (log evidence - bound) / rows, the divergence "
    "KL(method || exact) / rows, the error the largest difference of posterior means (of graphs a row is a node). "
    "Points have an infinite divergence and no bound; samplers no bound; whether they are calibrated is in "
    "`calibration.md`. Fit is a whole fit with default search: the objective's name and last value, and CPU seconds "
    "without compilation; not of SVI, NUTS and others that take as many gradient steps as they are given (400 of SVI's "
    "for the posterior of the locals). Empty: not to be had; of what failed, `why` above the table says why."
)


@dataclass(frozen=True)
class Named:
    """A method under the name that the board has for it."""

    name: str
    method: Any

    @classmethod
    def of(cls, name: str, model: Any) -> Named:
        return cls(name, resolve_method(name, model=model, **SETTINGS.get(name, {})))

    def local_posterior(self, *given: Any, **settings: Any) -> Any:
        return self.method.local_posterior(*given, **settings)


def lines(model: str) -> tuple[list[list[Any]], dict[str, str]]:
    """A line for every method, and what could not be had of which."""
    example = toy(model)
    methods = [Named.of(name, example.model) for name in methods_for(example.model)]
    far, why = distances(example, methods)
    rows = []
    for one in methods:
        row = {**dict.fromkeys(COLUMNS), "model": model, "method": one.name, **far.get(one.name, {})}
        if not one.name.startswith(GIVEN_STEPS):
            try:
                row |= _fit(example, one.method)
            except PPLError as error:
                why[one.name] = f"fit: {error}"
        rows.append([row[column] for column in COLUMNS])
    return rows, why


def distances(example: Any, methods: Sequence[Named]) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Method -> how far its posterior is from the exact one, and why it has none; all beside one reference."""
    truth = {site: example.truth[site] for site in example.model.global_sites}
    try:
        found = compare(methods, example.model, example.data, at=truth, seconds=5.0, progress=False)
    except PPLError as error:
        return {}, {one.name: str(error) for one in methods}
    far = {}
    for name, line in found.table.iterrows():
        cells = {
            "evidence gap a row": _number(line["gap_per_row"]),
            "KL a row": _number(line["kl_per_row"]),
            "worst marginal error": _number(line["worst_marginal_error"]),
        }
        alike = str(line["also"]).split(", ") if "also" in line else []
        far |= dict.fromkeys([str(name), *alike], cells)
    return far, dict(found.refused)


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
    table, every = Table(TITLE, COLUMNS, note=NOTE), {}
    for model in models:
        begin = time.process_time()
        rows, why = lines(model)
        table.rows += rows
        every |= {f"{model} {method}": reason for method, reason in why.items()}
        print(f"{model}: {time.process_time() - begin:.0f} s; {why}", flush=True)
    return table, every


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
