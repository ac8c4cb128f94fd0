"""Figures and the command line's output of graph models."""

import itertools

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.patches import Wedge

from custom_inference.core.evaluate import component_order
from custom_inference.faces.command_line import output as _cli_output
from custom_inference.faces.command_line.run import _read
from custom_inference.faces.command_line.source import Source
from custom_inference.graphs.block_graph import _choose_level
from ppl_models import MMSB, NOCA, SBM, CovariateSBM, DataError, GraphData, MethodError, datasets
from tests.support.fits import given_graph, one_hot


@pytest.fixture
def ring():
    drawn = datasets.ring_graph(40, 4)
    mean = 0.9 * one_hot(drawn.truth["block"], 4) + 0.025
    model = SBM(num_blocks=4, num_nodes=40)
    return given_graph(model, drawn.graph, mean, {"edge_probability": drawn.truth["edge_probability"]})


@pytest.fixture
def mixed():
    drawn = datasets.sample_mmsb(0.6 * np.eye(3) + 0.05, 18, directed=False, seed=2)
    hidden = drawn.graph.without(torch.tensor([[0, 3], [1, 5]]))
    eta = drawn.truth["edge_probability"]
    model = MMSB(num_blocks=3, num_nodes=18, directed=False)
    return given_graph(model, hidden, drawn.truth["membership"], {"edge_probability": eta})


@pytest.mark.parametrize("kind", ["adjacency", "memberships", "pies", "blocks"])
def test_every_figure(ring, mixed, kind, tmp_path):
    for number, fit in enumerate((ring, mixed)):
        figure = fit.plot(kind, title="a title")
        figure.savefig(tmp_path / f"{number}.png")
        assert (tmp_path / f"{number}.png").stat().st_size > 5000
        assert figure.get_suptitle() == "a title"


def test_adjacency_is_ordered(ring):
    axes = ring.plot("adjacency").axes[0]
    at = axes.collections[0].get_offsets()  # (x, y): to, from
    assert len(at) == ring.data.num_edges
    place = {int(text.get_text()): n for n, text in enumerate(axes.get_yticklabels())}
    wanted = {(place[j], place[i]) for i, j in ring.data.edges().T.tolist()}
    assert {(int(x), int(y)) for x, y in at} == wanted
    block = ring.posterior.mean.argmax(1)[[int(t.get_text()) for t in axes.get_yticklabels()]]
    assert len(torch.unique_consecutive(block)) == 4 and len(axes.lines) == 2 * 3
    plain = ring.plot("adjacency", order="data").axes[0]
    assert [t.get_text() for t in plain.get_yticklabels()] == [str(n) for n in range(40)] and not plain.lines


def test_large_graphs_cost_their_edges(tmp_path):
    drawn = datasets.sample_sbm(np.full((2, 2), 1e-7) + 1e-6 * np.eye(2), 50_000, directed=False)
    mean, eta = one_hot(drawn.truth["block"], 2), drawn.truth["edge_probability"]
    fit = given_graph(SBM(num_blocks=2, num_nodes=50_000, directed=False), drawn.graph, mean, {"edge_probability": eta})
    for kind in ("adjacency", "memberships", "blocks"):
        fit.plot(kind).savefig(tmp_path / "a.png")
    with pytest.raises(MethodError, match="50000 pies would hide each other"):
        fit.plot("pies")


def test_arrows_of_the_ring(ring):
    axes = ring.plot("blocks").axes[0]
    numbers = [text.get_text() for text in axes.texts]
    assert numbers.count("0.8") == 4 and sum("nodes" in text for text in numbers) == 4


def test_names_of_blocks_are_written_outside_of_discs_and_arrows(ring, mixed):
    for fit in (ring, mixed):
        axes = fit.plot("blocks").axes[0]
        discs = [patch for patch in axes.patches if isinstance(patch, Wedge)]
        names = [text for text in axes.texts if text.get_text().startswith("block s")]
        order = [f"block {fit.component_names[k]}" for k in component_order(fit)]
        assert [text.get_text().partition("\n")[0] for text in names] == [name for name in order if name in {
            text.get_text().partition("\n")[0] for text in names}]  # fmt: skip
        FigureCanvasAgg(axes.figure).draw()
        boxes = [one.get_window_extent() for one in [*discs, *names]]
        assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))
        assert ("at the tail to the one at the head" in axes.texts[-1].get_text()) == fit.data.directed


def test_pairs_of_blocks_are_joined_where_none_is_above_the_whole_graph():
    """Of blocks that keep to themselves no pair is: the strongest are joined all the same."""
    eta = np.array([[0.8, 0.1, 0.02], [0.03, 0.9, 0.05], [0.01, 0.04, 0.7]])
    level = _choose_level(eta, 0.3, None)
    assert [tuple(pair) for pair in np.argwhere((eta > level) & ~np.eye(3, dtype=bool))] == [(0, 1), (1, 2), (2, 1)]
    assert _choose_level(eta, 0.3, 1.0) == 0.3 and _choose_level(eta, 0.01, None) == 0.01


def test_refused_figures(ring):
    with pytest.raises(MethodError, match="unknown kind of plot"):
        ring.plot("dendrogram")
    with pytest.raises(MethodError, match="'block' or 'data'"):
        ring.plot("adjacency", order="degree")
    other = NOCA.example()
    with pytest.raises(MethodError, match="no model of graphs"):
        given_graph(other.model, other.data, torch.zeros(2, 2), other.truth).plot("adjacency")
    model = CovariateSBM(num_blocks=4, num_nodes=40, covariates=torch.ones(40, 1))
    weights = given_graph(model, ring.data, ring.posterior.mean, {"weight": torch.zeros(model.shapes["weight"])})
    with pytest.raises(MethodError, match="weights of covariates"):
        weights.plot("blocks")


def test_files_of_a_fit(ring, tmp_path):
    files = _cli_output.write_fit(ring, tmp_path, image_shape=None, top=3)
    assert {"adjacency_figure", "memberships_figure", "blocks_figure", "elbo_figure"} <= set(files.written)
    membership = pd.read_csv(files.written["membership"], index_col=0)
    assert membership.shape == (40, 4)


def test_graphs_from_files(tmp_path):
    (tmp_path / "edges.txt").write_text("a b\nb c\nc a\n")
    make, data = _read("sbm", Source(tmp_path / "edges.txt"))
    assert isinstance(data, GraphData) and data.directed and data.nodes == ["a", "b", "c"]
    made = make(data, 2)
    assert isinstance(made, SBM) and made.num_nodes == 3
    assert not _read("mmsb", Source(tmp_path / "edges.txt", directed=False))[1].directed
    (tmp_path / "weights.csv").write_text("source,target,weight\na,b,3\nb,c,1\n")
    with pytest.raises(DataError, match="'a' -> 'b' has 3"):
        _read("sbm", Source(tmp_path / "weights.csv"))
    assert _read("poisson_sbm", Source(tmp_path / "weights.csv"))[1].edge_values().tolist() == [3, 1]
    strong = _read("sbm", Source(tmp_path / "weights.csv", threshold=2, drop_empty_rows=True))[1]
    assert strong.nodes == ["a", "b"] and strong.edge_values().tolist() == [1]
    with pytest.raises(DataError, match="--transpose for a graph"):
        _read("sbm", Source(tmp_path / "edges.txt", transpose=True))
    with pytest.raises(DataError, match="--directed"):
        _read("noca", Source(tmp_path / "weights.csv", directed=True))
