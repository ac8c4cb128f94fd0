"""Models of users and items: sizes, ratings as people hold them, the rotation of their factors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from ppl_models.core.errors import DataError, ModelError, require_whole, unknown_name, warn_of_data
from ppl_models.core.row_models import RowModel
from ppl_models.core.turns import canonical_turn
from ppl_models.data.held import Source
from ppl_models.data.matrix import Data
from ppl_models.data.ratings.data import Ratings, warn_of_zeros
from ppl_models.data.ratings.model import prepare_ratings, warn_of_unrated
from ppl_models.likelihoods import Bernoulli, Gaussian

#: What the ratings of a likelihood are: real numbers, 0 or 1, levels of a scale.
LIKELIHOODS = ("gaussian", "logistic", "ordinal")


@dataclass(frozen=True, kw_only=True, eq=False)
class RatingModel(RowModel):
    """Users, who are the rows, and items, with K factors each.

    num_user_covariates, num_item_covariates: P and Q, of what is given of users and of items; 0: nothing.
    """

    num_components: int
    num_users: int
    num_items: int
    num_user_covariates: int = 0
    num_item_covariates: int = 0

    axes: ClassVar[Mapping[str, str]] = {"component": "num_components", "item": "num_items"}
    whole_fields: ClassVar[tuple[str, ...]] = ("num_users",)

    def __post_init__(self) -> None:
        require_whole({name: getattr(self, name) for name in ("num_user_covariates", "num_item_covariates")}, 0)
        super().__post_init__()

    @property
    def sizes(self) -> dict[str, int]:
        own = {"user_covariate": self.num_user_covariates, "item_covariate": self.num_item_covariates}
        return super().sizes | own

    @property
    def data_kind(self) -> str:
        return "ratings"

    def standard_form(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Turn the items' factors to orthogonal columns, the longest first, the largest entry of each positive, and all
        else that has components alike, means and covariances of profiles too."""
        turn, found = canonical_turn(values["item"].mT), dict(values)
        biases = self.sizes.get("coordinate", self.num_components) - self.num_components
        whole = torch.block_diag(torch.eye(biases).to(turn), turn)
        sites = self.sites
        for site in values.keys() & sites.keys():
            axes = sites[site].dims[-2:]
            if axes[-1:] in (("component",), ("coordinate",)):
                found[site] = values[site] @ (turn if axes[-1] == "component" else whole).T
            elif axes == ("coordinate", "to_coordinate"):
                found[site] = whole @ values[site] @ whole.T
        return found

    def num_unseen(self, num_rows: int) -> int:
        """Count the rotations of the factors; of users as points, of all invertible matrices."""
        k = self.sizes["component"]
        return (k**2 if num_rows else k * (k - 1) // 2) if "item" in self.unknown_sites else 0


@dataclass(frozen=True, kw_only=True, eq=False)
class RatedItems(RatingModel):
    """Ratings of items by users, with covariates of both and times beside them.

    likelihood: "gaussian", real ratings; "logistic", 0 or 1; "ordinal", whole numbers from ``levels[0]`` to
        ``levels[1]``.
    user_blocks, item_blocks: how many of the covariates belong to each block of them; None: one block.

    Raises ModelError for unknown likelihoods, levels that do not increase, and blocks of another number of covariates.
    """

    likelihood: ClassVar[Any] = "gaussian"
    levels: ClassVar[Any] = None
    user_blocks: ClassVar[Any] = None
    item_blocks: ClassVar[Any] = None

    def __post_init__(self) -> None:
        if self.likelihood not in LIKELIHOODS:
            raise ModelError(unknown_name("likelihood", self.likelihood, LIKELIHOODS))
        levels = self.levels
        if (levels is None) == (self.likelihood == "ordinal") or (levels is not None and levels[0] >= levels[1]):
            found = f"levels = {levels!r} of the likelihood '{self.likelihood}'"
            raise ModelError(f"{found}, expected the lowest and the highest rating of an ordinal one, None of others")
        for side in ("user", "item"):
            self._count_blocks(f"{side}_blocks", f"num_{side}_covariates")
        super().__post_init__()

    def _count_blocks(self, blocks: str, total: str) -> None:
        if getattr(self, blocks) is None:
            return
        sizes = tuple(int(size) for size in getattr(self, blocks))
        if not all(size > 0 for size in sizes) or getattr(self, total) not in (0, sum(sizes)):
            raise ModelError(f"{blocks} = {sizes}, expected positive numbers that add up to {total}")
        object.__setattr__(self, blocks, sizes)
        object.__setattr__(self, total, sum(sizes))

    def prepare(self, data: Source, **settings: Any) -> Data:
        """Check ratings by the door :func:`ppl_models.ratings`, or a matrix with NaN; and what is given, by name.

        Raises DataError for ratings that the likelihood gives no probability, and for covariates of other shapes.
        """
        return prepare_ratings(self, data, None, **settings)

    def prepare_new(self, data: Source, like: Data, **settings: Any) -> Data:
        """Check ratings by users new or old, of the items of ``like``, by their labels where they have any, and with
        their covariates."""
        return prepare_ratings(self, data, like, **settings)

    def refusal(self, value: Tensor) -> tuple[Tensor, str, str]:
        """Return which ratings have no probability, what they are, and what was expected."""
        if self.likelihood == "logistic":
            return ~Bernoulli().valid(value), *Bernoulli().refusal
        wrong, (what, expected) = ~Gaussian().valid(value), Gaussian().refusal
        if self.levels is not None:
            low, high = self.levels
            wrong = wrong | (value < low) | (value > high) | (value != value.round())
            what, expected = "are no level of the scale", f"whole numbers from {low} to {high}"
        return wrong, what, expected

    @classmethod
    def for_data(cls, data: Data, num_components: int, **settings: Any) -> Self:
        """Return the model of as many users, items and covariates of both as the data have, with their centre and unit:
        what :func:`ppl_models.ratings` gives, or takes."""
        settings.setdefault("num_users", len(data))
        for side in ("user", "item"):
            given, blocks = data.others.get(f"{side}_covariates"), settings.get(f"{side}_blocks")
            if given is not None and blocks is None:
                settings.setdefault(f"num_{side}_covariates", given.shape[1])
        return cls(num_components=num_components, num_items=data.num_features, **settings).on_scale_of(data)

    def check_for_fitting(self, data: Data) -> None:
        """Refuse other numbers of users than the model's; warns of users and of items without ratings, and of a matrix
        whose zeros are probably none."""
        if isinstance(data, Ratings) and data.num_users != self.num_users:
            found = f"{data.num_users} users where the model has num_users = {self.num_users}"
            raise DataError(found, axis="user", expected=f"{self.num_users}; ratings(..., num_users=)")
        warn_of_unrated(data)
        time = data.others.get("time")
        for name in ("time_edges", "user_time_edges"):
            edges = getattr(self, name, None)
            if not edges or time is None:
                continue
            if len(torch.bucketize(time, torch.tensor(edges, dtype=time.dtype)).unique()) == 1:
                span = f"{float(time.min()):.10g} to {float(time.max()):.10g}"
                told = "dates are days since 1970, also those of the edges"
                warn_of_data(f"all times, {span}, are in one bin of {name} = {edges}; {told}")
        if not data.is_sparse:
            warn_of_zeros(data.entries)
