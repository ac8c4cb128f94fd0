"""Held-out likelihood of aspect Bernoulli and its rivals on three data sets, and their AIC and BIC (the paper, 3.2).

    python -m benchmarks.quality.aspect_heldout_curves [--folds 10] [--rows 2000] [--only mammals]

Writes ``benchmarks/results/aspect_heldout_curves.{md,json}`` and a figure. Cross-validated empirical-Bayes likelihood
(eqs. 22-26): a new row's likelihood is averaged over the locals estimated for the training rows (a mixture sums over
its components instead). PLSA's (eq. 24) leaves the zeros out, so that its numbers are not comparable with the others'.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._report import RESULTS, Table, read_tables, write_report
from benchmarks.quality import _aspect_plots as draw
from benchmarks.quality._aspect_data import Binary, digits, mammals, newsgroups
from benchmarks.quality._aspect_methods import (
    Topics,
    default_aspects,
    held_out,
    held_out_plsa,
    logistic_pca,
    mixture,
    plsa,
)
from benchmarks.quality._common import add_data_option, cpu_seconds, quiet_and_single_threaded, require_data

LOADERS = {"mammals": mammals, "newsgroups": newsgroups, "digits": digits}
#: Coarser than Bingham et al.'s.
SIZES = {
    "mammals": (1, 2, 3, 4, 5, 6, 8, 10, 15, 20),
    "newsgroups": (1, 2, 3, 4, 5, 6, 8, 10, 15, 20),
    "digits": (2, 5, 10, 15, 20),
}
#: Logistic PCA costs K^2 an entry and overfits early: up to this K.
LOGISTIC_UP_TO = {"mammals": 10, "newsgroups": 10, "digits": 10}


METHODS: dict[str, Callable[[np.ndarray, int, int], Any]] = {
    "AB": lambda x, k, seed: default_aspects(x, k, seed).fit,
    "mixture of Bernoullis": mixture,
    "logistic PCA": logistic_pca,
    "PLSA": plsa,
}


def sizes_of(method: str, data: Binary) -> list[int]:
    limit = LOGISTIC_UP_TO[data.name] if method == "logistic PCA" else max(SIZES[data.name])
    return [k for k in SIZES[data.name] if k <= limit]


def score(result: Any, test: np.ndarray) -> float:
    return held_out_plsa(result, test) if isinstance(result, Topics) else held_out(result, test)


def cross_validated(method: str, data: Binary, k: int, folds: int) -> tuple[float, float]:
    """Mean test log-likelihood of a row, and its standard error over the folds."""
    part = np.random.default_rng(0).permutation(len(data.x)) % folds
    learn = METHODS[method]
    scores = [score(learn(data.x[part != f], k, f), data.x[part == f]) for f in range(folds)]
    return float(np.mean(scores)), float(np.std(scores, ddof=1) / folds**0.5)


def curve_table(data: Binary, folds: int) -> Table:
    table = Table(_curve_title(data.name), ["method", *(f"K = {k}" for k in SIZES[data.name]), "best K"])
    total = 0.0
    for method in METHODS:
        values, seconds = cpu_seconds(lambda m=method: [cross_validated(m, data, k, folds) for k in sizes_of(m, data)])
        total += seconds
        row = [f"{mean:.2f} ± {error:.2f}" for mean, error in values]
        best = sizes_of(method, data)[int(np.argmax([mean for mean, _ in values]))]
        table.rows.append([method, *row, *[""] * (len(SIZES[data.name]) - len(row)), best])
        print(data.name, method, f"{seconds:.0f} CPU s", flush=True)
    table.note = (
        f"{len(data.x)} rows x {data.x.shape[1]}. Mean log-likelihood of a held-out row ± standard error over {folds} "
        f"folds (random, the same for all). {total / 60:.1f} CPU min."
    )
    return table


def _curve_title(name: str) -> str:
    return f"Held-out log-likelihood (Fig. 3): {name}"


def criteria_table(data: Binary) -> Table:
    """AIC and BIC on all rows, on eq. 27's scale: -L + P and -L + P log(N) / 2."""
    table = Table(
        f"AIC and BIC: {data.name}",
        ["method", *(f"K = {k}" for k in SIZES[data.name]), "smallest AIC", "smallest BIC"],
        note=(
            "AIC / BIC, both halved (eq. 27: -L + P; BIC: -L + P log(N) / 2); all rows. AB and logistic PCA count "
            "every row's locals as parameters; the mixture has none, so it is not on the same footing."
        ),
    )
    for method in list(METHODS)[:-1]:
        sizes = sizes_of(method, data)
        fits = [METHODS[method](data.x, k, 0) for k in sizes]
        # The likelihood is at point scores, so they are parameters; the model counts its globals alone.
        points = [len(data.x) * k if method == "logistic PCA" else 0 for k in sizes]
        price = np.log(len(data.x)) / 2
        pairs = [(fit.aic() / 2 + n, fit.bic() / 2 + n * price) for fit, n in zip(fits, points, strict=True)]
        best = [sizes[int(np.argmin([p[i] for p in pairs]))] for i in (0, 1)]
        blank = [""] * (len(SIZES[data.name]) - len(pairs))
        table.rows.append([method, *(f"{a:.0f} / {b:.0f}" for a, b in pairs), *blank, *(f"K = {k}" for k in best)])
    return table


def drawn(tables: dict[str, Table]) -> dict[str, dict[str, list[tuple[int, float, float]]]]:
    """The curves, read back from the tables: data set -> method -> (K, mean, error)."""
    curves: dict[str, dict[str, list[tuple[int, float, float]]]] = {}
    for name in LOADERS:
        table = tables.get(_curve_title(name))
        for row in table.rows if table else []:
            points = [
                (k, *map(float, cell.split(" ± "))) for k, cell in zip(SIZES[name], row[1:-1], strict=True) if cell
            ]
            curves.setdefault(name, {})[row[0]] = points
    return curves


def some_rows(data: Binary, rows: int) -> Binary:
    """At most this many rows, drawn at random."""
    chosen = np.random.default_rng(1).permutation(len(data.x))[:rows]
    return replace(data, x=data.x[np.sort(chosen)]) if rows < len(data.x) else data


def run(folder: Path, names: Sequence[str], folds: int, rows: int) -> None:
    tables = read_tables("aspect_heldout_curves")
    for name in names:
        data = some_rows(LOADERS[name](folder), rows)
        for table in (curve_table(data, folds), criteria_table(data)):
            tables[table.title] = table
        ordered = [tables[t] for n in LOADERS for t in (_curve_title(n), f"AIC and BIC: {n}") if t in tables]
        for table in ordered:
            table.figures = []
        file = draw.save(draw.held_out(drawn(tables)), RESULTS, "aspect_heldout_curves")
        ordered[0].figures = [file]
        meta = {"folds": folds}
        path = write_report("aspect_heldout_curves", "Held-out likelihood", ordered, meta, intro=INTRO)
        print(name, "->", path, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folds", type=int, default=10)
    parser.add_argument("--only", nargs="+", choices=list(LOADERS), default=list(LOADERS), help="these data sets")
    parser.add_argument("--rows", type=int, default=2000, help="at most this many rows of a data set, drawn at random")
    add_data_option(parser)
    arguments = parser.parse_args()
    folder = require_data(parser, arguments)
    quiet_and_single_threaded()
    run(folder, arguments.only, arguments.folds, arguments.rows)


INTRO = (__doc__ or "").split("\n\n", 2)[2].strip()


if __name__ == "__main__":
    main()
