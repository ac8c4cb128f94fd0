"""The door for graphs: every container comes in as the same graph, every fault is named."""

from __future__ import annotations

import warnings

import networkx as nx
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

from ppl_models import CapacityError, DataError, DataWarning, GraphData, as_graph, as_matrix, graph, largest_component
from ppl_models.data.graphs.door import check_graph_for_fitting

pytestmark = pytest.mark.quick

NAMES = ["a", "b", "c", "d"]
DIRECTED = np.array([[0, 1, 0, 0], [0, 0, 1, 1], [1, 0, 0, 0], [0, 0, 0, 0]])
PAIRS = [("a", "b"), ("b", "c"), ("b", "d"), ("c", "a")]
UNDIRECTED = np.array([[0, 1, 1, 0], [1, 0, 0, 1], [1, 0, 0, 0], [0, 1, 0, 0]])


def _containers(x: np.ndarray, kind: type) -> dict[str, object]:
    frame = pd.DataFrame(x, index=NAMES, columns=NAMES)
    return {
        "numpy": x,
        "lists": x.tolist(),
        "bool": x.astype(bool),
        "tensor": torch.tensor(x),
        "scipy": scipy.sparse.csc_array(x),
        "torch_coo": torch.tensor(x).to_sparse(),
        "torch_csr": as_graph(x, directed=x is DIRECTED).x,
        "frame": frame,
        "frame_reordered": frame[["c", "a", "d", "b"]],
        "xarray": xr.DataArray(x, dims=("from", "to"), coords={"from": NAMES, "to": NAMES}),
        "data": as_matrix(frame),
        "sparse_data": as_matrix(scipy.sparse.csr_array(x), keep_sparse=True),
        "networkx": nx.relabel_nodes(nx.from_numpy_array(x, create_using=kind), dict(enumerate(NAMES))),
    }


@pytest.mark.parametrize("name", list(_containers(DIRECTED, nx.DiGraph)))
@pytest.mark.parametrize(("x", "kind"), [(DIRECTED, nx.DiGraph), (UNDIRECTED, nx.Graph)], ids=["->", "--"])
def test_every_container(name, x, kind):
    source = _containers(x, kind)[name]
    data = graph(source)
    assert data.directed == (x is DIRECTED) and data.hidden is None and data.x.layout == torch.sparse_csr
    assert np.array_equal(data.x.to_dense().numpy(), x) and data.x.dtype == torch.float64
    named = name in ("frame", "frame_reordered", "xarray", "data", "networkx")
    assert data.coords == ({"row": NAMES, "feature": NAMES} if named else {})
    again = as_graph(source, num_nodes=4, directed=data.directed)
    assert torch.equal(again.x.to_dense(), data.x.to_dense())


@pytest.mark.parametrize(
    "edges",
    [
        PAIRS,
        [list(pair) for pair in PAIRS],
        iter(PAIRS),
        np.array(PAIRS),
        np.array(PAIRS, dtype=object),
        pd.DataFrame(PAIRS, columns=["source", "target"]),
        [(*pair, 1.0) for pair in PAIRS],
    ],
    ids=["tuples", "lists", "iterator", "strings", "objects", "frame", "weights"],
)
def test_edges_by_name(edges):
    data = graph(edges)
    assert data.directed and data.nodes == NAMES and np.array_equal(data.x.to_dense().numpy(), DIRECTED)


def test_edges_by_number():
    pairs = np.argwhere(DIRECTED)
    for edges in (pairs, torch.tensor(pairs), [tuple(p) for p in pairs.tolist()], pairs.tolist()):
        assert np.array_equal(graph(edges).x.to_dense().numpy(), DIRECTED) and not graph(edges).coords
    two = np.array([[0, 1], [1, 2]])  # as a matrix it is another graph
    assert graph(edges=two).edges().T.tolist() == two.tolist() and len(graph(edges=two.tolist())) == 3
    with pytest.warns(DataWarning, match="1 self loops"):
        assert len(graph(two)) == 2


