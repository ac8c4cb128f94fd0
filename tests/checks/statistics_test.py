"""Every named statistic against a reference that loops over entries, or that networkx computes."""

import math
from itertools import combinations

import networkx as nx
import numpy as np
import pytest
import scipy.sparse
import scipy.stats
import torch

from custom_inference import STATISTICS
from custom_inference.checks import sparse_statistics as _graphs
from custom_inference.checks.copies import Law, _Words
from custom_inference.checks.sparse_statistics import word_document_information

pytestmark = pytest.mark.quick


def entries(x):
    """The observed entries, one by one."""
    hidden = np.ma.getmaskarray(x)
    return [float(np.asarray(x)[i, j]) for i in range(x.shape[0]) for j in range(x.shape[1]) if not hidden[i, j]]


def column(x, j):
    hidden = np.ma.getmaskarray(x)
    return [float(np.asarray(x)[i, j]) for i in range(x.shape[0]) if not hidden[i, j]]


def row(x, i):
    hidden = np.ma.getmaskarray(x)
    return [float(np.asarray(x)[i, j]) for j in range(x.shape[1]) if not hidden[i, j]]


def both(x, i, j):
    """The rows in which both columns are observed."""
    hidden, values = np.ma.getmaskarray(x), np.asarray(x)
    return [(values[n, i], values[n, j]) for n in range(len(values)) if not hidden[n, i] and not hidden[n, j]]


def centred(x, i, j):
    """Pairs less the means of the whole columns."""
    mean_i, mean_j = np.mean(column(x, i)), np.mean(column(x, j))
    return [(a - mean_i, b - mean_j) for a, b in both(x, i, j)]


def correlation(x, i, j):
    pairs = centred(x, i, j)
    below = math.sqrt(sum(a * a for a, _ in pairs) * sum(b * b for _, b in pairs))
    return sum(a * b for a, b in pairs) / below if below else 0.0


def covariance(x, i, j):
    pairs = centred(x, i, j)
    return sum(a * b for a, b in pairs) / len(pairs)


def cramer(x, i, j):
    pairs = both(x, i, j)
    kinds = [sorted({pair[side] for pair in pairs}) for side in (0, 1)]
    chi = 0.0
    for a in kinds[0]:
        for b in kinds[1]:
            expected = sum(p[0] == a for p in pairs) * sum(p[1] == b for p in pairs) / len(pairs)
            chi += (sum(p == (a, b) for p in pairs) - expected) ** 2 / expected
    least = min(len(kinds[0]), len(kinds[1])) - 1
    return math.sqrt(chi / (len(pairs) * least)) if least else 0.0


def pairwise(function):
    return lambda x: [function(x, i, j) for i, j in combinations(range(x.shape[1]), 2)]


def agreement(x):
    same = total = 0
    for first, second in combinations(range(len(x)), 2):
        for r in range(x.shape[1]):
            if not np.ma.getmaskarray(x)[[first, second], r].any():
                same, total = same + int(x[first, r] == x[second, r]), total + 1
    return same / total


def modal_share_variance(x):
    modes = [max(sorted(set(column(x, r))), key=column(x, r).count) for r in range(x.shape[1])]
    hidden = np.ma.getmaskarray(x)
    shares = [
        np.mean([x[n, r] == modes[r] for r in range(x.shape[1]) if not hidden[n, r]] or [0.0]) for n in range(len(x))
    ]
    return np.var(shares)


ROWS = {
    "mean": lambda x: np.mean(entries(x)),
    "variance": lambda x: np.var(entries(x)),
    "skewness": lambda x: scipy.stats.skew(entries(x)),
    "kurtosis": lambda x: scipy.stats.kurtosis(entries(x)),
    "min": lambda x: min(entries(x)),
    "max": lambda x: max(entries(x)),
    "zero_share": lambda x: np.mean([value == 0 for value in entries(x)]),
    "row_total_variance": lambda x: np.var([sum(row(x, i)) for i in range(len(x))]),
    "row_total_max": lambda x: max(sum(row(x, i)) for i in range(len(x))),
    "empty_rows": lambda x: np.mean([not any(row(x, i)) for i in range(len(x))]),
    "distinct_rows": lambda x: len({tuple(np.ma.filled(x, -1)[i]) for i in range(len(x))}),
    "column_mean": lambda x: [np.mean(column(x, j)) for j in range(x.shape[1])],
    "column_variance": lambda x: [np.var(column(x, j)) for j in range(x.shape[1])],
    "correlation": pairwise(correlation),
    "covariance": pairwise(covariance),
    "dispersion": lambda x: np.mean([np.var(c) / np.mean(c) for c in (column(x, j) for j in range(x.shape[1]))]),
    "value_frequency": lambda x: [
        sum(value == v if v < 30 else value >= 30 for value in entries(x)) for v in range(31)
    ],
    "agreement": agreement,
    "uniform_rows": lambda x: np.mean([len(set(row(x, i))) <= 1 for i in range(len(x))]),
    "modal_share_variance": modal_share_variance,
    "row_mean_variance": lambda x: np.var([np.mean(row(x, i) or [0.0]) for i in range(len(x))]),
    "answer_share": lambda x: [np.mean([v == c for v in column(x, r)]) for r in range(x.shape[1]) for c in range(10)],
    "association": pairwise(cramer),
}


