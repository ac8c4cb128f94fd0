"""Ratings as the closed-form steps read them: sums over what each user rated, and over who rated each item."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from custom_inference.families.rows.base import Rows
from ppl_models import Data
from ppl_models.data import sparse
from ppl_models.data.ratings.data import Ratings


@dataclass(frozen=True)
class RatingRows(Rows):
    """x: ratings (U, I) less ``centre``, dense with 0 where nothing was rated, or CSR; observed: 1 where something was,
    in the same layout, or None where all was."""

    x: Tensor
    observed: Tensor | None = None
    centre: float = 0.0

    @classmethod
    def of(cls, data: Data, centre: float = 0.0) -> Self:
        if isinstance(data, Ratings):
            apart = sparse.with_values(data.x, data.value - centre)
            return cls(apart, sparse.with_values(data.x, torch.ones_like(data.value)), centre)
        if data.mask is None:
            return cls(data.x - centre, centre=centre)
        return cls((data.x - centre).masked_fill(~data.mask, 0.0), data.mask.to(data.x), centre)

    @property
    def is_sparse(self) -> bool:
        return sparse.is_sparse(self.x)

    @cached_property
    def like(self) -> Tensor:
        """A tensor of the data's dtype and device."""
        return self.x.values()[:0] if self.is_sparse else self.x

    def select(self, index: Tensor | slice) -> Self:
        """Return the chosen users. A rating at the centre is 0 here, and stored all the same."""
        if not self.is_sparse:
            return super().select(index)
        chosen = Ratings(x=self.x).rows(index)
        return replace(self, x=chosen.x, observed=sparse.with_values(chosen.x, torch.ones_like(chosen.value)))

    def list_ratings(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return user, item and value (M,) of each rating."""
        if self.is_sparse:
            return sparse.triplets(self.x)
        seen = torch.ones_like(self.x) if self.observed is None else self.observed
        user, item = seen.nonzero(as_tuple=True)
        return user, item, self.x[user, item]

    @cached_property
    def _turned(self) -> tuple[Tensor, Tensor]:
        """x and observed with items for rows."""
        if not self.is_sparse:
            return self.x.T, torch.ones_like(self.x.T) if self.observed is None else self.observed.T
        user, item, value = sparse.triplets(self.x)
        order = torch.argsort(item, stable=True)
        count = torch.bincount(item, minlength=self.x.shape[1])
        crow = torch.cat([count.new_zeros(1), count.cumsum(0)])
        size = (self.x.shape[1], self.x.shape[0])
        x = sparse.tensor(crow, user[order], value[order], size=size)
        return x, sparse.with_values(x, torch.ones_like(value))

    @cached_property
    def count(self) -> Tensor:
        """Ratings of each user, (U,)."""
        return self.of_users(self.like.new_ones(self.x.shape[1], 1)).squeeze(1)

    @cached_property
    def square(self) -> Tensor:
        """sum_j x_nj^2 of each user, (U,)."""
        if self.is_sparse:
            user, _, value = sparse.triplets(self.x)
            return torch.zeros(len(self), dtype=value.dtype, device=value.device).index_add_(0, user, value.square())
        return self.x.square().sum(1)

    def of_users(self, per_item: Tensor) -> Tensor:
        """Compute sum_j o_nj a_j of values (I, F), (U, F)."""
        if self.observed is None:
            return per_item.sum(0).expand(len(self), -1)
        return self.observed @ per_item

    def sum_ratings_by_user(self, per_item: Tensor) -> Tensor:
        """Compute sum_j o_nj x_nj a_j, (U, F)."""
        return self.x @ per_item

    def of_items(self, per_user: Tensor) -> Tensor:
        """Compute sum_n o_nj b_n of values (U, F), (I, F)."""
        if self.observed is None:
            return per_user.sum(0).expand(self.x.shape[1], -1)
        return self._turned[1] @ per_user

    def sum_ratings_by_item(self, per_user: Tensor) -> Tensor:
        """Compute sum_n o_nj x_nj b_n, (I, F)."""
        return self._turned[0] @ per_user
