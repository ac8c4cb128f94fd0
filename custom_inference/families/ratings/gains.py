"""Gains of precisions where noise varies: a_n of users, which the model integrates out, given ratings and profiles.

r_nj ~ Normal(o_j + a_j'p_n, sigma^2 / (a_n h_j)),    a_n ~ Gamma(s, s)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Self

import torch
from torch import Tensor

from custom_inference.core.states import Params
from custom_inference.families.ratings.fold_in import ProfileRows
from custom_inference.families.ratings.rows import RatingRows
from custom_inference.families.ratings.times import without_time
from ppl_models import PMF, Data

#: Ratings whose residuals are computed at a time.
_BLOCK = 2**18


class Gains(NamedTuple):
    """Gamma distributions of the factors a_n of precisions: shape and rate (N,)."""

    shape: Tensor
    rate: Tensor

    @classmethod
    def prior(cls, shape: float, like: Tensor) -> Gains:
        """Return Gamma(s, s) of as many as ``like`` (N,) has."""
        return cls(*like.new_full((2, len(like)), shape))

    @property
    def mean(self) -> Tensor:
        return self.shape / self.rate

    @property
    def inverse(self) -> Tensor:
        """E[1 / a_n]; 1 / E[a_n] where that is infinite, as of shapes of at most 1."""
        return self.rate / torch.where(self.shape > 1, self.shape - 1, self.shape)

    def append(self, other: Gains) -> Gains:
        return Gains(*(torch.cat(parts) for parts in zip(self, other, strict=True)))


def gains_given(
    shape: float,
    at: Mapping[str, Tensor],
    rows: RatingRows,
    profiles: ProfileRows,
    coefficients: tuple[Tensor, Tensor],
    gains: Tensor,
) -> Gains:
    """Return p(a_n | ratings, profiles) = Gamma(s + n / 2, s + sum_j h_j (r - o_j - a_j'p)^2 / 2 sigma^2), with the
    mean of the sum where profiles are not known. coefficients: a, o; gains: h of the other side."""
    (loading, offset), square = coefficients, torch.zeros_like(profiles.mean[:, 0])
    user, item, value = rows.list_ratings()
    for one, two, rating in zip(*(part.split(_BLOCK) for part in (user, item, value)), strict=True):
        a = loading[two]
        error = (rating + rows.centre - offset[two] - (profiles.mean[one] * a).sum(-1)).square()
        if profiles.covariance is not None:
            error = error + torch.einsum("mi,mij,mj->m", a, profiles.covariance[one], a)
        square.index_add_(0, one, gains[two] * error)
    return Gains(shape + 0.5 * rows.count, shape + 0.5 * square / at["scale"].square())


@dataclass(frozen=True)
class UserGains:
    """The gains of users, those of the fit or new ones. chosen: the numbers of those that are
    needed."""

    model: PMF
    item_covariates: Tensor | None
    data: Data
    new: bool
    chosen: Tensor

    @classmethod
    def of(cls, model: PMF, fitted: Data, new: Data | None, asked: Tensor | None) -> Self:
        """asked (M,): numbers of users, that of somebody unknown among them; None: all."""
        data = fitted if new is None else new
        everybody = torch.arange(len(data), device=data.x.device)
        chosen = everybody if asked is None else asked[asked < len(data)].unique()
        return cls(model, fitted.others.get("item_covariates"), data, new is not None, chosen)

    @cached_property
    def _rated(self) -> RatingRows:
        return RatingRows.of(self.data, self.model.units[0]).select(self.chosen)

    def _ratings_at(self, at: Params) -> RatingRows:
        if not self.model.timed:
            return self._rated
        rest = without_time(self.model, at, self.data, new="user" if self.new else "")
        return RatingRows.of(rest, self.model.units[0]).select(self.chosen)

    def find(self, at: Params, users: ProfileRows) -> Gains:
        """Return the gains (N + 1,) of users at their profiles; those that are not chosen, and the last one, of a user
        who is not known, have their prior."""
        shape, chosen = self.model.noise_shape, self.chosen
        assert shape is not None
        own = users.select(chosen)
        coefficients = self.model.coefficients(at, self.item_covariates)
        found = gains_given(shape, at, self._ratings_at(at), own, coefficients, at["item_precision"])
        prior = found.rate.new_full((len(self.data) + 1,), shape)
        return Gains(*(prior.index_copy(0, chosen, one.to(prior)) for one in found))