def example(kind):
    rng = np.random.default_rng(1)
    return {
        "binary": lambda: (rng.random((15, 5)) < 0.4).astype(float),
        "counts": lambda: rng.poisson(rng.gamma(1.0, 6.0, (15, 5))).astype(float),
        "real": lambda: rng.standard_t(4, (15, 5)),
        "categories": lambda: rng.integers(0, 3, (15, 5)).astype(float),
    }[kind]()


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("kind", ["binary", "counts", "real", "categories"])
def test_statistics_of_rows(kind, missing):
    x = example(kind)
    if missing:
        x = np.ma.MaskedArray(x, mask=np.random.default_rng(2).random(x.shape) < 0.25)
    named = {name: one for name, one in STATISTICS[kind].items() if one.needs == "x"}
    for name, statistic in named.items():
        assert np.allclose(statistic.function(x), ROWS[name](x), rtol=1e-10, atol=1e-12), name
        assert len(statistic.meaning) > 10


def test_constant_columns_have_no_correlation():
    x = np.array([[1.0, 0.0, 1.0], [1.0, 1.0, 0.0], [1.0, 1.0, 0.0]])
    assert np.allclose(STATISTICS["binary"]["correlation"].function(x), [0.0, 0.0, -1.0])


def information(x, proportion, topic):
    """Word and document given topic, by the joint table of all three."""
    joint = np.zeros((*x.shape, topic.shape[0]))
    for d in range(x.shape[0]):
        for v in range(x.shape[1]):
            weight = proportion[d] * topic[:, v]
            joint[d, v] = x[d, v] * weight / weight.sum()
    total = 0.0
    for k in range(topic.shape[0]):
        p = joint[..., k] / joint[..., k].sum()
        outer = p.sum(1)[:, None] * p.sum(0)[None]
        inside = sum(a * math.log(a / b) for a, b in zip(p.ravel(), outer.ravel(), strict=True) if a > 0)
        total += joint[..., k].sum() / joint.sum() * inside
    return total


DOCUMENTS = {
    "distinct_words": lambda x: np.mean([sum(n > 0 for n in doc) for doc in x]),
    "distinct_words_variance": lambda x: np.var([sum(n > 0 for n in doc) for doc in x]),
    "vocabulary": lambda x: sum(any(doc[v] for doc in x) for v in range(x.shape[1])),
    "max_count": lambda x: x.max(),
    "burstiness": lambda x: np.mean([n for doc in x for n in doc if n > 0]),
    "dispersion": lambda x: sum(np.var(x[:, v]) for v in range(x.shape[1])) / sum(np.mean(x, 0)),
    "word_total": lambda x: x.sum(0),
    "document_frequency": lambda x: [sum(doc[v] > 0 for doc in x) for v in range(x.shape[1])],
}


def test_statistics_of_documents():
    rng = np.random.default_rng(3)
    x = rng.poisson(0.7, (12, 7)) * rng.integers(1, 4, (12, 7))
    x[:, 4], x[3] = 0, 0
    sparse = scipy.sparse.csr_array(x.astype(float))
    named = {name: one for name, one in STATISTICS["documents"].items() if one.needs == "x"}
    assert set(named) == set(DOCUMENTS)
    for name, statistic in named.items():
        assert np.allclose(statistic.function(sparse), DOCUMENTS[name](x)), name
    empty = scipy.sparse.csr_array((2, 3))
    assert all(np.isfinite(statistic.function(empty)).all() for statistic in named.values())


def test_information_between_word_and_document_given_the_topic():
    rng = np.random.default_rng(4)
    x, proportion, topic = rng.poisson(1.0, (8, 6)), rng.dirichlet(np.ones(3), 8), rng.dirichlet(np.ones(6), 3)
    found = word_document_information(scipy.sparse.csr_array(x.astype(float)), proportion, {"topic": topic})
    assert found == pytest.approx(information(x, proportion, topic), rel=1e-10)
    # Where every document has the words of its topic in the topic's own proportions there is none.
    same = np.outer([3.0, 6.0, 9.0], [1.0, 2.0, 3.0])
    one = np.ones((3, 1))
    none = word_document_information(scipy.sparse.csr_array(same), one, {"topic": np.ones((1, 3)) / 3})
    assert none == pytest.approx(0.0, abs=1e-12)