def test_numbers_with_gaps_are_names():
    data = graph(edges=np.array([[10, 30], [30, 20]]), directed=False)
    assert data.nodes == [10, 20, 30] and data.edges().tolist() == [[0, 1], [2, 2]]
    assert as_graph([(1, 2), (2, 3)], num_nodes=3).nodes == [1, 2, 3]
    assert as_graph([(1, 2), (2, 3)], num_nodes=4).nodes == [0, 1, 2, 3]  # within range, they are positions
    assert graph([(0, 5)], nodes=7).coords == {} and len(graph([(0, 5)], nodes=7)) == 7


def test_nodes_order_and_complete_the_edges():
    data = graph(PAIRS, nodes=["d", "c", "b", "a", "e"])
    assert data.nodes == ["d", "c", "b", "a", "e"] and data.edges().T.tolist() == [[1, 3], [2, 0], [2, 1], [3, 2]]
    assert graph(DIRECTED, nodes=NAMES).nodes == NAMES
    frame = pd.DataFrame(DIRECTED, index=NAMES, columns=NAMES)
    assert torch.equal(graph(frame, nodes=data.nodes).x.to_dense(), data.x.to_dense())
    known = nx.DiGraph(PAIRS)
    assert torch.equal(graph(known, nodes=data.nodes).x.to_dense(), data.x.to_dense())
    assert len(graph(edges=[], nodes=3)) == 3
    # Nodes that are numbers in another order than they were added in are positions all the same.
    shuffled = nx.Graph([(2, 0), (0, 1)])
    assert graph(shuffled).coords == {} and graph(shuffled).edges().tolist() == [[0, 0], [1, 2]]
    assert graph([((0, 0), (0, 1))]).nodes == [(0, 0), (0, 1)]


def test_hidden_dyads():
    x = UNDIRECTED.astype(float)
    x[0, 1] = x[1, 0] = np.nan
    np.fill_diagonal(x, np.nan)
    frame = pd.DataFrame(x, index=NAMES, columns=NAMES)
    mask = np.ones((4, 4), dtype=bool)
    mask[0, 1] = mask[1, 0] = False
    labelled = pd.DataFrame(mask, index=NAMES, columns=NAMES)[NAMES[::-1]].iloc[::-1]
    clean = pd.DataFrame(UNDIRECTED, index=NAMES, columns=NAMES)
    sources = [
        graph(frame), graph(clean, mask=mask), graph(clean, mask=labelled), graph(clean, mask=[("b", "a")]),
        graph(UNDIRECTED, mask=[(0, 1)]), graph(UNDIRECTED, mask=torch.tensor([[1, 0], [0, 1], [0, 1]])),
        graph(UNDIRECTED).without(torch.tensor([[1], [0]])), graph(clean, mask=mask.tolist()),
        graph([("a", "b"), ("a", "c"), ("b", "d")], directed=False, mask=[("a", "b")]),
        as_graph(frame, directed=False), graph(as_matrix(frame)),
        graph(graph(clean).to_networkx(), mask=mask),
    ]  # fmt: skip
    for data in sources:
        assert data.hidden is not None and data.hidden.tolist() == [[0], [1]] and not data.directed
        assert data.num_dyads == 5 and data.num_edges == 2 and float(data.x.to_dense()[0, 1]) == 0
    dense = sources[0].dense()
    assert dense.mask is not None and torch.equal(dense.mask, torch.tensor(mask)) and not isinstance(dense, GraphData)


def test_hidden_direction():
    data = graph(DIRECTED, mask=[(0, 1), (3, 0)])
    assert data.hidden is not None and data.hidden.tolist() == [[0, 3], [1, 0]] and data.num_edges == 3
    i, j = torch.tensor([[0, 1], [1, 3]]), torch.tensor([[1, 0], [2, 0]])
    assert data.is_observed(i, j).tolist() == [[False, True], [True, False]]
    assert data.observed_value(i, j).tolist() == [[0, 0], [1, 0]]
    assert not graph(UNDIRECTED, mask=[(1, 0)]).is_observed(torch.tensor([0, 1, 2]), torch.tensor([1, 0, 2])).any()
    with pytest.raises(DataError, match="mask was given beside data"):
        as_graph(data, mask=[(0, 2)])


