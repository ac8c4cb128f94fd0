"""Generated graphs: what is drawn is what the model says, at a cost of the edges."""

import numpy as np
import pytest
import torch

from ppl_models import ModelError, datasets
from ppl_models.datasets import sample_mmsb, sample_sbm
from ppl_models.datasets.graphs import dyads_at

ETA = np.array([[0.5, 0.1], [0.3, 0.8]])
SYMMETRIC = np.array([[0.5, 0.1], [0.1, 0.8]])


@pytest.mark.parametrize("size", [2, 3, 7])
@pytest.mark.parametrize("directed", [True, False])
def test_numbered_dyads(size, directed):
    wanted = [(i, j) for i in range(size) for j in range(size) if (i != j if directed else i < j)]
    i, j = dyads_at(np.arange(len(wanted)), size, directed)
    assert list(zip(i.tolist(), j.tolist(), strict=True)) == wanted


def test_numbered_dyads_of_many_nodes():
    size = 3_000_000  # beyond where the square root is exact
    total = size * (size - 1) // 2
    number = np.r_[np.arange(5), total - 1 - np.arange(5), total // 3]
    i, j = dyads_at(number, size, False)
    assert (i < j).all() and (i >= 0).all() and (j < size).all()
    assert np.array_equal(i * size - i * (i + 1) // 2 + j - i - 1, number)


@pytest.mark.parametrize("directed", [True, False])
@pytest.mark.parametrize("poisson", [True, False])
@pytest.mark.parametrize("with_degrees", [True, False])
def test_means_of_every_dyad(directed, poisson, with_degrees):
    eta, rounds = ETA if directed else SYMMETRIC, 400
    theta = np.array([0.5, 1.0, 1.5, 2.0, 1.0]) if with_degrees else None
    settings = {"sizes": [2, 3], "directed": directed, "degrees": theta, "poisson": poisson}
    total = sum(sample_sbm(eta, seed=seed, **settings).graph.x.to_dense() for seed in range(rounds)).numpy()
    block = np.array([0, 0, 1, 1, 1])
    mean = eta[block][:, block] * (1 if theta is None else np.outer(theta, theta))
    if with_degrees and not poisson:
        mean = 1 - np.exp(-mean)
    variance = mean.copy() if poisson else mean * (1 - mean)
    np.fill_diagonal(mean, 0)
    np.fill_diagonal(variance, 1)
    assert (np.abs(total / rounds - mean) / np.sqrt(variance / rounds)).max() < 4.5


@pytest.mark.parametrize("directed", [True, False])
def test_mixed_memberships(directed):
    eta, rounds = ETA if directed else SYMMETRIC, 400
    mix = np.random.default_rng(1).dirichlet([0.5, 0.5], 5)
    settings = {"membership": mix, "sparsity": 0.3, "directed": directed}
    total = sum(sample_mmsb(eta, seed=seed, **settings).graph.x.to_dense() for seed in range(rounds)).numpy()
    mean = 0.7 * mix @ eta @ mix.T
    error = np.abs(total / rounds - mean) / np.sqrt(mean * (1 - mean) / rounds)
    assert error[~np.eye(5, dtype=bool)].max() < 4.5 and np.diag(total).max() == 0


def test_truth_and_seeds():
    drawn = sample_sbm(ETA, 50, block_proportion=[0.2, 0.8], seed=3)
    again = sample_sbm(ETA, 50, block_proportion=[0.2, 0.8], seed=3)
    other = sample_sbm(ETA, 50, block_proportion=[0.2, 0.8], seed=4)
    assert torch.equal(drawn.graph.x.to_dense(), again.graph.x.to_dense())
    assert not torch.equal(drawn.graph.x.to_dense(), other.graph.x.to_dense())
    assert set(drawn.truth) == {"block", "block_proportion", "edge_probability"} and len(drawn.truth["block"]) == 50
    named = sample_sbm(ETA, sizes=[2, 2], names=["a", "b", "c", "d"], seed=1)
    assert named.graph.nodes == ["a", "b", "c", "d"]
    pair = sample_sbm(ETA, sizes=[2, 2], degrees=(np.ones(4), np.ones(4)), poisson=True)
    assert {"edge_rate", "out_propensity", "in_propensity"} <= set(pair.truth)


def test_large_graphs_cost_their_edges():
    size = 200_000  # 4e10 dyads
    drawn = sample_sbm(np.full((3, 3), 1e-6), size, directed=False).graph
    assert abs(drawn.num_edges - 1e-6 * size**2 / 2) < 5 * np.sqrt(1e-6 * size**2 / 2)


def test_kinds_of_graphs():
    ring = datasets.ring_graph(seed=1)
    assert ring.graph.directed and len(ring.graph) == 60 and ring.truth["edge_probability"][0].tolist()[1] == 0.8
    hierarchy = datasets.hierarchy_graph(40, 5, high=1.0, low=0.0)
    block = hierarchy.truth["block"]
    assert torch.equal(hierarchy.graph.x.to_dense() > 0, block[:, None] < block)
    cause, effect = datasets.common_cause_graph(low=0.0, high=1.0), datasets.common_effect_graph(low=0.0, high=1.0)
    assert cause.truth["edge_probability"].tolist() == [[1, 1, 1, 1], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
    assert effect.truth["edge_probability"].tolist() == [[1, 0, 0, 1], [0, 1, 0, 1], [0, 0, 1, 1], [0, 0, 0, 1]]


def test_small_examples():
    nine = datasets.nine_nodes()
    block = nine.truth["block"]
    assert nine.graph.nodes == list(range(1, 10))
    assert torch.equal((block == 2).nonzero().flatten(), torch.tensor([6, 8]))
    between = torch.zeros(3, 3).index_put_(tuple(block[nine.graph.edges()]), torch.ones(()), accumulate=True)
    assert between.tolist() == [[1, 11, 0], [0, 0, 7], [5, 0, 0]]
    karate = datasets.karate()
    assert (len(karate.graph), karate.graph.num_edges, int(karate.truth["block"].sum())) == (34, 78, 17)


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: sample_sbm([[0.5, 2.0], [0.1, 0.1]], 10), "expected probabilities"),
        (lambda: sample_sbm(ETA, 10, directed=False), "not symmetric"),
        (lambda: sample_sbm(ETA), "sizes of the blocks, or num_nodes"),
        (lambda: sample_sbm(ETA, sizes=[1, 2, 3]), r"expected \(2,\) numbers"),
        (lambda: sample_sbm(ETA, 10, block_proportion=[0.5, 0.6]), "sum to 1"),
        (lambda: sample_sbm(ETA, 10, degrees=np.ones(9)), r"expected \(10,\)"),
        (lambda: sample_mmsb(ETA), "num_nodes or membership"),
        (lambda: sample_mmsb(ETA, membership=np.ones((3, 2))), "rows that sum to 1"),
        (lambda: datasets.ring_graph(5, 4), "5 nodes in 4 blocks"),
    ],
)
def test_refusals(draw, message):
    with pytest.raises(ModelError, match=message):
        draw()
