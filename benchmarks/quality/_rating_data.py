"""Ratings for the curves: MovieLens by split, and ratings with biases that drift, drawn on its pairs."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class Ratings(NamedTuple):
    """user, item, value (M,), time (M,) in [0, 1), train (M,) bool; sizes; titles of the items."""

    user: Array
    item: Array
    value: Array
    time: Array
    train: Array
    num_users: int
    num_items: int
    titles: list[str]

    def part(self, train: bool) -> tuple[Array, Array, Array]:
        chosen = self.train if train else ~self.train
        return self.user[chosen], self.item[chosen], self.value[chosen]

    @property
    def sizes(self) -> dict[str, int]:
        return {"num_users": self.num_users, "num_items": self.num_items}


def movielens(folder: Path, split: int) -> Ratings:
    """A tenth held out: the first of a permutation by ``split``. The file has no times: all are 0."""
    with np.load(folder / "movielense" / "MovieLense.npz") as file:
        user, item, value = file["u"].astype(np.int64), file["i"].astype(np.int64), file["r"].astype(float)
        users, items = (int(size) for size in file["shape"])
        titles = [str(title) for title in file["items"]]
    train = np.ones(len(value), dtype=bool)
    train[np.random.default_rng(split).permutation(len(value))[: len(value) // 10]] = False
    return Ratings(user, item, value, np.zeros(len(value)), train, users, items, titles)


def drifting(like: Ratings, seed: int = 0, drift: float = 0.6, of_users: float = 0.5) -> Ratings:
    """Ratings drawn on the same pairs: two factors, biases of users (sd .4) and of items (sd .5), each with one slow
    wave of random phase, of amplitude ``drift``, or ``of_users``; noise with sd .8. Which ratings are held out has
    nothing to do with time."""
    rng = np.random.default_rng(seed)
    u, v = (rng.normal(size=(size, 2)) * 0.6 for size in (like.num_users, like.num_items))
    f, g = 0.4 * rng.normal(size=like.num_users), 0.5 * rng.normal(size=like.num_items)
    phase, time = rng.random(like.num_items), rng.random(len(like.user))
    wave = drift * np.sin(2 * np.pi * (time + phase[like.item]))
    wave += of_users * np.sin(2 * np.pi * (time + rng.random(like.num_users)[like.user]))
    mean = 3.5 + f[like.user] + g[like.item] + wave + (u[like.user] * v[like.item]).sum(1)
    return like._replace(value=mean + 0.8 * rng.normal(size=len(mean)), time=time)
