"""Requests to fits of ratings: pairs of users and items, by their labels, by their positions, or as ratings."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ppl_models import Data, DataError, MethodError, Ratings
from ppl_models.data.labels import places_of

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

    pairs: (users, items), (M,) labels each; or ``Ratings``, whose users and items are known by their labels.
    positions: (users, items) by their numbers in the data, in place of ``pairs``.
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
    asked = pairs if positions is None else positions
    if not isinstance(asked, tuple | list) or len(asked) != 2:
        raise DataError(f"a {type(asked).__name__} of pairs", axis="rating", expected="(users, items), (M,) each")
    found = []
    for given, side in zip(asked, sides, strict=True):
        labels = side.labels if positions is None else None
        told = hint if labels is None else f"; positions=(users, items) takes numbers{hint}"
        place = places_of(given, labels, side.size, side.axis, **side.new(new, told))
        found.append(torch.as_tensor(place))
    if len(found[0]) != len(found[1]):
        raise DataError(f"{len(found[0])} users and {len(found[1])} items", axis="rating",
                        expected="as many of both: a user and an item a pair")  # fmt: skip
    return found[0], found[1]


def _of_others(place: Tensor, own: RequestSide, side: RequestSide, new: str | None, hint: str) -> Tensor:
    """Find the positions among ``side`` of what other data have at ``place``, by their labels."""
    if own.labels == side.labels and own.size <= side.size:
        return place
    names = range(own.size) if own.labels is None else own.labels
    used, inverse = np.unique(place.cpu().numpy(), return_inverse=True)
    given = [names[n] for n in used.tolist()]
    found = places_of(given, side.labels, side.size, side.axis, **side.new(new, hint))
    return torch.as_tensor(found[inverse]).to(place.device)
