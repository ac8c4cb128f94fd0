"""Nodes that functions of standard normals are averaged at: product rules of few axes, quasi-random draws of more."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from ppl_models.core.likelihood import hermite

#: Nodes an axis of the product rule, by the number of axes; of more axes draws are taken. The finer one is for means
#: that are said with all of their digits.
AXIS_NODES = {1: 25, 2: 13, 3: 7}
_FINE_NODES = {1: 64, 2: 40, 3: 16}
#: Draws, at least so many and so many an axis.
_LEAST_DRAWS, _DRAWS_AN_AXIS = 64, 8


class Nodes(NamedTuple):
    """place: (S, D); log_weight: (S,), the weights add up to 1. Means over N(0, I) are weighted sums over the places.
    drawn: whether the places are draws, rather than those of a product rule.
    """

    place: Tensor
    log_weight: Tensor
    drawn: bool

    def to(self, like: Tensor) -> Nodes:
        return Nodes(self.place.to(like), self.log_weight.to(like), self.drawn)


@lru_cache(maxsize=32)
def standard_nodes(size: int, number: int | None = None, *, fine: bool = False) -> Nodes:
    """Nodes of a standard normal of ``size`` axes.

    number: of draws; by default up to three axes have Gauss and Hermite's product rule, more axes 8 draws an axis, at
    least 64. Draws are quasi-random (Sobol's), in pairs z and -z, and scaled to have the covariance I exactly, so that
    quadratic functions have their exact means. One draw is the point 0.
    fine: more nodes an axis of the product rule, which then serves up to three axes whatever ``number`` is.
    """
    axes = _FINE_NODES if fine else AXIS_NODES
    if size in axes and (fine or number is None):
        node, weight = hermite(axes[size])
        place, each = (torch.cartesian_prod(*[one] * size).reshape(-1, size) for one in (node, weight.log()))
        return Nodes(place, each.sum(-1), False)
    if number == 1 or size == 0:
        return Nodes(torch.zeros(1, size, dtype=torch.float64), torch.zeros(1, dtype=torch.float64), True)
    half = max(size, (number or max(_LEAST_DRAWS, _DRAWS_AN_AXIS * size)) // 2)
    uniform = torch.quasirandom.SobolEngine(size, scramble=True, seed=7).draw(half, dtype=torch.float64)
    draw = torch.special.ndtri(uniform.clamp(1e-9, 1 - 1e-9))
    root = torch.linalg.cholesky(draw.T @ draw / half)
    place = torch.linalg.solve_triangular(root, draw.T, upper=False).T
    log_weight = torch.full((2 * half,), 1.0 / (2 * half), dtype=torch.float64).log()
    return Nodes(torch.cat([place, -place]), log_weight, True)
