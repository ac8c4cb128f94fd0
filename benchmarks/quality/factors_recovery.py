"""Exponential-family PCA on data with known truth: what the engines find, and how many components.

    python -m benchmarks.quality.factors_recovery

Writes ``benchmarks/results/factors_recovery.{md,json}``. Two planted components, 200 rows to learn from and 200 to be
scored: log p(x) a row by quadrature over the scores, less that of the true weights (0 is the truth itself, below it
what was lost by learning). Cosine: of the largest angle between the planes that the true and the learned weights span.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import pyro
import torch
from torch import Tensor

from benchmarks._report import Table, write_report
from benchmarks.quality._common import quiet_and_single_threaded, spread
from custom_inference import Search, VariationalEM
from custom_inference.core.registry import engine_for, engines_of
from ppl_models import (
    CategoricalPCA,
    DiscriminativeCategoricalPCA,
    GaussianPCA,
    LogisticPCA,
    Model,
    PoissonPCA,
    SoftmaxPCA,
)

#: Components planted, and offered where their number is to be found.
PLANTED, OFFERED = 2, 6
#: Seeds of every table, and rows to learn from.
SEEDS, ROWS = 4, 200
#: A component counts whose weights are longer than this share of the longest one's.
COUNTS = 0.05
COLUMNS = ("model", "engine", "held-out log p(x) a row, less the truth's", "cosine", "CPU s")
INTRO = (__doc__ or "").split("\n\n", 2)[2].strip()


class Case(NamedTuple):
    """A model of so many components, and the size of the weights that are planted."""

    make: Callable[[int], Any]
    size: float


CASES = {
    "Gaussian": Case(lambda k: GaussianPCA(num_components=k, num_features=15), 0.8),
    "logistic": Case(lambda k: LogisticPCA(num_components=k, num_features=25), 1.5),
    "Poisson": Case(lambda k: PoissonPCA(num_components=k, num_features=15), 0.6),
    "categorical": Case(lambda k: CategoricalPCA(num_components=k, num_features=12, num_categories=3), 1.2),
    "softmax": Case(lambda k: SoftmaxPCA(num_components=k, num_features=25, document_length=60), 0.8),
}


def _single(truth: dict[str, Tensor]) -> dict[str, Tensor]:
    """In the precision that programs draw in."""
    return {site: value.float() for site, value in truth.items()}


def planted(case: Case, seed: int) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """The true globals, rows to learn from, and as many to be scored."""
    model, generator = case.make(PLANTED), torch.Generator().manual_seed(seed)
    draw = {site: torch.randn(shape, generator=generator, dtype=torch.float64) for site, shape in model.shapes.items()}
    truth = {"weight": case.size * draw["weight"], "bias": 0.5 * draw["bias"]}
    truth |= {"scale": torch.tensor(1.0, dtype=torch.float64)} if "scale" in draw else {}
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        x = pyro.condition(model, data=_single(truth))(num_rows=2 * ROWS).double()
    return truth, x[:ROWS], x[ROWS:]


def held_out(case: Case, params: dict[str, Tensor], x: Tensor) -> float:
    """Mean log p(x_n) at the two longest components, the scores summed over by quadrature."""
    model = case.make(PLANTED)
    long = params["weight"].flatten(1).norm(dim=1).argsort(descending=True)[:PLANTED]
    kept = {site: params[site] for site in model.global_sites} | {"weight": params["weight"][long]}
    exact: Any = engine_for(model, "exact", **({} if isinstance(model, GaussianPCA) else {"nodes": 20}))
    return float(exact.log_evidence(model, kept, exact.rows(model, model.prepare(x, dtype=torch.float64))).mean())


def cosine(first: Tensor, second: Tensor) -> float:
    """Of the largest angle between the planes that the rows of two weights span; of logits without what all share."""
    planes = [weight - weight.mean(-1, keepdim=True) if weight.ndim == 3 else weight for weight in (first, second)]
    one, other = (torch.linalg.qr(plane.flatten(1).T)[0] for plane in planes)
    return float(torch.linalg.svdvals(one.T @ other).min())


def fitted(model: Model, guide: str, x: Tensor, init: Any = None, limit: int = 150) -> tuple[Any, float]:
    before = time.process_time()
    method = VariationalEM(guide=guide, search=None if init else Search(restarts=1), max_iterations=limit)
    fit = method.fit(model, x, seed=0, init=init, progress=False)
    return fit, time.process_time() - before


def engines_table() -> Table:
    table = Table(
        f"Recovery, {SEEDS} seeds",
        COLUMNS,
        note="min / median / max over the seeds. Exact EM takes six steps from where the variational one ends.",
    )
    for name, case in CASES.items():
        model, found = case.make(PLANTED), {}
        for seed in range(SEEDS):
            truth, train, test = planted(case, seed)
            best, start = held_out(case, truth, test), None
            for engine in sorted(engines_of(model), key=lambda one: one == "exact"):
                init = start if engine == "exact" else None
                fit, seconds = fitted(model, engine, train, init, 6 if init else 150)
                start = fit if engine == "variational" else start
                angle = cosine(fit.params["weight"], truth["weight"])
                found.setdefault(engine, []).append((held_out(case, fit.params, test) - best, angle, seconds))
        for engine, values in found.items():
            loss, angle, seconds = zip(*values, strict=True)
            table.rows.append([name, engine, spread(loss, 3), spread(angle, 3), spread(seconds, 2)])
            print(table.rows[-1], flush=True)
    return table


def components_table() -> Table:
    columns = ("model", "seeds with 2 kept", "components kept", COLUMNS[2], "CPU s")
    note = f'{OFFERED} components offered, `model.with_learned_scales(rows)`, "variational"; {PLANTED} are planted.'
    table = Table(f"Number of components, {SEEDS} seeds", columns, note=note)
    for name, case in CASES.items():
        if name == "Gaussian":
            continue
        kept, loss, times = [], [], []
        for seed in range(SEEDS):
            truth, train, test = planted(case, seed)
            fit, seconds = fitted(case.make(OFFERED).with_learned_scales(ROWS), "variational", train, limit=400)
            length = fit.params["weight"].flatten(1).norm(dim=1)
            kept.append(int((length > COUNTS * length.max()).sum()))
            loss.append(held_out(case, fit.params, test) - held_out(case, truth, test))
            times.append(seconds)
        right = f"{sum(number == PLANTED for number in kept)} of {SEEDS}"
        table.rows.append([name, right, f"{min(kept)} to {max(kept)}", spread(loss, 3), spread(times, 2)])
        print(table.rows[-1], flush=True)
    return table


def discriminative_table() -> Table:
    """Covariates (two of three matter) move the scores; log p(x | u) a row. Cosine: of the planes of the weights."""
    note = (
        "DiscriminativeCategoricalPCA with three covariates; log p(x | covariates). min / median / max over the seeds."
    )
    table = Table(f"Scores given covariates, {SEEDS} seeds", ("outputs", *COLUMNS[1:]), note=note)
    for outputs in ("categorical", "bernoulli", "gaussian"):
        found: dict[str, list[tuple[float, float, float]]] = {}
        model = _discriminative(outputs)
        for seed in range(SEEDS):
            truth, (train, given), (test, beside) = _planted_given(model, seed)
            best = _held_out_given(model, truth, test, beside)
            for engine in engines_of(model):
                if engine == "exact" and outputs != "gaussian":
                    continue  # a quadrature: what scores, and as good as "variational" where it fits
                before = time.process_time()
                method = VariationalEM(guide=engine, search=Search(restarts=1), max_iterations=150)
                fit = method.fit(model, train, covariates=given, progress=False)
                seconds = time.process_time() - before
                angle = cosine(fit.params["weight"], truth["weight"])
                loss = _held_out_given(model, fit.params, test, beside) - best
                found.setdefault(engine, []).append((loss, angle, seconds))
        for engine, values in found.items():
            loss, angle, seconds = zip(*values, strict=True)
            table.rows.append([outputs, engine, spread(loss, 3), spread(angle, 3), spread(seconds, 2)])
            print(table.rows[-1], flush=True)
    return table


def _discriminative(outputs: str) -> DiscriminativeCategoricalPCA:
    sizes: Any = {"num_components": PLANTED, "num_features": 15, "num_covariates": 3}
    return DiscriminativeCategoricalPCA(outputs=outputs, labels_per_row=20, **sizes)


def _planted_given(model: Any, seed: int) -> tuple[dict[str, Tensor], Any, Any]:
    """True globals; rows and covariates to learn from, and to be scored."""
    generator = torch.Generator().manual_seed(seed)
    draw = {site: torch.randn(shape, generator=generator, dtype=torch.float64) for site, shape in model.shapes.items()}
    truth = {"weight": 1.2 * draw["weight"], "bias": 0.5 * draw["bias"], "input_weight": draw["input_weight"]}
    truth["input_weight"][2] = 0.0
    truth |= {"scale": torch.tensor(1.0, dtype=torch.float64)} if "scale" in draw else {}
    given = torch.randn((2 * ROWS, 3), generator=generator, dtype=torch.float64)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        x = pyro.condition(model, data=_single(truth))(num_rows=2 * ROWS, covariates=given.float()).double()
    return truth, (x[:ROWS], given[:ROWS]), (x[ROWS:], given[ROWS:])


def _held_out_given(model: Any, params: dict[str, Tensor], x: Tensor, given: Tensor) -> float:
    settings = {} if model.outputs == "gaussian" else {"nodes": 20}
    exact: Any = engine_for(model, "exact", **settings)
    rows = exact.rows(model, model.prepare(x, covariates=given, dtype=torch.float64))
    kept = {site: params[site] for site in model.global_sites}
    return float(exact.log_evidence(model, kept, rows).mean())


def main() -> None:
    quiet_and_single_threaded()
    tables = [engines_table(), components_table(), discriminative_table()]
    print(write_report("factors_recovery", "Exponential-family PCA with known truth", tables, intro=INTRO))


if __name__ == "__main__":
    main()
