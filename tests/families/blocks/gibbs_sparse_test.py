"""Faster sweeps over the labels of plain graphs: the weights and the distribution of the general ones."""

from functools import partial

import numpy as np
import pytest
import torch

from custom_inference.families.blocks.gibbs import BlockChain
from custom_inference.families.rows.graph import GraphRows
from ppl_models import SBM, PoissonSBM
from tests.families.blocks.gibbs_test import assert_drawn_from, begun, exact_table, problem


def plain_problem(kind, seed=0, nodes=6, blocks=3):
    """As ``problem``, undirected, no self loops, nothing hidden; some dyads of many edges."""
    model, _, weigh = problem(kind, False, False, False, nodes=nodes, blocks=blocks, seed=seed)
    rng = np.random.default_rng(seed)
    x = np.triu(rng.integers(0, 2, (nodes, nodes)) * (1 if kind is SBM else rng.integers(1, 12, (nodes, nodes))), 1)
    x = (x + x.T).astype(float)
    rows = GraphRows.of(model, model.prepare(torch.as_tensor(x)))
    return model, rows, partial(weigh.func, **{**weigh.keywords, "x": x, "mask": None})


@pytest.mark.parametrize("kind", [SBM, PoissonSBM])
def test_sweeps_of_plain_graphs(kind):
    """The same weights, and the same distribution after a sweep, by the faster way."""
    from custom_inference.families.blocks import gibbs_kernels as kernels
    from custom_inference.families.blocks import gibbs_sparse as sparse

    model, rows, weigh = plain_problem(kind, blocks=2)
    chain = BlockChain(model, rows, seed=1)
    assert sparse.is_plain(chain.graph)
    for _ in range(20):
        chain.sweep()
        label = chain.indicators().numpy()
        assert chain.log_joint() == pytest.approx(weigh(label), abs=1e-9)
        anew = begun(BlockChain, model, rows, 0, label)
        for kept, found in zip(chain.state[1:7], anew.state[1:7], strict=True):
            np.testing.assert_allclose(kept, found, atol=1e-9)
    every, share = exact_table(weigh, 6, 2)
    code, counts, accepted = 2 ** np.arange(5, -1, -1), np.zeros(len(every)), 0
    for at in np.random.default_rng(0).choice(len(every), 6000, p=share):
        kernels.place(chain.graph, chain.state, np.arange(6), every[at])
        accepted += sparse.sweep(chain.graph, chain.state, 1.0)
        counts[code @ chain.state.label] += 1
    assert_drawn_from(counts, share)
    assert accepted > 1000


def test_sweeps_of_plain_graphs_choose_as_others_do():
    """Greedy sweeps from one start, with as many blocks as make rows and columns matter."""
    from custom_inference.families.blocks import gibbs_kernels as kernels
    from custom_inference.families.blocks import gibbs_sparse as sparse

    for kind in (SBM, PoissonSBM):
        model, rows = _larger(kind)
        label = np.random.default_rng(1).integers(5, size=40)
        one, other = (begun(BlockChain, model, rows, 4, label) for _ in range(2))
        for _ in range(4):
            kernels.sweep(one.graph, one.state, np.inf, np.arange(40), np.arange(5))
            sparse.sweep(other.graph, other.state, np.inf)
            assert np.array_equal(one.state.label, other.state.label)
            np.testing.assert_allclose(one.state.cell, other.state.cell, atol=1e-9)


@pytest.mark.parametrize("plain", [True, False])
def test_sweeps_of_some_nodes_between_some_labels(plain):
    """Given the others, drawn from the exact conditional; nothing else moves."""
    from custom_inference.families.blocks import gibbs_kernels as kernels
    from custom_inference.families.blocks import gibbs_sparse as sparse

    model, rows, weigh = plain_problem(SBM) if plain else problem(SBM, True, True, True, nodes=6, blocks=3)
    every, share = exact_table(weigh, 6, 3)
    start, nodes, pair = np.array([0, 1, 2, 0, 2, 1]), np.array([1, 2, 4]), np.array([1, 2])
    left = (every[:, [0, 3, 5]] == start[[0, 3, 5]]).all(1) & np.isin(every[:, nodes], pair).all(1)
    every, share = every[left], share[left] / share[left].sum()
    chain, counts = begun(BlockChain, model, rows, 2, start), np.zeros(len(every))
    assert sparse.is_plain(chain.graph) == plain
    for at in np.random.default_rng(0).choice(len(every), 3000, p=share):
        kernels.place(chain.graph, chain.state, np.arange(6), every[at])
        sparse.sweep(chain.graph, chain.state, 1.0, nodes.copy(), pair)
        counts[(every == chain.state.label).all(1)] += 1
    assert counts.sum() == 3000
    assert_drawn_from(counts, share)


def _larger(kind):
    rng = np.random.default_rng(5)
    x = np.triu(rng.random((40, 40)) < 0.2, 1) * (1 if kind is SBM else rng.integers(1, 9, (40, 40)))
    model = kind(num_blocks=5, num_nodes=40, directed=False)
    return model, GraphRows.of(model, model.prepare(torch.as_tensor((x + x.T).astype(float))))
