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

each accepted with probability min(1, p(x, z*) / p(x, z) times that ratio). Labels are picked at random, so that a move
and its reverse (of trade: c for a and a for c) are equally often proposed; launches do not depend on which division
there is at present, and their probabilities cancel. Import inside functions only.
"""

from __future__ import annotations

import math

import numpy as np

from custom_inference.families.blocks.gibbs_kernels import (
    enter,
    entry,
    helper,
    inner,
    join_score,
    place,
    random,
    shuffle,
    total,
    withdraw,
)

# Loops throughout: expressions of whole arrays compile for longer than all the rest.


@helper
def _members(state, a, b):
    """The nodes of two blocks, in random order."""
    label, number = state.label, 0
    for i in range(label.shape[0]):
        number += label[i] == a or label[i] == b
    nodes = np.empty(number, np.int64)
    for i in range(label.shape[0] - 1, -1, -1):
        if label[i] == a or label[i] == b:
            number -= 1
            nodes[number] = i
    shuffle(nodes, state.rng)
    return nodes


@helper
def _labels(state, nodes):
    """Theirs, a copy."""
    found = np.empty(nodes.shape[0], np.int64)
    for at in range(nodes.shape[0]):
        found[at] = state.label[nodes[at]]
    return found


@helper
def _all(nodes, a):
    """The label a for each."""
    found = np.empty(nodes.shape[0], np.int64)
    for at in range(nodes.shape[0]):
        found[at] = a
    return found


@inner
def _number(labels, a):
    """How many of them are a."""
    found = 0
    for at in range(labels.shape[0]):
        found += labels[at] == a
    return found


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
    before, old = total(graph, state), _labels(state, nodes)
    _launch(graph, state, nodes, a, b, scans)
    launch = _labels(state, nodes)
    forth = _scan(graph, state, nodes, a, b, old[:0])
    new, after = _labels(state, nodes), total(graph, state)
    place(graph, state, nodes, launch)
    back = _scan(graph, state, nodes, a, b, old)
    return _accepted(graph, state, nodes, new, after - before + back - forth)


@helper
def _trade(graph, state, a, b, c, scans):
    joined, split = _members(state, a, b), _members(state, c, c)
    before, old, whole = total(graph, state), _labels(state, joined), _labels(state, split)
    together = _all(joined, a)
    place(graph, state, joined, together)
    _launch(graph, state, split, c, b, scans)
    forth = _scan(graph, state, split, c, b, old[:0])
    new, after = _labels(state, split), total(graph, state)
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
    before, old = total(graph, state), _labels(state, nodes)
    together = _all(nodes, a)
    if not _number(old, a):
        return False
    if _number(old, b):
        place(graph, state, nodes, together)
        after = total(graph, state)
        _launch(graph, state, nodes, a, b, scans)
        back = _scan(graph, state, nodes, a, b, old)
        return _accepted(graph, state, nodes, together, after - before + back)
    _launch(graph, state, nodes, a, b, scans)
    forth = _scan(graph, state, nodes, a, b, old[:0])
    new, after = _labels(state, nodes), total(graph, state)
    place(graph, state, nodes, together)
    divided = _number(new, a) > 0 and _number(new, b) > 0
    return divided and _accepted(graph, state, nodes, new, after - before - forth)


@entry
def merge_split(graph, state, moves, scans):
    """So many moves of two or three blocks picked at random; how many were accepted.

    scans: of Gibbs sampling between the coins and the last scan of every division.
    """
    blocks, accepted = state.size.shape[0], 0
    order = np.empty(blocks, np.int64)
    for a in range(blocks):
        order[a] = a
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
