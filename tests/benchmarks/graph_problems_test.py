"""The graphs that the benchmarks draw, and what they compute of them, against direct computation."""

import numpy as np
import pytest

from benchmarks.quality import kinds_of_graphs as kinds
from benchmarks.speed._graph_problem import overlapped, planted
from benchmarks.speed.graphs_speed import slope

pytestmark = pytest.mark.quick


def test_planted_blocks_have_most_edges_and_no_dyad_twice():
    known = planted(400, 10, 4, seed=0)
    i, j = known.edges.T
    assert (i < j).all() and len(np.unique(i * 400 + j)) == len(i) and i.min() >= 0 and j.max() < 400
    assert len(i) == pytest.approx(2000, rel=0.06)
    block = known.groups["block"]
    assert np.bincount(block).tolist() == [100] * 4
    # of those that go anywhere a quarter stays within
    assert np.mean(block[i] == block[j]) == pytest.approx(0.85, abs=0.03)


def test_overlapping_communities_are_one_or_four_a_node():
    known = overlapped(600, 20, 8, seed=0)
    assert known.communities is not None
    number = known.communities.sum(1)
    assert set(number.tolist()) == {1, 4} and np.mean(number == 1) == pytest.approx(0.5, abs=0.08)
    i, j = known.edges.T
    assert (i < j).all() and len(np.unique(i * 600 + j)) == len(i)
    assert np.mean((known.communities[i] & known.communities[j]).any(1)) > 0.85


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
