"""Model criticism: posterior predictive checks of right and wrong models, leave-one-out without refits beside refits.

    python -m benchmarks.quality.model_criticism [--quick]

Writes ``benchmarks/results/model_criticism.{md,json}`` and figures beside it. For every kind of data, data sets are
drawn from a known model; it and a model that is too simple are fitted to them and checked. Leave-one-out is compared
with what it stands for: a refit without each row.
"""

from __future__ import annotations

import argparse
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from scipy.special import betaln, logsumexp
from scipy.stats import poisson

from benchmarks._report import QUICK, RESULTS, Table, write_report
from benchmarks.quality._common import quiet_and_single_threaded
from custom_inference import CollapsedGibbs, VariationalEM, fit, loo, posterior_predictive_check
from custom_inference.faces.drawing import INK, new_figure
from ppl_models import (
    CVQ,
    LDA,
    SBM,
    DegreeCorrectedSBM,
    MixtureOfBernoullis,
    MixtureOfCategoricals,
    MixtureOfPoissons,
    PoissonSBM,
    graph,
)

NAME = "model_criticism"


@dataclass(frozen=True)
class Case:
    """Data drawn with a seed, the model that they are from, and one that is too simple."""

    kind: str
    draw: Callable[[np.random.Generator], Any]
    right: Any
    wrong: Any
    simplification: str


def _binary(rng: np.random.Generator) -> Any:
    return 1.0 * (rng.random((200, 8)) < np.array([[0.75], [0.25]])[rng.integers(2, size=200)])


def _counts(rng: np.random.Generator) -> Any:
    return rng.poisson(rng.gamma(1.0, 4.0, (3, 6))[rng.integers(3, size=200)]).astype(float)


def _documents(rng: np.random.Generator) -> Any:
    topics = rng.dirichlet(np.full(40, 0.1), 3)
    return np.stack([rng.multinomial(60, p) for p in rng.dirichlet(np.full(3, 0.3), 120) @ topics]).astype(float)


def _real(rng: np.random.Generator) -> Any:
    sources = rng.random((250, 3)) < 0.4
    return sources @ rng.normal(0, 1.5, (3, 6)) + 0.5 * rng.normal(size=(250, 6))


def _categories(rng: np.random.Generator) -> Any:
    table = rng.dirichlet(np.full(3, 0.4), (2, 6))
    chosen = table[rng.integers(2, size=200)]
    return (rng.random((200, 6, 1)) > chosen.cumsum(-1)).sum(-1).astype(float)


def _blocks(rng: np.random.Generator) -> Any:
    block = np.repeat([0, 1], 25)
    upper = np.triu(rng.random((50, 50)) < np.where(block[:, None] == block, 0.35, 0.05), 1)
    return graph(1.0 * (upper + upper.T), directed=False)


def _degrees(rng: np.random.Generator) -> Any:
    block, propensity = np.repeat([0, 1], 25), rng.gamma(1.5, 1 / 1.5, 50)
    rate = np.where(block[:, None] == block, 0.5, 0.08) * propensity[:, None] * propensity
    upper = np.triu(rng.poisson(rate), 1)
    return graph(1.0 * (upper + upper.T), directed=False)


_CLASSES: dict[str, Any] = {"num_features": 6}
_GRAPH: dict[str, Any] = {"num_nodes": 50, "directed": False}
CASES = (
    Case("binary", _binary, MixtureOfBernoullis(num_components=2, num_features=8),
         MixtureOfBernoullis(num_components=1, num_features=8), "independent columns"),
    Case("counts", _counts, MixtureOfPoissons(num_components=3, **_CLASSES),
         MixtureOfPoissons(num_components=1, **_CLASSES), "one Poisson rate a column"),
    Case("documents", _documents, LDA(num_topics=3, vocabulary_size=40), LDA(num_topics=1, vocabulary_size=40),
         "one topic"),
    Case("real", _real, CVQ(num_components=3, **_CLASSES), CVQ(num_components=1, **_CLASSES), "one source of three"),
    Case("categories", _categories, MixtureOfCategoricals(num_components=2, num_categories=3, **_CLASSES),
         MixtureOfCategoricals(num_components=1, num_categories=3, **_CLASSES), "independent questions"),
    Case("graph, blocks", _blocks, SBM(num_blocks=2, **_GRAPH), SBM(num_blocks=1, **_GRAPH), "one block"),
    Case("graph, degrees", _degrees, DegreeCorrectedSBM(num_blocks=2, **_GRAPH), PoissonSBM(num_blocks=2, **_GRAPH),
         "nodes of a block alike"),
)  # fmt: skip


