"""Measures of predicted ratings of M pairs (user, item): of each user, and their mean over the users.

Murphy (2012), section 27.6.2, has the root mean square error (eq. 27.84); the others are those of information
retrieval. The pairs of a user are ranked by their predictions, the highest first. Pairs with equal predictions have no
order: the measures are means over all orders of them (average precision: the precision where such a group ends), so
that none depends on the order of the data. With r_j the value at rank j of the n of a user, and rel_j whether it is
relevant:

    precision at k        sum_(j <= k) rel_j / k
    recall at k           sum_(j <= k) rel_j / sum_j rel_j
    NDCG at k             DCG / its largest value over all orders,  DCG = sum_(j <= min(k, n)) gain(r_j) / log2(1 + j)
    average precision     sum_j rel_j (precision at j) / sum_j rel_j

Users for whom a measure is not defined (no relevant pair, no gain) have NaN and do not count in the mean.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from ppl_models import DataError, MethodError
from ppl_models.core.errors import unknown_name
from ppl_models.data.held import is_whole, to_numpy

Array = NDArray[np.float64]
#: Numbers or labels of M pairs, (M,): a list, an array, a tensor, a column of a frame.
Column = ArrayLike


def rmse(prediction: Column, value: Column, user: Column | None = None, *, average: bool = True) -> Any:
    """sqrt(mean (prediction - value)^2) (Murphy 2012, eq. 27.84), in the unit of the ratings, over all M pairs.

    user (M,): labels; the root is then taken for each user, and averaged over the users. average=False: an array with
    the users' values in the order of their sorted labels.

    Raises DataError for arrays of different lengths, without pairs, or with values that are not finite.
    """
    guess, found = _arrays(prediction=prediction, value=value)
    return _mean((guess - found) ** 2, user, average, np.sqrt)


def mae(prediction: Column, value: Column, user: Column | None = None, *, average: bool = True) -> Any:
    """mean |prediction - value|, in the unit of the ratings; arguments and errors as of :func:`rmse`."""
    guess, found = _arrays(prediction=prediction, value=value)
    return _mean(np.abs(guess - found), user, average)


def interval_coverage(
    lower: Column, upper: Column, value: Column, user: Column | None = None, *, average: bool = True
) -> Any:
    """The share of values with lower <= value <= upper; users as of :func:`rmse`.

    Raises DataError also for an interval that ends before it begins.
    """
    low, high, found = _arrays(lower=lower, upper=upper, value=value)
    if (low > high).any():
        first = int(np.flatnonzero(low > high)[0])
        problem = f"{int((low > high).sum())} intervals end before they begin (the first: pair {first})"
        raise DataError(problem, site="lower", axis="pair", expected="lower <= upper")
    return _mean(((low <= found) & (found <= high)).astype(float), user, average)


def _mean(each: Array, user: Column | None, average: bool, last: Callable[[Any], Any] = lambda each: each) -> Any:
    """The mean over all pairs; with users over theirs, and over them unless each is asked for."""
    if user is None:
        if not average:
            raise MethodError("average=False is for measures of users, and there are none; expected user=...")
        return float(last(each.mean()))
    number, _ = _users(user, len(each))
    size = np.bincount(number)
    by_user = last(np.bincount(number, each) / size)
    return float(by_user.mean()) if average else by_user


class _Ranking(NamedTuple):
    """Pairs sorted by user and prediction: the user's number, rank from 0, first place of the user and of the group of
    equal predictions, places of these groups, number of users."""

    order: NDArray[np.int64]
    user: NDArray[np.int64]
    rank: NDArray[np.int64]
    group: NDArray[np.int64]
    num_users: int

    def sums(self, each: Array) -> Array:
        """Sum a number for every sorted pair over each user's pairs."""
        return np.bincount(self.user, weights=each, minlength=self.num_users).astype(np.float64)

    def top(self, each: Array, k: int, discount: Array | float = 1.0) -> Array:
        """Sum what is expected at each user's first k ranks, over a discount. Raises MethodError for a k below 1."""
        if not is_whole(k) or k < 1:
            raise MethodError(f"k = {k!r}, expected a whole number of at least 1")
        expected = (np.bincount(self.group, each) / np.bincount(self.group))[self.group]  # pairs of equal prediction
        return self.sums(np.where(self.rank < k, expected, 0.0) / discount)


def _ranking(prediction: Array, user: Column) -> _Ranking:
    number, labels = _users(user, len(prediction))
    order = np.lexsort((-prediction, number))
    number, sorted_ = number[order], prediction[order]
    first = np.flatnonzero(np.r_[True, number[1:] != number[:-1]])
    rank = np.arange(len(order)) - first[number]
    group = np.cumsum(np.r_[True, (number[1:] != number[:-1]) | (sorted_[1:] != sorted_[:-1])]) - 1
    return _Ranking(order, number, rank, group, len(labels))


def precision_at(
    prediction: Column, value: Column, user: Column, k: int = 10, *, relevant: float = 1.0, average: bool = True
) -> Any:
    """The share of relevant pairs among the k of each user with the highest predictions.

    prediction, value, user (M,). relevant: a pair is relevant where its value is at least this (1: of clicks; 4: of
    ratings from 1 to 5). A user with fewer than k pairs still has k in the denominator. average: the mean over the
    users rather than an array of all, in the order of their sorted labels.

    Raises DataError as :func:`rmse`; MethodError for a k below 1.
    """
    ranking, hit = _hits(prediction, value, user, relevant)
    return _over_users(ranking.top(hit, k) / k, average)


