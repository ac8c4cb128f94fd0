"""Requests to fits of ratings: pairs of users and items, by their labels, by their positions, or as ratings."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ppl_models import Data, DataError, MethodError, Ratings
from ppl_models.data.covariates import in_rows_of
from ppl_models.data.held import Column, Source, holds_several, is_listed
from ppl_models.data.labels import places_of
from ppl_models.data.lazy import is_pandas
from ppl_models.data.ratings.frames import columns_by_name, find_columns

#: What ``new=`` takes: None, unknown labels are an error; "prior", they are somebody new.
NEW = (None, "prior")


class RequestSide(NamedTuple):
    """The users or the items that may be asked for: what one is called, their labels if they have some, how many.

    given: whether they are given in place of those of the fit. Then they are the new ones, and there are no others.
    """

    axis: str
    labels: Any
    size: int
    given: bool = False

    @classmethod
    def users(cls, data: Data, *, given: bool = False) -> RequestSide:
        return cls("user", data.coords.get("row"), len(data), given)

    def new(self, asked: str | None, hint: str) -> dict[str, Any]:
        """Whether unknown ones are new, and what to do otherwise, for ``places_of``."""
        if not self.given:
            return {"new": asked is not None, "hint": hint}
        called = "numbered by their rows" if self.labels is None else "called by the labels of their rows"
        frame = ", or by the index of a DataFrame" if self.labels is None else ""
        return {"new": False, "hint": f"; those that are given in place of the fit's, {called}{frame}"}

    @classmethod
    def items(cls, data: Data) -> RequestSide:
        return cls("item", data.coords.get("feature"), data.num_features)


def resolve_pairs(
    pairs: Any, positions: Any, sides: tuple[RequestSide, RequestSide], *, new: str | None = None, hint: str = ""
) -> tuple[Tensor, Tensor]:
    """Find the positions of users and items, (M,) each; that of somebody new is the number of those that there are.

    pairs: (users, items), (M,) labels each, a tuple; a list of pairs, an array or a frame of them, see
        :func:`columns_of_pairs`; or ``Ratings``, whose users and items are known by their labels.
    positions: the same by their numbers in the data, in place of ``pairs``.
    new: "prior" where unknown ones are new; None where they are an error. hint: what else to do then, for messages.

    Raises DataError for unknown users and items, for as many of both as there are not, and for both ways of asking.
    """
    if new not in NEW:
        raise MethodError(f"new = {new!r}, expected None or 'prior'")
    if (pairs is None) == (positions is None):
        expected = "predict((users, items)) by labels, predict(ratings), or predict(positions=(users, items))"
        raise DataError("neither pairs nor positions, or both", axis="rating", expected=expected)
    if isinstance(pairs, Ratings):
        own = (pairs.user, RequestSide.users(pairs)), (pairs.item, RequestSide.items(pairs))
        found = [_of_others(*one, side, new, hint) for one, side in zip(own, sides, strict=True)]
        return found[0], found[1]
    found = []
    for given, side in zip(columns_of_pairs(pairs if positions is None else positions), sides, strict=True):
        labels = side.labels if positions is None else None
        told = hint if labels is None else f"; positions=(users, items) takes numbers{hint}"
        place = places_of(given, labels, side.size, side.axis, **side.new(new, told))
        found.append(torch.as_tensor(place))
    if len(found[0]) != len(found[1]):
        raise DataError(f"{len(found[0])} users and {len(found[1])} items", axis="rating",
                        expected="as many of both: a user and an item a pair")  # fmt: skip
    return found[0], found[1]


def columns_of_pairs(pairs: Source) -> tuple[Column, Column]:
    """Users and items, (M,) each: of a tuple its two parts, of a list, whose elements are pairs, and of an array (M, 2)
    the first and the second of each pair; of a frame those of :func:`ppl_models.ratings`, or its only two columns.

    Raises DataError for others: two lists in a list, where they are no pairs.
    """
    given: Any = pairs
    if is_pandas(given, "DataFrame"):
        named = columns_by_name(given)
        if named is not None:
            return given[named["user"]], given[named["item"]]
        if given.shape[1] == 2:
            return given.iloc[:, 0], given.iloc[:, 1]
    elif isinstance(given, tuple):
        if len(given) == 2 and all(map(holds_several, given)):
            return given
    elif is_listed(given):
        if given and all(holds_several(one) and len(one) == 2 for one in given):
            return [one for one, _ in given], [other for _, other in given]
    elif len(shape := getattr(given, "shape", ())) == 2 and shape[1] == 2:
        return given[:, 0], given[:, 1]
    told = "(users, items), a tuple of (M,) each; a list or an array of pairs; or a frame of two columns, user and item"
    raise DataError(f"a {type(given).__name__} that holds no pairs", axis="rating", expected=told)


def times_beside(pairs: Source | None, time: Column | None) -> Column | None:
    """Find the times of pairs: those that are given, in the order of the pairs, or else of pairs that are ratings, or a
    frame with a column of them."""
    if time is not None:
        return time if pairs is None else in_rows_of(pairs, time)
    given: Any = pairs
    named = find_columns(given)["time"] if is_pandas(given, "DataFrame") else None
    return getattr(given, "time", None) if named is None else given[named]


def _of_others(place: Tensor, own: RequestSide, side: RequestSide, new: str | None, hint: str) -> Tensor:
    """Find the positions among ``side`` of what other data have at ``place``, by their labels."""
    if own.labels == side.labels and own.size <= side.size:
        return place
    names = range(own.size) if own.labels is None else own.labels
    used, inverse = np.unique(place.cpu().numpy(), return_inverse=True)
    given = [names[n] for n in used.tolist()]
    found = places_of(given, side.labels, side.size, side.axis, **side.new(new, hint))
    return torch.as_tensor(found[inverse]).to(place.device)
