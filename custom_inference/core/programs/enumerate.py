"""Posteriors of finite latents by the sum over all their values."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from custom_inference.core.capacity import memory_limit, require
from custom_inference.core.programs.density import RowDensity

#: Larger whole numbers are added until the last of them has less than this posterior probability in every row, at most
#: so many times.
_NEGLIGIBLE, _MOST_ROUNDS = 1e-14, 12


class Table(NamedTuple):
    """codes (C, W) of all values, and log p(x_n, value | globals) of each, (N, C); density: whose layout lists them."""

    codes: Tensor
    log_joint: Tensor
    density: RowDensity


def enumerate_table(density: RowDensity) -> Table:
    """Enumerate all values of finite latents with their log joint. Gradients flow to the globals.

    Raises CapacityError where there are too many.
    """
    for _ in range(_MOST_ROUNDS):
        require_room(density)
        codes = density.layout.configurations(density.like)
        log_joint = density(codes[:, None].expand(-1, len(density), -1)).T
        if not any(latent.open for latent in density.layout) or _is_settled(density, codes, log_joint):
            break
        density = replace(density, layout=density.layout.widen())
    return Table(codes, log_joint, density)


def _is_settled(density: RowDensity, codes: Tensor, log_joint: Tensor) -> bool:
    """Whether the largest whole numbers have no probability left."""
    share = torch.softmax(log_joint.detach(), -1)
    for latent in density.layout:
        if latent.open and latent.options is not None:
            last = (codes[:, density.layout.slices[latent.name]] == latent.options[-1].to(codes)).any(-1)
            if float(share[:, last].sum(-1).max()) > _NEGLIGIBLE:
                return False
    return True


def require_room(density: RowDensity) -> None:
    """Refuse more values than memory holds: two numbers for every value and every entry that is observed, or row."""
    number, rows = density.layout.num_configurations, len(density)
    entries = rows + density.data.x.numel()
    needed, allowed = 2.0 * density.like.element_size() * number * entries, memory_limit()
    fits = f"{int(rows * allowed / needed)} rows at a time would fit; for all take a bound by SVI"
    require(f"summing over {number:.0f} values of the locals of {rows} rows", needed, allowed=allowed, fits=fits)
