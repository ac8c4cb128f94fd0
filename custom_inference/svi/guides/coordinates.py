"""Coordinate ascent of a mean field: finite latents of a row that are independent of each other, by the table of the
log joint density at all of their values together.

The best probabilities of the values k of one element e, given those of the others, are (Bishop 2006, eq. 10.9)

    log q_e(k) = E_q(others)[log p(x_n, values) | e has the value k] + constant
"""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import Tensor

from custom_inference.core.programs.latents import Layout

#: The values (S, w) of an element of a finite latent, and which of them each of the codes (C,) has.
Place: TypeAlias = tuple[Tensor, Tensor]
#: The least log density that is reckoned with.
LEAST = -1e6
#: Sweeps at most, until probabilities change by less; the least log probability that is reckoned with.
_MOST_SWEEPS, _SETTLED, _NOTHING = 500, 1e-12, -690.0


def find_places(layout: Layout, codes: Tensor) -> list[Place]:
    """List the values of every element of a finite latent, and which of them each of the codes (C, W) has."""
    found = []
    for latent in layout.finite:
        assert latent.options is not None
        options = latent.options.to(codes)
        own = codes[:, layout.slices[latent.name]].reshape(len(codes), latent.elements, -1)
        for element in own.unbind(1):
            found.append((options, (element[:, None] == options).all(-1).double().argmax(-1)))
    return found


def find_marginals(log_weight: Tensor, places: list[Place]) -> list[Tensor]:
    """The log-probabilities (N, S) of the values of every element under those of the codes (N, C)."""
    share, rows = log_weight.exp(), len(log_weight)
    every = [share.new_zeros(rows, len(options)).index_add(1, place, share) for options, place in places]
    return [one.clamp_min(1e-300).log() for one in every]


def ascend(log_joint: Tensor, log_weight: Tensor, places: list[Place]) -> Tensor:
    """Climb the bound by coordinates until nothing moves, from two starts: the weights that are given (N, C), and the
    exact marginals under log p(x_n, code) (N, C).

    Returns log q (N, C) of the better start of every row.
    """
    table = log_joint.clamp_min(LEAST)
    exact = torch.log_softmax(table, -1)
    found = [_climb(table, find_marginals(start, places), places) for start in (log_weight, exact)]
    bounds = [(one.exp() * (table - one.clamp_min(LEAST))).sum(-1) for one in found]
    return torch.where((bounds[1] > bounds[0])[:, None], found[1], found[0])


def _climb(table: Tensor, own: list[Tensor], places: list[Place]) -> Tensor:
    """log q (N, C) from the elements' own."""

    def joint() -> Tensor:
        return torch.stack([one[:, place] for one, (_, place) in zip(own, places, strict=True)]).sum(0)

    log_weight = joint()
    for _ in range(_MOST_SWEEPS):
        before = log_weight
        for e, (options, place) in enumerate(places):
            others = (log_weight - own[e][:, place]).exp()
            value = table.new_zeros(len(table), len(options)).index_add(1, place, others * table)
            log_weight, own[e] = log_weight - own[e][:, place], torch.log_softmax(value, -1).clamp_min(_NOTHING)
            log_weight = log_weight + own[e][:, place]
        if float((log_weight.exp() - before.exp()).abs().max()) < _SETTLED:
            break
    own = [torch.where(one > _NOTHING, one, -torch.inf) for one in own]  # what is impossible has no probability
    return joint()
