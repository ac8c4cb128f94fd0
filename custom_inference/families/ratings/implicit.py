"""Implicit feedback in the frame: what users rated, and who rated items, moves their profiles.

With z_nj = n_n^(-1/2) c_j^(-1/4) where user n, of n_n ratings, rated item j, of c_j, and 0 elsewhere, z_n centred,

    (f_n, u_n) ~ Normal(m + z_n B, S),   B_j ~ Normal(0, S / ridge),   ridge ~ Gamma(1, .01),

and the items likewise. Of Z only its principal coordinates are used (``features``). What z_n B adds is part of the
profile, so a fit needs no B for the users and items that it knows; ``Fit.user_covariance`` is that of profiles,
S + B'Z'Z B / U. For new ones (m, B, S) are given the rows of the fit as in ``hyper``, which is their distribution too.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
import torch
from torch import Tensor

from custom_inference.families.ratings.features import Design, implicit_feedback
from custom_inference.families.ratings.hyper import PriorSettings, prior_given_rows
from custom_inference.families.ratings.incidence import Array, ByRow, Incidence
from ppl_models import Data, Ratings

SIDES = ("user", "item")


def triplets(data: Data) -> tuple[Array, Array, Array]:
    """Return user, item and value (M,) of ratings, listed or in a matrix."""
    if isinstance(data, Ratings):
        user, item, value = (part.cpu().numpy() for part in (data.user, data.item, data.value))
        return user, item, value
    mask = data.observed
    user, item = (part.cpu().numpy() for part in mask.nonzero(as_tuple=True))
    return user, item, data.x[mask].cpu().numpy()


def incidence(data: Data, centre: float = 0.0, unit: float = 1.0) -> Incidence:
    """Convert the ratings to (r - centre) / unit as the array-level code has them."""
    user, item, value = triplets(data)
    return Incidence.of(user, item, (value.astype(np.float64) - centre) / unit, data.x.shape[0], data.x.shape[1])


def blocks_of(ratings: Incidence) -> tuple[Any, Any]:
    """Return the feedback of users (U, I) and of items (I, U)."""
    users, items = ratings.users, ratings.items
    return implicit_feedback(users, items.counts), implicit_feedback(items, users.counts)


class NewRows(NamedTuple):
    """mean (N, C) and covariance (N, C, C) of each new row before its ratings are known."""

    mean: Tensor
    covariance: Tensor


@dataclass(frozen=True)
class Feedback:
    """What feedback adds to new users or items of a fit. data: those of the fit; rank, ridges (S, 2): of each draw;
    settings, units (C,): of each side, the units of the entries of its rows, which settings are less."""

    data: Data
    rank: int
    ridges: list[list[float]]
    settings: dict[str, PriorSettings]
    units: dict[str, Tensor]

    @cached_property
    def _known(self) -> tuple[Incidence, dict[str, Design]]:
        ratings = incidence(self.data)
        blocks = zip(SIDES, blocks_of(ratings), strict=True)
        return ratings, {side: Design.of([block], block.shape[0], self.rank) for side, block in blocks}

    def columns(self, side: str, data: Data) -> Array:
        """(N, P) of new users, whose ratings are the data's, or of new items."""
        ratings, designs = self._known
        user, item, _ = triplets(data)
        row, other = (user, item) if side == "user" else (item, user)
        known = ratings.items if side == "user" else ratings.users
        size = data.x.shape[0 if side == "user" else 1]
        rows = ByRow.of(row, other, np.zeros(len(row)), size)
        return designs[side].of_new([implicit_feedback(rows, known.counts)])

    def prior(self, side: str, columns: Array, rows: Tensor, spread: Tensor | None, number: int) -> NewRows:
        """Return the prior of new rows with these columns, given the rows of the fit (N, C), with the covariances (N,
        C, C) ``spread``: m, B and S integrated out. number: of the draw, which ridges are of.

        With S^-1 ~ Wishart(v, Q^-1), m of strength k and B ~ N(., G^-1 x S), a row with columns x has the covariance
        Q / (v - C - 1) (1 + 1 / k + x'G^-1 x).
        """
        design, size = self._known[1][side], rows.shape[1]
        ridges = np.array(self.ridges[min(number, len(self.ridges) - 1)])[[SIDES.index(side)]]
        settings, each = self.settings[side], self.units[side].numpy()
        total = np.zeros((size, size)) if spread is None else spread.sum(0).cpu().double().numpy()
        total, plain = total / np.outer(each, each), rows.cpu().double().numpy() / each
        found = prior_given_rows(plain, total, design, settings, ridges, learn=False)
        solved = scipy.linalg.solve_triangular(found.factor, columns.T, lower=True) if len(found.factor) else columns.T
        wider = 1 + 1 / found.strength + np.square(solved).sum(0)
        expected = found.scale / max(found.degrees - size - 1, 1.0) * np.outer(each, each)
        mean = torch.as_tensor(found.means(columns, len(columns)) * each).to(rows)
        return NewRows(mean, torch.as_tensor(wider[:, None, None] * expected).to(rows))