def test_weights():
    edges = pd.DataFrame({"source": ["a", "a"], "target": ["b", "c"], "weight": [2.0, 1.0], "hours": [1, 0]})
    assert graph(edges).edge_values().tolist() == [2, 1]
    assert graph(edges, weight=False).edge_values().tolist() == [1, 1]
    assert graph(edges, weight="hours").edges().tolist() == [[0], [1]]  # 0 is no edge
    assert graph(edges.rename(columns={"source": "u", "target": "v"}), columns=("u", "v")).num_edges == 2
    with pytest.raises(DataError, match=r"1 of 2 edges have .* neither 0 nor 1 \(the first: 'a' -> 'b' has 2"):
        as_graph(edges)
    with pytest.raises(DataError, match="weight=False.*PoissonSBM"):
        as_graph(graph(edges))
    with pytest.raises(DataError, match="no whole numbers .*'b' -> 'a' has 0.5"):
        as_graph([("b", "a", 0.5)], kind="counts")
    assert as_graph(edges, kind="counts").num_edges == 2
    assert graph(nx.karate_club_graph(), weight=False).num_edges == 78


def test_repeated_edges():
    twice = [(0, 1), (1, 2), (0, 1)]
    with pytest.warns(DataWarning, match=r"1 edges are repeated \(the first: 0 -> 1\); each is kept once"):
        assert as_graph(twice).edge_values().tolist() == [1, 1]
    assert as_graph(twice, kind="counts").edge_values().tolist() == [2, 1]
    assert graph(twice, weight=False).edge_values().tolist() == [1, 1]
    with pytest.warns(DataWarning, match="added up"):
        assert graph(twice).edge_values().tolist() == [2, 1]
    # Undirected: in both directions throughout, it is the same edge; otherwise a repetition.
    assert as_graph([(0, 1), (1, 2), (1, 0), (2, 1)], directed=False).num_edges == 2
    with pytest.warns(DataWarning, match="both directions .the first: 0 -- 1.*each is one edge"):
        assert as_graph([(0, 1), (1, 2), (1, 0)], directed=False).num_edges == 2
    with pytest.warns(DataWarning, match="both directions .the first: 0 -- 1.*added up"):
        assert as_graph([(0, 1), (1, 2), (1, 0)], directed=False, kind="counts").edge_values().tolist() == [2, 1]


@pytest.mark.parametrize("kind", [nx.MultiGraph, nx.MultiDiGraph])
def test_parallel_edges(kind):
    parallel = kind([(0, 1), (0, 1), (1, 2)])
    directed = kind is nx.MultiDiGraph
    assert as_graph(parallel, kind="counts", directed=directed).edge_values().tolist() == [2, 1]
    assert graph(parallel).edge_values().tolist() == [2, 1] and graph(parallel, weight=False).num_edges == 2
    with pytest.raises(DataError, match="1 parallel edges .*weight=False"):
        as_graph(parallel)
    both = nx.MultiDiGraph([(0, 1), (0, 1), (1, 0)])
    with pytest.raises(DataError, match="not symmetric: 0 -> 1 has 2, 1 -> 0 has 1"):
        graph(both, directed=False)


def test_direction_is_checked():
    with pytest.raises(DataError, match="not symmetric: 'a' -> 'b' has 1, 'b' -> 'a' has 0.*directed=True"):
        as_graph(pd.DataFrame(DIRECTED, index=NAMES, columns=NAMES), directed=False)
    with pytest.raises(DataError, match="an undirected graph where a directed one is needed.*directed=False"):
        as_graph(nx.path_graph(3), directed=True)
    with pytest.warns(DataWarning, match="symmetric but read as directed"):
        assert as_graph(UNDIRECTED, directed=True).num_edges == 6
    assert graph(UNDIRECTED, directed=True).num_edges == 6  # said on purpose
    with pytest.raises(DataError, match="undirected data for a model with directed=True"):
        as_graph(graph(UNDIRECTED), directed=True)
    with pytest.raises(DataError, match="directed data for a model with directed=False"):
        as_graph(graph(DIRECTED), directed=False)


