"""How well are ratings predicted? Bayesian matrix factorisation, with and without features of users and films.

    python -m benchmarks.quality.ratings [--data DIR] [--splits 6] [--ways NAME ...] [--held] [--choose] [--quick]

Writes ``benchmarks/results/ratings.{md,json}``, with --choose ``ratings_choice.{md,json}`` instead. MovieLens 100K by
title (99,392 ratings 1..5 of 943 users, 1664 films): the first tenth of a permutation by rng(split) is the test, the
rest training; predictions are clipped to 1..5 for RMSE and MAE. Everything by `fit` and `fit.predict`. CPU seconds,
one thread: from the columns to predictions, compilation apart. 90 % intervals are the mean -+ 1.645 standard deviations
of a rating, not clipped. Gibbs sampling is in single precision. Implicit: who rated what among the training ratings.
All: also occupation, sex, age, genre, year and numbers of ratings. Priors and features were chosen on a tenth of the
training ratings of splits 0-3 (--held measures there). Factors, chains and sweeps of Gibbs sampling are those of
``CANDIDATES`` with the least mean RMSE in about the time asked for on a tenth of the training ratings of splits 0-3,
fitted to the rest (--choose), of those as good within .0003 the one with most chains; no test rating is looked at.
Splits 2-5 are further tenths of the same ratings.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks._report import QUICK, RESULTS, Table, read_tables, write_report
from benchmarks.quality._common import add_data_option, cpu_seconds, quiet_and_single_threaded, require_data
from benchmarks.quality._ratings import Films
from custom_inference import Fit, fit
from ppl_models import PMF, DataWarning

#: A number asked for: RMSE of splits 0 and 1, and CPU seconds.
ASKED = {
    "VB": (0.884, 0.900, 0.7),
    "VB, all": (0.865, 0.876, 1.0),
    "Gibbs": (0.879, 0.894, 5.0),
    "Gibbs, all": (0.860, 0.871, 7.0),
}
Z = 1.645
#: Fits whose errors are averaged, of Gibbs sampling (standard deviation of one: .0004); where settings are chosen.
SEEDS, FEW = 5, 2
#: Differences of mean RMSE that say nothing: about the standard error of the means that settings are chosen by.
TIED = 0.0003
HELD_OUT, SETTINGS = "Held-out ratings", "Settings of Gibbs sampling"
#: Mean and standard deviation of the ratings of pairs.
Prediction = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Way:
    """factors: K; everything: whether covariates are given; method: None for the default; settings: of its fit. seeds:
    of so many fits errors are the mean."""

    factors: int = 10
    everything: bool = False
    method: Any = None
    settings: dict[str, Any] = field(default_factory=dict)
    seeds: int = 1

    def fit(self, films: Films, train: np.ndarray, seed: int = 0) -> Fit:
        data = films.ratings(train)
        given = films.everything(data) if self.everything else {}
        model: Any = PMF(num_components=self.factors)  # pyright: ignore[reportCallIssue]
        return fit(model, data, method=self.method, seed=seed, progress=False, **given, **self.settings)

    def predicted(self, films: Films, train: np.ndarray, test: np.ndarray, seed: int = 0) -> Prediction:
        found = self.fit(films, train, seed).predict((films.user[test], films.item[test]), uncertainty=True)
        return found.mean.numpy(), found.spread.numpy()

    def scored(self, films: Films, train: np.ndarray, test: np.ndarray) -> tuple[np.ndarray, float]:
        """RMSE, MAE and coverage, means over the seeds; the median of CPU seconds."""
        found, seconds = [], []
        for seed in range(self.seeds):
            (mean, total), spent = cpu_seconds(partial(self.predicted, films, train, test, seed))
            found.append(score(mean, total, films.value[test]))
            seconds.append(spent)
        return np.mean(found, 0), float(np.median(seconds))


class OnlyTheMean(Way):
    """The mean of the training ratings for every pair."""

    def predicted(self, films: Films, train: np.ndarray, test: np.ndarray, seed: int = 0) -> Prediction:
        value = films.value[train]
        return np.full(len(test), value.mean()), np.full(len(test), value.std())


def chains(factors: int, number: int, samples: int, everything: bool = False, implicit: bool = False) -> Way:
    """Gibbs sampling in single precision: chains of so many draws after 20 sweeps."""
    settings = {"num_samples": samples, "warmup": 20, "thin": 1, "chains": number, "implicit": implicit}
    settings["dtype"] = torch.float32
    return Way(factors, everything, "gibbs", settings, SEEDS)


#: (factors, chains, draws of each) that are tried; the seconds that were asked for.
CANDIDATES: dict[str, list[tuple[int, int, int]]] = {
    "Gibbs": [(15, 1, 300), (15, 2, 130), (20, 1, 280), (20, 2, 130)],
    "Gibbs, all": [(15, 4, 90), (20, 1, 340), (20, 2, 160), (20, 3, 100), (25, 2, 110)],
}


def chosen(name: str) -> tuple[int, int, int]:
    """The candidate with the least mean RMSE where they were compared, else the first; where several are as good, the
    one with most chains: several can be told to agree."""
    table = read_tables("ratings_choice").get(SETTINGS)
    rows = [row for row in table.rows if row[0] == name] if table is not None else []
    if not rows:
        return CANDIDATES[name][0]
    least = min(float(row[-2]) for row in rows)
    factors, number, samples = min(
        (row for row in rows if float(row[-2]) < least + TIED), key=lambda row: (-int(row[2]), row[-2])
    )[1:4]
    return int(factors), int(number), int(samples)


CHOSEN = {name: chosen(name) for name in CANDIDATES}
SEVERAL = {"restarts": 3, "sweeps": 22}
WAYS: dict[str, Way] = {
    "mean": OnlyTheMean(),
    "VB": Way(),
    "VB, implicit": Way(settings={"implicit": True}),
    "VB, all, one start": Way(everything=True, settings={"implicit": True, "restarts": 1}),
    "VB, all": Way(everything=True, settings={"implicit": True, **SEVERAL}),
    "Gibbs": chains(*CHOSEN["Gibbs"]),
    "Gibbs, implicit": chains(*CHOSEN["Gibbs, all"], implicit=True),
    "Gibbs, all": chains(*CHOSEN["Gibbs, all"], everything=True, implicit=True),
}


def choice(films: Films, splits: Sequence[int] = range(4)) -> Table:
    """RMSE of the candidates on a tenth of the training ratings."""
    columns = ["method", "factors", "chains", "draws of each", *(f"RMSE, split {s}" for s in splits), "mean", "CPU s"]
    table = Table(SETTINGS, columns, note=CHOICE)
    for name, candidates in CANDIDATES.items():
        everything, implicit = (name == "Gibbs, all",) * 2
        for one in candidates:
            found, seconds = [], []
            for split in splits:
                way = replace(chains(*one, everything, implicit), seeds=FEW)
                (error, *_), spent = way.scored(films, *films.split(split, held=True))
                found.append(error)
                seconds.append(spent)
            cells = [*(f"{each:.4f}" for each in found), f"{np.mean(found):.4f}", f"{np.median(seconds):.2f}"]
            table.rows.append([name, *one, *cells])
            print(table.rows[-1], flush=True)
    return table


def score(mean: np.ndarray, total: np.ndarray, truth: np.ndarray) -> tuple[float, float, float]:
    """RMSE, MAE, coverage of 90 % intervals."""
    error = np.clip(mean, 1, 5) - truth
    inside = np.abs(mean - truth) < Z * total
    return float(np.sqrt(np.mean(error**2))), float(np.abs(error).mean()), float(inside.mean())


def accuracy(films: Films, splits: Sequence[int], held: bool, ways: Sequence[str] = tuple(WAYS)) -> Table:
    """Of some ways; the rows of the others are those of the report, where its columns are the same."""
    columns = ["method", *(f"RMSE, split {s}" for s in splits), "MAE", "in 90 %", "CPU s", "asked: RMSE 0, 1; s", "met"]
    table = Table(HELD_OUT, columns, note=NOTE)
    former = read_tables("ratings").get(HELD_OUT)
    known = {row[0]: row for row in former.rows} if former and list(former.columns) == columns and not held else {}
    for name, way in WAYS.items():
        if name not in ways:
            table.rows += [known[name]] if name in known else []
            continue
        found, seconds = zip(*(way.scored(films, *films.split(split, held)) for split in splits), strict=True)
        error, absolute, inside = np.array(found).T
        asked, met = _asked(name, error, float(np.median(seconds)))
        rates = [f"{np.mean(absolute):.4f}", f"{np.mean(inside):.3f}", f"{np.median(seconds):.2f}"]
        table.rows.append([name, *(f"{one:.4f}" for one in error), *rates, asked, met])
        print(table.rows[-1], flush=True)
    return table


def _asked(name: str, error: np.ndarray, seconds: float) -> tuple[str, str]:
    if name not in ASKED or len(error) < 2:
        return "", ""
    first, second, most = ASKED[name]
    each = [error[0] <= first, error[1] <= second, seconds <= most]
    return f"{first:.3f}, {second:.3f}; {most:g}", ", ".join("yes" if one else "no" for one in each)


def new_users(films: Films, split: int = 0, number: int = 100) -> Table:
    """Users left out of a fit, then given their training ratings; beside the fit that had them."""
    train, test = films.split(split)
    new = np.random.default_rng(split).permutation(films.shape[0])[:number]
    mine, asked = np.isin(films.user[train], new), np.isin(films.user[test], new)
    pairs, truth = (films.user[test][asked], films.item[test][asked]), films.value[test][asked]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)  # of the users without ratings, which are meant
        full, rest = WAYS["VB"].fit(films, train), WAYS["VB"].fit(films, train[~mine])
    theirs = films.ratings(train[mine])
    given, seconds = cpu_seconds(lambda: rest.predict(pairs, ratings=theirs, uncertainty=True))
    cases = {"in the fit": (full.predict(pairs, uncertainty=True), None), "given afterwards": (given, seconds)}
    unknown = pairs[0] + films.shape[0], pairs[1]
    cases["not given"] = rest.predict(unknown, new="prior", uncertainty=True), None
    table = Table(
        f"{number} users left out of the fit (VB, split {split})",
        ["their ratings", "RMSE", "MAE", "in 90 %", "CPU ms a user"],
        note=f"{len(truth)} test ratings of users whom the fit did not know, {mine.sum()} training ratings of theirs.",
    )
    for name, (found, spent) in cases.items():
        error, absolute, inside = score(found.mean.numpy(), found.spread.numpy(), truth)
        cells = [f"{error:.4f}", f"{absolute:.4f}", f"{inside:.3f}"]
        table.rows.append([name, *cells, None if spent is None else f"{1000 * spent / number:.2f}"])
    return table


def _said(name: str) -> str:
    factors, number, samples = CHOSEN[name]
    many = "one chain" if number == 1 else f"{number} chains"
    return f"{factors} factors, {many} of {samples + 20} sweeps, the first 20 left out"


NOTE = (
    "MAE, coverage: means over the splits; CPU seconds: their median. VB: `fit(PMF(num_components=10), "
    "ratings)`; VB, all: an equal mixture of three starts of 22 sweeps. Gibbs: " + _said("Gibbs") + "; with implicit "
    "feedback " + _said("Gibbs, all") + f"; errors are means over {SEEDS} seeds."
)
CHOICE = (
    f"On a tenth of the training ratings, of fits to the other nine, means over {FEW} seeds. Asked for: "
    + ", ".join(f"{name} in {ASKED[name][2]:g} CPU s" for name in CANDIDATES)
    + "."
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--splits", type=int, default=6)
    parser.add_argument(
        "--ways", nargs="+", choices=list(WAYS), default=list(WAYS), metavar="NAME", help="rows to measure"
    )
    parser.add_argument("--held", action="store_true", help="on a tenth of the training ratings; only prints")
    parser.add_argument("--choose", action="store_true", help="compare settings of Gibbs sampling in that way")
    parser.add_argument("--quick", action="store_true", help="one split: does it run?")
    add_data_option(parser)
    options = parser.parse_args()
    folder = require_data(parser, options)
    quiet_and_single_threaded()
    films = Films.read(folder)
    compile_first = films.split(0)
    for method in ("vb", "gibbs"):
        few = {"sweeps": 1} if method == "vb" else {**chains(1, 1, 1).settings, "warmup": 1}
        Way(1, method=method, settings=few).predicted(films, *compile_first)
    if options.choose:
        print(write_report("ratings_choice", "Ratings: settings", [choice(films)], intro=INTRO, folder=RESULTS))
        return
    splits = range(1 if options.quick else options.splits)
    tables = [accuracy(films, splits, options.held, options.ways)]
    if options.held:
        return
    tables.append(new_users(films))
    print(write_report("ratings", "Ratings", tables, intro=INTRO, folder=QUICK if options.quick else RESULTS))


INTRO = (__doc__ or "").split("\n\n", 2)[2].strip()


if __name__ == "__main__":
    main()
