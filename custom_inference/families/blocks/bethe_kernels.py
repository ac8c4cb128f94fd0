"""Belief propagation on the pairs of nodes with an edge, compiled: import inside functions only (``bethe``).

The message of node i to j says how probable its blocks are without j (Decelle et al., eqs. 26-28):

    psi_(i -> j)(a) ~ exp(own_ia + h_i(a)) prod_(k != j) sum_b W_(ik)(a, b) psi_(k -> i)(b),
    h_i(a) = w_i sum_b B_ab sum_(j apart from i) w'_j psi_j(b)                   and the same of incoming dyads,

over the pairs (i, k) with an edge, and the j without one (``whole``: over all j != i). A node costs K^2 a pair.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from custom_inference.families.common.compiled import REORDERED, Reals, entry

if TYPE_CHECKING:
    from custom_inference.families.blocks.pairs import Beliefs, BetheFactors, PairSlots

#: Products are scaled up when their largest entry is below.
_SMALL = 1e-100


@entry(fastmath=REORDERED)
def _field(
    pairs: PairSlots,
    factors: BetheFactors,
    weight: Reals,
    i: int,
    belief: Reals,
    total: Reals,
    rest: Reals,
    score: Reals,
):
    """Add h_i(a) to the scores."""
    sides, blocks = weight.shape[0], score.shape[0]
    for side in range(sides):
        other = sides - 1 - side
        for b in range(blocks):
            rest[b] = total[other, b] - weight[other, i] * belief[i, b]
        for at in range(pairs.hidden_start[side, i], pairs.hidden_start[side, i + 1]):
            j = pairs.hidden_node[side, at]
            for b in range(blocks):
                rest[b] -= weight[other, j] * belief[j, b]
        if not factors.whole:
            for at in range(pairs.start[i], pairs.start[i + 1]):
                j = pairs.node[at]
                for b in range(blocks):
                    rest[b] -= weight[other, j] * belief[j, b]
        for b in range(blocks):
            for a in range(blocks):
                score[a] += weight[side, i] * factors.bases[side, b, a] * rest[b]


@entry(fastmath=REORDERED)
def _scale_up(product: Reals):
    """Scale up in place; return the logarithm of what was divided by."""
    top = 0.0
    for a in range(product.shape[0]):
        top = max(top, product[a])
    if top >= _SMALL or top == 0.0:
        return 0.0
    for a in range(product.shape[0]):
        product[a] /= top
    return math.log(top)


@entry(fastmath=REORDERED)
def _hear(pairs: PairSlots, factor: Reals, i: int, message: Reals, heard: Reals, product: Reals):
    """Fill the product (K,) of what a node's neighbours say, and what each says, ``heard``; return the log of its
    scale."""
    blocks, log = product.shape[0], 0.0
    for at in range(pairs.start[i], pairs.start[i + 1]):
        said, kind, place = message[at], pairs.kind[at], at - pairs.start[i]
        for a in range(blocks):
            heard[place, a] = factor[kind, 0, a] * said[0]
        for b in range(1, blocks):
            for a in range(blocks):
                heard[place, a] += factor[kind, b, a] * said[b]
        for a in range(blocks):
            product[a] *= heard[place, a]
        log += _scale_up(product)
    return log


@entry(fastmath=REORDERED)
def propagate(pairs: PairSlots, factors: BetheFactors, weight: Reals, beliefs: Beliefs, sweeps: int, tolerance: float):
    """Sweep over the nodes, changing the beliefs in place, until none moves by more than ``tolerance``; return sum_i
    log Z_i of the last sweep. weight (S, N): the nodes' weights."""
    message, belief = beliefs.message, beliefs.belief
    sides, (size, blocks) = weight.shape[0], belief.shape
    total, widest = np.zeros((sides, blocks)), 1
    for i in range(size):
        widest = max(widest, pairs.start[i + 1] - pairs.start[i])
        for side in range(sides):
            for b in range(blocks):
                total[side, b] += weight[side, i] * belief[i, b]
    heard, product = np.empty((widest, blocks)), np.empty(blocks)
    rest, score, found = np.empty(blocks), np.empty(blocks), 0.0
    for _ in range(sweeps):
        change, found = 0.0, 0.0
        for i in pairs.order:
            score[:] = factors.own[i]
            _field(pairs, factors, weight, i, belief, total, rest, score)
            top = score.max()
            for a in range(blocks):
                product[a] = math.exp(score[a] - top)
            found += top + _hear(pairs, factors.table, i, message, heard, product)
            for at in range(pairs.start[i], pairs.start[i + 1]):
                place, mass = at - pairs.start[i], 0.0
                for a in range(blocks):
                    rest[a] = product[a] / heard[place, a]
                    mass += rest[a]
                to = pairs.reverse[at]
                for a in range(blocks):
                    message[to, a] = rest[a] / mass
            mass = 0.0
            for a in range(blocks):
                mass += product[a]
            found += math.log(mass)
            for a in range(blocks):
                moved = product[a] / mass - belief[i, a]
                belief[i, a] += moved
                change = max(change, abs(moved))
                for side in range(sides):
                    total[side, a] += weight[side, i] * moved
        if change <= tolerance:
            break
    return found


@entry(fastmath=REORDERED)
def pair_sums(pairs: PairSlots, factor: Reals, beliefs: Beliefs, joint: Reals, apart: Reals):
    """Return the sum over the pairs of log Z_ij; add the pairs' beliefs b_ij to ``joint`` (T, K, K), and psi_i psi_j to
    ``apart``, both transposed: the block of the higher node first. Each pair once, seen from the lower node."""
    message, belief = beliefs.message, beliefs.belief
    blocks, found = belief.shape[1], 0.0
    both = np.empty((blocks, blocks))
    for i in range(belief.shape[0]):
        for at in range(pairs.start[i], pairs.start[i + 1]):
            j, kind = pairs.node[at], pairs.kind[at]
            if j < i:
                continue
            ahead, back, mass = message[pairs.reverse[at]], message[at], 0.0
            for b in range(blocks):
                for a in range(blocks):
                    both[b, a] = ahead[a] * factor[kind, b, a] * back[b]
                    mass += both[b, a]
            found += math.log(mass)
            for b in range(blocks):
                for a in range(blocks):
                    joint[kind, b, a] += both[b, a] / mass
                    apart[kind, b, a] += belief[i, a] * belief[j, b]
    return found
