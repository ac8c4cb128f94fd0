"""Moves of searches: what merging two blocks gains, and that nothing is kept but what is better."""

import math

import numpy as np
import pytest
import torch

from custom_inference.families.blocks.cells import fill, total
from custom_inference.families.blocks.partitions import flat_graph, improve, merge_gains
from custom_inference.families.blocks.rows import PartitionState
from custom_inference.families.rows.graph import GraphRows
from ppl_models import PoissonSBM

KINDS = ["bernoulli", "poisson", "degree_corrected"]


def labelled(kind, directed, label, blocks, nodes=12):
    rng = np.random.default_rng(3)
    group = np.arange(nodes) % 2
    x = rng.random((nodes, nodes)) < np.where(group[:, None] == group, 0.8, 0.1)
    x = x * (1 if kind == "bernoulli" else rng.integers(1, 4, x.shape))
    x = (x if directed else np.triu(x, 1) + np.triu(x, 1).T).astype(float)
    np.fill_diagonal(x, 0)
    model = PoissonSBM(num_blocks=blocks, num_nodes=nodes, directed=directed)
    graph = flat_graph(GraphRows.of(model, model.prepare(torch.as_tensor(x))), blocks, kind)
    state = PartitionState.empty(graph, 0)
    state.label[:] = label
    fill(graph, state)
    return graph, state


def weight(graph, label):
    state = PartitionState.empty(graph, 0)
    state.label[:] = label
    fill(graph, state)
    return total(graph, state)


@pytest.mark.parametrize("directed", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_gains_of_merges_are_the_differences_of_log_joints(kind, directed):
    label = np.array([0, 1, 2, 3] * 3)
    graph, state = labelled(kind, directed, label, 4)
    gain, before = merge_gains(graph, state), weight(graph, label)
    for a in range(4):
        for b in range(4):
            if a >= b:
                assert gain[a, b] == -np.inf
                continue
            merged = np.where(label == b, a, label)
            alone = PartitionState.empty(
                graph, 0
            )  # of the label that becomes empty the gain leaves out the cells, and log G
            alone.label[:] = merged
            fill(graph, alone)
            pairs = {(b, c) for c in range(4)} | ({(c, b) for c in range(4)} if directed else set())
            empty = sum(alone.cell[at] for at in pairs) + math.lgamma(graph.alpha[b])
            assert gain[a, b] == pytest.approx(weight(graph, merged) - empty - before, abs=1e-9)


@pytest.mark.parametrize("directed", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_kept_is_better(kind, directed):
    graph, state = labelled(kind, directed, np.zeros(12, dtype=np.int64), 3)
    generator, before = np.random.default_rng(0), weight(graph, state.label)
    assert improve(graph, state, 12, 1.0, generator) > 0
    after = weight(graph, state.label)
    assert after > before
    label = state.label.copy()
    while improve(graph, state, 12, 0.0, generator):
        label = state.label.copy()
    assert np.array_equal(state.label, label), "what was no better is undone"
    kept = [part.copy() for part in state[1:7]]
    fill(graph, state)
    for one, anew in zip(kept, state[1:7], strict=True):
        np.testing.assert_allclose(one, anew, atol=1e-9)
