"""Models of what users do with items: clicks and choices as people hold them, with features of both sides."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self, Unpack

import torch
from torch import Tensor

from ppl_models.core.errors import DataError, about
from ppl_models.data import sparse
from ppl_models.data.columns import check_columns, in_columns_of
from ppl_models.data.containers import as_tensor, unpack
from ppl_models.data.covariates import alone, finite_beside, given_or_own, read_before
from ppl_models.data.held import MatrixLike, Reading, Source
from ppl_models.data.labels import places_of
from ppl_models.data.lazy import is_pandas
from ppl_models.data.matrix import Data, as_values_of
from ppl_models.data.ratings.data import Ratings
from ppl_models.data.ratings.door import is_matrix
from ppl_models.data.ratings.frames import is_sparse
from ppl_models.data.ratings.model import of_same_items, read_ratings
from ppl_models.kinds.ratings import RatingModel


@dataclass(frozen=True, kw_only=True, eq=False)
class ItemsWithFeatures(RatingModel):
    """Users and items with features of their own, ``user_covariates`` (U, P) and ``item_covariates`` (I, Q)."""

    _item_axis: ClassVar[str] = "feature"  # what the labels of the items are of, in the data

    def _with_covariates(
        self, checked: Data, source: Source, user_covariates: MatrixLike | None, item_covariates: MatrixLike | None
    ) -> Data:
        """Return the data with the features of users and items; those of ``source`` where none are given."""
        sizes = {
            "user_covariates": (user_covariates, "row", (len(checked), self.num_user_covariates)),
            "item_covariates": (item_covariates, self._item_axis, (self.num_items, self.num_item_covariates)),
        }
        others = {name: value for name, value in checked.others.items() if name not in sizes}
        for name, (value, axis, shape) in sizes.items():
            given = given_or_own(value, source, name)
            if given is not None and (shape[1] or value is not None):
                others[name] = finite_beside(given, checked, name, shape, "a row each, a column a feature", axis=axis)
        return replace(checked, others=others)

    def prepare_new(self, data: Source, like: Data, **settings: Any) -> Data:
        """Check further users of the same items, whose features are those of the data ``like``."""
        features = settings.pop("item_covariates", None)
        features = like.others.get("item_covariates") if features is None else features
        mask = settings.pop("mask", None)
        if is_pandas(data, "DataFrame") and not is_matrix(data):
            data = read_ratings(self, (data,), like)
        elif isinstance(data, Ratings):
            data = of_same_items(data, like)
        else:
            data, mask = in_columns_of(data, mask, like.coords.get("feature"))
        return self.prepare(data, mask=mask, item_covariates=features, **settings)

    @classmethod
    def for_data(cls, data: Data, num_components: int, **settings: Any) -> Self:
        """Return the model of the data's items, with as many features as the data have."""
        for axis in ("user", "item"):
            features = data.others.get(f"{axis}_covariates")
            settings.setdefault(f"num_{axis}_covariates", 0 if features is None else features.shape[1])
        sizes = {"num_users": len(data), "num_items": data.num_features, **settings}
        return cls(num_components=num_components, **sizes)


@dataclass(frozen=True, kw_only=True, eq=False)
class Clicks(ItemsWithFeatures):
    """Yes or no of users to items."""

    def prepare(
        self, data: Source, *, user_covariates: MatrixLike | None = None, item_covariates: MatrixLike | None = None,
        **reading: Unpack[Reading],
    ) -> Data:  # fmt: skip
        """Check ratings, or a matrix (U, I), of 0 and 1, and the features. Raises DataError for anything else."""
        if is_pandas(data, "DataFrame") and not is_matrix(data):
            data = read_ratings(self, (data,))
        if isinstance(data, Ratings) and reading.get("mask") is None:
            checked: Data = data.to(dtype=reading.get("dtype"), device=reading.get("device"))
            wrong = ~self.likelihood.valid(data.value)
            if data.num_items != self.num_items or bool(wrong.any()):
                bad = f"{int(wrong.sum())} ratings that are neither 0 nor 1"
                found = bad if bool(wrong.any()) else f"{data.num_items} items"
                raise DataError(found, site="x", axis="item", expected=f"0 and 1, of {self.num_items} items")
        else:
            if sparse.is_matrix(data) or is_sparse(data):
                found = "a sparse matrix, which does not say whether what is not stored is a no or is unknown"
                raise DataError(found, site="x", expected="ratings(x) for unknown, x.toarray() for no")
            checked = as_values_of(self.likelihood, alone(data), num_features=self.num_items, site="x", **reading)
        return self._with_covariates(checked, data, user_covariates, item_covariates)

    def check_for_fitting(self, data: Data) -> None:
        """Refuse data in which everything observed is the same. Items without ratings have their features."""
        value = data.entries
        if not value.numel() or bool((value == value.flatten()[0]).all()):
            raise DataError("every observed entry is the same, or there is none", site="x", expected="both 0 and 1")