def checks(seeds: int, num_samples: int, cases: Sequence[Case] = CASES) -> tuple[Table, Table, dict[str, Any]]:
    """How often each model is found wanting, and by what; and one check of each wrong model, for figures."""
    table = Table(
        "Posterior predictive checks",
        ("data", "fitted", "found wanting", "statistics found", "most often"),
        note=(
            f"{seeds} data sets each, {num_samples} copies. A model is found wanting where the verdict names a "
            "statistic: p below .05 / (number of statistics), all statistics of the kind of data looked at. The right "
            "model should not be, the wrong one should."
        ),
    )
    p_values = Table(
        "p-values of the right models",
        ("data", "statistics", "p < .05", "p < .2", "p > .5", "median"),
        note="Over data sets and statistics. Uniform: .05, .2, .5, .5; these use the data twice, and are larger.",
    )
    examples = {}
    for case in cases:
        for which, model in (("right", case.right), ("wrong", case.wrong)):
            found = [_one(case, model, seed, num_samples) for seed in range(seeds)]
            named = Counter(name for check in found for name in check.extreme)
            share = f"{sum(bool(check.extreme) for check in found)} of {seeds}"
            often = ", ".join(f"{name} ({count})" for name, count in named.most_common(4))
            label = "the model" if which == "right" else case.simplification
            table.rows.append([case.kind, label, share, round(sum(named.values()) / seeds, 2), often])
            print(table.rows[-1], flush=True)
            if which == "wrong":
                examples[case.kind] = found[0]
                continue
            p = np.concatenate([check.table["p_value"].to_numpy() for check in found])
            shares = [round(float(one.mean()), 3) for one in (p < 0.05, p < 0.2, p > 0.5)]
            p_values.rows.append([case.kind, len(found[0].table), *shares, round(float(np.median(p)), 3)])
    return table, p_values, examples


def _one(case: Case, model: Any, seed: int, num_samples: int) -> Any:
    data = case.draw(np.random.default_rng(seed))
    found = fit(model, data, seed=seed, progress=False)
    return posterior_predictive_check(found, num_samples=num_samples, seed=seed, progress=False)


# ----- leave-one-out --------------------------------------------------------------------------------------


def closed_form(x: np.ndarray) -> np.ndarray:
    """log p(x_n | x_-n) of independent Bernoulli columns with Beta(1, 1) priors."""
    on, off = 1 + x.sum(0), 1 + (1 - x).sum(0)
    return (betaln(on, off) - betaln(on - x, off - (1 - x))).sum(1)


def refitted(model: Any, x: np.ndarray, sampler: CollapsedGibbs) -> np.ndarray:
    """log p(x_n | x_-n) of a mixture of Poissons: by a chain without each row, the mean of p(x_n | draw)."""
    found = []
    for n in range(len(x)):
        draws = sampler.fit(model, np.delete(x, n, 0), seed=n, progress=False).draws
        share, rate = (draws[site].flatten(0, 1).numpy() for site in ("mixing_proportion", "rate"))
        each = logsumexp(np.log(share) + poisson.logpmf(x[n], rate).sum(-1), axis=1)
        found.append(logsumexp(each) - np.log(len(each)))
    return np.array(found)


