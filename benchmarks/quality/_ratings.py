"""MovieLens 100K by title, its splits, and the features of its users and films."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from custom_inference.families.ratings.features import implicit_feedback
from custom_inference.families.ratings.incidence import Incidence

AGES = (18, 25, 35, 45, 50, 56)
YEARS = (1940, 1950, 1960, 1970, 1980, 1985, 1990, 1993, 1994, 1995, 1996, 1997, 1998)
#: Blocks of features of (users, items).
Blocks = tuple[list[Any], list[Any]]


@dataclass(frozen=True)
class Films:
    """user, item, value (M,); about: what is known of users and films."""

    user: np.ndarray
    item: np.ndarray
    value: np.ndarray
    shape: tuple[int, int]
    about: dict[str, np.ndarray]

    @classmethod
    def read(cls, folder: Path) -> Films:
        # Two columns are arrays of Python strings, which NumPy reads as pickles only.
        with np.load(folder / "movielense" / "MovieLense.npz", allow_pickle=True) as data:
            about = {name: data[name] for name in ("age", "sex", "occupation", "year", "genre")}
            users, items = (int(size) for size in data["shape"])
            return cls(data["u"], data["i"], data["r"].astype(float), (users, items), about)

    def split(self, seed: int, held: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Training and test ratings: a tenth of a permutation is the test; ``held``: again, of the training ratings."""
        order = np.random.default_rng(seed).permutation(len(self.value))
        test, train = np.split(order, [len(order) // 10])
        if held:
            test, train = np.split(train, [len(train) // 10])
        return train, test

    def incidence(self, of: np.ndarray) -> Incidence:
        return Incidence.of(self.user[of], self.item[of], self.value[of], *self.shape)

    def implicit(self, ratings: Incidence) -> Blocks:
        """Who rated what, of the training ratings."""
        users, items = ratings.users, ratings.items
        return [implicit_feedback(users, items.counts)], [implicit_feedback(items, users.counts)]

    def everything(self, ratings: Incidence) -> Blocks:
        """Implicit feedback; occupation, sex, age, genre, year; numbers of ratings."""
        about, (users, items) = self.about, self.implicit(ratings)
        number = [np.log(np.maximum(side.counts, 1)) for side in (ratings.users, ratings.items)]
        year = np.where(about["year"] > 1900, about["year"], 1990)
        bands = one_hot(np.digitize(about["age"], AGES))
        users += [sp.hstack([one_hot(about["occupation"]), one_hot(about["sex"]), bands])]
        users += [standard(number[0], number[0] ** 2, about["age"])]
        smooth = standard(number[1], number[1] ** 2, year)
        items += [about["genre"].astype(float), sp.hstack([one_hot(np.digitize(year, YEARS)), smooth])]
        return users, items


def one_hot(values: np.ndarray) -> sp.csr_array:
    _, index = np.unique(values, return_inverse=True)
    return sp.csr_array((np.ones(len(index)), (np.arange(len(index)), index)))


def standard(*columns: np.ndarray) -> np.ndarray:
    x = np.column_stack(columns).astype(float)
    return (x - x.mean(0)) / x.std(0)
