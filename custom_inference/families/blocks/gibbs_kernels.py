"""Compiled sweeps over the labels of block models. Import inside functions only: it loads the compiler.

Node i outside all blocks has k_c edges to block c, k'_c from it, and exposures e_c, e'_c (those of its observed dyads:
w_i W'_c without what is hidden): the two rows of ``near_edges`` and ``near_exposure``, one of undirected graphs. If it
joins block r, the cells of row and column r change and no others, so that

    log p(z_i = r | rest, x) = log (n_r + alpha_r) + sum_{c != r} [df_rc(k_c, e_c) + df_cr(k'_c, e'_c)]
                               + df_rr(k_r + k'_r + x_ii, e_r + e'_r + e_ii) + constant,
    df_ab(k, e) = f(m_ab + k, t_ab + e) - f(m_ab, t_ab),

    f(m, t) = log G(a + m) + log G(b + t - m) - log G(a + b + t)      Bernoulli, eta ~ Beta(a, b)
    f(m, t) = log G(a + m) - (a + m) log(b + t)                       Poisson, eta ~ Gamma(a, b)
    f(m, t) = m A + t B                                               eta given (``likelihoods``)

up to constants of the cell. In undirected graphs df_rc stands for df_cr too. A node of degree d costs d + O(K^2).

``DEGREES``: theta_i = n_a phi_i with phi uniform on the simplex of its block integrated out (Karrer & Newman, Phys.
Rev. E 83, 2011; Peixoto, Phys. Rev. E 95, 2017, sec. III, the uniform prior of degrees), each block adding

    g(n, d) = log G(n) - log G(n + d) + d log n,     d the degrees (the out- and the in-degrees) of its nodes.

With propensities Gamma(1, 1), phi has this very distribution, and the block's sum, for which n_a stands here, has its
mean there; exposures here include the pairs i = j. It is what partitions are searched with, not a model's own weight.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from custom_inference.families.blocks.rows import BERNOULLI, DEGREES, GIVEN
from custom_inference.families.common.compiled import Ints, Reals, Words, bare, inner
from custom_inference.families.common.random import draw_class, draw_next, log_gamma

if TYPE_CHECKING:
    from custom_inference.families.blocks.rows import Graph, PartitionState

#: Differences smaller than this are rounding: a node stays where it is.
TIE = 1e-9


@inner
def cell_score(kind: int, first: float, second: float, edges: float, exposure: float):
    """Compute f(m, t). It takes numbers only: to hand on a graph costs more than the logarithms."""
    if kind == BERNOULLI:
        return log_gamma(first + edges) + log_gamma(second + exposure - edges) - log_gamma(first + second + exposure)
    if kind == GIVEN:
        return edges * first + exposure * second
    return log_gamma(first + edges) - (first + edges) * math.log(second + exposure)


@inner
def degree_score(size: float, degree: float):
    """Compute g(n, d); 0 for a block without nodes."""
    return log_gamma(size) - log_gamma(size + degree) + degree * math.log(size) if size > 0 else 0.0


@inner
def count_node(graph: Graph, state: PartitionState, i: int, r: int, sign: float):
    """Add node i to what block r holds, or take it out. sign: 1.0 or -1.0; of whole numbers each would be compiled
    for."""
    state.size[r] += sign
    for side in range(graph.weight.shape[0]):
        state.weight[side, r] += sign * graph.weight[side, i]
        state.degree[side, r] += sign * graph.links.degree[side, i]


@inner
def gather(graph: Graph, state: PartitionState, i: int):
    """Sum the edges and exposures between node i, outside all blocks, and every block."""
    links, label, sides = graph.links, state.label, graph.weight.shape[0]
    for side in range(sides):
        other, weight = sides - 1 - side, graph.weight[side, i]
        for c in range(state.size.shape[0]):
            state.near_edges[side, c] = 0.0
            state.near_exposure[side, c] = weight * state.weight[other, c]
        for e in range(links.start[side, i], links.start[side, i + 1]):
            c = label[links.node[side, e]]
            if c >= 0:
                state.near_edges[side, c] += links.count[side, e]
        for e in range(links.hidden_start[side, i], links.hidden_start[side, i + 1]):
            j = links.hidden_node[side, e]
            if label[j] >= 0:
                state.near_exposure[side, label[j]] -= weight * graph.weight[other, j]


@inner
def _count_gathered(graph: Graph, state: PartitionState, i: int, r: int, c: int, side: np.integer | int):
    """Return the edges and exposure that the gathered node i in block r adds to its cell with block c on one side."""
    edges, exposure, last = state.near_edges[side, c], state.near_exposure[side, c], graph.weight.shape[0] - 1
    if c == r:  # both sides
        edges += graph.links.own[i]
        exposure += graph.links.own_exposure[i] * graph.weight[0, i] * graph.weight[last, i]
        if last == 1:
            edges += state.near_edges[1, c]
            exposure += state.near_exposure[1, c]
    return edges, exposure


@inner
def _change(graph: Graph, state: PartitionState, i: int, r: int, sign: float):
    """Update the cells of block r, with the gathered node i or without."""
    edges, exposure, cell = state.edges, state.exposure, state.cell
    kind, first, second, sides = graph.kind, graph.first, graph.second, graph.weight.shape[0]
    for c in range(edges.shape[0]):
        more, longer = _count_gathered(graph, state, i, r, c, np.int64(0))
        edges[r, c] += sign * more
        exposure[r, c] += sign * longer
        cell[r, c] = cell_score(kind, first[r, c], second[r, c], edges[r, c], exposure[r, c])
        if sides == 1:
            edges[c, r], exposure[c, r], cell[c, r] = edges[r, c], exposure[r, c], cell[r, c]
        elif c != r:
            edges[c, r] += sign * state.near_edges[1, c]
            exposure[c, r] += sign * state.near_exposure[1, c]
            cell[c, r] = cell_score(kind, first[c, r], second[c, r], edges[c, r], exposure[c, r])


@inner
def withdraw(graph: Graph, state: PartitionState, i: int):
    """Take node i out of its block, if it is in one, and gather its edges and exposures to the others; return the old
    block."""
    r = state.label[i]
    state.label[i] = -1
    if r >= 0:
        count_node(graph, state, i, r, -1.0)
    gather(graph, state, i)
    if r >= 0:
        _change(graph, state, i, r, -1.0)
    return r


@inner
def enter(graph: Graph, state: PartitionState, i: int, r: int):
    """Put the withdrawn node i into block r."""
    _change(graph, state, i, r, 1.0)
    count_node(graph, state, i, r, 1.0)
    state.label[i] = r


@inner
def join_score(graph: Graph, state: PartitionState, i: int, r: int):
    """Compute log p(z_i = r | rest, x) + constant, of the withdrawn node i."""
    kind, first, second, sides = graph.kind, graph.first, graph.second, graph.weight.shape[0]
    edges, exposure, cell = state.edges, state.exposure, state.cell
    score = math.log(state.size[r] + graph.alpha[r]) if graph.counted else math.log(graph.alpha[r])
    for c in range(edges.shape[0]):
        for side in range(1 if c == r else sides):
            more, longer = _count_gathered(graph, state, i, r, c, side)
            if longer != 0 or more != 0:  # else the block is empty
                at = (r, c) if side == 0 else (c, r)
                score += cell_score(kind, first[at], second[at], edges[at] + more, exposure[at] + longer) - cell[at]
    if kind == DEGREES:
        size = state.size[r]
        for side in range(sides):
            degree = state.degree[side, r]
            score += degree_score(size + 1, degree + graph.links.degree[side, i]) - degree_score(size, degree)
    return score


@inner
def total(graph: Graph, state: PartitionState):
    """Compute the integrated log joint of the labels, the same sum as ``cells.total``."""
    found, blocks, sides = 0.0, state.size.shape[0], graph.weight.shape[0]
    for a in range(blocks):
        size, alpha = state.size[a], graph.alpha[a]
        found += log_gamma(size + alpha) if graph.counted else size * math.log(alpha)
        for b in range(a if sides == 1 else 0, blocks):
            found += state.cell[a, b]
        for side in range(sides if graph.kind == DEGREES else 0):
            found += degree_score(state.size[a], state.degree[side, a])
    return found


@bare
def place(graph: Graph, state: PartitionState, nodes: Ints, labels: Ints):
    """Move nodes to the blocks given."""
    for at in range(nodes.shape[0]):
        if state.label[nodes[at]] != labels[at]:
            withdraw(graph, state, nodes[at])
            enter(graph, state, nodes[at], labels[at])


@inner
def shuffle(nodes: Ints, rng: Words):
    """Shuffle in place (Fisher & Yates)."""
    for at in range(nodes.shape[0] - 1, 0, -1):
        other = int(draw_next(rng) * (at + 1))
        nodes[at], nodes[other] = nodes[other], nodes[at]


@inner
def pick(state: PartitionState, allowed: Ints, old: int, power: float):
    """Draw the label that a node gets by ``state.score`` from the labels allowed, see :func:`sweep`."""
    number = allowed.shape[0]
    if power == math.inf:
        best, before = 0, -1
        for q in range(number):
            best = q if state.score[q] > state.score[best] else best
            before = q if allowed[q] == old else before
        return old if before >= 0 and state.score[best] < state.score[before] + TIE else allowed[best]
    for q in range(number):
        state.score[q] *= power
    found, state.rng[0] = draw_class(state.score, state.probability, number, state.rng[0])  # pyright: ignore
    return allowed[found]


@bare
def sweep(graph: Graph, state, power, nodes: Ints, allowed: Ints):
    """Draw a new label for every one of these nodes, in random order; return how many have changed.

    power: labels are drawn in proportion to p(z_i = r | rest, x)^power; infinity takes the most probable one. nodes:
    are shuffled in place. allowed: the labels that they may get.
    """
    moved = 0
    shuffle(nodes, state.rng)
    for at in range(nodes.shape[0]):
        i = nodes[at]
        old = withdraw(graph, state, i)
        for q in range(allowed.shape[0]):
            state.score[q] = join_score(graph, state, i, allowed[q])
        new = pick(state, allowed, old, power)
        enter(graph, state, i, new)
        moved += new != old
    return moved


@bare
def conditionals(graph: Graph, state: PartitionState, share: Reals):
    """Write p(z_i = r | rest, x) of every node in its turn, (N, K), into ``share``; the labels stay."""
    blocks = state.size.shape[0]
    for i in range(state.label.shape[0]):
        old = withdraw(graph, state, i)
        for r in range(blocks):
            state.score[r] = join_score(graph, state, i, r)
        draw_class(state.score, share[i], state.score.shape[0], state.rng[0])
        enter(graph, state, i, old)
