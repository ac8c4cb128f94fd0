"""Belief propagation on the pairs of nodes with an edge, compiled: import inside functions only (``bethe``).

The message of node i to j says how probable its blocks are without j (Decelle et al., eqs. 26-28):

    psi_(i -> j)(a) ~ exp(own_ia + h_i(a)) prod_(k != j) sum_b W_(ik)(a, b) psi_(k -> i)(b),
    h_i(a) = w_i sum_b B_ab sum_(j apart from i) w'_j psi_j(b)                   and the same of incoming dyads,

over the pairs (i, k) with an edge, and the j without one (``whole``: over all j != i). A node costs K^2 a pair.

Nodes of small graphs speak one after the other. Those of large graphs speak in groups, whose parts are heard on several
threads: all of a group hear what was said before it (``hear``), then tell their neighbours (``tell``).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from custom_inference.families.common.compiled import REORDERED, Ints, Reals, entry, inner
from custom_inference.families.common.intrinsics import allocate, larger

if TYPE_CHECKING:
    from custom_inference.families.blocks.pairs import Beliefs, BetheFactors, PairSlots

#: Products are scaled up when their largest entry is below.
_SMALL = 1e-100


@inner(fastmath=REORDERED)
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


@inner(fastmath=REORDERED)
def _scale_up(product: Reals):
    """Scale up in place; return the logarithm of what was divided by."""
    top = 0.0
    for a in range(product.shape[0]):
        top = larger(top, product[a])
    if top >= _SMALL or top == 0.0:
        return 0.0
    for a in range(product.shape[0]):
        product[a] /= top
    return math.log(top)


@inner(fastmath=REORDERED)
def _hear(pairs: PairSlots, factor: Reals, i: int, message: Reals, heard: Reals, product: Reals):
    """Fill the product (K,) of what a node's neighbours say, and what each says, ``heard``; return the log of its
    scale. factor (T, K, at least K): the last axis a multiple of four, which are summed side by side."""
    blocks, log = product.shape[0], 0.0
    for at in range(pairs.start[i], pairs.start[i + 1]):
        kind, place = pairs.kind[at], at - pairs.start[i]
        for a in range(0, factor.shape[2], 4):
            first, second, third, fourth = 0.0, 0.0, 0.0, 0.0
            for b in range(blocks):
                said = message[at, b]
                first += factor[kind, b, a] * said
                second += factor[kind, b, a + 1] * said
                third += factor[kind, b, a + 2] * said
                fourth += factor[kind, b, a + 3] * said
            heard[place, a], heard[place, a + 1] = first, second
            heard[place, a + 2], heard[place, a + 3] = third, fourth
        for a in range(blocks):
            product[a] *= heard[place, a]
        log += _scale_up(product)
    return log


@inner(fastmath=REORDERED)
def _speak(
    pairs: PairSlots,
    factors: BetheFactors,
    weight: Reals,
    beliefs: Beliefs,
    total: Reals,
    i: int,
    heard: Reals,
    product: Reals,
    rest: Reals,
    score: Reals,
):
    """Replace what a node heard by what it says to every neighbour, and fill its new belief, ``product``; return
    log Z_i. total (S, K): sums of weighted beliefs."""
    blocks = product.shape[0]
    for a in range(blocks):
        score[a] = factors.own[i, a]
    _field(pairs, factors, weight, i, beliefs.belief, total, rest, score)
    top = score[0]
    for a in range(1, blocks):
        top = larger(top, score[a])
    for a in range(blocks):
        product[a] = math.exp(score[a] - top)
    log = top + _hear(pairs, factors.table, i, beliefs.message, heard, product)
    for place in range(pairs.start[i + 1] - pairs.start[i]):
        mass = 0.0
        for a in range(blocks):
            heard[place, a] = product[a] / heard[place, a]
            mass += heard[place, a]
        for a in range(blocks):
            heard[place, a] /= mass
    mass = 0.0
    for a in range(blocks):
        mass += product[a]
    for a in range(blocks):
        product[a] /= mass
    return log + math.log(mass)


@inner(fastmath=REORDERED)
def _hand_on(pairs: PairSlots, weight: Reals, beliefs: Beliefs, total: Reals, i: int, said: Reals, belief: Reals):
    """Tell the neighbours, and take the new belief; return how far it moved. total: is added to."""
    change, first, blocks = 0.0, pairs.start[i], belief.shape[0]
    for at in range(first, pairs.start[i + 1]):
        to = pairs.reverse[at]
        for a in range(blocks):
            beliefs.message[to, a] = said[at - first, a]
    for a in range(blocks):
        moved = belief[a] - beliefs.belief[i, a]
        beliefs.belief[i, a] = belief[a]
        change = larger(change, abs(moved))
        for side in range(weight.shape[0]):
            total[side, a] += weight[side, i] * moved
    return change


@entry(fastmath=REORDERED)
def propagate(pairs: PairSlots, factors: BetheFactors, weight: Reals, beliefs: Beliefs, total: Reals):
    """Sweep over the nodes one after the other, changing the beliefs and their weighted sums ``total`` (S, K) in place;
    return how far the farthest moved, and sum_i log Z_i. weight (S, N): the nodes' weights."""
    size, blocks = beliefs.belief.shape
    widest = 1
    for i in range(size):
        widest = larger(widest, pairs.start[i + 1] - pairs.start[i])
    heard, product = allocate((widest, factors.table.shape[2])), allocate(blocks)
    rest, score, change, found = allocate(blocks), allocate(blocks), 0.0, 0.0
    for i in pairs.order:
        found += _speak(pairs, factors, weight, beliefs, total, i, heard, product, rest, score)
        change = larger(change, _hand_on(pairs, weight, beliefs, total, i, heard, product))
    return change, found


