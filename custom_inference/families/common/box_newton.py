"""Newton steps for many small concave problems at once, each with bounds on its variables."""

from __future__ import annotations

import torch
from torch import Tensor


def pair_index(size: int) -> tuple[Tensor, Tensor, Tensor]:
    """The pairs (i, j), i <= j, of a packed symmetric matrix, and the (size, size) table of where each pair is."""
    first, second = torch.triu_indices(size, size)
    table = torch.empty(size, size, dtype=torch.long)
    table[first, second] = table[second, first] = torch.arange(len(first))
    return first, second, table


def unpacked(packed: Tensor) -> Tensor:
    """(B, K (K + 1) / 2) -> (B, K, K)."""
    size = int(((8 * packed.shape[1] + 1) ** 0.5 - 1) / 2)
    table = pair_index(size)[2].to(packed.device)
    return packed[:, table]


def box_newton(
    x: Tensor, gradient: Tensor, curvature: Tensor, lower: Tensor | float, upper: Tensor | float, *, rounds: int = 3
) -> Tensor:
    """x + argmax_d gradient d - d' curvature d / 2, approximately within lower <= x + d <= upper, for every row.

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
