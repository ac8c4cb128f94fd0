"""Counts of words, thinned: Poisson PCA and other factorisations by the log-likelihood of the tokens left out.

    python -m benchmarks.quality.counts [--data DIR] [--lines "Poisson PCA 10;Poisson PCA 20"] [--choose]

Lines that are not measured again keep what the report had of them. CPU seconds are of one thread and of the fit alone.
With --choose the settings are compared on the training counts, thinned again, instead.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks._report import RESULTS, Table, read_tables, write_report
from benchmarks.quality._common import add_data_option, quiet_and_single_threaded, require_data
from benchmarks.quality._counts_data import SHARE, Counts, counts, divergence, score
from benchmarks.quality._counts_methods import CHOICES, LINES, Fitted, unigram

TITLE, CHOSEN = "Four newsgroups, thinned", "Settings on the training counts"
NOTE = (
    "Poisson log-likelihood a test token of the rates fitted to four fifths of the tokens (constants left out, 1 % of "
    "the unigram mixed in); higher is better. Medians over seeds 0 to 4, least and most beside them. Divergence: the "
    "generalised Kullback-Leibler divergence of the training counts from the fitted rate, a training token, which is "
    "what both NMFs minimise; of the others it says how closely they fit. Poisson PCA with K factors learns an offset "
    "of every row beside them; the default, `fit(PoissonPCA(num_components=20), x)`, does not. Settings were chosen on "
    "the training tokens alone, by the table below. Lines without "
    "least and most are deterministic, or kept from an earlier report of one seed; times are compared within a run."
)
CHOSEN_NOTE = (
    "The same log-likelihood, of a fifth of the training tokens, from the other four fifths: medians over seeds 0 to "
    "2. Of every method the setting used above is the best within the time that it is given: 1.2 s of gamma-Poisson, 2 "
    "and 4.5 s of Poisson PCA with 10 and 20 factors (the whole training set takes a quarter more)."
)
COLUMNS = ("method", "factors", "log-likelihood a token", "least", "most", "divergence", "CPU s")
CHOSEN_COLUMNS = ("method", "settings", "log-likelihood a token", "CPU s")
_SEEDS, _CHOOSING_SEEDS = 5, 3


def runs(fitted: Fitted, train: Counts, test: Counts, number: int) -> list[tuple[float, float, float]]:
    """Score, divergence and CPU seconds of so many seeds."""
    found = []
    for seed in range(number):
        rate, seconds = fitted(train, seed)
        found.append((score(rate, train, test), divergence(rate, train), seconds))
    return found


def measured(names: Sequence[str], folder: Path) -> Table:
    """The lines asked for."""
    table, (train, test) = Table(TITLE, COLUMNS, note=NOTE), counts(folder)
    for name in names:
        line = LINES[name]
        scores, apart, seconds = zip(*runs(line.fitted, train, test, _SEEDS if line.seeds else 1), strict=True)
        spread = [min(scores), max(scores)] if line.seeds else [None, None]
        found = [median(scores), *spread, median(apart), median(seconds)]
        table.rows.append([name, line.num_factors or None, *found])
        print(table.rows[-1], flush=True)
    return table


def chosen(names: Sequence[str], folder: Path) -> Table:
    """The settings of these methods compared on the training counts, thinned again."""
    whole, _ = counts(folder)
    train = np.random.default_rng(1).binomial(whole, SHARE)
    table = Table(CHOSEN, CHOSEN_COLUMNS, note=CHOSEN_NOTE)
    for name in names:
        for setting, fitted in CHOICES[name].items():
            scores, _, seconds = zip(*runs(fitted, train, whole - train, _CHOOSING_SEEDS), strict=True)
            table.rows.append([name, setting, median(scores), median(seconds)])
            print(table.rows[-1], flush=True)
    return table


def merged(table: Table, before: dict[str, Table], order: Sequence[str]) -> Table:
    """With the lines of an earlier report that were not measured again, in this order."""
    old, fresh = before.get(table.title), {row[0] for row in table.rows}
    if old is not None and list(old.columns) == list(table.columns):
        table.rows += [row for row in old.rows if row[0] not in fresh and row[0] in order]
    table.rows.sort(key=lambda row: order.index(row[0]))
    return table


def main(arguments: Sequence[str] | None = None, *, results: Path = RESULTS) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_data_option(parser)
    parser.add_argument("--lines", help="names, separated by ';'; by default all")
    parser.add_argument("--choose", action="store_true", help="compare settings instead")
    given = parser.parse_args(arguments)
    folder = require_data(parser, given)
    quiet_and_single_threaded()
    names = given.lines.split(";") if given.lines else [*(CHOICES if given.choose else LINES)]
    _compile(names, folder)
    found = measured([] if given.choose else names, folder)
    settings = chosen(names, folder) if given.choose else Table(CHOSEN, CHOSEN_COLUMNS, note=CHOSEN_NOTE)
    before = read_tables("counts", folder=results)  # now: another process may have written meanwhile
    tables = [merged(found, before, [*LINES]), merged(settings, before, [*CHOICES])]
    write_report("counts", "Counts: Poisson PCA and other factorisations", tables, folder=results)


def _compile(names: Sequence[str], folder: Path) -> None:
    """A first run of each, of some rows: compiling, and loading what was compiled, is no part of the time."""
    train, _ = counts(folder)
    for line in (LINES[name] for name in names):
        if line.fitted is not unigram:
            line.fitted(train[:60], 0)


if __name__ == "__main__":
    main()
