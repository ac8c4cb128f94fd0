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
    at_lower, at_upper = function(lower)[0] <= 0, function(upper)[0] >= 0
    low, high = lower.clone(), upper.clone()
    x = torch.minimum(torch.maximum(start, lower), upper)
    for _ in range(max_iterations):
        value, slope = function(x)
        low, high = torch.where(value > 0, x, low), torch.where(value > 0, high, x)
        newton = x - value / slope.clamp(max=-torch.finfo(x.dtype).tiny)
        inside = (newton > low) & (newton < high)  # False for NaN too
        proposal = torch.where(inside, newton, 0.5 * (low + high))
        step, x = (proposal - x).abs(), proposal
        settled = (step <= tolerance * (1 + x.abs())) | at_lower | at_upper
        if bool(settled.all()):
            break
    return torch.where(at_lower, lower, torch.where(at_upper, upper, x))
