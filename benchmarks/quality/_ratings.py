"""MovieLens 100K by title, its splits, and the features of its users and films."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ppl_models import Ratings, ratings

AGES = (18, 25, 35, 45, 50, 56)
YEARS = (1940, 1950, 1960, 1970, 1980, 1985, 1990, 1993, 1994, 1995, 1996, 1997, 1998)
#: Blocks of covariates by name, (N, P) each.
Blocks = dict[str, np.ndarray]


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

    def split(self, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Training and test ratings: a tenth of a permutation is the test."""
        order = np.random.default_rng(seed).permutation(len(self.value))
        test, train = np.split(order, [len(order) // 10])
        return train, test

    def ratings(self, of: np.ndarray) -> Ratings:
        return ratings(self.user[of], self.item[of], self.value[of], num_users=self.shape[0], num_items=self.shape[1])

    def everything(self, given: Ratings) -> dict[str, Blocks]:
        """Occupation, sex, age, genre, year; numbers of ratings, of those given."""
        about = self.about
        number = [np.log(np.maximum(np.bincount(place.numpy(), minlength=size), 1))
                  for place, size in zip((given.user, given.item), self.shape, strict=True)]  # fmt: skip
        year = np.where(about["year"] > 1900, about["year"], 1990)
        bands = one_hot(np.digitize(about["age"], AGES))
        who = np.concatenate([one_hot(about["occupation"]), one_hot(about["sex"]), bands], 1)
        numbers = standard(number[0], number[0] ** 2, about["age"])
        when = [one_hot(np.digitize(year, YEARS)), standard(number[1], number[1] ** 2, year)]
        films = {"genre": about["genre"].astype(float), "year": np.concatenate(when, 1)}
        return {"user_covariates": {"who": who, "numbers": numbers}, "item_covariates": films}


def one_hot(values: np.ndarray) -> np.ndarray:
    names, index = np.unique(values, return_inverse=True)
    return np.eye(len(names))[index]


def standard(*columns: np.ndarray) -> np.ndarray:
    x = np.column_stack(columns).astype(float)
    return (x - x.mean(0)) / x.std(0)
