"""Ratings as models take them: a sparse matrix of users and items, of which only the stored entries are observed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, TypeAlias, get_args

import numpy as np
import torch
from torch import Tensor

from ppl_models.core.errors import DataError, unknown_name, warn_of_data
from ppl_models.data import sparse
from ppl_models.data.displays import of_ratings
from ppl_models.data.matrix import Data

#: What is taken of several ratings of an item by one user.
Duplicates: TypeAlias = Literal["refuse", "mean", "first", "last"]
#: What is given of every item, and not of every user.
_OF_ITEMS = ("item_covariates",)


@dataclass(frozen=True, kw_only=True, repr=False)
class Ratings(Data):
    """M ratings of I items by U users; rows are users.

    x: (U, I) in torch's CSR layout, columns sorted: what is stored is a rating, 0 included; nothing else is observed.
    coords: "row" the labels of the users, "feature" those of the items, where they have any.
    others: beside what models are given of users (rows) ``time`` (M,), when each rating was given, in the order of
        ``user``, ``item`` and ``value``; and ``item_covariates`` (I, Q).
    """

    container: ClassVar[str] = "ratings"
    _display = of_ratings

    @property
    def is_complete(self) -> bool:
        return len(self.value) == self.num_users * self.num_items

    @property
    def num_users(self) -> int:
        return self.x.shape[0]

    @property
    def num_items(self) -> int:
        return self.x.shape[1]

    @property
    def num_ratings(self) -> int:
        return len(self.value)

    @cached_property
    def user(self) -> Tensor:
        """(M,) the number of the user of each rating, increasing."""
        return torch.repeat_interleave(torch.arange(self.num_users, device=self.x.device), self.x.crow_indices().diff())

    @property
    def item(self) -> Tensor:
        """(M,) the number of the item of each rating, increasing within a user."""
        return self.x.col_indices()

    @property
    def value(self) -> Tensor:
        """(M,) the ratings."""
        return self.x.values()

    @property
    def time(self) -> Tensor | None:
        """(M,) when each rating was given, or None."""
        return self.others.get("time")

    @property
    def users(self) -> Sequence[Any]:
        """The labels of the users; their numbers where they have none."""
        return self.coords.get("row", range(self.num_users))

    @property
    def items(self) -> Sequence[Any]:
        """The labels of the items; their numbers where they have none."""
        return self.coords.get("feature", range(self.num_items))

    def dense(self) -> Data:
        """x (U, I) with the mask of what is observed, and ``time`` (U, I), 0 where nothing is. Raises CapacityError."""
        x = Data(x=self.x).dense().x
        mask = torch.zeros(x.shape, dtype=torch.bool, device=x.device)
        mask[self.user, self.item] = True
        others = dict(self.others)
        if "time" in others:
            others["time"] = sparse.with_values(self.x, others["time"]).to_dense()
        return Data(x=x, mask=None if bool(mask.all()) else mask, coords=dict(self.coords), others=others)

    def rows(self, index: Tensor | slice) -> Ratings:
        """The chosen users, with their labels."""
        place = sparse.places(self.num_users, index)
        crow = self.x.crow_indices().cpu().numpy()
        start, count = crow[place], crow[place + 1] - crow[place]
        begin = np.concatenate([[0], np.cumsum(count)])
        chosen = torch.as_tensor(np.repeat(start - begin[:-1], count) + np.arange(begin[-1])).to(self.x.device)
        parts = torch.as_tensor(begin).to(self.x.device), self.item[chosen], self.value[chosen]
        coords, rows = dict(self.coords), torch.as_tensor(place).to(self.x.device)
        if "row" in coords:
            coords["row"] = [coords["row"][n] for n in place.tolist()]
        others = {
            name: value if name in _OF_ITEMS else value[rows] for name, value in self.others.items() if name != "time"
        }
        if self.time is not None:
            others["time"] = self.time[chosen]
        x = sparse.tensor(*parts, size=(len(place), self.num_items))
        return replace(self, x=x, coords=coords, others=others)

    def chosen(self, index: Tensor | slice) -> Ratings:
        """Some of the ratings, of the same users and items: numbers, a slice, or True for each that is kept (M,).

        ``data.chosen(train), data.chosen(~train)`` is a split of them.
        """
        kept = torch.zeros(self.num_ratings, dtype=torch.bool, device=self.x.device)
        kept[index] = True
        count = torch.bincount(self.user[kept], minlength=self.num_users)
        crow = torch.cat([count.new_zeros(1), count.cumsum(0)])
        x = sparse.tensor(crow, self.item[kept], self.value[kept], size=(self.num_users, self.num_items))
        others = self.others if self.time is None else {**self.others, "time": self.time[kept]}
        return replace(self, x=x, others=others)

    def columns(self, index: np.ndarray) -> Data:
        """The chosen items, dense."""
        return self.dense().columns(index)


def ratings_of(
    user: np.ndarray,
    item: np.ndarray,
    value: Tensor,
    *,
    num_users: int,
    num_items: int,
    time: Tensor | None = None,
    coords: dict[str, list[Any]] | None = None,
    duplicates: Duplicates = "refuse",
) -> Ratings:
    """Ratings whose users and items are numbers below U and I. duplicates: as :func:`ppl_models.ratings` takes them.

    Raises DataError for pairs that occur twice, unless ``duplicates`` says which is meant.
    """
    if duplicates not in get_args(Duplicates):
        raise DataError(unknown_name("duplicates", duplicates, get_args(Duplicates)), axis="rating")
    key = user.astype(np.int64) * num_items + item
    order = np.argsort(key, kind="stable")
    if time is not None and duplicates != "refuse":
        order = np.lexsort((time.cpu().numpy(), key))
    coords = coords or {}
    begin = np.flatnonzero(np.diff(key[order], prepend=-1))
    count = np.diff(begin, append=len(order))
    if len(begin) < len(order):
        twice = order[begin[count > 1]]
        if duplicates == "refuse":
            who = coords.get("row", range(num_users))[int(user[twice[0]])]
            what = coords.get("feature", range(num_items))[int(item[twice[0]])]
            found = f"{len(twice)} pairs of user and item that occur twice (the first: item {what!r} by user {who!r})"
            told = "each pair of user and item once; ratings(..., duplicates=) says which: 'mean', 'first' or 'last'"
            raise DataError(found, axis="rating", expected=told)
        if duplicates == "mean":
            mean = np.add.reduceat(value.double().cpu().numpy()[order], begin) / count
            value = torch.as_tensor(np.repeat(mean, count)[np.argsort(order)]).to(value)
        order = order[begin if duplicates == "first" else begin + count - 1]
    crow = np.concatenate([[0], np.cumsum(np.bincount(user[order], minlength=num_users))])
    place = torch.as_tensor(order)
    column = torch.as_tensor(item[order].astype(np.int64))
    x = sparse.tensor(torch.as_tensor(crow), column, value[place], size=(num_users, num_items))
    return Ratings(x=x, coords=coords, others={} if time is None else {"time": time[place]})


def warn_of_zeros(value: Tensor) -> None:
    """Warns of ratings most of which are 0 beside others that seldom are the lowest, as where 0 says that nothing was
    rated."""
    rated = value[value != 0]
    if not 0 < 2 * len(rated) < len(value) or not bool(rated.median() > rated.min() > 0):
        return
    share, low, high = 1 - len(rated) / len(value), *map(float, rated.aminmax())
    warn_of_data(
        f"{share:.0%} of the ratings are 0 beside others from {low:g} to {high:g}, and are taken for ratings; NaN in a "
        "table says that nothing was rated, as x.where(x > 0) of a frame, and so does scipy.sparse.csr_array(x)"
    )
