"""What compiled sweeps keep up to date (``gibbs_kernels``), from the labels alone, in NumPy: notation as there."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import gammaln

from custom_inference.families.blocks.rows import BERNOULLI, DEGREES, GIVEN, Floats, Graph, PartitionState, Whole


def cell_scores(kind: int, first: Floats, second: Floats, edges: Floats, exposure: Floats) -> Floats:
    """Compute f(m, t) of many cells."""
    if kind == BERNOULLI:
        left = gammaln(first + edges) + gammaln(second + exposure - edges)
        return left - gammaln(first + second + exposure)
    if kind == GIVEN:
        return edges * first + exposure * second
    return gammaln(first + edges) - (first + edges) * np.log(second + exposure)


def degree_scores(size: Floats, degree: Floats) -> Floats:
    """Compute g(n, d) of many blocks; 0 for those without nodes."""
    some = np.maximum(size, 1.0)
    return np.where(size > 0, gammaln(some) - gammaln(some + degree) + degree * np.log(some), 0.0)


def total(graph: Graph, state: PartitionState) -> float:
    """Compute log p(x, z) but for what does not depend on z; every cell that f is summed over counts, with f(0, 0)
    too."""
    size, alpha, sides = state.size, graph.alpha, len(graph.weight)
    found = gammaln(size + alpha).sum() if graph.counted else (size * np.log(alpha)).sum()
    found += np.triu(state.cell).sum() if sides == 1 else state.cell.sum()
    return float(found + (degree_scores(size, state.degree).sum() if graph.kind == DEGREES else 0.0))


def fill(graph: Graph, state: PartitionState) -> None:
    """Recompute all sums from ``state.label``; nodes in no block have no part in them."""
    blocks, label, weight, links = graph.num_blocks, state.label, graph.weight, graph.links
    inside = np.flatnonzero(label >= 0)
    at, last = label[inside], len(weight) - 1
    state.size[:] = np.bincount(at, minlength=blocks)
    for side in range(len(weight)):
        state.weight[side] = np.bincount(at, weight[side, inside], blocks)
        state.degree[side] = np.bincount(at, links.degree[side, inside], blocks)
    first, second = _ends(links.start[0], links.node[0])
    state.edges[:] = _between(label[first], label[second], links.count[0], blocks)
    state.exposure[:] = np.multiply.outer(state.weight[0], state.weight[last])
    first, second = _ends(links.hidden_start[0], links.hidden_node[0])
    state.exposure[:] -= _between(label[first], label[second], weight[0, first] * weight[last, second], blocks)
    diagonal, both = np.diag_indices(blocks), weight[0] * weight[last]
    state.exposure[diagonal] -= np.bincount(at, both[inside], blocks)
    if last == 0:  # a pair within a block was counted from both of its ends
        state.edges[diagonal] /= 2
        state.exposure[diagonal] /= 2
    state.edges[diagonal] += np.bincount(at, links.own[inside], blocks)
    state.exposure[diagonal] += np.bincount(at, (links.own_exposure * both)[inside], blocks)
    state.cell[:] = cell_scores(graph.kind, graph.first, graph.second, state.edges, state.exposure)


def _ends(start: Whole, node: Whole) -> tuple[Whole, Whole]:
    """Return the first and second nodes of the pairs in CSR."""
    return np.repeat(np.arange(len(start) - 1), np.diff(start)), node


def _between(first: Whole, second: Whole, value: Floats, blocks: int) -> Floats:
    """Sum over pairs of nodes by the blocks (K, K) that they are in."""
    both = (first >= 0) & (second >= 0)
    sums: Any = np.bincount(first[both] * blocks + second[both], value[both], blocks**2)
    return sums.reshape(blocks, blocks)
