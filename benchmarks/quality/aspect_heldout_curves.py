"""Held-out likelihood of aspect Bernoulli and its rivals on three data sets (the paper, 3.2).

    python -m benchmarks.quality.aspect_heldout_curves [--data DIR]

Writes ``benchmarks/results/aspect_heldout_curves.{md,json}`` and a figure. Cross-validated empirical-Bayes likelihood
(eqs. 22-26): a new row's likelihood is averaged over the locals estimated for the training rows (a mixture sums over
its components instead). PLSA's (eq. 24) leaves the zeros out, so that its numbers are not comparable with the others'.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks._report import RESULTS, Table, write_report
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
SIZES = {"mammals": (1, 2, 3, 4, 5, 6, 8, 10), "newsgroups": (1, 2, 3, 4, 5, 6, 8, 10), "digits": (5, 10, 15, 20)}
#: Logistic PCA costs K^2 an entry and overfits early: up to this K.
LOGISTIC_UP_TO = {"mammals": 6, "newsgroups": 6, "digits": 10}
#: Rows of a data set at most, drawn at random.
FOLDS, ROWS = 5, 300

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


def cross_validated(method: str, data: Binary, k: int) -> tuple[float, float]:
    """Mean test log-likelihood of a row, and its standard error over the folds."""
    part = np.random.default_rng(0).permutation(len(data.x)) % FOLDS
    learn = METHODS[method]
    scores = [score(learn(data.x[part != f], k, f), data.x[part == f]) for f in range(FOLDS)]
    return float(np.mean(scores)), float(np.std(scores, ddof=1) / FOLDS**0.5)


def curve_table(data: Binary) -> Table:
    table = Table(
        f"Held-out log-likelihood (Fig. 3): {data.name}", ["method", *(f"K = {k}" for k in SIZES[data.name]), "best K"]
    )
    total = 0.0
    for method in METHODS:
        values, seconds = cpu_seconds(lambda m=method: [cross_validated(m, data, k) for k in sizes_of(m, data)])
        total += seconds
        row = [f"{mean:.2f} ± {error:.2f}" for mean, error in values]
        best = sizes_of(method, data)[int(np.argmax([mean for mean, _ in values]))]
        table.rows.append([method, *row, *[""] * (len(SIZES[data.name]) - len(row)), best])
        print(data.name, method, f"{seconds:.0f} CPU s", flush=True)
    table.note = (
        f"{len(data.x)} rows x {data.x.shape[1]}. Mean log-likelihood of a held-out row ± standard error over {FOLDS} "
        f"folds (random, the same for all). {total / 60:.1f} CPU min."
    )
    return table


def drawn(tables: list[Table]) -> dict[str, dict[str, list[tuple[int, float, float]]]]:
    """The curves, read back from the tables: data set -> method -> (K, mean, error)."""
    curves: dict[str, dict[str, list[tuple[int, float, float]]]] = {}
    for name, table in zip(LOADERS, tables, strict=True):
        for row in table.rows:
            points = [
                (k, *map(float, cell.split(" ± "))) for k, cell in zip(SIZES[name], row[1:-1], strict=True) if cell
            ]
            curves.setdefault(name, {})[row[0]] = points
    return curves


def some_rows(data: Binary) -> Binary:
    chosen = np.random.default_rng(1).permutation(len(data.x))[:ROWS]
    return replace(data, x=data.x[np.sort(chosen)])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_data_option(parser)
    folder = require_data(parser, parser.parse_args())
    quiet_and_single_threaded()
    tables = [curve_table(some_rows(load(folder))) for load in LOADERS.values()]
    tables[0].figures = [draw.save(draw.held_out(drawn(tables)), RESULTS, "aspect_heldout_curves")]
    print(write_report("aspect_heldout_curves", "Held-out likelihood", tables, intro=INTRO))


INTRO = (__doc__ or "").split("\n\n", 2)[2].strip()


if __name__ == "__main__":
    main()
