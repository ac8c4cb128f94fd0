"""Many one-dimensional roots at once."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def decreasing_root(
    function: Callable[[Tensor], tuple[Tensor, Tensor]],
    lower: Tensor,
    upper: Tensor,
    start: Tensor,
    *,
    tolerance: float = 1e-9,
    max_iterations: int = 60,
) -> Tensor:
    """Elementwise root of decreasing functions by Newton's method kept inside a shrinking bracket.

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