@dataclass(frozen=True, kw_only=True, eq=False)
class Choices(ItemsWithFeatures):
    """Which of the items that they were shown users picked."""

    num_choices: int
    num_shown: int = 0

    _item_axis: ClassVar[str] = "item"

    @property
    def places(self) -> int:
        """L: how many items there are to choose from."""
        return self.num_shown or self.num_items

    @property
    def data_kind(self) -> str:
        return "categories"

    def prepare(
        self, data: Source, *, shown: MatrixLike | None = None, user_covariates: MatrixLike | None = None,
        item_covariates: MatrixLike | None = None, **reading: Unpack[Reading],
    ) -> Data:  # fmt: skip
        """Check a matrix (U, T) of places, what was shown, and the features. Raises DataError for anything else."""
        checked = as_values_of(self.likelihood, alone(data), num_features=self.num_choices, site="x", **reading)
        given = given_or_own(shown, data, "shown")
        named = checked.coords.get("item", range(self.num_items))
        if len(named) != self.num_items:
            found = f"{len(named)} items where the model has num_items = {self.num_items}"
            raise DataError(found, axis="item", expected=f"{self.num_items}; impressions(..., items=) names all")
        if given is not None:
            checked = replace(checked, others={"shown": self._read_shown(given, checked)})
        return self._with_covariates(checked, data, user_covariates, item_covariates)

    def prepare_new(self, data: Source, like: Data, **settings: Any) -> Data:
        """Check further users, who were shown items of ``like``, by their labels where these have some."""
        own, known = read_before(data), like.coords.get("item")
        if own is not None and "shown" in own.others and own.coords.get("item") != known:
            shown = own.others["shown"]
            used = shown[shown >= 0].long().unique()
            names = own.coords.get("item", range(int(used[-1]) + 1))
            place = places_of([names[at] for at in used.tolist()], known, self.num_items, "item")
            found = shown.clone()
            found[shown >= 0] = torch.as_tensor(place).to(shown)[torch.searchsorted(used, shown[shown >= 0].long())]
            data = replace(own.with_labels("item", known), others={**own.others, "shown": found})
        return super().prepare_new(data, like, **settings)

    def _read_shown(self, value: MatrixLike, data: Data) -> Tensor:
        with about("shown"):
            found = as_tensor(unpack(value)[0], data.x.dtype).to(data.x.device)
            shape = (len(data), self.num_choices, self.places)
            if tuple(found.shape) != shape:
                raise DataError(f"shape {tuple(found.shape)}", expected=f"{shape}, the items shown at each choice")
            if bool(((found < -1) | (found >= self.num_items) | (found != found.round())).any()):
                expected = f"numbers of items, 0 to {self.num_items - 1}, and -1 for nothing"
                raise DataError("places that hold no item's number", expected=expected)
            seen = data.observed
            empty = seen & (found.gather(-1, data.x.long().unsqueeze(-1)).squeeze(-1) < 0)
            if bool(empty.any()):
                user, time = (int(part) for part in empty.nonzero()[0])
                raise DataError(f"{int(empty.sum())} picks of empty places (the first: user {user}, choice {time})",
                                expected="the place of an item that was shown")  # fmt: skip
        return found

    def check_for_fitting(self, data: Data) -> None:
        """Refuse choices that nobody made; the same place may be picked always."""
        check_columns(data, constant=())

    @classmethod
    def for_data(cls, data: Data, num_components: int, **settings: Any) -> Self:
        """Return the model of the data's choices, with items up to the largest number that occurs."""
        shown = data.others.get("shown")
        largest = data.x.max() if shown is None else shown.max()
        settings.setdefault("num_shown", 0 if shown is None else shown.shape[-1])
        settings.setdefault("num_items", len(data.coords.get("item", range(max(2, int(largest) + 1)))))
        return super().for_data(data, num_components, num_choices=data.num_features, **settings)
