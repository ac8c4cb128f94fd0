"""The helper functions of the graph models' benchmarks and the graphs that they draw, against direct computation."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.quality import _link_prediction as links
from benchmarks.quality import kinds_of_graphs as kinds
from benchmarks.quality._graph_data import (
    KnownGraph,
    agreement,
    best_match_f1,
    dyads,
    entropy,
    in_sample_auc,
    lfr,
    polblogs,
    sampson,
)
from benchmarks.quality._graph_figures import block_graphs, monks, slopes
from benchmarks.quality._graph_peers import Peers, as_sets, write_graph
from benchmarks.speed._graph_problem import planted
from benchmarks.speed.graphs_speed import slope
from custom_inference import graphs

pytestmark = pytest.mark.quick


def small(directed: bool = False) -> KnownGraph:
    edges = np.array([[0, 1], [1, 2], [0, 2], [2, 3], [3, 4]])
    groups = {"group3": np.array(["a", "a", "b", "c", "c"]), "group4": np.array(["a", "Waverers", "b", "c", "c"])}
    return KnownGraph("small", edges, 5, directed, groups, tuple("uvwxy"))


@pytest.mark.parametrize("directed", [False, True])
def test_adjacency_and_dyads_are_those_of_the_edges(directed):
    known = small(directed)
    x = known.adjacency.toarray()
    expected = np.zeros((5, 5))
    for a, b in known.edges:
        expected[a, b] = 1
        if not directed:
            expected[b, a] = 1
    np.testing.assert_array_equal(x, expected)
    i, j = dyads(5, directed)
    assert len(i) == (20 if directed else 10) and (i != j).all()
    assert x[i, j].sum() == len(known.edges)


def test_agreement_does_not_depend_on_names():
    assert agreement([1, 1, 0, 2], ["a", "a", "b", "c"]) == pytest.approx({"NMI": 1.0, "ARI": 1.0})


def test_f1_of_overlapping_sets():
    truth = as_sets([[0, 1, 2], [2, 3]], 5)
    assert best_match_f1(truth[:, ::-1], truth) == pytest.approx(1.0)
    found = as_sets([[0, 1], [2, 3], [4], []], 5)
    # true: .8 with the first, 1 with the second; found: .8, 1, 0; the empty one is left out.
    assert best_match_f1(found, truth) == pytest.approx((0.9 + 1.8 / 3) / 2)
    assert best_match_f1(np.zeros((5, 2), dtype=bool), truth) == 0.0
    assert graphs.best_match_f1([[0, 1], [2, 3], [4]], [[0, 1, 2], [2, 3]]) == pytest.approx(0.75)


def test_entropy_and_auc():
    membership = [[1.0, 0.0, 0.0], [1 / 3, 1 / 3, 1 / 3]]
    np.testing.assert_allclose(entropy(membership), [0, np.log(3)], atol=1e-12)
    known = small()
    assert in_sample_auc(known, known.adjacency.toarray()) == 1.0


@pytest.mark.parametrize("directed", [False, True])
def test_held_out_dyads_leave_the_others_as_they_are(directed):
    rng = np.random.default_rng(0)
    edges = np.stack([*dyads(30, directed)], 1)
    known = KnownGraph("random", edges[rng.random(len(edges)) < 0.3], 30, directed, {})
    split = links.held_out(known, 0.2, seed=1)
    i, j = split.hidden
    x, train = known.adjacency.toarray(), split.train.toarray()
    np.testing.assert_array_equal(split.x, x[i, j])
    assert (train[i, j] == 0).all()
    kept = np.ones((30, 30), dtype=bool)
    kept[i, j] = False
    if not directed:
        kept[j, i] = False
    np.testing.assert_array_equal(train[kept], x[kept])
    a, b = dyads(30, directed)
    assert split.density == pytest.approx(x[a, b][kept[a, b]].mean())


def test_scores_without_a_model():
    known = small()
    split = links.Split(np.array([[0, 1], [3, 3]]), np.array([0.0, 0.0]), known.adjacency)
    x = known.adjacency.toarray()
    np.testing.assert_allclose(links.common_neighbours(split), (x @ x)[split.hidden[0], split.hidden[1]])
    degree = x.sum(1)
    weighted = x @ np.diag(1 / np.log(np.maximum(degree, 2))) @ x
    np.testing.assert_allclose(links.adamic_adar(split), weighted[split.hidden[0], split.hidden[1]])
    np.testing.assert_allclose(links.degree_product(split), [2 * 2 / 10, 2 * 2 / 10])


def test_quality_of_probabilities():
    found = links.quality(np.array([1.0, 0.0, 0.0]), np.array([0.8, 0.1, 0.3]))
    assert found["AUC"] == 1 and found["AP"] == 1
    assert found["log-loss"] == pytest.approx(-np.mean(np.log([0.8, 0.9, 0.7])))


def test_a_peer_that_is_not_there_is_left_out(tmp_path):
    peers = Peers()
    assert not any(peers.has(name) for name in ("graph-tool", "R lda", "svinet"))
    with pytest.raises(ValueError, match="no svinet"):
        peers.run("svinet", small(), 2, 0)
    write_graph(small(), tmp_path)
    read = np.loadtxt(tmp_path / "edges.csv", delimiter=",", dtype=int)
    np.testing.assert_array_equal(read, small().edges)
    assert (tmp_path / "nodes.csv").read_text().strip() == "5,0"


def test_figures_are_drawn():
    known = small(directed=True)
    membership = np.random.default_rng(0).dirichlet(np.ones(3), 5)
    assert len(monks(known, membership, ("a", "b", "c")).axes) == 2
    eta, block = np.array([[0.1, 0.9], [0.1, 0.1]]), np.array([0, 1, 0, 1, 1])
    assert len(block_graphs({"pair": (eta, known.adjacency.toarray(), block)}).axes) == 3
    assert len(slopes({"N": {"sweep": ([1, 2, 4], [1, 2, 4], 1.0)}}, "s").axes) == 1


def test_real_graphs_are_what_their_sources_say(real_data):
    third, union = sampson(real_data), sampson(real_data, "liking_any")
    assert (len(third.edges), len(union.edges)) == (56, 88) and third.names[0] == "John Bosco"
    blogs = polblogs(real_data)
    assert (blogs.num_nodes, len(blogs.edges)) == (1222, 16714)
    assert not blogs.adjacency.diagonal().any()
    communities = lfr(real_data)
    assert len(communities.edges) == 29871 and communities.communities is not None
    assert communities.communities.sum() == 2500


def test_planted_blocks_have_most_edges_and_no_dyad_twice():
    known = planted(400, 10, 4, seed=0)
    i, j = known.edges.T
    assert (i < j).all() and len(np.unique(i * 400 + j)) == len(i) and i.min() >= 0 and j.max() < 400
    assert len(i) == pytest.approx(2000, rel=0.06)
    block = known.groups["block"]
    assert np.bincount(block).tolist() == [100] * 4
    # of those that go anywhere a quarter stays within
    assert np.mean(block[i] == block[j]) == pytest.approx(0.85, abs=0.03)


def test_slope_is_the_exponent():
    x = np.array([1.0, 2.0, 4.0, 8.0])
    assert slope(x, 3 * x**1.5) == pytest.approx(1.5)
    assert slope(x[:2], x[:2] ** 2) == pytest.approx(2.0)


def test_log_joints_are_those_of_urns():
    """Dyad by dyad and node by node through the predictive rule of Polya's urns."""
    rng = np.random.default_rng(0)
    x = (rng.random((4, 4)) < 0.5).astype(float)
    np.fill_diagonal(x, 0)
    every, found = kinds.log_joints(x, 3)
    assert len(every) == 81
    for q, value in zip(every[::7], found[::7], strict=True):
        p = 1.0
        for n in range(4):
            p *= (1 + np.sum(q[:n] == q[n])) / (3 + n)
        on, total = np.ones((3, 3)), np.full((3, 3), 2.0)
        for i in range(4):
            for j in range(4):
                if i != j:
                    a, b = q[i], q[j]
                    p *= (on[a, b] if x[i, j] else total[a, b] - on[a, b]) / total[a, b]
                    on[a, b] += x[i, j]
                    total[a, b] += 1
        assert value == pytest.approx(np.log(p))
        assert kinds.log_joint(x, q, 3) == pytest.approx(value)


def test_climbing_ends_where_no_node_can_be_moved():
    known = kinds.drawn(kinds.NINE, 0)
    x, start = known.adjacency.toarray(), np.array([0, 1, 2] * 3)
    block = kinds.climbed(x, start, 3)
    best = kinds.log_joint(x, block, 3)
    assert best > kinds.log_joint(x, start, 3)
    for node in range(9):
        for k in range(3):
            moved = block.copy()
            moved[node] = k
            assert kinds.log_joint(x, moved, 3) <= best + 1e-9


def test_blocks_are_numbered_like_the_true_ones():
    truth = np.array([0, 0, 0, 1, 1, 2])
    np.testing.assert_array_equal(kinds.in_order(np.array([2, 2, 0, 0, 0, 1]), truth), [0, 0, 1, 1, 1, 2])
    graph = kinds.drawn(kinds.KINDS[0], 3)
    assert graph.directed and not graph.adjacency.diagonal().any()
