"""Steps of Markov chains that leave a density as it is: of many variables at once, each on its own.

Slice sampling (Neal, *Annals of Statistics* 31, 2003) draws a height below the density at the present point, and then a
point among those where the density is above it. Nothing has to be tuned: intervals are stepped out while both their
ends are above the height, and shrunk to what is rejected inside them (his figures 3 and 5).

In several dimensions points are drawn from an ellipse through the present one and a draw of a Gaussian close to the
density (Murray, Adams & MacKay, AISTATS 2010; Nishihara, Murray & Adams, J. Machine Learning Research 15, 2014): where
the density is that Gaussian, the very first point is accepted, in any number of dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

#: An interval is stepped out to at most so many widths.
_WIDTHS = 16
#: Proposals after which a variable stays where it is: intervals shrink to nothing much sooner.
_PROPOSALS = 200

#: log density of all variables, up to constants, at new values of all of them.
LogDensity = Callable[[Tensor], Tensor]


def slice_step(log_density: LogDensity, width: Tensor, generator: np.random.Generator) -> Tensor:
    """Return how far each variable moves in one slice step from 0 on its own line.

    log_density: of offsets (...), (...); each entry depends on its own offset only, and is finite at 0.
    width (...): about the width of the density.
    """
    level, zero = log_density(torch.zeros_like(width)) - _exponential(width, generator), torch.zeros_like(width)
    left = -width * _uniform(width, generator)
    right = left + width
    budget = torch.floor(_WIDTHS * _uniform(width, generator))
    left = _step_out(log_density, level, left, -width, budget)
    right = _step_out(log_density, level, right, width, _WIDTHS - 1 - budget)
    found, waiting = zero, torch.ones_like(width, dtype=torch.bool)
    for _ in range(_PROPOSALS):
        proposed = left + (right - left) * _uniform(width, generator)
        inside = waiting & (log_density(torch.where(waiting, proposed, found)) > level)
        found, waiting = torch.where(inside, proposed, found), waiting & ~inside
        if not bool(waiting.any()):
            break
        left = torch.where(waiting & (proposed < 0), proposed, left)
        right = torch.where(waiting & (proposed >= 0), proposed, right)
    return found


def _step_out(log_density: LogDensity, level: Tensor, end: Tensor, step: Tensor, budget: Tensor) -> Tensor:
    """Move one end of every interval while the density there is above the level."""
    going = budget > 0
    for taken in range(_WIDTHS):
        going = going & (budget > taken)
        if not bool(going.any()):
            break
        going = going & (log_density(end) > level)
        end = torch.where(going, end + step, end)
    return end


def elliptical_step(
    log_ratio: LogDensity, value: Tensor, centre: Tensor, spread: Tensor, generator: np.random.Generator
) -> Tensor:
    """Return points (..., D) after one step on an ellipse, each on its own.

    log_ratio: log of the density over N(centre, spread^2), of points (..., D), (...); finite at ``value``.
    """
    away = value - centre
    other = spread * torch.as_tensor(generator.standard_normal(tuple(value.shape)))
    now = log_ratio(value)
    level, angle = now - _exponential(now, generator), 2 * math.pi * _uniform(now, generator)
    low, high, found, waiting = angle - 2 * math.pi, angle, value, torch.ones_like(now, dtype=torch.bool)
    for _ in range(_PROPOSALS):
        turned = centre + away * torch.cos(angle).unsqueeze(-1) + other * torch.sin(angle).unsqueeze(-1)
        proposed = torch.where(waiting.unsqueeze(-1), turned, found)
        inside = waiting & (log_ratio(proposed) > level)
        found, waiting = torch.where(inside.unsqueeze(-1), proposed, found), waiting & ~inside
        if not bool(waiting.any()):
            break
        low, high = torch.where(angle < 0, angle, low), torch.where(angle >= 0, angle, high)
        angle = low + (high - low) * _uniform(now, generator)
    return found


def accept_proposals(log_ratio: Tensor, generator: np.random.Generator) -> Tensor:
    """Decide which proposals with these Metropolis-Hastings log ratios are accepted; one whose ratio is not a number is
    not."""
    return -_exponential(log_ratio, generator) < log_ratio


def _uniform(like: Tensor, generator: np.random.Generator) -> Tensor:
    return torch.as_tensor(generator.random(tuple(like.shape)), dtype=like.dtype)


def _exponential(like: Tensor, generator: np.random.Generator) -> Tensor:
    return torch.as_tensor(generator.standard_exponential(tuple(like.shape)), dtype=like.dtype)
