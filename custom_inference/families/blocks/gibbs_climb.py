"""Compiled moves that only climb: merges of blocks, and new divisions that raise log p(x, z). Import inside functions.

Blocks a and b merged change their size and the cells of their rows and columns, in O(K) per pair. Their nodes are
moved only where the pair is chosen.
"""

from __future__ import annotations

import math

import numpy as np

from custom_inference.families.blocks.gibbs_kernels import (
    _TIE,
    _cell,
    _degrees,
    _log_gamma,
    enter,
    entry,
    helper,
    inner,
    join_score,
    place,
    sweep,
    total,
    withdraw,
)
from custom_inference.families.blocks.gibbs_moves import _launch, _members, _random

#: Scans of Gibbs sampling before the ones that only climb, and at most so many of those.
_SCANS, _MOST = 4, 20


@inner
def _rows_gain(graph, state, a, b):
    """What the cells of blocks a and b with the others gain by becoming one row, and one column."""
    kind, first, second = graph.kind, graph.first, graph.second
    edges, exposure, cell, gain = state.edges, state.exposure, state.cell, 0.0
    for c in range(edges.shape[0]):
        if c == a or c == b:  # noqa: SIM109 - compiled to two comparisons
            continue
        m, t = edges[a, c] + edges[b, c], exposure[a, c] + exposure[b, c]
        gain += _cell(kind, first[a, c], second[a, c], m, t) - cell[a, c] - cell[b, c]
        if graph.directed:
            m, t = edges[c, a] + edges[c, b], exposure[c, a] + exposure[c, b]
            gain += _cell(kind, first[c, a], second[c, a], m, t) - cell[c, a] - cell[c, b]
    return gain


@inner
def _merge_gain(graph, state, a, b):
    """What log p(x, z) gains by moving the nodes of b to a, but for the cells of a label that becomes empty."""
    size, alpha = state.size, graph.alpha
    edges, exposure, cell = state.edges, state.exposure, state.cell
    gain = _log_gamma(size[a] + size[b] + alpha[a]) - _log_gamma(size[a] + alpha[a]) - _log_gamma(size[b] + alpha[b])
    m, t = edges[a, a] + edges[b, b] + edges[a, b], exposure[a, a] + exposure[b, b] + exposure[a, b]
    gain -= cell[a, a] + cell[b, b] + cell[a, b]
    if graph.directed:
        m, t, gain = m + edges[b, a], t + exposure[b, a], gain - cell[b, a]
    gain += _cell(graph.kind, graph.first[a, a], graph.second[a, a], m, t) + _rows_gain(graph, state, a, b)
    if graph.kind == 2:
        out, into = state.out_degree, state.in_degree
        gain += _degrees(size[a] + size[b], out[a] + out[b]) - _degrees(size[a], out[a]) - _degrees(size[b], out[b])
        if graph.directed:
            gain += _degrees(size[a] + size[b], into[a] + into[b])
            gain -= _degrees(size[a], into[a]) + _degrees(size[b], into[b])
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
            new = old if abs(odds) < _TIE else (a if odds > 0 else b)
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
            value = gain[a, b] - spread * math.log(-math.log(1 - _random(state.rng)) + 1e-300)
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
        c = state.label[int(_random(state.rng) * old.shape[0])]
        if c != a and c != b:
            joined = np.flatnonzero(state.label == b)
            place(graph, state, joined, np.full(joined.shape[0], a))
            a = c
        nodes = _members(state, a, b)
        _launch(graph, state, nodes, a, b, _SCANS)
        _climb(graph, state, nodes, a, b)
        sweep(graph, state, math.inf)
        if total(graph, state) > before + _TIE:
            better += 1
        else:
            place(graph, state, everyone, old)
    return better
