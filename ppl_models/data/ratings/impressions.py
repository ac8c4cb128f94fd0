"""``impressions(...)``: a log of what users were shown and what they picked, as data that models of choices take."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import ArrayLike

from ppl_models.core.errors import DataError
from ppl_models.data.matrix import Data


def impressions(
    user: ArrayLike,
    shown: Sequence[Sequence[int]],
    picked: ArrayLike,
    *,
    num_users: int,
    dtype: torch.dtype | None = None,
) -> Data:
    """A log of M impressions: who was shown which items, and which of these was picked.

    >>> log = impressions([0, 1, 0], [[3, 1, 2], [0, 3], [2, 0]], [1, 3, 2], num_users=2)
    >>> log.x
    tensor([[1., 0.],
            [1., 0.]])
    >>> log.others["shown"][0, 1]
    tensor([ 2.,  0., -1.])

    user: (M,) whole numbers below ``num_users``. shown: the items of each impression, at least two different ones.
    picked: (M,) the item that was picked.

    Data: x (U, T), the place of the pick in each user's impressions, in the order of the log, T the most of a user,
    missing where a user has fewer; ``others["shown"]`` (U, T, L), -1 in empty places.

    Raises DataError for columns of different lengths, unknown users, and picks that were not shown.
    """
    users, picks = np.asarray(user).ravel(), np.asarray(picked).ravel()
    if not len(users) == len(picks) == len(shown) or not len(users):
        found = f"{len(users)} users, {len(shown)} sets of items, {len(picks)} picks"
        raise DataError(found, axis="impression", expected="one of each for every impression, and at least one")
    if users.dtype.kind not in "iu" or users.min() < 0 or users.max() >= num_users:
        raise DataError("users out of range", site="user", axis="impression", expected=f"0 to {num_users - 1}")
    count = np.bincount(users, minlength=num_users)
    order = np.argsort(users, kind="stable")
    time = np.empty(len(users), dtype=int)
    time[order] = np.arange(len(users)) - np.repeat(np.cumsum(count) - count, count)
    places = np.full((num_users, count.max(), max(len(one) for one in shown)), -1.0)
    x = np.full(places.shape[:2], np.nan)
    for n, items in enumerate(shown):
        if len(set(items)) < max(len(items), 2):
            raise DataError(f"impression {n} of the items {list(items)}", site="shown", axis="impression",
                            expected="at least two, all different")  # fmt: skip
        where = np.flatnonzero(np.asarray(items) == picks[n])
        if not len(where):
            raise DataError(f"impression {n}: item {picks[n]} was picked and not shown", site="picked",
                            axis="impression", expected=f"one of {list(items)}")  # fmt: skip
        places[users[n], time[n], : len(items)] = items
        x[users[n], time[n]] = where[0]
    dtype = dtype or torch.get_default_dtype()
    seen, value = torch.as_tensor(~np.isnan(x)), torch.as_tensor(np.nan_to_num(x)).to(dtype)
    return Data(x=value, mask=None if bool(seen.all()) else seen, others={"shown": torch.as_tensor(places).to(dtype)})
