"""Modes of entries under priors that have no closed form: roots of slopes, each entry by itself."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributions import biject_to, constraints
from torch.distributions.constraints import Constraint

from custom_inference.core.optimize.newton import decreasing_root

#: How far roots are on unconstrained scales, of logarithms and logits, and how far one M step looks for them.
_FAR, _STEP = 30.0, 3.0
#: Newton steps of an M step at most, how close to a root is enough, as the next M step goes on; and how often a way
#: that goes too far is halved.
_NEWTON, _CLOSE, _HALVED = 2, 1e-6, 30


def find_mode(
    role: str, prior: Any, support: Constraint, counted: list[Tensor], value: Tensor, floor: Tensor | None
) -> Tensor:
    """Return the mode of entries that play a part, under any prior of single numbers: the root of the slope on the
    unconstrained scale, where that is no lower than where they are.

    counted: what is counted of them (``counts``). value: where they are. floor: the least that they may be.
    """
    while type(prior).__name__ == "Independent":  # the density of each entry is asked, not of all together
        prior = prior.base_dist
    one, other = (part.double() for part in counted)
    transform: Any = biject_to(constraints.real if role == "place" else support)

    def gain(at: Tensor) -> Tensor:
        v = transform(at)
        said = {
            "chance": lambda: torch.xlogy(one, v) + torch.xlogy(other, 1 - v),
            "rate": lambda: torch.xlogy(one, v) - other * v,
            "place": lambda: one * v - 0.5 * other * v.square(),
            "spread": lambda: -other * torch.log(v) - 0.5 * one / v.square(),
        }[role]()
        return said + prior.log_prob(v)

    def slope(at: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            at = at.detach().requires_grad_()
            (first,) = torch.autograd.grad(gain(at).sum(), at, create_graph=True)
            (second,) = torch.autograd.grad(first.sum(), at)
        return first.detach(), second

    start = transform.inv(value.double()).clamp(-_FAR, _FAR) if role != "place" else value.double()
    # On scales of logarithms and logits one step goes so far: from farther off Newton's method comes back slowly.
    if role == "place":
        upper = _FAR * (1 + start.abs() + (one / other.clamp(min=1e-9)).abs())
        lower = -upper
    else:
        lower, upper = ((start + step).clamp(-_FAR, _FAR) for step in (-_STEP, _STEP))
    if floor is not None:
        lower = torch.maximum(lower, torch.log(floor.double()))
        start, upper = torch.maximum(start, lower), torch.maximum(upper, lower)
    found = decreasing_root(slope, lower, upper, start, tolerance=_CLOSE, max_iterations=_NEWTON)
    least = gain(start)
    # What is found lies uphill: where it is lower, beyond a maximum or short of one, the way there is halved.
    for _ in range(_HALVED):
        worse = ~(gain(found) >= least)
        if not bool(worse.any()):
            break
        found = torch.where(worse, 0.5 * (found + start), found)
    return transform(torch.where(gain(found) >= least, found, start)).to(value)
