"""Labels drawn at given globals, or at given expectations over them."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from scipy.special import softmax

from custom_inference.families.blocks.cells import fill
from custom_inference.families.blocks.rows import BERNOULLI, Floats, Graph, PartitionState, SbmRows, graph_of
from custom_inference.families.blocks.sweep import BlockExpectations, score_names

#: All orders of up to so many blocks are weighed when these are renamed.
_ALL_ORDERS = 5


def start_from_labels(rows: SbmRows, ends: Floats, blocks: int, label: Any, seed: int) -> tuple[Graph, PartitionState]:
    """Return a graph with the nodes' weights (S, N), and its labelling (N,)."""
    graph = graph_of(rows, kind=BERNOULLI, alpha=np.ones(blocks), first=1.0, second=1.0)._replace(weight=ends)
    state = PartitionState.empty(graph, seed)
    state.label[:] = label
    fill(graph, state)
    return graph, state


def sweep_given(graph: Graph, state: PartitionState, at: BlockExpectations, sweeps: int) -> Floats:
    """Sweep the labels at given expectations; return the nodes' mean probabilities of the blocks on the way, (N, K)."""
    from custom_inference.families.blocks import gibbs_conditionals as conditionals

    share = np.zeros((graph.num_nodes, graph.num_blocks))
    for _ in range(sweeps):
        conditionals.sweep_given(graph, state, at.log_proportion, at.lift, at.base, share)
    return share / max(sweeps, 1)


def rename_given(graph: Graph, state: PartitionState, at: BlockExpectations, generator: np.random.Generator) -> None:
    """Draw new names for all blocks at once by log p(x, z | globals).

    Nodes one by one cannot pass from a labelling to one with the blocks' roles exchanged, which may fit nearly as well.
    The names are drawn from all orders of few blocks; of many, one exchange of two blocks after another is drawn or
    left. Both are groups of renamings, so that the distribution stays as it is.
    """
    fill(graph, state)
    blocks = graph.num_blocks
    same = np.arange(blocks)
    if blocks <= _ALL_ORDERS:
        groups = [np.array(list(itertools.permutations(range(blocks))))]
    else:
        groups = [np.stack([same, same]) for _ in range(blocks)]
        for group in groups:
            pair = generator.choice(blocks, 2, replace=False)
            group[1, pair] = pair[::-1]
    order, counts = same, state.counts(graph)
    for group in groups:
        names = group[:, order]  # (P, K): what block a would be called
        order = names[generator.choice(len(names), p=softmax(score_names(at, counts, names)))]
    if (order != same).any():
        state.label[:] = order[state.label]
        fill(graph, state)


def log_joint_given(graph: Graph, state: PartitionState, at: BlockExpectations) -> float:
    """Compute log p(x, z | globals) up to what does not depend on z; ``state`` is brought up to date."""
    fill(graph, state)
    return float(score_names(at, state.counts(graph), np.arange(graph.num_blocks)))
