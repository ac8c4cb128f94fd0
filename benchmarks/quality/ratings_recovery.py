"""Ratings, clicks and choices of known users and items: what each method finds, against the truth itself.

    python -m benchmarks.quality.ratings_recovery

Writes ``benchmarks/results/ratings_recovery.{md,json}``. 200 users and 60 items with two planted factors and biases. A
fifth of the ratings (of clicks, of choices) are left out; their log-likelihood a pair under what a fit predicts, the
uncertainty of the users (and of what else the method is uncertain of) included, less that under the true values.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

import custom_inference as ci
from benchmarks._report import Table, write_report
from benchmarks.quality._common import quiet_and_single_threaded, spread
from ppl_models import PMF, BilinearPMF, ChoicePMF, impressions, ratings

SEEDS, FACTORS, USERS, ITEMS, NOISE = 6, 2, 200, 60, 0.7
SHARE, CHOICES, SHOWN = 0.3, 20, 5
COLUMNS = ("method", "held-out log-likelihood, less the truth's", "RMSE, noise at best", "90 % intervals", "CPU s")
INTRO = (__doc__ or "").split("\n\n", 2)[2].strip()


class Planted:
    """User and item factors and biases, and the pairs that are learned from and held out."""

    def __init__(self, seed: int):
        self.rng = np.random.default_rng(seed)
        self.user, self.item = (self.rng.normal(size=(size, FACTORS)) for size in (USERS, ITEMS))
        self.bias = 0.5 * self.rng.normal(size=USERS)[:, None] + 0.5 * self.rng.normal(size=ITEMS)
        pairs = np.argwhere(self.rng.random((USERS, ITEMS)) < SHARE)
        held = self.rng.random(len(pairs)) < 0.2
        self.train, self.test = pairs[~held].T, pairs[held].T

    def known(self, value: Any) -> Any:
        """What is learned from, of the values of all pairs."""
        user, item = self.train
        return ratings(user, item, value[user, item], num_users=USERS, num_items=ITEMS)

    def ratings(self) -> tuple[Any, Any]:
        """Means of all pairs, and ratings."""
        mean = 3.5 + self.bias + 0.7 * self.user @ self.item.T
        return mean, mean + NOISE * self.rng.normal(size=mean.shape)


def normal_score(value: Any, mean: Any, deviation: Any) -> float:
    """Mean log density."""
    return float((-0.5 * np.square((value - mean) / deviation) - np.log(deviation) - 0.5 * np.log(2 * np.pi)).mean())


def rating_methods() -> dict[str, Callable[[Any], Any]]:
    sizes: Any = {"num_components": FACTORS, "num_items": ITEMS}

    def run(adaptive: bool, method: str) -> Callable[[Any], Any]:
        made = lambda data: PMF(num_users=len(data), adaptive=adaptive, **sizes)  # noqa: E731
        return lambda data: ci.fit(made(data), data, method=method, progress=False)

    return {
        "users integrated out (EM)": run(False, "em"),
        "points (ALS)": run(False, "map"),
        "points (SGD)": run(False, "sgd"),
        "VB, learned priors": run(True, "vb"),
        "VB, then Gibbs, learned priors": run(True, "gibbs"),
    }


def of_ratings(planted: Planted) -> dict[str, list[float]]:
    mean, value = planted.ratings()
    known = planted.known(value)
    test = value[tuple(planted.test)]
    best, found = normal_score(test, mean[tuple(planted.test)], NOISE), {}
    for name, fit_with in rating_methods().items():
        fit, seconds = timed(lambda run=fit_with: run(known))
        guess = fit.predict(tuple(planted.test), uncertainty=True)
        center, deviation = guess.mean.numpy(), guess.spread.numpy()
        low, high = (end.numpy() for end in guess.interval(0.9))
        error = float(np.sqrt(np.mean((test - center) ** 2)))
        covered = float(np.mean((low <= test) & (test <= high)))
        found[name] = [normal_score(test, center, deviation) - best, error, covered, seconds]
    return found


def timed(run: Callable[[], Any]) -> tuple[Any, float]:
    begun = time.process_time()
    return run(), time.process_time() - begun


def of_clicks(planted: Planted) -> dict[str, list[float]]:
    chance = 1 / (1 + np.exp(-1.5 * planted.user @ planted.item.T))
    value = (planted.rng.random(chance.shape) < chance).astype(float)
    test, right = value[tuple(planted.test)], chance[tuple(planted.test)]
    known = planted.known(value)
    model, found = BilinearPMF(num_components=FACTORS, num_users=USERS, num_items=ITEMS), {}
    for name, method in {"Gaussian bound": "gaussian", "messages, one pass after the other": "matchbox"}.items():
        fit, seconds = timed(lambda how=method: ci.fit(model, known, method=how, progress=False))
        guess = fit.predict(tuple(planted.test)).numpy()
        found[name] = [click_score(test, guess) - click_score(test, right), seconds]
    return found


def click_score(value: Any, chance: Any) -> float:
    chance = np.asarray(chance, float).clip(1e-9, 1 - 1e-9)
    return float((value * np.log(chance) + (1 - value) * np.log1p(-chance)).mean())


def of_choices(planted: Planted) -> dict[str, list[float]]:
    rng, logit = planted.rng, 1.5 * planted.user @ planted.item.T
    user = np.repeat(np.arange(USERS), CHOICES)
    shown = np.argsort(rng.random((len(user), ITEMS)), 1)[:, :SHOWN]
    at = logit[user[:, None], shown]
    place = np.argmax(at + rng.gumbel(size=at.shape), 1)
    held = rng.random(len(user)) < 0.2
    picked = shown[np.arange(len(user)), place]
    known = impressions(user[~held], shown[~held].tolist(), picked[~held], num_users=USERS)
    model = ChoicePMF.for_data(known, FACTORS, num_users=USERS, num_items=ITEMS)
    fit, seconds = timed(lambda: ci.fit(model, known, progress=False))
    guess = fit.predict((user[held], shown[held])).numpy()
    truth = at[held] - np.logaddexp.reduce(at[held], 1, keepdims=True)
    row = np.arange(held.sum())
    apart = np.log(guess[row, place[held]]).mean() - truth[row, place[held]].mean()
    return {"Gaussian bound": [float(apart), seconds]}


PARTS: dict[str, tuple[Callable[[Planted], dict[str, list[float]]], tuple[str, ...]]] = {
    "Ratings: PMF": (of_ratings, COLUMNS),
    "Clicks: BilinearPMF": (of_clicks, (*COLUMNS[:2], "CPU s")),
    "Choices: ChoicePMF": (of_choices, (*COLUMNS[:2], "CPU s")),
}


def measured(title: str) -> Table:
    run, columns = PARTS[title]
    found: dict[str, list[list[float]]] = {}
    for seed in range(SEEDS):
        for name, values in run(Planted(seed)).items():
            found.setdefault(name, []).append(values)
    table = Table(title, columns, note=f"min / median / max over {SEEDS} seeds.")
    for name, values in found.items():
        table.rows.append([name, *(spread(column, 3) for column in zip(*values, strict=True))])
        print(table.rows[-1], flush=True)
    return table


def main() -> None:
    quiet_and_single_threaded()
    tables = [measured(title) for title in PARTS]
    tables[0].note += f" The noise is {NOISE:g}."
    print(write_report("ratings_recovery", "Ratings with known truth", tables, intro=INTRO))


if __name__ == "__main__":
    main()
