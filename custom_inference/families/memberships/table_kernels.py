"""Compiled refreshes of the tables of ``cvb0``. Import inside functions only: it loads the compiler."""

from __future__ import annotations

import math
from typing import NamedTuple

from custom_inference.families.common.compiled import REORDERED, Ints, Reals, bare


class Counts(NamedTuple):
    """Expected counts, and pseudo-counts of the priors in ``alpha`` (K,), ``first`` and ``second`` (K, K): those of
    members (N, K), links and gaps (K, K); background (2,), with the prior's in ``prior``, of which ``known`` is rho, or
    -1 where it is learned."""

    members: Reals
    links: Reals
    gaps: Reals
    background: Reals
    alpha: Reals
    first: Reals
    second: Reals
    prior: Reals
    known: float


class Totals(NamedTuple):
    """What refreshed tables add up to: members (N, K), links and all dyads (K, K); sum log of predictive probabilities
    and the number of dyads in the foreground, (2,)."""

    members: Reals
    links: Reals
    every: Reals
    sums: Reals


@bare(fastmath=REORDERED)
def refresh_tables(
    i: Ints, j: Ints, x: Reals, table: Reals, at: Counts, found: Totals, room: Reals, directed: bool, afresh: bool,
    temperature: float,
):  # fmt: skip
    """Replace the tables (E, K, K) of dyads i, j (E,) with values x, in place, at the counts of all others; add up what
    they are then. afresh: the counts have nothing of the tables, which are 0. room (4, K)."""
    blocks = table.shape[1]
    for e in range(len(i)):
        own, value, loop = table[e], x[e], i[e] == j[e]
        sent, received, here, there = room[0], room[1], room[2], room[3]
        mine = 0.0
        for a in range(blocks):
            sent[a], received[a] = 0.0, 0.0
            for b in range(blocks):
                sent[a] += own[a, b]
                received[a] += own[b, a]
            mine += sent[a]
        # The ends of a self loop are left out together.
        one, other = 0.0, 0.0
        for a in range(blocks):
            both = sent[a] + received[a]
            here[a] = max(at.members[i[e], a] - (both if loop else sent[a]), 0.0) + at.alpha[a]
            there[a] = max(at.members[j[e], a] - (both if loop else received[a]), 0.0) + at.alpha[a]
            one += here[a]
            other += there[a]
        far, near = at.known, 1 - at.known
        if at.known < 0:
            far = max(at.background[0] - (0.0 if afresh else 1 - mine), 0.0) + at.prior[0]
            near = max(at.background[1] - mine, 0.0) + at.prior[1]
            far, near = far / (far + near), near / (far + near)
        for a in range(blocks):
            here[a] *= near / one
            there[a] /= other
        total = (1 - value) * far
        for a in range(blocks):
            for b in range(a, blocks):
                above, below = own[a, b], own[b, a]
                for turn in range(1 if a == b else 2):
                    c, d = (b, a) if turn else (a, b)
                    gone = (below if turn else above) if directed else (above if a == b else above + below)
                    linked = max(at.first[c, d] + at.links[c, d] - value * gone, 0.0)
                    free = max(at.second[c, d] + at.gaps[c, d] - (1 - value) * gone, 0.0)
                    chance = (linked if value > 0 else free) / (linked + free)
                    if temperature != 1.0:
                        chance = chance**temperature
                    own[c, d] = here[c] * there[d] * chance
                    total += own[c, d]
        found.sums[0] += math.log(total)
        for a in range(blocks):
            for b in range(blocks):
                own[a, b] /= total
                found.members[i[e], a] += own[a, b]
                found.members[j[e], b] += own[a, b]
                found.links[a, b] += value * own[a, b]
                found.every[a, b] += own[a, b]
                found.sums[1] += own[a, b]
