"""Newton's method for many small problems at once: steps within bounds, steps cut short, roots in one dimension."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

Point = TypeVar("Point")


def pair_index(size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the pairs (i, j), i <= j, of a packed symmetric matrix, and the (size, size) table of where each pair
    is."""
    first, second = torch.triu_indices(size, size)
    table = torch.empty(size, size, dtype=torch.long)
    table[first, second] = table[second, first] = torch.arange(len(first))
    return first, second, table


def unpack_symmetric(packed: Tensor) -> Tensor:
    """Unpack symmetric matrices, (B, K (K + 1) / 2) -> (B, K, K)."""
    size = int(((8 * packed.shape[1] + 1) ** 0.5 - 1) / 2)
    table = pair_index(size)[2].to(packed.device)
    return packed[:, table]


def box_newton(
    x: Tensor, gradient: Tensor, curvature: Tensor, lower: Tensor | float, upper: Tensor | float, *, rounds: int = 3
) -> Tensor:
    """Return x + argmax_d gradient d - d' curvature d / 2, approximately within lower <= x + d <= upper, for every row.

    x, gradient (B, K); curvature (B, K, K), positive semi-definite. Variables at a bound whose gradient points out of
    the box stay there (Bertsekas, SIAM J. Control and Optimization 20, 1982); those that a step takes past a bound are
    put on it and the others solved for again, ``rounds`` times in all. The callers check that the objective rose.
    """
    low, high = (torch.as_tensor(b, dtype=x.dtype, device=x.device).expand_as(x) for b in (lower, upper))
    pinned = ((x <= low) & (gradient <= 0)) | ((x >= high) & (gradient >= 0))
    # Nearly equal aspects make the curvature singular: a small ridge keeps their difference still.
    diagonal = curvature.diagonal(dim1=1, dim2=2)
    ridge = 4 * torch.finfo(x.dtype).eps * diagonal.sum(1, keepdim=True) + torch.finfo(x.dtype).tiny
    held, step = torch.zeros_like(x), torch.zeros_like(x)
    for _ in range(rounds):
        free = (~pinned).to(x)
        right = (gradient - (curvature @ held.unsqueeze(-1)).squeeze(-1)) * free + held * (1 - free)
        system = curvature * free.unsqueeze(1) * free.unsqueeze(2)
        system.diagonal(dim1=1, dim2=2).add_((1 - free) + ridge * free)
        step = torch.linalg.solve_ex(system, right)[0]
        below, above = x + step < low, x + step > high
        outside = (below | above) & ~pinned
        if not bool(outside.any()):
            break
        held = torch.where(outside & below, low - x, torch.where(outside & above, high - x, held))
        pinned = pinned | outside
    return torch.maximum(torch.minimum(x + torch.nan_to_num(step, 0.0, 0.0, 0.0), high), low)


def cut_steps(
    move: Callable[[Tensor], tuple[Point, Tensor]],
    least: Tensor,
    *,
    size: Tensor | None = None,
    divisor: float = 2.0,
    cuts: int = 24,
) -> Point:
    """Take the step of every problem, divided again and again until its value is at least ``least``, shape (N,).

    move: sizes (N,) of the steps -> where they lead, and the values there (N,). The sizes begin at ``size``, by
    default 1; after ``cuts`` divisions a problem stays where it is.
    """
    size = torch.ones_like(least) if size is None else size
    for cut in range(cuts, -1, -1):
        found, value = move(size)
        low = ~(value >= least)
        if cut == 0 or not bool(low.any()):
            return found
        size = torch.where(low, size / divisor if cut > 1 else torch.zeros_like(size), size)
    raise AssertionError("not reached")


def decreasing_root(
    function: Callable[[Tensor], tuple[Tensor, Tensor]],
    lower: Tensor,
    upper: Tensor,
    start: Tensor,
    *,
    tolerance: float = 1e-9,
    max_iterations: int = 60,
) -> Tensor:
    """Find the roots of decreasing functions, element by element, by Newton's method kept inside a shrinking bracket.

    function: x -> (value, derivative), elementwise decreasing.
    Where the value at ``lower`` is <= 0 the root is ``lower`` (the maximum of the concave objective lies on that
    boundary), and likewise ``upper`` where the value there is >= 0.
    """
    low, high = lower.clone(), upper.clone()
    # The ends themselves are evaluated only where Newton's method points at them.
    above, below = torch.zeros_like(low, dtype=torch.bool), torch.zeros_like(low, dtype=torch.bool)
    x = torch.minimum(torch.maximum(start, lower), upper)
    for _ in range(max_iterations):
        value, slope = function(x)
        positive = value > 0
        at_end = ((x <= lower) & ~positive) | ((x >= upper) & (value >= 0))
        low, high = torch.where(positive, x, low), torch.where(positive, high, x)
        above, below = above | positive, below | ~positive
        newton = x - value / slope.clamp(max=-torch.finfo(x.dtype).tiny)
        newton = torch.where((newton <= lower) & ~above, lower, torch.where((newton >= upper) & ~below, upper, newton))
        # With equality: a step that rounds to nothing is convergence, not a reason to bisect. False for NaN.
        inside = (newton >= low) & (newton <= high)
        proposal = torch.where(at_end, x, torch.where(inside, newton, 0.5 * (low + high)))
        step, x = (proposal - x).abs(), proposal
        if bool((step <= tolerance * (1 + x.abs())).all()):
            break
    return x