@pytest.mark.parametrize("held", [np.array, scipy.sparse.csr_matrix, lambda x: torch.tensor(x).to_sparse()])
def test_a_triangle_of_an_undirected_graph_is_refused_with_what_to_do(held):
    triangle = np.eye(6, k=1) + np.eye(6, k=3)
    said = r"expected a symmetric matrix, such as x \+ x.T of this triangle, a list of its edges as pairs of nodes, or"
    for x in (triangle, np.ascontiguousarray(triangle.T)):
        with pytest.raises(DataError, match=said):
            as_graph(held(x), directed=False)
        with pytest.warns(DataWarning, match=r"read as directed; take x \+ x.T if the graph is undirected"):
            assert as_graph(held(x)).directed
    assert as_graph(held(triangle), directed=True).directed
    both = triangle + triangle.T
    for data in (as_graph(held(both), directed=False), as_graph(np.argwhere(triangle), directed=False)):
        assert np.array_equal(data.x.to_dense().numpy(), both)
    with pytest.raises(DataError, match="expected a symmetric matrix, or a model with directed=True"):
        as_graph(held(triangle + np.tril(2 * np.ones((6, 6)), -1)), directed=False, kind="counts")


def test_self_loops():
    x = UNDIRECTED + np.diag([0, 1, 0, 0])
    with pytest.warns(DataWarning, match="1 self loops were left out .the first: at 1"):
        assert graph(x).num_edges == 3
    kept = graph(x, self_loops=True)
    assert kept.num_edges == 4 and kept.num_dyads == 10 and bool(kept.is_observed(torch.tensor([1]), torch.tensor([1])))
    with pytest.warns(DataWarning, match="self loops"):
        assert as_graph(kept).num_edges == 3
    with pytest.raises(DataError, match="without self loops for a model with self_loops=True"):
        as_graph(graph(UNDIRECTED), self_loops=True)


@pytest.mark.parametrize(
    ("source", "settings", "message"),
    [
        (np.zeros((3, 4)), {}, r"shape \(3, 4\), which is not square.*edges="),
        (np.zeros((3, 2)), {}, "not square"),
        (scipy.sparse.csr_array(np.zeros((2, 3))), {}, "not square"),
        (pd.DataFrame(np.eye(3)[:2]), {}, "without the columns 'source' and 'target'"),
        (pd.DataFrame(np.zeros((2, 2)), index=["a", "b"], columns=["a", "c"]), {}, "column 'c' is no row"),
        (np.zeros((0, 0)), {}, "no nodes"),
        ([], {}, "no edges and no nodes"),
        (np.zeros((1, 1)), {}, "a single node"),
        (np.full((2, 2), np.nan), {}, "no observed dyad"),
        (np.array([[0, -1.0], [1, 0]]), {}, "negative or not finite .the first: 0 -> 1 has -1"),
        (np.array([[0, np.inf], [1, 0]]), {}, "negative or not finite"),
        ([("a", "b", float("nan"))], {}, "not finite.*mask= hides"),
        ([("a", "b", "strong")], {}, "the weight 'strong'"),
        ([("a", "b"), ("a",)], {}, r"\('a',\) among the edges"),
        ([("a", None)], {}, "edge 0 lacks a node"),
        (PAIRS, {"nodes": ["a", "b", "c"]}, "1 unknown nodes .*'d'"),
        (PAIRS, {"nodes": 4}, "4 unknown nodes .*'a'.*0 to 3"),
        ([(0, 7)], {"nodes": 4}, "1 unknown nodes .*7"),
        (DIRECTED, {"nodes": ["a", "b"]}, "2 nodes were named for a graph of 4"),
        (DIRECTED, {"nodes": ["a", "b", "c", "a"]}, "two nodes called 'a'"),
        (DIRECTED, {"mask": np.ones((3, 3), bool)}, r"mask of shape \(3, 3\) for 4 nodes"),
        (DIRECTED, {"mask": [(0, 9)]}, "1 unknown nodes .*9"),
        (DIRECTED, {"mask": [(0, 1, 2)]}, "among the hidden dyads"),
        (DIRECTED, {"kind": "weights"}, "unknown kind of graph 'weights'"),
        ("no/such/file", {}, "names no file"),
        (7, {}, "a int"),
        ([["a", "b"], ["c"]], {}, r"\['c'\] among the edges"),
        (np.array([["a", "b", "c"]] * 3), {}, "expected numbers"),
        (None, {}, "neither a source nor edges"),
    ],
)
def test_faults_are_named(source, settings, message):
    with pytest.raises(DataError, match=message):
        graph(source, **settings)


