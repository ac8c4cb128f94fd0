"""Reading of data for models of ratings, with an error that says what does not fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from ppl_models.core.errors import DataError, about, digits, warn_of_data
from ppl_models.data import sparse
from ppl_models.data.columns import in_columns_of
from ppl_models.data.covariates import finite_beside, read_before
from ppl_models.data.held import Device, MatrixLike, Source
from ppl_models.data.matrix import Data, as_matrix
from ppl_models.data.ratings.covariates import beside_each_other
from ppl_models.data.ratings.data import Ratings
from ppl_models.data.ratings.door import is_matrix, ratings, relabel
from ppl_models.data.ratings.frames import is_sparse
from ppl_models.data.times import Times, numbers_of

#: The axes of what is given beside ratings that may have labels, as the data call them.
_LABELLED = {"user": "row", "item": "feature"}


class UsersAndItems(Protocol):
    """A model of users and items, by their numbers."""

    @property
    def num_users(self) -> int: ...
    @property
    def num_items(self) -> int: ...


class RatedModel(UsersAndItems, Protocol):
    """A model of ratings, as the reading of its data needs it."""

    @property
    def observed_site(self) -> str: ...
    @property
    def sites(self) -> Mapping[str, Any]: ...
    @property
    def sizes(self) -> dict[str, int]: ...
    def sites_of(self, role: Literal["given"], /) -> tuple[str, ...]: ...
    def refusal(self, value: Tensor) -> tuple[Tensor, str, str]: ...


def prepare_ratings(
    model: RatedModel,
    data: Source,
    like: Data | None,
    *,
    mask: MatrixLike | None = None,
    dtype: torch.dtype | None = None,
    device: Device = None,
    **others: Any,
) -> Data:
    """Dense data (U, I) from dense matrices, :class:`Ratings` from all else, with what is given beside them.

    like: data whose items these are; without them these are all data, of the model's users. others: what is given
        beside them, by name.
    """
    with about(model.observed_site):
        own = read_before(data)
        known: dict[str, Any] = {} if own is None else dict(own.others)
        time = others.get("time") if own is None else None  # of ratings in the order in which they come
        checked = _read(model, data, mask, dtype, like, time).to(dtype=dtype, device=device)
        others |= {"time": None} if "time" in checked.others and own is None else {}
        if like is not None:
            known = {**{name: like.others[name] for name in ("item_covariates",) if name in like.others}, **known}
        known |= {name: value for name, value in others.items() if value is not None}
        if "time" in checked.others:
            known.setdefault("time", checked.others["time"])
        if "item_covariates" in model.sites_of("given"):
            checked = ratings(checked)  # rows of other data are those of all that is beside them
        checked = replace(checked, others=_beside(model, checked, known))
        _require_valid(model, checked)
        return checked


def _read(
    model: RatedModel, data: Source, mask: MatrixLike | None, dtype: torch.dtype | None, like: Data | None,
    time: Times | None,
) -> Data:  # fmt: skip
    names = None if like is None else like.coords.get("feature")
    own = read_before(data)
    if own is not None and own.is_sparse and not isinstance(data, Ratings):
        data = Ratings(x=own.x, coords=own.coords)
    if not isinstance(data, Ratings):
        listed: Any = data
        columns = isinstance(listed, tuple) and len(listed) == 3 and not all(isinstance(one, tuple) for one in listed)
        if not columns and not sparse.is_matrix(data) and is_matrix(data) and not is_sparse(data):
            data, mask = in_columns_of(data, mask, names)
            return as_matrix(data, mask=mask, num_features=model.num_items, dtype=dtype)
        data = read_ratings(model, listed if columns else (data,), like, time)
    if mask is not None:
        raise DataError("a mask beside ratings", expected="the ratings that were given, and no others")
    if like is not None:
        data = of_same_items(data, like)
    if data.num_items != model.num_items:
        found = f"{data.num_items} items where the model has num_items = {model.num_items}"
        raise DataError(found, axis="item", expected=f"{model.num_items}; ratings(..., num_items=)")
    return data


def read_ratings(
    model: UsersAndItems, parts: tuple[Any, ...], like: Data | None = None, time: Times | None = None
) -> Ratings:
    """Ratings from what the door takes: as many users and items as the model has are known by labels; where fewer
    or more occur, they are numbers from 0. like: data whose items these are. time: of the ratings, where not among
    them."""
    read = partial(ratings, *parts, time=time)
    if like is not None:
        names = like.coords.get("feature")
        return read(**({"num_items": model.num_items} if names is None else {"items": names}))
    found, sizes = read(), {}
    for axis, size in (("num_users", found.num_users), ("num_items", found.num_items)):
        if size != getattr(model, axis):
            sizes[axis] = getattr(model, axis)
    return read(**sizes) if sizes else found


def of_same_items(data: Ratings, like: Data) -> Ratings:
    """Ratings with their items at the places that these have in ``like``. Raises DataError for unknown ones."""
    names = like.coords.get("feature")
    if data.coords.get("feature") == names:
        return data
    return relabel(data, items=range(like.num_features) if names is None else names)


def _beside(model: RatedModel, data: Data, known: Mapping[str, Any]) -> dict[str, Tensor]:
    """Convert given values to the shapes that the model's sites declare."""
    lengths, found = {"user": len(data), "item": data.num_features, "rating": data.stored.numel()}, {}
    for site in model.sites_of("given"):
        if site not in known:
            continue
        given = beside_each_other(known[site], site) if isinstance(known[site], Mapping) else known[site]
        axes = model.sites[site].axes
        shape: Any = tuple(lengths.get(axis, model.sizes.get(axis, 0)) for axis in axes)
        timed = site == "time"
        if timed:
            given, shape = numbers_of(given, axis="rating"), shape if data.is_sparse else tuple(data.x.shape)
        labelled, kind = _LABELLED.get(axes[0], "rating"), torch.float64 if timed else None
        found[site] = finite_beside(given, data, site, shape, f"along {', '.join(axes)}", axis=labelled, dtype=kind)
    return found


def _require_valid(model: RatedModel, data: Data) -> None:
    value = data.entries
    wrong, what, expected = model.refusal(value)
    if bool(wrong.any()):
        found = f"{int(wrong.sum())} ratings {what} (the first: {digits(float(value[wrong][0]))})"
        raise DataError(found, axis="rating", expected=expected)


def warn_of_unrated(data: Data) -> None:
    """Warns of users and of items without ratings."""
    if data.is_complete:
        return
    if data.is_sparse:
        counts = data.x.crow_indices().diff(), torch.bincount(data.x.col_indices(), minlength=data.num_features)
    else:
        counts = data.observed.sum(1), data.observed.sum(0)
    for axis, key, count in (("users", "row", counts[0]), ("items", "feature", counts[1])):
        empty = (count == 0).nonzero().flatten().tolist()
        if empty:
            first = data.coords.get(key, range(len(count)))[empty[0]]
            warn_of_data(f"{len(empty)} of {len(count)} {axis} without ratings (the first: {first!r})")