@entry(fastmath=REORDERED)
def hear(
    pairs: PairSlots,
    factors: BetheFactors,
    weight: Reals,
    beliefs: Beliefs,
    total: Reals,
    nodes: Ints,
    said: Reals,
    fresh: Reals,
):
    """Find what nodes say, (slots of theirs, at least K), and their new beliefs (n, K); return the sum of
    log Z_i."""
    blocks, at, found = total.shape[1], 0, 0.0
    rest, score = allocate(blocks), allocate(blocks)
    for n in range(len(nodes)):
        i = nodes[n]
        found += _speak(pairs, factors, weight, beliefs, total, i, said[at:], fresh[n], rest, score)
        at += pairs.start[i + 1] - pairs.start[i]
    return found


@entry(fastmath=REORDERED)
def tell(pairs: PairSlots, weight: Reals, beliefs: Beliefs, moved: Reals, nodes: Ints, said: Reals, fresh: Reals):
    """Tell the nodes' neighbours what was found; return how far the farthest belief moved. moved (S, K): is added to,
    by how much the weighted sums of beliefs change."""
    at, change = 0, 0.0
    for n in range(len(nodes)):
        i = nodes[n]
        change = larger(change, _hand_on(pairs, weight, beliefs, moved, i, said[at:], fresh[n]))
        at += pairs.start[i + 1] - pairs.start[i]
    return change


@inner(fastmath=REORDERED)
def _add_outer(apart: Reals, kind: int, others: Reals, own: Reals):
    """Add what was gathered of pairs of one kind; of none so far, -1, nothing."""
    for b in range(len(own) if kind >= 0 else 0):
        for a in range(len(own)):
            apart[kind, b, a] += others[b] * own[a]


@entry(fastmath=REORDERED)
def pair_sums(
    pairs: PairSlots, factor: Reals, beliefs: Beliefs, first: int, last: int, joint: Reals, apart: Reals
):  # fmt: skip
    """Return the sum over the pairs of log Z_ij; add their beliefs b_ij over ``factor`` to ``joint`` (T, K, K), and
    psi_i psi_j to ``apart``, both transposed: the block of the higher node first. Each pair once, seen from the lower
    node, which is one of ``first`` to ``last``."""
    message, belief = beliefs.message, beliefs.belief
    blocks, found = belief.shape[1], 0.0
    near, others = allocate(blocks), np.zeros(blocks)
    for i in range(first, last):
        kind = -1
        for at in range(pairs.start[i], pairs.start[i + 1]):
            j = pairs.node[at]
            if j < i:
                continue
            if pairs.kind[at] != kind:
                _add_outer(apart, kind, others, belief[i])
                kind, others[:] = pairs.kind[at], 0.0
            ahead, back, mass = message[pairs.reverse[at]], message[at], 0.0
            near[:] = 0.0
            for b in range(blocks):
                for a in range(blocks):
                    near[a] += factor[kind, b, a] * back[b]
            for a in range(blocks):
                mass += near[a] * ahead[a]
                others[a] += belief[j, a]
            found += math.log(mass)
            for b in range(blocks):
                share = back[b] / mass
                for a in range(blocks):
                    joint[kind, b, a] += share * ahead[a]
        _add_outer(apart, kind, others, belief[i])
    return found
