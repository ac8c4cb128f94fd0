"""What users did with items, one line an observation: the form in which engines of bilinear factors read data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from custom_inference.families.rows.base import Rows
from ppl_models import ChoicePMF, Data, Ratings
from ppl_models.bilinear_pmf import BilinearModel, constant_feature


@dataclass(frozen=True)
class Observations(Rows):
    """M observations of U users, those of a user together.

    count (U,): observations of each user. item (M, L): the items of each, 0 where ``shown`` (M, L) is False. x (M,):
    what the user did: yes or no (L = 1), or the place of the choice. user_covariates (U, P), item_covariates (I, Q),
    less their centres.
    """

    count: Tensor
    item: Tensor
    shown: Tensor
    x: Tensor
    user_covariates: Tensor
    item_covariates: Tensor

    @property
    def like(self) -> Tensor:
        return self.user_covariates

    @property
    def user(self) -> Tensor:
        """(M,) the number of each observation's user."""
        return torch.repeat_interleave(torch.arange(len(self), device=self.count.device), self.count)

    def select(self, index: Tensor | slice) -> Self:
        """Select the chosen users."""
        place = torch.arange(len(self), device=self.count.device)[index]
        start, count = self.count.cumsum(0)[place] - self.count[place], self.count[place]
        begin = torch.repeat_interleave(start - (count.cumsum(0) - count), count)
        chosen = begin + torch.arange(len(begin), device=begin.device)
        parts = {name: getattr(self, name)[chosen] for name in ("item", "shown", "x")}
        return replace(self, count=count, user_covariates=self.user_covariates[place], **parts)

    def sum_by_user(self, value: Tensor) -> Tensor:
        """Sum over the observations of each user, (M, ...) -> (U, ...)."""
        return value.new_zeros(len(self), *value.shape[1:]).index_add_(0, self.user, value)

    def sum_by_item(self, value: Tensor) -> Tensor:
        """Sum over the places where each item was shown, (M, L, ...) -> (I, ...)."""
        total = value.new_zeros(len(self.item_covariates), *value.shape[2:])
        return total.index_add_(0, self.item.flatten(), value.flatten(0, 1))


def covariates_of(model: BilinearModel, data: Data) -> dict[str, Tensor]:
    """Return the features of users and items less their centres, the constant where none are given."""
    like = data.stored
    sizes = {"user": (len(data), model.num_user_covariates), "item": (model.num_items, model.num_item_covariates)}
    found: dict[str, Tensor] = {}
    for side, size in sizes.items():
        given: Any = model.about_centre(side, data.others.get(f"{side}_covariates"))
        found[f"{side}_covariates"] = constant_feature(like, *size) if given is None else given
    return found


def pairs_of(model: BilinearModel, data: Data) -> Observations:
    """List every observed pair of user and item."""
    if isinstance(data, Ratings):
        count, item, x = data.x.crow_indices().diff(), data.item, data.value
    else:
        mask = data.observed
        count, item, x = mask.sum(1), mask.nonzero()[:, 1], data.x[mask]
    shown = torch.ones_like(item, dtype=torch.bool)
    return Observations(count, item[:, None], shown[:, None], x, **covariates_of(model, data))


def choices_of(model: ChoicePMF, data: Data) -> Observations:
    """List every choice that was made, with the items to choose from."""
    mask = data.observed
    given = data.others.get("shown")
    every = torch.arange(model.places, device=mask.device)
    item = every.expand(int(mask.sum()), -1) if given is None else given[mask].long()
    return Observations(mask.sum(1), item.clamp_min(0), item >= 0, data.x[mask], **covariates_of(model, data))
