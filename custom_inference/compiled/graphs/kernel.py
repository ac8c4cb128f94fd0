"""Coordinate ascent over the nodes of a graph whose dyads have any law, compiled: import inside functions only.

One node after the other takes its best responsibilities given the others',

    phi_ia proportional to exp(own_ia + sum over both sides and b of [sum_f A_fab e_ifb + w_i B_ab t_ib]),
    e_ifb = sum over the stored edges (i, j) of change_ijf phi_jb,
    t_ib = sum over the observed dyads (i, j) of w'_j phi_jb,

with A the natural parameters of the features, of which ``change`` is what an edge has more than a dyad of 0, and B
log p of 0. A node is the first of its dyads on side 0, and the second on side 1; of undirected graphs the first is the
one with the smaller number, so that sums over all others are sums over those before and after.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from custom_inference.families.common.compiled import Reals, bare, inner
from custom_inference.families.common.intrinsics import larger

if TYPE_CHECKING:
    from custom_inference.compiled.graphs.rows import Links


@bare
def sweep_dyads(
    links: Links,
    weight: Reals,
    own: Reals,
    natural: Reals,
    base: Reals,
    phi: Reals,
    ahead: Reals,
    behind: Reals,
    work: Reals,
    uniform: Reals,
    sweeps: int,
    threshold: float,
):
    """Sweep until none of ``phi`` (N, K), in place, moves by more than ``threshold``.

    weight (2, N): w and w'. own (N, K): log p of labels, with self loops. natural (2, F, K, K), base (2, K, K): A and B
    of both sides, the other's label first. ahead, behind (K,): sums of w' phi and of w phi over the others that are
    second, and first; work (2 + F, K). uniform: (N,) numbers by which each node is given one label, drawn by its
    responsibilities; (0,) to keep these.
    """
    blocks, number = phi.shape[1], phi.shape[0]
    score, rest = work[0], work[1]
    for _ in range(sweeps):
        change = 0.0
        for b in range(blocks):
            ahead[b], behind[b] = 0.0, 0.0
        for i in range(number):
            for b in range(blocks):
                ahead[b] += weight[1, i] * phi[i, b]
                if links.directed:
                    behind[b] += weight[0, i] * phi[i, b]
        for i in range(number):
            for b in range(blocks):
                ahead[b] -= weight[1, i] * phi[i, b]
                if links.directed:
                    behind[b] -= weight[0, i] * phi[i, b]
                score[b] = own[i, b]
            for side in range(2):
                for b in range(blocks):
                    rest[b] = behind[b] if side == 1 else ahead[b]
                _add_side(links, weight, natural, base, side, i, phi, rest, score, work)
            change = larger(change, _replace(score, phi, i))
            if uniform.shape[0] > 0:
                _draw(phi, i, uniform[i])
            for b in range(blocks):
                behind[b] += weight[0, i] * phi[i, b]
                if links.directed:
                    ahead[b] += weight[1, i] * phi[i, b]
        if change <= threshold:
            return


@inner
def _add_side(
    links: Links, weight: Reals, natural: Reals, base: Reals, side: int, i: int, phi: Reals, rest: Reals, score: Reals,
    work: Reals,
):  # fmt: skip
    """Add what the dyads of one side say to the scores. rest (K,): sums over the others, hidden ones among them."""
    blocks, features = phi.shape[1], natural.shape[1]
    for f in range(features):
        for b in range(blocks):
            work[2 + f, b] = 0.0
    for at in range(links.start[side, i], links.start[side, i + 1]):
        j = links.node[side, at]
        for f in range(features):
            for b in range(blocks):
                work[2 + f, b] += links.change[side, at, f] * phi[j, b]
    for at in range(links.hidden_start[side, i], links.hidden_start[side, i + 1]):
        j = links.hidden_node[side, at]
        for b in range(blocks):
            rest[b] -= weight[1 - side, j] * phi[j, b]
    for b in range(blocks):
        for a in range(blocks):
            score[a] += weight[side, i] * base[side, b, a] * rest[b]
        for f in range(features):
            for a in range(blocks):
                score[a] += natural[side, f, b, a] * work[2 + f, b]


@inner
def _replace(score: Reals, phi: Reals, i: int):
    """Replace phi of node i by what the scores give, in place; return how far it moved at most."""
    top, mass, change = score[0], 0.0, 0.0
    for a in range(1, len(score)):
        top = larger(top, score[a])
    for a in range(len(score)):
        score[a] = math.exp(score[a] - top)
        mass += score[a]
    for a in range(len(score)):
        change = larger(change, abs(score[a] / mass - phi[i, a]))
        phi[i, a] = score[a] / mass
    return change


@inner
def _draw(phi: Reals, i: int, uniform: float):
    """Give node i one label, by its probabilities, in place."""
    total, chosen = 0.0, phi.shape[1] - 1
    for a in range(phi.shape[1] - 1):
        total += phi[i, a]
        if uniform < total:
            chosen = a
            break
    for a in range(phi.shape[1]):
        phi[i, a] = 1.0 if a == chosen else 0.0
