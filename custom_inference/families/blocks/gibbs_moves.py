"""Compiled moves of many nodes at once, which leave the distribution of the labels as it is, and such as only climb.

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

each accepted with probability min(1, p(x, z*) / p(x, z) times that ratio). Labels are picked at random, so that a move
and its reverse (of trade: c for a and a for c) are equally often proposed; launches do not depend on which division
there is at present, and their probabilities cancel.

Searches take moves that only climb: blocks a and b merged change their size and the cells of their rows and columns, in
O(K) per pair; their nodes are moved only where the pair is chosen. Import inside functions only.
"""

from __future__ import annotations

import math

import numpy as np

from custom_inference.families.blocks.gibbs_kernels import (
    TIE,
    cell_score,
    degree_score,
    enter,
    entry,
    helper,
    inner,
    join_score,
    log_gamma,
    place,
    random,
    shuffle,
    sweep,
    total,
    withdraw,
)
from custom_inference.families.blocks.rows import DEGREES

#: Of moves that only climb: scans of Gibbs sampling before the ones that do, and at most so many of those.
_SCANS, _MOST = 4, 20


@helper
def _members(state, a, b):
    """The nodes of two blocks, in random order."""
    nodes = np.flatnonzero((state.label == a) | (state.label == b))
    shuffle(nodes, state.rng)
    return nodes


@inner
def _scan(graph, state, nodes, a, b, aim):
    """New labels a or b, one node after the other; the log probability of all these choices.

    aim: the labels that the nodes shall get, whatever was drawn; of length 0 they are drawn.
    """
    found = 0.0
    for at in range(nodes.shape[0]):
        i = nodes[at]
        withdraw(graph, state, i)
        odds = join_score(graph, state, i, a) - join_score(graph, state, i, b)
        log_a = -math.log1p(math.exp(-odds)) if odds > 0 else odds - math.log1p(math.exp(odds))
        to_a = math.log(1 - random(state.rng)) < log_a if aim.shape[0] == 0 else aim[at] == a
        found += log_a if to_a else log_a - odds
        enter(graph, state, i, a if to_a else b)
    return found


@helper
def _launch(graph, state, nodes, a, b, scans):
    """Forget how the nodes are divided between two labels."""
    aim = np.empty(nodes.shape[0], np.int64)
    for at in range(nodes.shape[0]):
        aim[at] = a if random(state.rng) < 0.5 else b
    place(graph, state, nodes, aim)
    for _ in range(scans):
        _scan(graph, state, nodes, a, b, aim[:0])


@helper
def _accepted(graph, state, nodes, labels, log_ratio):
    """Whether a move with this ratio is accepted; the nodes then get the labels."""
    accept = math.log(1 - random(state.rng)) < log_ratio
    if accept:
        place(graph, state, nodes, labels)
    return accept


@helper
def _redivide(graph, state, a, b, scans):
    nodes = _members(state, a, b)
    before, old = total(graph, state), state.label[nodes]
    _launch(graph, state, nodes, a, b, scans)
    launch = state.label[nodes]
    forth = _scan(graph, state, nodes, a, b, old[:0])
    new, after = state.label[nodes], total(graph, state)
    place(graph, state, nodes, launch)
    back = _scan(graph, state, nodes, a, b, old)
    return _accepted(graph, state, nodes, new, after - before + back - forth)


@helper
def _trade(graph, state, a, b, c, scans):
    joined, split = _members(state, a, b), _members(state, c, c)
    before, old, whole = total(graph, state), state.label[joined], state.label[split]
    together = np.full(joined.shape[0], a)
    place(graph, state, joined, together)
    _launch(graph, state, split, c, b, scans)
    forth = _scan(graph, state, split, c, b, old[:0])
    new, after = state.label[split], total(graph, state)
    place(graph, state, split, whole)
    _launch(graph, state, joined, a, b, scans)
    back = _scan(graph, state, joined, a, b, old)
    accept = _accepted(graph, state, joined, together, after - before + back - forth)
    if accept:
        place(graph, state, split, new)
    return accept


@helper
def _empty(graph, state, a, b, scans):
    nodes = _members(state, a, b)
    before, old = total(graph, state), state.label[nodes]
    together = np.full(nodes.shape[0], a)
    if not (old == a).any():
        return False
    if (old == b).any():
        place(graph, state, nodes, together)
        after = total(graph, state)
        _launch(graph, state, nodes, a, b, scans)
        back = _scan(graph, state, nodes, a, b, old)
        return _accepted(graph, state, nodes, together, after - before + back)
    _launch(graph, state, nodes, a, b, scans)
    forth = _scan(graph, state, nodes, a, b, old[:0])
    new, after = state.label[nodes], total(graph, state)
    place(graph, state, nodes, together)
    divided = (new == a).any() and (new == b).any()
    return divided and _accepted(graph, state, nodes, new, after - before - forth)


