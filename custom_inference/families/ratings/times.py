"""When ratings were given: of data, of pairs to be predicted, and what biases that change in time say then."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from custom_inference.core.states import Params
from ppl_models import PMF, Data, DataError, Ratings
from ppl_models.data import sparse
from ppl_models.data.containers import as_tensor
from ppl_models.data.times import numbers_of

Kind = TypeVar("Kind", bound=Data)
#: A number that no user or item has.
_NOBODY = 2**31


def require_times(data: Data) -> Tensor:
    time = data.others.get("time")
    if time is None:
        raise DataError("ratings without their times", site="time", expected="those of all: biases change in time")
    return time


def times_of_pairs(model: PMF, time: Any, pairs: int, like: Tensor) -> Tensor:
    """(M,) as they were given. Raises DataError for other numbers of them, and where no biases change in time."""
    if not model.timed:
        raise DataError("times of pairs", site="time", expected="none: no biases change in time")
    found = as_tensor(numbers_of(time), torch.float64).to(like.device)
    if found.shape != (pairs,) or not bool(torch.isfinite(found).all()):
        what = f"shape {tuple(found.shape)}, or times that are not finite"
        raise DataError(what, site="time", expected=f"({pairs},): one a pair")
    return found


class TimedPairs(NamedTuple):
    """Pairs to be predicted: time, item, user (M,); numbers of new items and users are I or U and more."""

    time: Tensor
    item: Tensor
    user: Tensor


def biases_of_pairs(model: PMF, at: Params, when: TimedPairs | None, like: Tensor) -> tuple[Tensor, Tensor]:
    """Compute mean and variance (M,) of the biases of times at values of the globals, 0 where no times are meant; new
    items and users have their prior."""
    if when is None:
        return torch.zeros_like(like), torch.zeros_like(like)
    mean, variance = model.time_bias(at, *when), torch.zeros_like(like)
    for site, place, size in (
        ("item_bin_bias", when.item, model.num_items),
        ("user_bin_bias", when.user, model.num_users),
    ):
        if site in model.shapes:
            prior: Any = model.prior(site, like=like, values=at)
            new = (place >= size).to(like)
            mean, variance = mean + new * prior.mean.mean(), variance + new * prior.variance.mean()
    return mean, variance


def without_time(model: PMF, at: Params, data: Kind, new: str = "") -> Kind:
    """Subtract the biases of their times from Gaussian ratings; those of what is new, "user" or "item", are not
    known."""
    if not model.timed:
        return data
    time, device = require_times(data), data.x.device
    if isinstance(data, Ratings):
        user, item = data.user, data.item
    else:
        user, item = (torch.arange(size, device=device) for size in data.x.shape)
        user = user[:, None]
    user = torch.full_like(user, _NOBODY) if new == "user" else user
    item = torch.full_like(item, _NOBODY) if new == "item" else item
    bias = model.time_bias(at, time, item, user)
    return replace(data, x=sparse.with_values(data.x, data.x.values() - bias) if data.is_sparse else data.x - bias)
