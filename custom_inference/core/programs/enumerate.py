"""Posteriors of finite latents by the sum over all their values."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from custom_inference.core.programs.density import RowDensity
from custom_inference.core.programs.windows import is_settled, require_room, settle


class Table(NamedTuple):
    """codes (C, W) of all values, and log p(x_n, value | globals) of each, (N, C); density: whose layout lists them."""

    codes: Tensor
    log_joint: Tensor
    density: RowDensity


def enumerate_table(density: RowDensity, *, looks: bool = True) -> Table:
    """Enumerate all values of finite latents with their log joint. Gradients flow to the globals.

    looks: whether it is asked which values there are; otherwise only where those of the layout do not do.

    Raises CapacityError where there are too many, and MethodError where there is no end of them.
    """
    density = settle(density) if looks else density
    require_room(density)
    codes = density.layout.configurations(density.like)
    log_joint = density(codes[:, None].expand(-1, len(density), -1)).T
    if not looks and not is_settled(density, codes, log_joint):
        return enumerate_table(density)
    return Table(codes, log_joint, density)
