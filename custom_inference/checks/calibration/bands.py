"""Is a sample uniform on [0, 1]? Simultaneous bands for its empirical distribution function, and their p-value.

Sailynoja, Burkner & Vehtari, *Graphical test for discrete uniformity and its applications in goodness-of-fit evaluation
and multiple sample comparison*, Statistics and Computing 32 (2022). Of M values let R_i be how many are below
z_i = i / G, i = 1 .. G - 1. Each is Binomial(M, z_i), with the two-sided tail probability

    t_i = 2 min{P(Bin(M, z_i) <= R_i), P(Bin(M, z_i) >= R_i)}.

The statistic is the smallest, t = min_i t_i, and p = P(some t_i <= t) = 1 - P(l_i <= R_i <= u_i for every i), where
l_i and u_i bound the counts with t_i > t. The simultaneous band of level 1 - alpha is made of the same bounds at the
largest t whose p is at most alpha. The paper finds this probability by a recursion over i. Here it is that recursion
with Poisson increments: counts between the grid points that are independent Poisson(M / G) and happen to add up to M
are those of M uniform values. Nothing is simulated or approximated.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom, poisson

Array = NDArray[np.float64]

#: Points of the grid.
GRID = 100
_Z = np.arange(1, GRID) / GRID
#: 1 - p is known to about this much: below, the union bound over the grid stands in for p.
_ROUNDING = 1e-11


class Band(NamedTuple):
    """z (G - 1,) and the bounds that the proportion of values below each keeps to, all at once."""

    z: Array
    low: Array
    high: Array


def grid_counts(values: Array) -> NDArray[np.int64]:
    """R_i: how many values are below i / G, i = 1 .. G - 1."""
    return np.searchsorted(np.sort(np.asarray(values).ravel()), _Z, side="left")


def uniformity_p_value(values: Array) -> float:
    """The exact p-value of the hypothesis that the values are independent and uniform on [0, 1]."""
    counts, total = grid_counts(values), np.asarray(values).size
    least = float(2 * np.minimum(binom.cdf(counts, total, _Z), binom.sf(counts - 1, total, _Z)).min())
    union = least * (GRID - 1)
    if least >= 1 or union <= _ROUNDING:
        return min(1.0, union)
    p = 1 - inside_probability(*_bounds(least, total), total)
    return float(min(1.0, p if p > _ROUNDING else union))


def inside_probability(low: NDArray[np.int64], high: NDArray[np.int64], total: int) -> float:
    """P(low_i <= R_i <= high_i for every i) of ``total`` uniform values."""
    if bool((low > high).any()):
        return 0.0
    step = poisson.pmf(np.arange(total + 1), total / GRID)
    step = step[: max(1, int(np.flatnonzero(step)[-1]) + 1)]
    first, chance = 0, np.ones(1)  # P(R_i = first + r, and inside so far)
    for least, most in zip([*low.tolist(), total], [*high.tolist(), total], strict=True):
        after = np.convolve(chance, step)  # of R = first, first + 1, ...
        least = max(least, first)
        chance = np.zeros(most - least + 1)
        kept = after[least - first : most - first + 1]
        chance[: len(kept)] = kept
        first = least
    return float(chance[0] / poisson.pmf(total, total))


def _bounds(tail: float, total: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The counts whose two-sided tail probability exceeds ``tail``, (G - 1,) each."""
    low = binom.ppf(tail / 2, total, _Z).astype(np.int64)  # the least count with a cdf of at least tail / 2
    low = np.where(2 * binom.cdf(low, total, _Z) > tail, low, low + 1)
    low = np.where((low > 0) & (2 * binom.cdf(low - 1, total, _Z) > tail), low - 1, low)
    high = binom.isf(tail / 2, total, _Z).astype(np.int64)
    high = np.where(2 * binom.sf(high - 1, total, _Z) > tail, high, high - 1)
    high = np.where((high < total) & (2 * binom.sf(high, total, _Z) > tail), high + 1, high)
    return low, high


@lru_cache(maxsize=64)
def simultaneous_band(total: int, level: float = 0.95) -> Band:
    """The narrowest such band that ``total`` uniform values keep to with a probability of at least ``level``."""
    below, above = np.log((1 - level) / GRID / 2), np.log(1 - level)  # logarithms of t: the union bound, one point
    for _ in range(40):
        middle = (below + above) / 2
        inside = inside_probability(*_bounds(float(np.exp(middle)), total), total)
        below, above = (middle, above) if inside >= level else (below, middle)
    low, high = _bounds(float(np.exp(below)), total)
    return Band(_Z, low / total, high / total)


def holm(p_values: Array) -> Array:
    """p-values adjusted for their number (Holm 1979), whatever their dependence: p_(i) (m - i + 1), made monotone."""
    order = np.argsort(p_values, kind="stable")
    scaled = p_values[order] * np.arange(len(order), 0, -1)
    adjusted = np.empty(len(order))
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(scaled))
    return adjusted