def recall_at(
    prediction: Column, value: Column, user: Column, k: int = 10, *, relevant: float = 1.0, average: bool = True
) -> Any:
    """The share of each user's relevant pairs that are among the k with the highest predictions; arguments and errors
    as of :func:`precision_at`. NaN for users without a relevant pair."""
    ranking, hit = _hits(prediction, value, user, relevant)
    return _over_users(_ratio(ranking.top(hit, k), ranking.sums(hit)), average)


def average_precision(
    prediction: Column, value: Column, user: Column, *, relevant: float = 1.0, average: bool = True
) -> Any:
    """The mean over a user's relevant pairs of the precision down to them, at thresholds of the prediction; its mean
    over users is known as MAP. Arguments and errors as of :func:`precision_at`. NaN for users without a relevant pair.
    """
    ranking, hit = _hits(prediction, value, user, relevant)
    total = np.cumsum(hit)
    before = np.r_[0.0, total][np.arange(len(hit)) - ranking.rank]  # hits of the users before this one
    last = np.flatnonzero(np.r_[ranking.group[1:] != ranking.group[:-1], True])[ranking.group]
    precision = (total[last] - before) / (ranking.rank[last] + 1)
    return _over_users(_ratio(ranking.sums(hit * precision), ranking.sums(hit)), average)


def ndcg_at(
    prediction: Column, value: Column, user: Column, k: int | None = 10, *, gain: str = "linear", average: bool = True
) -> Any:
    """Normalised discounted cumulative gain of the first k ranks (None: of all), within [0, 1].

    gain: of a value r, "linear" r or "exponential" 2^r - 1. Other arguments and errors as of :func:`precision_at`;
    values must not be negative. NaN for users all of whose values are 0.
    """
    gains: dict[str, Callable[[Array], Array]] = {"linear": lambda r: r, "exponential": lambda r: np.exp2(r) - 1.0}
    if gain not in gains:
        raise MethodError(unknown_name("gain", gain, tuple(gains)))
    guess, found = _arrays(prediction=prediction, value=value)
    if (found < 0).any():
        problem = f"{int((found < 0).sum())} values below 0 (the first: {found[found < 0][0]:g})"
        raise DataError(problem, site="value", axis="pair", expected="gains of at least 0")
    gained = gains[gain](found)
    ranking, best = _ranking(guess, user), _ranking(gained, user)
    first = len(found) if k is None else k
    actual, ideal = (one.top(gained[one.order], first, np.log2(one.rank + 2.0)) for one in (ranking, best))
    return _over_users(_ratio(actual, ideal), average)


def ranking_scores(
    prediction: Column, value: Column, user: Column, k: int | Sequence[int] = (5, 10), *, relevant: float = 1.0
) -> pd.DataFrame:
    """The ranking measures of each user (rows, by label), columns "precision@k", "recall@k", "ndcg@k" of every k, and
    "average_precision"; arguments and errors as of :func:`precision_at`. ``.mean()`` of it averages over users."""
    columns: dict[str, Array] = {}
    for size in np.ravel(k).tolist():
        settings: dict[str, Any] = {"k": size, "average": False}
        columns[f"precision@{size}"] = precision_at(prediction, value, user, relevant=relevant, **settings)
        columns[f"recall@{size}"] = recall_at(prediction, value, user, relevant=relevant, **settings)
        columns[f"ndcg@{size}"] = ndcg_at(prediction, value, user, **settings)
    columns["average_precision"] = average_precision(prediction, value, user, relevant=relevant, average=False)
    _, labels = _users(user, np.size(to_numpy(prediction)))
    return pd.DataFrame(columns, index=pd.Index(labels, name="user"))


def _hits(prediction: Column, value: Column, user: Column, relevant: float) -> tuple[_Ranking, Array]:
    """The ranking, and of every sorted pair whether it is relevant."""
    guess, found = _arrays(prediction=prediction, value=value)
    ranking = _ranking(guess, user)
    return ranking, (found[ranking.order] >= relevant).astype(float)


def _ratio(above: Array, below: Array) -> Array:
    return np.divide(above, below, out=np.full(len(above), np.nan), where=below > 0)


def _over_users(each: Array, average: bool) -> Any:
    if not average:
        return each
    known = each[~np.isnan(each)]
    return float(known.mean()) if len(known) else float("nan")


def _arrays(**given: Column) -> tuple[Array, ...]:
    """Finite vectors of one length, in double precision."""
    found = {name: np.asarray(to_numpy(value), dtype=np.float64).ravel() for name, value in given.items()}
    sizes = {name: len(value) for name, value in found.items()}
    if len(set(sizes.values())) > 1:
        listed = ", ".join(f"{size} of '{name}'" for name, size in sizes.items())
        raise DataError(f"{listed}", axis="pair", expected="one of each for every pair")
    for name, value in found.items():
        if not len(value):
            raise DataError("no pairs", site=name, axis="pair", expected="at least one")
        wrong = ~np.isfinite(value)
        if wrong.any():
            problem = f"{int(wrong.sum())} values are not finite (the first: pair {int(np.flatnonzero(wrong)[0])})"
            raise DataError(problem, site=name, axis="pair", expected="finite numbers")
    return tuple(found.values())


def _users(user: Column, size: int) -> tuple[NDArray[np.int64], Any]:
    """The number of every pair's user among the sorted labels, and these."""
    labels, number = np.unique(np.ravel(to_numpy(user)), return_inverse=True)
    if len(number) != size:
        raise DataError(f"{len(number)} users of {size} pairs", site="user", axis="pair", expected="one for every pair")
    return number, labels
