"""Compiled moves of many nodes at once, which leave the distribution of the labels as it is.

Single nodes cannot cross from one way of dividing a set of nodes to another: every move on the way is improbable. As in
Jain & Neal, *A split-merge Markov chain Monte Carlo procedure for the Dirichlet process mixture model*, J. Comput.
Graph. Statist. 13, 2004, a set S is divided anew between two labels by a last scan of Gibbs sampling restricted to
these two, from a random launch division: assigned by fair coins, then some scans. Let q(z | launch) be the probability
that the last scan arrives at z; the scan that would lead back from the same kind of launch has its own. The number of
labels is fixed and labels may be empty, so that the moves are

    redivide    S is all of blocks a and b                          q(z | l) / q(z* | l): both from the same launch
    trade       b joins a, and c is divided between c and b         q(z_ab | l') / q(z*_cb | l)
    empty       b joins a, and is empty; or, if b is empty,         q(z_ab | l') / 1, or 1 / q(z*_ab | l)
                a is divided between a and b, neither empty

each accepted with probability min(1, p(x, z*) / p(x, z) times that ratio). All three are two divisions, there and back,
of which one may be of no node at all. Labels are picked at random, so that a move
and its reverse (of trade: c for a and a for c) are equally often proposed; launches do not depend on which division
there is at present, and their probabilities cancel. Import inside functions only.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from custom_inference.families.blocks.gibbs_kernels import enter, join_score, place, shuffle, total, withdraw
from custom_inference.families.common.compiled import Ints, Words, bare, inner
from custom_inference.families.common.random import draw_next

if TYPE_CHECKING:
    from custom_inference.families.blocks.rows import Graph, PartitionState

# Loops throughout, and one call of every function: expressions of whole arrays, and calls that hand on a graph, compile
# for longer than all the rest.
_REDIVIDE, _TRADE, _MERGE, _DIVIDE = range(4)


@inner
def _members(label: Ints, a: int, b: int, nodes: Ints, first: int, rng: Words):
    """Write the nodes of two blocks, in random order, from a place on; return the place after them."""
    last = first
    for i in range(label.shape[0]):
        if label[i] == a or label[i] == b:
            nodes[last] = i
            last += 1
    shuffle(nodes[first:last], rng)
    return last


@inner
def _divide(
    graph: Graph,
    state: PartitionState,
    nodes: Ints,
    start: Ints,
    first: int,
    last: int,
    a: int,
    b: int,
    scans: int,
    aim: Ints,
    aimed: bool,
):
    """All nodes get the labels ``start``; those from ``first`` to ``last`` new ones, a or b, by so many scans and one
    more, before which ``start`` is written anew. The log probability of all choices of the last scan.

    aim: the labels that these nodes shall get in the last scan, whatever was drawn, if they are ``aimed``.
    """
    place(graph, state, nodes, start)
    found = 0.0
    for scan in range(scans + 1):
        found = 0.0
        for at in range(first, last if scan == scans else first):
            start[at] = state.label[nodes[at]]
        for at in range(first, last):
            i = nodes[at]
            withdraw(graph, state, i)
            odds = join_score(graph, state, i, a) - join_score(graph, state, i, b)
            log_a = -math.log1p(math.exp(-odds)) if odds > 0 else odds - math.log1p(math.exp(odds))
            to_a = math.log(1 - draw_next(state.rng)) < log_a
            if aimed and scan == scans:
                to_a = aim[at] == a
            found += log_a if to_a else log_a - odds
            enter(graph, state, i, a if to_a else b)
    return found


@inner
def _coins(labels: Ints, first: int, last: int, a: int, b: int, rng: Words):
    for at in range(first, last):
        labels[at] = a if draw_next(rng) < 0.5 else b


@inner
def _kind(old: Ints, a: int, b: int, blocks: int, rng: Words):
    """Tell which move of the blocks a and b it is, of nodes with the labels ``old``; -1 for none."""
    drawn, with_a, with_b = draw_next(rng), False, False
    for at in range(old.shape[0]):
        with_a |= old[at] == a
        with_b |= old[at] == b
    if drawn < 0.5:
        return _REDIVIDE
    if drawn >= 0.75 and blocks > 2:
        return _TRADE
    return (_MERGE if with_b else _DIVIDE) if with_a else -1


@inner
def _begin(start: Ints, kind: int, back: int, a: int, b: int, c: int, joined: int, number: int, rng: Words):
    """Write the labels ``start`` that a division, there or ``back``, begins with; return the first of its two labels,
    and its nodes."""
    if kind == _REDIVIDE and back:  # from the same launch, which the way there left
        return a, 0, joined
    if kind != _REDIVIDE and back == (kind == _DIVIDE):  # the nodes of a and b are together
        for at in range(joined):
            start[at] = a
        _coins(start, joined, number, c, b, rng)
        return c, joined, number
    for at in range(joined, number):
        start[at] = c
    _coins(start, 0, joined, a, b, rng)
    return a, 0, joined


@bare
def merge_split(graph: Graph, state: PartitionState, moves: int, scans: int, order: Ints, work: Ints):
    """Propose so many moves of two or three blocks picked at random; return how many were accepted.

    scans: of Gibbs sampling between the coins and the last scan of every division. order (K,): the labels, in any
    order. work (4, N): to work in, whole numbers as ``order``.
    """
    blocks, accepted, rng = state.size.shape[0], 0, state.rng
    for _ in range(moves if blocks > 1 else 0):
        shuffle(order, rng)
        a, b, c = order[0], order[1], order[blocks - 1]
        joined = _members(state.label, a, b, work[0], 0, rng)
        for at in range(joined):
            work[1, at] = state.label[work[0, at]]
        kind = _kind(work[1, :joined], a, b, blocks, rng)
        if kind < 0:
            continue
        number = _members(state.label, c, c, work[0], joined, rng) if kind == _TRADE else joined
        nodes, old, new, start = work[0, :number], work[1, :number], work[2, :number], work[3, :number]
        for at in range(joined, number):
            old[at] = c
        log_ratio, both = 0.0, True
        for back in range(2):
            sign = 2.0 * back - 1.0
            log_ratio += sign * total(graph, state)
            if back:
                both = False
                for at in range(number):
                    new[at] = state.label[nodes[at]]
                    both |= new[at] != new[0]
            one, first, last = _begin(start, kind, back, a, b, c, joined, number, rng)
            again = 0 if back and kind == _REDIVIDE else scans
            log_ratio += sign * _divide(graph, state, nodes, start, first, last, one, b, again, old, back == 1)
        # What was divided has two parts, else it would be no reverse of a merger.
        if (both or kind != _DIVIDE) and math.log(1 - draw_next(rng)) < log_ratio:
            place(graph, state, nodes, new)
            accepted += 1
    return accepted
