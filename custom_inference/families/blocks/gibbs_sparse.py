"""Compiled sweeps over the labels of plain undirected graphs: no hidden dyads, no self loops, all weights 1.

There the exposure of a node to block c is its size n_c, whoever the node is, so that most of what
``gibbs_kernels.join_score`` adds up is the same for all nodes. In the notation of that module

    log p(z_i = r | rest, x) = log (n_r + alpha_r) + sum_c D_rc + sum over c with k_c > 0 of C_rc(k_c) + constant,
    D_rc = f(m_rc, t_rc + n_c) - f(m_rc, t_rc),       C_rc(k) = f(m_rc + k, t_rc + n_c) - f(m_rc, t_rc + n_c),

where C is a sum of k logarithms,

    sum_(l < k) log (a + m + l) / (b + t + n_c - m - 1 - l)                  Bernoulli
    sum_(l < k) log (a + m + l) - k log (b + t + n_c)                        Poisson.

Taking a node out of a block changes one row and one column of D, which are put back where it stays. A node of degree d
costs d + O(K) evaluations of f and a logarithm for every block and edge, rather than K^2 of f. Import inside functions
only: it loads the compiler.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from custom_inference.families.blocks import gibbs_kernels as kernels
from custom_inference.families.blocks.gibbs_kernels import cell_score, count_node, gather, pick, shuffle
from custom_inference.families.blocks.rows import BERNOULLI, POISSON, Graph, Whole
from custom_inference.families.common.compiled import Ints, Reals, bare, inner
from custom_inference.families.common.random import log_gamma

if TYPE_CHECKING:
    from custom_inference.families.blocks.rows import PartitionState

#: From so many edges on C is taken from the logarithms of the Gamma function.
_MANY = 6


def sweep(graph: Graph, state: Any, power: float, nodes: Whole | None = None, allowed: Whole | None = None) -> int:
    """Run :func:`gibbs_kernels.sweep`, by this module where it serves; over all nodes, to any label, where none are
    given."""
    nodes = np.arange(graph.num_nodes) if nodes is None else nodes
    allowed = np.arange(graph.num_blocks) if allowed is None else allowed
    if not is_plain(graph):
        return int(kernels.sweep(graph, state, power, nodes, allowed))
    blocks = graph.num_blocks
    return int(sweep_plain(graph, state, power, nodes, allowed, *(np.empty((n, blocks)) for n in (blocks, 1, 6))))


def is_plain(graph: Graph) -> bool:
    """Tell whether the graph is one that this module handles."""
    links, integrated = graph.links, graph.kind in (BERNOULLI, POISSON) and graph.counted
    alike = bool((graph.weight == 1).all()) and not links.hidden_node.size
    return integrated and not graph.directed and alike and not links.own_exposure.any()


@inner
def _alone(graph: Graph, state: PartitionState, r: int, c: int):
    """Compute D_rc."""
    kind, first, second = graph.kind, graph.first[r, c], graph.second[r, c]
    return cell_score(kind, first, second, state.edges[r, c], state.exposure[r, c] + state.size[c]) - state.cell[r, c]


@inner
def _log_edge_ratio(bernoulli: bool, first: float, second: float, edges: float, exposure: float, more: float):
    """Compute C of ``more`` edges; the exposure includes that of the node."""
    rest = second + exposure - edges if bernoulli else second + exposure
    if more >= _MANY:
        found = log_gamma(first + edges + more) - log_gamma(first + edges)
        return found + (log_gamma(rest - more) - log_gamma(rest) if bernoulli else -more * math.log(rest))
    found, step = 1.0, 0.0
    while step < more:
        found *= (first + edges + step) / (rest - 1 - step if bernoulli else rest)
        step += 1
    return math.log(found)


@inner
def _update_cells(graph: Graph, state: PartitionState, r: int, sign: float, alone: Reals, base: Reals):
    """Update the cells of block r with the gathered node or without, its size changed already; and D and its sums
    there."""
    blocks, kind = state.size.shape[0], graph.kind
    for c in range(blocks):
        edges = state.edges[r, c] + sign * state.near_edges[0, c]
        exposure = state.exposure[r, c] + sign * state.near_exposure[0, c]
        value = cell_score(kind, graph.first[r, c], graph.second[r, c], edges, exposure)
        state.edges[r, c], state.exposure[r, c], state.cell[r, c] = edges, exposure, value
        state.edges[c, r], state.exposure[c, r], state.cell[c, r] = edges, exposure, value
    for a in range(blocks):
        if a != r:
            new = _alone(graph, state, a, r)
            base[a] += new - alone[a, r]
            alone[a, r] = new
    base[r] = 0.0
    for c in range(blocks):
        alone[r, c] = _alone(graph, state, r, c)
        base[r] += alone[r, c]


@inner
def _exchange(state: PartitionState, r: int, alone: Reals, base: Reals, kept: Reals):
    """Exchange the row of block r and what goes with it for what was kept."""
    blocks = state.size.shape[0]
    for c in range(blocks):
        kept[0, c], state.edges[r, c] = state.edges[r, c], kept[0, c]
        kept[1, c], state.exposure[r, c] = state.exposure[r, c], kept[1, c]
        kept[2, c], state.cell[r, c] = state.cell[r, c], kept[2, c]
        kept[3, c], alone[r, c] = alone[r, c], kept[3, c]
        kept[5, c], base[c] = base[c], kept[5, c]
    for c in range(blocks):
        state.edges[c, r], state.exposure[c, r] = state.edges[r, c], state.exposure[r, c]
        state.cell[c, r] = state.cell[r, c]
        if c != r:
            kept[4, c], alone[c, r] = alone[c, r], kept[4, c]


@inner
def _keep(state: PartitionState, r: int, alone: Reals, base: Reals, kept: Reals):
    """Copy the row of block r and what goes with it."""
    for c in range(state.size.shape[0]):
        kept[0, c], kept[1, c], kept[2, c] = state.edges[r, c], state.exposure[r, c], state.cell[r, c]
        kept[3, c], kept[4, c], kept[5, c] = alone[r, c], alone[c, r], base[c]


@inner
def _scores(graph: Graph, state: PartitionState, base: Reals, allowed: Ints):
    """Fill ``state.score`` with log p(z_i = r | rest, x) of the withdrawn node for the blocks allowed."""
    blocks, bernoulli = allowed.shape[0], graph.kind == BERNOULLI
    for q in range(blocks):
        r = allowed[q]
        state.score[q] = base[r] + math.log(state.size[r] + graph.alpha[r])
    for c in range(state.size.shape[0]):
        more = state.near_edges[0, c]
        for q in range(blocks if more > 0 else 0):
            r = allowed[q]
            exposure = state.exposure[r, c] + state.size[c]
            state.score[q] += _log_edge_ratio(
                bernoulli, graph.first[r, c], graph.second[r, c], state.edges[r, c], exposure, more
            )  # fmt: skip


@bare
def sweep_plain(
    graph: Graph,
    state: PartitionState,
    power: float,
    nodes: Ints,
    allowed: Ints,
    alone: Reals,
    bases: Reals,
    kept: Reals,
):
    """Run one sweep over the nodes, as :func:`gibbs_kernels.sweep` does. alone (K, K), bases (1, K), kept (6, K): to
    work in."""
    moved, blocks, base = 0, state.size.shape[0], bases[0]
    for r in range(blocks):
        base[r] = 0.0
        for c in range(blocks):
            alone[r, c] = _alone(graph, state, r, c)
            base[r] += alone[r, c]
    shuffle(nodes, state.rng)
    for at in range(nodes.shape[0]):
        i = nodes[at]
        old = state.label[i]
        state.label[i] = -1
        if old >= 0:
            _keep(state, old, alone, base, kept)
            count_node(graph, state, i, old, -1.0)
        gather(graph, state, i)
        if old >= 0:
            _update_cells(graph, state, old, -1.0, alone, base)
        _scores(graph, state, base, allowed)
        new = pick(state, allowed, old, power)
        count_node(graph, state, i, new, 1.0)
        if new == old:
            _exchange(state, old, alone, base, kept)
        else:
            _update_cells(graph, state, new, 1.0, alone, base)
        state.label[i] = new
        moved += new != old
    return moved