def leave_one_out(num_draws: int, rows: int) -> tuple[Table, dict[str, tuple[np.ndarray, Any]]]:
    """loo beside the closed form, and beside refits, for draws of a chain and for variational Bayes."""
    table = Table(
        "Leave-one-out",
        ("problem", "fit", "exact", "loo", "largest error of a row", "Pareto k above limit", "largest k", "k of q"),
        note=(
            "elpd in nats, its error the largest over the rows. Exact: in closed form, or by a chain without each row "
            f"({rows} refits). k of q: Pareto k of the weights p / q of the approximate posterior as a whole."
        ),
    )
    rng = np.random.default_rng(0)
    answers = 1.0 * (rng.random((rows, 5)) < 0.3)
    counts = rng.poisson(np.array([[1.0, 6.0, 2.0], [6.0, 1.0, 2.0]])[rng.integers(2, size=rows)]).astype(float)
    outlier = counts.copy()
    outlier[0] = [14.0, 14.0, 14.0]
    sampler = CollapsedGibbs(num_samples=num_draws // 2, warmup=50, thin=2, chains=2)
    bernoulli = MixtureOfCategoricals(num_components=1, num_features=5, num_categories=2)
    mixture = MixtureOfPoissons(num_components=2, num_features=3)
    problems = (
        ("Bernoulli columns, closed form", bernoulli, answers, closed_form(answers)),
        ("two classes of counts, refits", mixture, counts, refitted(mixture, counts, sampler)),
        ("the same with an outlier, refits", mixture, outlier, refitted(mixture, outlier, sampler)),
    )
    pairs = {}
    for title, model, x, exact in problems:
        for method in (sampler, VariationalEM(guide="vb")):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # the Pareto k are in the table
                found = loo(method.fit(model, x, progress=False), num_draws=num_draws, progress=False)
            bad, own = int((found.pareto_k > found.good_k).sum()), found.approximation_k
            errors = np.abs(found.pointwise - exact)
            table.rows.append([
                title, method.name, round(float(exact.sum()), 3), round(found.elpd, 3), round(float(errors.max()), 4),
                f"{bad} of {len(x)}", round(float(found.pareto_k.max()), 2), None if own is None else round(own, 2),
            ])  # fmt: skip
            print(table.rows[-1], flush=True)
            pairs[f"{title}; {method.name}"] = (exact, found)
    return table, pairs


def plot_loo(pairs: dict[str, tuple[np.ndarray, Any]]) -> Figure:
    """Every row's estimate against the exact value; crosses where Pareto k is above its limit."""
    figure = new_figure(10.5, 6.6)
    panels = figure.subplots(2, -(-len(pairs) // 2), squeeze=False).T.flat
    for axes, (title, (exact, found)) in zip(panels, pairs.items(), strict=False):
        bad = found.pareto_k > found.good_k
        ends = [min(exact.min(), found.pointwise.min()), max(exact.max(), found.pointwise.max())]
        axes.plot(ends, ends, color="#9a9a9a", linewidth=1)
        axes.plot(exact[~bad], found.pointwise[~bad], ".", color=INK, markersize=5)
        axes.plot(exact[bad], found.pointwise[bad], "x", color="#c8510c", markersize=7)
        axes.set_title(title.replace("; ", "\n"), fontsize=9)
        axes.set(xlabel="exact log p of a row, the others given", ylabel="loo")
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def main(arguments: Sequence[str] | None = None, *, folder: Path | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one seed and few draws")
    options = parser.parse_args(arguments)
    quiet_and_single_threaded()
    quick = options.quick
    folder = folder or (QUICK if quick else RESULTS)
    seeds, cases = (1, CASES[:2]) if quick else (3, CASES)
    table, p_values, examples = checks(seeds, 30 if quick else 200, cases)
    accuracy, pairs = leave_one_out(100 if quick else 1000, 8 if quick else 20)
    folder.mkdir(parents=True, exist_ok=True)
    figures = []
    for kind, check in examples.items():
        if kind in ("counts", "graph, degrees"):
            figures.append(f"{NAME}_{kind.replace(', ', '_')}.png")
            check.plot().savefig(folder / figures[-1])
    examples["counts"].plot("rootogram").savefig(folder / f"{NAME}_rootogram.png")
    table.figures = [*figures, f"{NAME}_rootogram.png"]
    plot_loo(pairs).savefig(folder / f"{NAME}_loo.png")
    accuracy.figures = [f"{NAME}_loo.png"]
    write_report(NAME, "Model criticism", [table, p_values, accuracy], folder=folder)


if __name__ == "__main__":
    main()