def test_model_checks():
    with pytest.raises(DataError, match="4 nodes where the model has num_nodes = 5"):
        as_graph(DIRECTED, num_nodes=5)
    with pytest.raises(DataError, match="no edges"):
        check_graph_for_fitting(graph(edges=[], nodes=3))
    with pytest.raises(DataError, match="every one of the 6 observed dyads"):
        check_graph_for_fitting(graph(1 - np.eye(4)))
    with pytest.warns(DataWarning, match="2 of 4 nodes have no edge .the first: 'c'"):
        check_graph_for_fitting(graph([("a", "b")], nodes=NAMES))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_graph_for_fitting(graph(DIRECTED))
        check_graph_for_fitting(graph([(0, 1, 2.0), (0, 2, 1.0), (1, 2, 3.0)], directed=False))


def test_methods():
    data = graph(PAIRS)
    assert len(data) == 4 and data.num_edges == 4 and data.num_dyads == 12
    assert data.degrees().tolist() == [2, 3, 2, 1] and data.degrees("in").tolist() == [1, 1, 1, 1]
    moved = data.permuted([3, 1, 0, 2])
    order = torch.tensor([3, 1, 0, 2])
    assert torch.equal(moved.x.to_dense(), data.x.to_dense()[order][:, order]) and moved.nodes == ["d", "b", "a", "c"]
    assert data.to(dtype=torch.float32).x.dtype == torch.float32
    assert nx.utils.graphs_equal(nx.DiGraph(data.to_networkx()), graph(data.to_networkx()).to_networkx())
    with pytest.raises(DataError, match="rows of a graph"):
        data.rows(slice(0, 2))
    with pytest.raises(DataError, match="not all of them once"):
        data.permuted([0, 0, 1, 2])
    with pytest.raises(DataError, match="unknown kind of degree"):
        data.degrees("both")
    with pytest.raises(CapacityError, match="dense adjacency matrix of 4 nodes"):
        data.dense(max_bytes=10)
    with pytest.raises(DataError, match="itself"):
        data.without(torch.tensor([[0], [0]]))


def test_hidden_dyads_move_with_their_nodes():
    data = graph(UNDIRECTED, mask=[(0, 1), (2, 3)])
    moved = data.permuted([3, 2, 1, 0])
    assert moved.hidden is not None and moved.hidden.tolist() == [[0, 2], [1, 3]]
    part = data.subgraph([2, 3])
    assert part.hidden is not None and part.hidden.tolist() == [[0], [1]] and part.nodes == [2, 3]
    assert data.subgraph(torch.tensor([True, False, True, False])).hidden is None
    assert largest_component(graph([("a", "b"), ("c", "d"), ("d", "e")])).nodes == ["c", "d", "e"]


@given(st.integers(2, 9), st.booleans(), st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_dyads_looked_up(size, directed, seed):
    rng = np.random.default_rng(seed)
    x = (rng.random((size, size)) < 0.4) * rng.integers(1, 4, (size, size)).astype(float)
    observed = rng.random((size, size)) < 0.8
    if not directed:
        x, observed = np.triu(x, 1) + np.triu(x, 1).T, np.triu(observed, 1) | np.triu(observed, 1).T
    np.fill_diagonal(x, 0)
    np.fill_diagonal(observed, True)
    if observed.sum() == size:
        return
    data = graph(np.where(observed, x, np.nan), directed=directed)
    i, j = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    assert np.array_equal(data.observed_value(i, j).numpy(), x * observed)
    assert np.array_equal(data.is_observed(i, j).numpy(), observed & ~np.eye(size, dtype=bool))
    order = rng.permutation(size)
    there = data.permuted(torch.as_tensor(order)).permuted(torch.as_tensor(np.argsort(order)))
    assert torch.equal(there.x.to_dense(), data.x.to_dense())
    assert (there.hidden is None) == (data.hidden is None)
    assert data.hidden is None or torch.equal(there.hidden, data.hidden)
    pairs = data.hidden.T.tolist() if data.hidden is not None else []
    again = graph(x, directed=directed, mask=[tuple(pair) for pair in pairs])
    assert torch.equal(again.x.to_dense(), data.x.to_dense())
