"""Graphs from files, and what becomes of them: sizes, and saving with a fit."""

import networkx as nx
import numpy as np
import pandas as pd
import pytest
import torch

from custom_inference import Fit
from ppl_models import SBM, CapacityError, FileFormatError, GraphData, as_graph, graph
from tests.data.graphs_test import DIRECTED, NAMES, PAIRS, UNDIRECTED

pytestmark = pytest.mark.quick


@pytest.fixture
def files(tmp_path):
    frame = pd.DataFrame(PAIRS, columns=["source", "target"])
    matrix = pd.DataFrame(DIRECTED, index=NAMES, columns=NAMES)
    (tmp_path / "a.txt").write_text("# comment\n" + "\n".join(" ".join(pair) for pair in PAIRS) + "\n\n")
    (tmp_path / "a.tsv").write_text("\n".join("\t".join(pair) for pair in PAIRS))
    frame.to_csv(tmp_path / "frame.csv", index=False)
    frame.set_axis(["u", "v"], axis=1).to_csv(tmp_path / "two.csv", index=False)
    frame.to_parquet(tmp_path / "frame.parquet")
    matrix.to_csv(tmp_path / "matrix.csv")
    nx.write_gml(nx.DiGraph(PAIRS), tmp_path / "a.gml")
    nx.write_graphml(nx.DiGraph(PAIRS), tmp_path / "a.graphml")
    np.savez(tmp_path / "edges.npz", edges=np.argwhere(DIRECTED), directed=True, names=np.array(NAMES))
    np.savez(tmp_path / "matrix.npz", X=DIRECTED, names=np.array(NAMES))
    return tmp_path


@pytest.mark.parametrize(
    "name",
    [
        "a.txt", "a.tsv", "frame.csv", "two.csv", "frame.parquet", "matrix.csv", "a.gml", "a.graphml", "edges.npz",
        "matrix.npz",
    ],
)  # fmt: skip
def test_every_file(files, name):
    data = graph(files / name)
    assert data.names == NAMES and data.directed and np.array_equal(data.x.to_dense().numpy(), DIRECTED)
    assert torch.equal(graph(str(files / name)).x.to_dense(), data.x.to_dense())


def test_files_with_numbers_and_weights(tmp_path):
    (tmp_path / "a.edgelist").write_text("% konect\n1 2 3.5\n2 3 1\n")
    data = graph(tmp_path / "a.edgelist", directed=False)
    assert data.names == [1, 2, 3] and data.edge_values().tolist() == [3.5, 1]
    assert graph(tmp_path / "a.edgelist", weight=False).edge_values().tolist() == [1, 1]
    pd.DataFrame(UNDIRECTED).to_csv(tmp_path / "m.csv", index=False)
    assert graph(tmp_path / "m.csv").num_edges == 3
    pd.DataFrame({"w": [2.0], "u": ["a"], "v": ["b"]}).to_csv(tmp_path / "named.csv", index=False)
    named = graph(tmp_path / "named.csv", columns=("u", "v"), weight="w")
    assert named.names == ["a", "b"] and named.edge_values().tolist() == [2]
    np.savez(tmp_path / "n.npz", edges=np.array([[0, 1]]), n=5)
    assert len(graph(tmp_path / "n.npz")) == 5


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", "a b\nc\n", "line 2 has 1 fields"),
        ("a.txt", "a b c d\n", "line 1 has 4 fields"),
        ("a.txt", "# nothing\n", "no edges"),
        ("a.txt", "a b x\n", "a weight is no number"),
        ("a.gml", "nonsense", "not readable as gml"),
        ("a.graphml", "<a", "not readable as graphml"),
        ("a.npz", "nonsense", "not readable as npz"),
        ("a.xyz", "", "unknown ending '.xyz'"),
        ("a.csv", "source,target\n", "no rows"),
    ],
)
def test_bad_files_are_named(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(FileFormatError, match=message):
        graph(tmp_path / name)
    with pytest.raises(FileFormatError, match="no such file"):
        graph(tmp_path / "absent.csv")


def test_large_graphs_are_never_dense():
    rng = np.random.default_rng(0)
    size, count = 20_000, 100_000
    pairs = np.unique(rng.integers(0, size, (count, 2)), axis=0)
    pairs = pairs[pairs[:, 0] < pairs[:, 1]]
    data = as_graph(pairs, num_nodes=size, directed=False)
    assert data.num_edges == len(pairs)
    hidden = data.edges()[:, ::7]
    left = data.without(hidden)
    assert left.num_edges == len(pairs) - hidden.shape[1] and left.num_hidden == hidden.shape[1]
    assert bool((data.observed_value(*hidden) == 1).all()) and bool((left.observed_value(*hidden) == 0).all())
    assert not bool(left.is_observed(*hidden).any())
    with pytest.raises(CapacityError):
        data.dense(max_bytes=1e9)


@pytest.mark.parametrize("source", [DIRECTED, UNDIRECTED], ids=["->", "--"])
def test_saved_with_a_fit(source, tmp_path):
    data = graph(source, nodes=NAMES, mask=[("a", "b")])
    model = SBM(num_blocks=2, num_nodes=4, directed=data.directed)
    params = model.check_params({site: torch.full(shape, 0.5) for site, shape in model.shapes.items()})
    params["block"] = torch.tensor([0, 1, 0, 1])
    outcome = {"elbo": torch.zeros(1), "bound_name": "exact", "status": "given", "method": "none", "seed": 0}
    loaded = Fit.load(Fit(model=model, params=params, data=data, **outcome).save(tmp_path / "fit")).data
    assert isinstance(loaded, GraphData) and (loaded.directed, loaded.self_loops) == (data.directed, False)
    assert torch.equal(loaded.x.to_dense(), data.x.to_dense()) and torch.equal(loaded.hidden, data.hidden)
    assert loaded.coords == data.coords