def test_chi_square_of_word_counts_is_pearsons():
    probs = torch.tensor([[0.2, 0.3, 0.5], [0.1, 0.1, 0.8]])
    lengths = torch.tensor([10.0, 20.0])
    x = torch.tensor([[3.0, 3.0, 4.0], [1.0, 4.0, 15.0]])
    expected = lengths[:, None] * probs
    found = STATISTICS["documents"]["chi_square"].function(x, Law(_Words(probs, lengths)))
    assert float(found) == pytest.approx(float(((x - expected) ** 2 / expected).sum()))


def simple(g):
    """0/1, without self loops, undirected."""
    plain = nx.Graph(g)
    plain.remove_edges_from(list(nx.selfloop_edges(plain)))
    return plain


def degrees(g, kind="out"):
    if not g.is_directed():
        return [d for _, d in g.degree()]
    return [d for _, d in (g.out_degree() if kind == "out" else g.in_degree())]


def gap(g):
    eigenvalues = np.sort(np.linalg.eigvalsh(nx.to_numpy_array(simple(g), weight=None)))
    return eigenvalues[-1] - eigenvalues[-2]


GRAPHS = {
    "density": nx.density,
    "degree_variance": lambda g: np.var(degrees(g)),
    "degree_max": lambda g: max(degrees(g)),
    "in_degree_variance": lambda g: np.var(degrees(g, "in")),
    "in_degree_max": lambda g: max(degrees(g, "in")),
    "isolated_nodes": lambda g: np.mean([d == 0 for _, d in simple(g).degree()]),
    "reciprocity": nx.overall_reciprocity,
    "transitivity": lambda g: nx.transitivity(simple(g)),
    "assortativity": nx.degree_assortativity_coefficient,
    "components": lambda g: nx.number_connected_components(simple(g)),
    "largest_component": lambda g: max(map(len, nx.connected_components(simple(g)))) / len(g),
    "efficiency": lambda g: nx.global_efficiency(simple(g)),
    "spectral_gap": gap,
}


def random_graphs():
    plain = nx.gnp_random_graph(40, 0.08, seed=1)
    directed = nx.gnp_random_graph(40, 0.06, seed=2, directed=True)
    return {"graph": plain, "digraph": directed, "parts": nx.disjoint_union(plain, nx.path_graph(5))}


@pytest.mark.parametrize("name", ["graph", "digraph", "parts"])
def test_statistics_of_graphs(name):
    g = random_graphs()[name]
    x = scipy.sparse.csr_array(nx.to_scipy_sparse_array(g, weight=None, dtype=float))
    for statistic in STATISTICS["digraph" if g.is_directed() else "graph"]:
        function = STATISTICS["digraph"][statistic]
        if function.needs == "x":
            assert function.function(x) == pytest.approx(GRAPHS[statistic](g), rel=1e-6, abs=1e-9), statistic


def test_spectral_gap_of_a_larger_graph():
    g = nx.gnp_random_graph(260, 0.05, seed=3)
    x = scipy.sparse.csr_array(nx.to_scipy_sparse_array(g, weight=None, dtype=float))
    assert _graphs.spectral_gap(x) == pytest.approx(gap(g), rel=1e-8)
    sampled, exact = _graphs.efficiency(x), nx.global_efficiency(g)
    assert sampled == pytest.approx(exact, rel=0.01)  # from 256 of 260 nodes


def test_statistics_of_counts_of_edges():
    rng = np.random.default_rng(5)
    upper = np.triu(rng.poisson(0.6, (12, 12)), 1)
    matrix = (upper + upper.T).astype(float)
    x, named = scipy.sparse.csr_array(matrix), STATISTICS["multigraph"]
    values = matrix[~np.eye(12, dtype=bool)]
    assert named["edge_total"].function(x) == matrix.sum()
    assert named["edge_max"].function(x) == matrix.max()
    assert named["edge_dispersion"].function(x) == pytest.approx(values.var() / values.mean())
    # The others look at which dyads have an edge.
    assert named["density"].function(x) == pytest.approx((values > 0).mean())


def test_self_loops_are_left_out():
    x = scipy.sparse.csr_array(np.array([[5.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 2.0]]))
    found = {
        name: STATISTICS["graph"][name].function(x)
        for name in ("density", "degree_max", "isolated_nodes", "components")
    }
    assert found == {
        "density": pytest.approx(1 / 3),
        "degree_max": 1,
        "isolated_nodes": pytest.approx(1 / 3),
        "components": 2,
    }


@pytest.mark.parametrize("size", [1, 4])
def test_graphs_without_edges_have_finite_statistics(size):
    empty = scipy.sparse.csr_array((size, size))
    for kind in ("digraph", "multigraph"):
        for name, statistic in STATISTICS[kind].items():
            if statistic.needs == "x":
                assert np.isfinite(statistic.function(empty)), name
