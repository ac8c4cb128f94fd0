"""How well are ratings predicted? Bayesian matrix factorisation, with and without features of users and films.

    python -m benchmarks.quality.ratings [--data DIR]

Writes ``benchmarks/results/ratings.{md,json}``. MovieLens 100K by title (99,392 ratings 1..5 of 943 users, 1664 films):
the first tenth of a permutation by rng(split) is the test, the rest training; predictions are clipped to 1..5 for RMSE
and MAE. Everything by `fit` and `fit.predict`. CPU seconds, one thread: from the columns to predictions, compilation
apart. 90 % intervals are the mean -+ 1.645 standard deviations of a rating, not clipped. Gibbs sampling is in single
precision. Implicit: who rated what among the training ratings. All: also occupation, sex, age, genre, year and numbers
of ratings. Priors, features, and factors, chains and sweeps of Gibbs sampling were chosen on a tenth of the training
ratings; no test rating was looked at.
"""

from __future__ import annotations

import argparse
import warnings
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks._report import Table, write_report
from benchmarks.quality._common import add_data_option, cpu_seconds, quiet_and_single_threaded, require_data
from benchmarks.quality._ratings import Films
from custom_inference import Fit, fit
from ppl_models import PMF, DataWarning

Z = 1.645
#: Splits, and fits whose errors are averaged, of Gibbs sampling (standard deviation of one: .0004).
SPLITS, SEEDS = (0, 1), 2
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


#: Factors, chains and draws of each.
PLAIN, ALL = (20, 2, 130), (20, 3, 100)
SEVERAL = {"restarts": 3, "sweeps": 22}
WAYS: dict[str, Way] = {
    "mean": OnlyTheMean(),
    "VB": Way(),
    "VB, implicit": Way(settings={"implicit": True}),
    "VB, all, one start": Way(everything=True, settings={"implicit": True, "restarts": 1}),
    "VB, all": Way(everything=True, settings={"implicit": True, **SEVERAL}),
    "Gibbs": chains(*PLAIN),
    "Gibbs, implicit": chains(*ALL, implicit=True),
    "Gibbs, all": chains(*ALL, everything=True, implicit=True),
}


def score(mean: np.ndarray, total: np.ndarray, truth: np.ndarray) -> tuple[float, float, float]:
    """RMSE, MAE, coverage of 90 % intervals."""
    error = np.clip(mean, 1, 5) - truth
    inside = np.abs(mean - truth) < Z * total
    return float(np.sqrt(np.mean(error**2))), float(np.abs(error).mean()), float(inside.mean())


def accuracy(films: Films) -> Table:
    table = Table("Held-out ratings", ["method", *(f"RMSE, split {s}" for s in SPLITS), "MAE", "in 90 %", "CPU s"])
    table.note = NOTE
    for name, way in WAYS.items():
        found, seconds = zip(*(way.scored(films, *films.split(split)) for split in SPLITS), strict=True)
        error, absolute, inside = np.array(found).T
        rates = [f"{np.mean(absolute):.4f}", f"{np.mean(inside):.3f}", f"{np.median(seconds):.2f}"]
        table.rows.append([name, *(f"{one:.4f}" for one in error), *rates])
        print(table.rows[-1], flush=True)
    return table


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


def _said(factors: int, number: int, samples: int) -> str:
    many = "one chain" if number == 1 else f"{number} chains"
    return f"{factors} factors, {many} of {samples + 20} sweeps, the first 20 left out"


NOTE = (
    "MAE, coverage: means over the splits; CPU seconds: their median. VB: `fit(PMF(num_components=10), "
    "ratings)`; VB, all: an equal mixture of three starts of 22 sweeps. Gibbs: " + _said(*PLAIN) + "; with implicit "
    "feedback " + _said(*ALL) + f"; errors are means over {SEEDS} seeds."
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_data_option(parser)
    folder = require_data(parser, parser.parse_args())
    quiet_and_single_threaded()
    films = Films.read(folder)
    for method in ("vb", "gibbs"):  # compiles
        few = {"sweeps": 1} if method == "vb" else {**chains(1, 1, 1).settings, "warmup": 1}
        Way(1, method=method, settings=few).predicted(films, *films.split(0))
    print(write_report("ratings", "Ratings", [accuracy(films), new_users(films)], intro=INTRO))


INTRO = (__doc__ or "").split("\n\n", 2)[2].strip()


if __name__ == "__main__":
    main()