@entry
def merge_split(graph, state, moves, scans):
    """So many moves of two or three blocks picked at random; how many were accepted.

    scans: of Gibbs sampling between the coins and the last scan of every division.
    """
    blocks, accepted = state.size.shape[0], 0
    order = np.arange(blocks)
    for _ in range(moves if blocks > 1 else 0):
        shuffle(order, state.rng)
        a, b, kind = order[0], order[1], random(state.rng)
        if kind < 0.5:
            accepted += _redivide(graph, state, a, b, scans)
        elif kind < 0.75 or blocks == 2:
            accepted += _empty(graph, state, a, b, scans)
        else:
            accepted += _trade(graph, state, a, b, order[2], scans)
    return accepted


# ----- moves that only climb ------------------------------------------------------------------------------


@inner
def _rows_gain(graph, state, a, b):
    """What the cells of blocks a and b with the others gain by becoming one row, and one column."""
    kind, first, second = graph.kind, graph.first, graph.second
    edges, exposure, cell, gain = state.edges, state.exposure, state.cell, 0.0
    for c in range(edges.shape[0]):
        if c == a or c == b:  # noqa: SIM109 - compiled to two comparisons
            continue
        for side in range(graph.weight.shape[0]):
            one, other = ((a, c), (b, c)) if side == 0 else ((c, a), (c, b))
            m, t = edges[one] + edges[other], exposure[one] + exposure[other]
            gain += cell_score(kind, first[one], second[one], m, t) - cell[one] - cell[other]
    return gain


@inner
def _merge_gain(graph, state, a, b):
    """What log p(x, z) gains by moving the nodes of b to a, but for the cells of a label that becomes empty."""
    size, alpha, sides = state.size, graph.alpha, graph.weight.shape[0]
    edges, exposure, cell = state.edges, state.exposure, state.cell
    gain = log_gamma(size[a] + size[b] + alpha[a]) - log_gamma(size[a] + alpha[a]) - log_gamma(size[b] + alpha[b])
    m, t = edges[a, a] + edges[b, b] + edges[a, b], exposure[a, a] + exposure[b, b] + exposure[a, b]
    gain -= cell[a, a] + cell[b, b] + cell[a, b]
    if sides == 2:
        m, t, gain = m + edges[b, a], t + exposure[b, a], gain - cell[b, a]
    gain += cell_score(graph.kind, graph.first[a, a], graph.second[a, a], m, t) + _rows_gain(graph, state, a, b)
    for side in range(sides if graph.kind == DEGREES else 0):
        one, other = state.degree[side, a], state.degree[side, b]
        gain += degree_score(size[a] + size[b], one + other) - degree_score(size[a], one) - degree_score(size[b], other)
    return gain


@entry
def merge_gains(graph, state):
    """Gains of all pairs (K, K), above the diagonal; minus infinity elsewhere."""
    blocks = state.size.shape[0]
    gain = np.full((blocks, blocks), -math.inf)
    for a in range(blocks):
        for b in range(a + 1, blocks):
            gain[a, b] = _merge_gain(graph, state, a, b)
    return gain


@inner
def _climb(graph, state, nodes, a, b):
    """Move nodes between two blocks while that raises log p(x, z)."""
    for _ in range(_MOST):
        moved = 0
        for i in nodes:
            old = withdraw(graph, state, i)
            odds = join_score(graph, state, i, a) - join_score(graph, state, i, b)
            new = old if abs(odds) < TIE else (a if odds > 0 else b)
            enter(graph, state, i, new)
            moved += new != old
        if moved == 0:
            return


@helper
def _pick_pair(graph, state, spread):
    """Two blocks whose merging costs little: the best after Gumbel noise of scale ``spread``."""
    gain = merge_gains(graph, state)
    best, found = -math.inf, (0, 1)
    for a in range(gain.shape[0]):
        for b in range(a + 1, gain.shape[0]):
            value = gain[a, b] - spread * math.log(-math.log(1 - random(state.rng)) + 1e-300)
            if value > best:
                best, found = value, (a, b)
    return found


@entry
def improve(graph, state, tries, spread):
    """Divide two blocks anew, or merge two and divide a third, and keep what is better; how many were.

    spread: how much worse than the best, in log p(x, z), the merges are that are tried.
    """
    blocks, better = state.size.shape[0], 0
    everyone = np.arange(state.label.shape[0])
    for _ in range(tries if blocks > 1 else 0):
        before, old = total(graph, state), state.label.copy()
        a, b = _pick_pair(graph, state, spread)
        # The block of a random node: large blocks more often.
        c = state.label[int(random(state.rng) * old.shape[0])]
        if c != a and c != b:
            joined = np.flatnonzero(state.label == b)
            place(graph, state, joined, np.full(joined.shape[0], a))
            a = c
        nodes = _members(state, a, b)
        _launch(graph, state, nodes, a, b, _SCANS)
        _climb(graph, state, nodes, a, b)
        sweep(graph, state, math.inf)
        if total(graph, state) > before + TIE:
            better += 1
        else:
            place(graph, state, everyone, old)
    return better
