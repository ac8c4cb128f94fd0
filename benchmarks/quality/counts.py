"""Counts of words, thinned: Poisson PCA and other factorisations by the log-likelihood of the tokens left out.

    python -m benchmarks.quality.counts [--data DIR]

CPU seconds are of one thread and of the fit alone.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import median

from benchmarks._report import Table, write_report
from benchmarks.quality._common import add_data_option, quiet_and_single_threaded, require_data
from benchmarks.quality._counts_data import Counts, counts, divergence, score
from benchmarks.quality._counts_methods import LINES, Fitted, unigram

_SEEDS = 3
NOTE = (
    "Poisson log-likelihood a test token of the rates fitted to four fifths of the tokens (constants left out, 1 % of "
    f"the unigram mixed in); higher is better. Medians over {_SEEDS} seeds, least and most beside them; lines without "
    "these are deterministic. Divergence: the generalised Kullback-Leibler divergence of the training counts from the "
    "fitted rate, a training token, which is what NMF minimises; of the others it says how closely they fit. Poisson "
    "PCA with K factors learns an offset of every row beside them; the default, `fit(PoissonPCA(num_components=20), "
    "x)`, does not. Settings were chosen on the training tokens alone, thinned again."
)
COLUMNS = ("method", "factors", "log-likelihood a token", "least", "most", "divergence", "CPU s")


def runs(fitted: Fitted, train: Counts, test: Counts, number: int) -> list[tuple[float, float, float]]:
    """Score, divergence and CPU seconds of so many seeds."""
    found = []
    for seed in range(number):
        rate, seconds = fitted(train, seed)
        found.append((score(rate, train, test), divergence(rate, train), seconds))
    return found


def measured(folder: Path) -> Table:
    table, (train, test) = Table("Four newsgroups, thinned", COLUMNS, note=NOTE), counts(folder)
    for name, line in LINES.items():
        if line.fitted is not unigram:
            line.fitted(train[:60], 0)  # compiling, and loading what was compiled, is no part of the time
        scores, apart, seconds = zip(*runs(line.fitted, train, test, _SEEDS if line.seeds else 1), strict=True)
        spread = [min(scores), max(scores)] if line.seeds else [None, None]
        found = [median(scores), *spread, median(apart), median(seconds)]
        table.rows.append([name, line.num_factors or None, *found])
        print(table.rows[-1], flush=True)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_data_option(parser)
    folder = require_data(parser, parser.parse_args())
    quiet_and_single_threaded()
    print(write_report("counts", "Counts: Poisson PCA and other factorisations", [measured(folder)]))


if __name__ == "__main__":
    main()
