"""Moves of many nodes at once that only climb, for searches: pairs of blocks divided anew, or merged.

Two blocks merged change their size and the cells of their rows and columns; what all pairs would gain is found at once
from the sums over blocks. A division is sought by sweeps restricted to the nodes and the labels of two blocks, after
fair coins: first of Gibbs sampling, then such as climb. Import inside functions only: it loads the compiler.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import gammaln

from custom_inference.families.blocks import gibbs_kernels as kernels
from custom_inference.families.blocks import gibbs_sparse as sparse
from custom_inference.families.blocks.cells import cell_scores, degree_scores, fill, total
from custom_inference.families.blocks.rows import DEGREES, Floats, Graph, PartitionState

#: Sweeps of Gibbs sampling before the ones that climb, and at most so many of those.
_SCANS, _MOST = 4, 20
#: Cells of rows of merged blocks that are scored at a time.
_AT_ONCE = 2**20


def merge_gains(graph: Graph, state: PartitionState) -> Floats:
    """Compute what log p(x, z) gains by moving the nodes of b to a, but for the cells of a label that becomes empty.

    Of all pairs (K, K), above the diagonal; minus infinity elsewhere.
    """
    blocks = graph.num_blocks
    a, b = np.triu_indices(blocks, 1)
    step = max(1, _AT_ONCE // blocks)
    parts = [_gains(graph, state, a[at : at + step], b[at : at + step]) for at in range(0, len(a), step)]
    found = np.full((blocks, blocks), -np.inf)
    found[a, b] = np.concatenate(parts) if parts else 0.0
    return found


def _gains(graph: Graph, state: PartitionState, a: np.ndarray, b: np.ndarray) -> Floats:
    size, alpha, cell = state.size, graph.alpha, state.cell
    gain = gammaln(size[a] + size[b] + alpha[a]) - gammaln(size[a] + alpha[a]) - gammaln(size[b] + alpha[b])
    inner = [(a, a), (b, b), (a, b), *([(b, a)] if graph.directed else [])]
    m, t, before = (np.sum([part[at] for at in inner], 0) for part in (state.edges, state.exposure, cell))
    gain += cell_scores(graph.kind, graph.first[a, a], graph.second[a, a], m, t) - before
    others = np.ones((len(a), len(size)), dtype=bool)
    others[np.arange(len(a)), a] = others[np.arange(len(a)), b] = False
    sums = [graph.first, graph.second, state.edges, state.exposure, cell]
    for first, second, edges, exposure, old in [sums, [part.T for part in sums]][: 1 + graph.directed]:
        new = cell_scores(graph.kind, first[a], second[a], edges[a] + edges[b], exposure[a] + exposure[b])
        gain += np.where(others, new - old[a] - old[b], 0.0).sum(1)
    for degree in state.degree if graph.kind == DEGREES else ():
        together = degree_scores(size[a] + size[b], degree[a] + degree[b])
        gain += together - degree_scores(size[a], degree[a]) - degree_scores(size[b], degree[b])
    return gain


def improve(graph: Graph, state: PartitionState, tries: int, spread: float, generator: np.random.Generator) -> int:
    """Divide two blocks anew, or merge two and divide a third, and keep what is better; return how many changes were
    kept.

    spread: how much worse than the best, in log p(x, z), the merges are that are tried.
    """
    better, gain, before = 0, None, total(graph, state)
    for _ in range(tries if graph.num_blocks > 1 else 0):
        gain = merge_gains(graph, state) if gain is None else gain
        old = [part.copy() for part in state]
        noisy = gain + spread * generator.gumbel(size=gain.shape)
        _divide(graph, state, *divmod(int(noisy.argmax()), graph.num_blocks), generator)
        sparse.sweep(graph, state, math.inf)
        after = total(graph, state)
        if after > before + kernels.TIE:
            better, gain, before = better + 1, None, after
        else:
            for part, kept in zip(state[:-1], old[:-1], strict=True):  # the random numbers go on
                part[:] = kept
    return better


def _divide(graph: Graph, state: PartitionState, a: int, b: int, generator: np.random.Generator) -> None:
    """Divide the nodes of a and b anew; or let b join a, and divide another block between b and itself."""
    label = state.label
    c = int(label[generator.integers(len(label))])  # the block of a random node: large blocks more often
    if c not in (a, b):
        label[label == b] = a
        a = c
    nodes, pair = np.flatnonzero((label == a) | (label == b)), np.array([a, b])
    label[nodes] = pair[generator.integers(2, size=len(nodes))]
    fill(graph, state)
    for _ in range(_SCANS):
        sparse.sweep(graph, state, 1.0, nodes, pair)
    for _ in range(_MOST):
        if not sparse.sweep(graph, state, math.inf, nodes, pair):
            return
