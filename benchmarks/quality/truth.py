"""How far annealed estimates of log p(x_n) are from the truth, and what they cost, where sums are out of reach.

    python -m benchmarks.quality.truth [--data DIR] [--quick]

Cases: fits of real data. Models: those of rows without exact sums or quadrature, with many components, at globals drawn
from their priors (flat ones from their starting values), and rows drawn from them. Graphs: block models, at globals
drawn from their priors. Both sides: of rows that are drawn from the model log p(x_n) is estimated from below and from
above; the gap is the mean difference a row. One thread, CPU seconds; budgets are of the clock, and want a machine that
does nothing else.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from torch.distributions import constraints

import custom_inference as ci
from benchmarks._report import QUICK, RESULTS, Table, write_report
from benchmarks.quality._common import add_data_option, require_data
from custom_inference.checks.calibration.labels import prior_draw
from custom_inference.checks.reference import find_posterior_reference
from custom_inference.core.annealing.estimate import Budget, Estimated
from custom_inference.core.annealing.local import anneal_locals, sandwich
from custom_inference.core.latent_values import code_of
from custom_inference.core.local_inference import bounds_of, log_likelihood
from custom_inference.core.predictive import sample_rows
from custom_inference.core.programs.density import RowDensity
from custom_inference.core.programs.importance import sample_by_importance
from custom_inference.documents import samplers
from custom_inference.documents.scores import topic_prior
from custom_inference.families.rows.documents import DocumentRows
from ppl_models import (
    CVQ,
    LDA,
    MMSB,
    MODELS,
    NOCA,
    PMF,
    CovariateSBM,
    Data,
    HelmholtzMachine,
    Model,
    PPLError,
    RowModel,
    ratings,
)
from ppl_models.block_models import BlockModel
from ppl_models.core.sites import Site

SEED = 0
#: Rows that are drawn to be bounded from both sides, and tokens at most of documents that another method goes through.
DRAWN, LEFT_TO_RIGHT = 40, 120


@dataclass(frozen=True, kw_only=True, eq=False)
class Abilities(RowModel):
    """Item responses by several abilities: P(right) = logistic(ability' slope_j + easiness_j)."""

    num_abilities: int
    num_items: int

    axes: ClassVar = {"ability": "num_abilities", "item": "num_items"}
    sites: ClassVar = {
        "slope": Site("global", ("ability", "item"), support=constraints.real),
        "easiness": Site("global", ("item",), support=constraints.real),
        "theta": Site("latent", ("ability",), ("row",), constraints.real),
        "x": Site("observed", ("item",), ("row",), constraints.boolean),
    }

    def default_priors(self) -> dict[str, Any]:
        return {"slope": dist.Normal(0.0, 1.0), "easiness": dist.Normal(0.0, 1.0)}

    def __call__(self, x: Any = None, **plate: Any) -> Any:
        slope, easiness = self.sample("slope"), self.sample("easiness")
        with self.rows(x, **plate) as rows:
            zero = torch.zeros(self.num_abilities, dtype=slope.dtype)
            theta = pyro.sample("theta", dist.Normal(zero, 1.0).to_event(1))
            logits = (theta.unsqueeze(-2) @ slope).squeeze(-2) + easiness
            return rows.observe("x", dist.Bernoulli(logits=logits))


@dataclass(frozen=True)
class Case:
    """A model at globals, and rows; seconds: of the budget; other: what else estimates log p(x_n)."""

    name: str
    model: Model
    params: dict[str, torch.Tensor]
    data: Data
    seconds: float = 10.0
    other: Callable[[Case], tuple[torch.Tensor, torch.Tensor]] | None = None


def digits(level: float | None = 7.0) -> Any:
    from sklearn.datasets import load_digits

    pixels = load_digits().data
    return pixels if level is None else (pixels > level).astype(float)


def fitted(name: str, model: Model, x: Any, rows: int) -> Case:
    """The default fit of a model, and its first rows."""
    fit = ci.fit(model, x, progress=False, seed=SEED)
    params = {site: value.double() for site, value in fit.globals.items()}
    data = fit.model.as_read(fit.data).rows(torch.arange(min(rows, len(fit.data))))
    return Case(name, fit.model, params, data.to(dtype=torch.float64))


def read_documents(folder: Path) -> Any:
    """Counts of the 1,000 most frequent words in documents of newsgroups."""
    from scipy import sparse

    held = np.load(folder / "newsgroups4" / "newsgroups4.npz", allow_pickle=True)
    words = sparse.csr_matrix((held["data"], held["indices"], held["indptr"]), held["shape"])
    words = words[:, np.argsort(-np.asarray(words.sum(0)).ravel())[:1000]]
    return words[np.asarray(words.sum(1)).ravel() >= 20]


def left_to_right(case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    """log p(x_n) of the shorter documents by particles that take one token after the other, after a sweep over all
    before it, several times; not a number of longer ones."""
    rows, topic = DocumentRows.of(case.data), case.params["topic"]
    short = (rows.lengths <= LEFT_TO_RIGHT).nonzero()[:, 0]
    settings = {"particles": 100, "sweeps": 1, "runs": 8, "seed": SEED}
    prior = topic_prior(case.model, topic)
    found = samplers.left_to_right(topic, prior, DocumentRows.of(case.data.rows(short)), **settings)
    value, error = (torch.full_like(rows.lengths.double(), torch.nan) for _ in range(2))
    value[short], error[short] = found.log_mean, found.standard_error
    return value, error


def by_importance(case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    """log p(x_n) by many draws about the mode."""
    found = sample_by_importance(RowDensity.of(case.model, case.params, case.data), draws=10_000)
    return found.log_evidence, found.standard_error


def cases(quick: bool, folder: Path) -> Iterator[Case]:
    """The cases, fitted one after the other."""
    if quick:
        yield fitted("NOCA, 12 sources, digits", NOCA(num_components=12, num_features=64), digits(), 20)
        return
    rows = 200
    yield fitted("NOCA, 30 sources, digits", NOCA(num_components=30, num_features=64), digits(), rows)
    for size in (30, 40):
        yield fitted(f"CVQ, {size} sources, digits", CVQ(num_components=size, num_features=64), digits(None), rows)
    machine = HelmholtzMachine(layers=(40, 64))
    yield fitted("Helmholtz machine, 40 units, digits", machine, digits(), rows)
    rng = np.random.default_rng(SEED)
    words = read_documents(folder)
    case = fitted("LDA, 50 topics, newsgroups", LDA(num_topics=50, vocabulary_size=words.shape[1]), words, rows)
    yield replace(case, other=left_to_right)
    user, item = rng.integers(0, 300, 9000), rng.integers(0, 200, 9000)
    taste = rng.normal(size=(300, 8)), rng.normal(size=(200, 8))
    stars = np.clip(np.round(3 + (taste[0][user] * taste[1][item]).sum(1) / 3 + 0.7 * rng.normal(size=9000)), 1, 5)
    rated = ratings(np.stack([user, item, stars], 1))
    yield fitted("PMF, 10 factors, users", PMF.for_data(rated, 10), rated, rows)
    model = Abilities(num_abilities=5, num_items=40)
    params = {"slope": torch.as_tensor(rng.normal(size=(5, 40))), "easiness": torch.as_tensor(rng.normal(size=40))}
    x = sample_rows(model, params, rows, seed=SEED)["x"]
    data = model.prepare(x, dtype=torch.float64)
    yield Case("five abilities, a program of one's own", model, params, data, other=by_importance)


def estimate(case: Case) -> tuple[Estimated, float]:
    begin = time.process_time()
    found = anneal_locals(case.model, case.params, case.data, Budget(seconds=case.seconds), seed=SEED)
    return found, time.process_time() - begin


def both_sides(case: Case, steps: int) -> list[float]:
    """The gap a row of rows that are drawn from the model, and its standard error."""
    some = case.data.rows(torch.arange(min(DRAWN, len(case.data))))
    drawn = sample_rows(case.model, case.params, len(some), seed=SEED + 1, like=some)
    x, *others = case.model.sites_of("observed")
    given = {site: some.others[site] for site in case.model.sites_of("given") if site in some.others}
    given |= {site: drawn[site] for site in others}
    fresh = case.model.prepare(drawn[x], mask=some.mask, dtype=torch.float64, **given)
    code = code_of(case.model, case.params, fresh, drawn).reshape(len(some), -1)
    found = sandwich(case.model, case.params, fresh, code, Budget(seconds=case.seconds), steps, seed=SEED)
    return [found.gap, found.gap_error]


def line(case: Case) -> list[Any]:
    found, seconds = estimate(case)
    error, steps = found.standard_error, int(found.steps.double().median())
    gap = both_sides(case, 4 * steps)
    return [case.name, len(case.data), float(error.mean()), float(error.max()), *gap, seconds, *compare(case, found)]


def compare(case: Case, found: Estimated) -> list[Any]:
    """The mean difference a row from another method, and the share of rows within three standard errors of both."""
    if case.other is None:
        return ["", ""]
    value, error = case.other(case)
    some = value.isfinite()
    apart, error = (found.log_evidence - value)[some], torch.hypot(found.standard_error, error)[some]
    return [float(apart.mean()), float((apart.abs() < 3 * error).double().mean())]


COLUMNS = (
    "case", "rows", "mean standard error", "largest", "gap", "its error", "CPU seconds", "against another method",
    "within three errors",
)  # fmt: skip


def measure_cases(quick: bool, folder: Path) -> Table:
    others = f"left to right with 8 x 100 particles, in documents of up to {LEFT_TO_RIGHT} tokens; importance sampling"
    table = Table("Fits", COLUMNS, note=f"Nats a row. Other methods: {others}.")
    for case in cases(quick, folder):
        table.rows.append(line(case))
        print(table.rows[-1], flush=True)
    return table


def enlarge(model: Model) -> Model:
    """The model with 12 entries of its latent and 40 features, or as it is where that cannot be."""
    local, observed = model.sites[model.local_site], model.sites[model.observed_site]
    sizes = {model.axes[axis]: 12 for axis in local.dims if axis in model.axes}
    sizes |= {model.axes[axis]: 40 for axis in observed.dims if axis in model.axes and model.axes[axis] not in sizes}
    try:
        return type(model)(**{**model.settings(), **sizes})
    except (PPLError, TypeError):
        return model


def measure_models(quick: bool) -> Table:
    table = Table(
        "Models of rows without exact sums",
        ("model", *COLUMNS[1:7]),
        note="12 entries of the latent and 40 features where the model allows. Budgets of 8 s.",
    )
    for name, kind in MODELS.items():
        example = kind.example()
        if not example.model.rows_are_independent:
            continue
        case = case_of_model(example, quick)
        if "exact" in bounds_of(case.model):
            continue
        try:
            table.rows.append([name, *line(case)[1:7]])
        except PPLError as error:
            table.rows.append([name, str(error).partition("\n")[0][:80], *[""] * 5])
        print(table.rows[-1], flush=True)
    return table


def case_of_model(example: Any, quick: bool) -> Case:
    """A larger model with rows drawn from it, or the example where that cannot be."""
    model = example.model
    larger = model if quick else enlarge(model)
    try:
        if len(larger.sites_of("observed")) > 1:
            raise KeyError("responses, which the example has")
        params = {site: value.double() for site, value in prior_draw(larger, SEED).items()}
        x = sample_rows(larger, params, 20, seed=SEED)
        data = larger.as_read(larger.prepare(x[larger.observed_site], dtype=torch.float64))
    except (PPLError, ValueError, KeyError, TypeError):  # improper priors, or covariates: the example
        larger = model
        params = {site: value.double() for site, value in example.truth.items() if site in model.global_sites}
        data = model.as_read(model.prepare(example.data, dtype=torch.float64)).rows(torch.arange(20))
    return Case("", larger, params, data, 8.0)


def measure_graphs(quick: bool) -> Table:
    """Graphs drawn from block models, which are one row: the whole labeling, or all memberships."""
    columns = ("model", "nodes", "standard error of all", "a node", "gap a node", "its error", "CPU seconds")
    table = Table(
        "Graphs", columns, note="Four blocks, memberships of two; globals from the prior. Gaps: of four graphs."
    )
    kinds = [kind for kind in MODELS.values() if issubclass(kind, BlockModel | MMSB) and kind is not CovariateSBM]
    for kind in kinds:
        few = issubclass(kind, MMSB)
        model = kind(num_blocks=2 if few else 4, num_nodes=10 if quick else 20 if few else 200)
        params = {site: value.double() for site, value in prior_draw(model, SEED).items()}
        drawn = sample_rows(model, params, model.num_nodes, seed=SEED)
        data = model.as_read(model.prepare(drawn[model.observed_site], dtype=torch.float64))
        begin = time.process_time()
        found = find_posterior_reference(model, params, data, reference="ais", seconds=10.0, seed=SEED)
        seconds = time.process_time() - begin
        assert found.estimated is not None and found.check is not None
        error = float(found.estimated.standard_error)
        gap = [found.check.gap, found.check.gap_error]
        table.rows.append([kind.__name__, model.num_nodes, error, error / model.num_nodes, *gap, seconds])
        print(table.rows[-1], flush=True)
    return table


def measure_calibration(quick: bool) -> Table:
    """Intervals of three standard errors about estimates, over seeds, where the truth is known."""
    table = Table("Three standard errors hold", ("model", "runs", "share", "mean z", "sd of z"))
    for name in ("noca", "cvq", "gaussian_pca", "lda", "mixture_of_poissons", "logistic_pca"):
        example = MODELS[name].example()
        model = example.model
        data = model.as_read(model.prepare(example.data, dtype=torch.float64)).rows(torch.arange(30))
        params = {site: value.double() for site, value in example.truth.items() if site in model.global_sites}
        exact = log_likelihood(model, params, data, bound="exact")
        runs = [anneal_locals(model, params, data, Budget(seconds=3.0), seed=seed) for seed in range(2 if quick else 4)]
        z = torch.cat([(run.log_evidence - exact) / run.standard_error for run in runs])
        table.rows.append([name, len(z), float((z.abs() < 3).double().mean()), float(z.mean()), float(z.std())])
        print(table.rows[-1], flush=True)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_data_option(parser)
    parser.add_argument("--quick", action="store_true", help="a tiny run, which is no result")
    arguments = parser.parse_args()
    folder, quick = require_data(parser, arguments), arguments.quick
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    tables = [
        measure_cases(quick, folder),
        *(one(quick) for one in (measure_models, measure_graphs, measure_calibration)),
    ]
    print(write_report("truth", "Annealed estimates and the truth", tables, folder=QUICK if quick else RESULTS))


if __name__ == "__main__":
    main()
