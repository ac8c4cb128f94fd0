"""Coordinate ascent over the nodes of block models, and beliefs of pairs at given beliefs of the nodes, compiled:
import inside functions only (``sweep``, ``evidence``).

All nodes at once would chase each other: two that must differ swap blocks for ever. One after the other, each takes its
best responsibilities given the others',

    phi_ia proportional to exp(log pi_a + sum_b [A_ab e_ib + B_ab w_i t_ib] + the same of incoming dyads
                               + x_ii A_aa + w_ii B_aa),
    e_ib = sum_(j != i) x_ij phi_jb,    t_ib = S_b - w'_i phi_ib - sum over hidden (i, j) of w'_j phi_jb,

with S_b = sum_j w'_j phi_jb kept up to date, so that a node costs its edges and hidden dyads times K, and K^2.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from custom_inference.families.common.compiled import Ints, Reals, bare, entry, inner
from custom_inference.families.common.intrinsics import larger

if TYPE_CHECKING:
    from custom_inference.families.blocks.rows import GraphLinks


@bare
def sweep_nodes(
    links: GraphLinks,
    weight: Reals,
    loop_weight: Reals,
    log_proportion: Reals,
    lifts: Reals,
    bases: Reals,
    phi: Reals,
    total: Reals,
    work: Reals,
    sweeps: int,
    threshold: float,
):
    """Sweep until none of ``phi`` (N, K), in place, moves by more than ``threshold``.

    links: ``rows.GraphLinks``. weight: w and w' (S, N); loop_weight: w_ii (N,), 0 where there is none. lifts, bases
    (2, K, K): A and B, transposed and as they are. total (S, K): sum_j w_j phi_j of both sides. work (3, K).
    """
    blocks, edges, rest, score = phi.shape[1], work[0], work[1], work[2]
    for _ in range(sweeps):
        change = 0.0
        for i in range(phi.shape[0]):
            for a in range(blocks):
                score[a] = log_proportion[a] + links.own[i] * lifts[0, a, a] + loop_weight[i] * bases[0, a, a]
            for side in range(weight.shape[0]):
                _gather(links, weight, side, i, phi, total, edges, rest)
                for b in range(blocks):
                    for a in range(blocks):
                        score[a] += lifts[side, b, a] * edges[b] + weight[side, i] * bases[side, b, a] * rest[b]
            change = larger(change, _replace(score, phi, weight, total, i))
        if change <= threshold:
            return


@inner
def _gather(links: GraphLinks, weight: Reals, side: int, i: int, phi: Reals, total: Reals, edges: Reals, rest: Reals):
    """Compute e_ib and t_ib of one side."""
    other = len(weight) - 1 - side
    for b in range(len(edges)):
        edges[b] = 0.0
        rest[b] = total[other, b] - weight[other, i] * phi[i, b]
    for at in range(links.start[side, i], links.start[side, i + 1]):
        j = links.node[side, at]
        for b in range(len(edges)):
            edges[b] += links.count[side, at] * phi[j, b]
    for at in range(links.hidden_start[side, i], links.hidden_start[side, i + 1]):
        j = links.hidden_node[side, at]
        for b in range(len(edges)):
            rest[b] -= weight[other, j] * phi[j, b]


@inner
def _replace(score: Reals, phi: Reals, weight: Reals, total: Reals, i: int):
    """Replace phi of node i by what the scores give, in place; return how far it moved at most."""
    top, mass = score[0], 0.0
    for a in range(1, len(score)):  # a loop: numpy's maximum of an array takes longer to compile than all the rest
        top = larger(top, score[a])
    for a in range(len(score)):
        score[a] = math.exp(score[a] - top)
        mass += score[a]
    change = 0.0
    for a in range(len(score)):
        moved = score[a] / mass - phi[i, a]
        for side in range(len(weight)):
            total[side, a] += weight[side, i] * moved
        phi[i, a] = score[a] / mass
        change = larger(change, abs(moved))
    return change


@entry
def sweep_dense(exposure: Reals, fixed: Reals, phi: Reals, sweeps: int, tolerance: float):
    """Set phi_i in proportion to exp(fixed_i + sum_jb exposure_iajb phi_jb), node after node, until nothing changes.

    exposure: (N, K, N K), zero between a node and itself. fixed: (N, K). phi: (N, K), changed in place.
    """
    size, blocks = phi.shape
    flat = phi.reshape(size * blocks)
    for _ in range(sweeps):
        most = 0.0
        for i in range(size):
            field = fixed[i] + np.dot(exposure[i], flat)
            top, mass = field[0], 0.0
            for a in range(1, blocks):
                top = larger(top, field[a])
            for a in range(blocks):
                field[a] = math.exp(field[a] - top)
                mass += field[a]
            for a in range(blocks):
                most = larger(most, abs(field[a] / mass - phi[i, a]))
                phi[i, a] = field[a] / mass
        if most < tolerance:
            return


#: Rescalings at most, and the change of a scale at which they end.
_SCALINGS, _TOLERANCE = 100, 1e-5


@bare
def correlate(
    first: Ints,
    second: Ints,
    there: Reals,
    back: Reals,
    ends: Reals,
    lift: Reals,
    base: Reals,
    phi: Reals,
    edges: Reals,
    exposure: Reals,
    square: Reals,
    work: Reals,
):
    """Add what pairs (i, j) change in edges and exposure between blocks (K, K), in place; return the sum of I_ij.

    first, second, there, back (E,): i, j, x_ij and x_ji. ends (S, N): weights. lift, base: A and B. phi (N, K). square
    (2, K, K), work (2, K): to work in.
    """
    blocks, last, found = lift.shape[0], ends.shape[0] - 1, 0.0
    log, belief, u, v = square[0], square[1], work[0], work[1]
    for e in range(first.shape[0]):
        i, j, x, y = first[e], second[e], there[e], back[e]
        one = ends[0, i] * ends[last, j] if x > 0 else 0.0
        other = ends[0, j] * ends[last, i] if y > 0 else 0.0
        for a in range(blocks):
            for b in range(blocks):
                log[a, b] = x * lift[a, b] + one * base[a, b] + y * lift[b, a] + other * base[b, a]
        _scale(phi[i], phi[j], log, belief, u, v)
        for a in range(blocks):
            for b in range(blocks):
                alone = phi[i, a] * phi[j, b]
                more = belief[a, b] - alone
                edges[a, b] += x * more
                edges[b, a] += y * more
                exposure[a, b] += one * more
                exposure[b, a] += other * more
                if belief[a, b] > 0 and alone > 0:
                    found += belief[a, b] * math.log(belief[a, b] / alone)
    return found


@inner
def _scale(row: Reals, column: Reals, log: Reals, belief: Reals, u: Reals, v: Reals):
    """Set ``belief`` (K, K) in proportion to u_a exp(log_ab) v_b, with these sums of rows and columns (Sinkhorn)."""
    blocks, top = row.shape[0], log[0, 0]
    for a in range(blocks):
        u[a], v[a] = 0.0, 1.0
        for b in range(blocks):
            top = larger(top, log[a, b])
    for a in range(blocks):
        for b in range(blocks):
            belief[a, b] = math.exp(log[a, b] - top)
    for _ in range(_SCALINGS):
        change = 0.0
        for a in range(blocks):
            total = 1e-300
            for b in range(blocks):
                total += belief[a, b] * v[b]
            change = larger(change, abs(row[a] / total - u[a]) * total)
            u[a] = row[a] / total
        for b in range(blocks):
            total = 1e-300
            for a in range(blocks):
                total += belief[a, b] * u[a]
            v[b] = column[b] / total
        if change < _TOLERANCE:
            break
    for a in range(blocks):
        for b in range(blocks):
            belief[a, b] *= u[a] * v[b]
