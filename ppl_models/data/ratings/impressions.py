"""``impressions(...)``: a log of what users were shown and what they picked, as data that models of choices take."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import torch

from ppl_models.core.errors import DataError
from ppl_models.data.held import Column, is_whole, to_column, to_list
from ppl_models.data.labels import number_labels
from ppl_models.data.matrix import Data

#: Whole numbers from here on, which single precision rounds, are labels.
_ITEMS = 2**24


def impressions(
    user: Column,
    shown: Sequence[Sequence[Hashable]],
    picked: Column,
    *,
    num_users: int | None = None,
    users: Sequence[Hashable] | None = None,
    items: Sequence[Hashable] | None = None,
    dtype: torch.dtype | None = None,
) -> Data:
    """A log of M impressions: who was shown which items, and which of these was picked.

    >>> log = impressions(["ann", "bob", "ann"], [["Up", "Heat", "Coco"], ["Up", "Heat"], ["Coco", "Up"]],
    ...                   ["Heat", "Heat", "Coco"])
    >>> log.x
    tensor([[1., 0.],
            [1., 0.]])
    >>> log.coords["item"], log.others["shown"][0, 1]
    (['Up', 'Heat', 'Coco'], tensor([ 2.,  0., -1.]))

    user: (M,) labels; with ``num_users`` whole numbers below it. users: the labels of all of them, in order; by default
        those that occur. shown: the items of each impression, at least two different ones: labels, of which ``items``
        are all, or whole numbers, which are the places of items. picked: (M,) the item that was picked.

    Data: x (U, T), the place of the pick in each user's impressions, in the order of the log, T the most of a user,
    missing where a user has fewer; ``others["shown"]`` (U, T, L), -1 in empty places; labels as "row" and "item".

    Raises DataError for columns of different lengths, unknown users and items, and picks that were not shown.
    """
    who, picks, sets = to_column(user).ravel(), to_list(to_column(picked).ravel()), [to_list(one) for one in shown]
    _check_log(who.tolist(), sets, picks)
    place, size, user_names = number_labels(who, "user", num_users, users)
    flat = [item for one in sets for item in one]
    item_names = None
    if items is not None or not all(map(is_whole, flat)):
        flat, _, item_names = number_labels(flat, "item", None, items)
    elif not 0 <= min(flat) <= max(flat) < _ITEMS:
        raise DataError(f"items {min(flat)} to {max(flat)}", site="shown", axis="item",
                        expected="places of items from 0, or items=[...], the labels of all of them")  # fmt: skip
    count = np.bincount(place, minlength=size)
    order = np.argsort(place, kind="stable")
    time = np.empty(len(place), dtype=int)
    time[order] = np.arange(len(place)) - np.repeat(np.cumsum(count) - count, count)
    width = [len(one) for one in sets]
    places = np.full((size, count.max(), max(width)), -1.0)
    row = np.repeat(np.arange(len(sets)), width)
    places[place[row], time[row], np.concatenate([np.arange(number) for number in width])] = flat
    x = np.full(places.shape[:2], np.nan)
    x[place, time] = [one.index(pick) for one, pick in zip(sets, picks, strict=True)]
    dtype = dtype or torch.get_default_dtype()
    seen, value = torch.as_tensor(~np.isnan(x)), torch.as_tensor(np.nan_to_num(x)).to(dtype)
    coords = {axis: names for axis, names in (("row", user_names), ("item", item_names)) if names is not None}
    others = {"shown": torch.as_tensor(places).to(dtype)}
    return Data(x=value, mask=None if bool(seen.all()) else seen, coords=coords, others=others)


def _check_log(who: Sequence[Any], sets: Sequence[list[Any]], picks: Sequence[Any]) -> None:
    if not len(who) == len(picks) == len(sets) or not sets:
        found = f"{len(who)} users, {len(sets)} sets of items, {len(picks)} picks"
        raise DataError(found, axis="impression", expected="one of each for every impression, and at least one")
    for n, (one, pick) in enumerate(zip(sets, picks, strict=True)):
        if len(set(one)) < max(len(one), 2):
            raise DataError(f"impression {n} of the items {one}", site="shown", axis="impression",
                            expected="at least two, all different")  # fmt: skip
        if pick not in one:
            raise DataError(f"impression {n}: item {pick!r} was picked and not shown", site="picked",
                            axis="impression", expected=f"one of {one}")  # fmt: skip
