"""Edges that are listed once each, and matrices of which a half is unknown: what is read as directed says so."""

import warnings

import networkx as nx
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch

from ppl_models import DataWarning, graph

pytestmark = pytest.mark.quick

RNG = np.random.default_rng(0)
PAIRS = [(i, j) for i in range(30) for j in range(i + 1, 30) if RNG.random() < (0.5 if (i < 15) == (j < 15) else 0.05)]
SHUFFLED = [(j, i) if RNG.random() < 0.5 else (i, j) for i, j in RNG.permutation(PAIRS).tolist()]
SMALL = [(0, 3), (0, 5), (1, 2), (1, 4), (2, 5), (3, 4), (4, 5)]


def text(pairs):
    return [(f"n{i:02d}", f"n{j:02d}") for i, j in pairs]


def file(path, between=",", head="a,b\n"):
    path.write_text(head + "".join(f"{a}{between}{b}\n" for a, b in text(PAIRS)))
    return path


def held(tmp_path):
    frame = pd.DataFrame(text(PAIRS), columns=["a", "b"])
    frame.to_parquet(tmp_path / "e.parquet")
    x = np.zeros((30, 30))
    x[tuple(np.transpose(PAIRS))] = 1
    np.savez(tmp_path / "e.npz", edges=np.array(PAIRS))
    return [
        file(tmp_path / "e.csv"), file(tmp_path / "e.txt", " ", ""), tmp_path / "e.parquet", tmp_path / "e.npz",
        frame.set_axis(["source", "target"], axis=1), text(PAIRS), PAIRS, SHUFFLED, text(SHUFFLED), text(SMALL), SMALL,
        np.array(PAIRS), torch.tensor(PAIRS), [b[::-1] for b in text(PAIRS)], x, scipy.sparse.csr_array(x.T),
        torch.tensor(x).to_sparse(), pd.DataFrame(x),
    ]  # fmt: skip


def test_edges_without_a_reverse_are_warned_of_by_every_door(tmp_path):
    for source in held(tmp_path):
        with pytest.warns(DataWarning, match="none of the .* has its reverse.*read as directed.*directed=True"):
            assert graph(source).directed
        assert graph(source, directed=True).directed, "which was said"
        if not hasattr(source, "shape") or source.shape[1] == 2:
            assert not graph(source, directed=False).directed


def test_what_is_plainly_directed_is_not():
    answered = [*PAIRS, PAIRS[0][::-1]]
    lists = [answered, text(answered), text(SMALL[:2]), [("a", "b"), ("b", "c"), ("c", "a")]]
    ways = [*lists, nx.DiGraph(PAIRS), nx.MultiDiGraph(text(PAIRS)), graph(PAIRS, directed=True)]
    assert all(graph(source).directed for source in ways)


def test_a_list_of_all_edges_in_both_directions_is_warned_of():
    both = [*PAIRS, *(pair[::-1] for pair in PAIRS)]
    for edges in (both, text(both)):
        with pytest.warns(DataWarning, match="in both directions, and read as directed.*directed=False"):
            assert graph(edges).num_edges == 2 * len(PAIRS)
        assert graph(edges, directed=False).num_edges == len(PAIRS)
    graph([*both, (0, 29)])  # one has no reverse


def half_known():
    full = np.zeros((30, 30))
    full[tuple(np.transpose(PAIRS))] = full[tuple(np.transpose(PAIRS)[::-1])] = 1
    return full, np.triu(np.ones((30, 30), bool))


@pytest.mark.parametrize("seen", ["upper", "lower", "mixed"])
def test_a_dyad_that_is_known_in_one_direction_is_known(seen):
    full, upper = half_known()
    mixed = RNG.random((30, 30)) < 0.5
    mask = {"upper": upper, "lower": upper.T, "mixed": np.where(upper, mixed, ~mixed.T)}[seen]
    nan = np.where(mask, full, np.nan)
    names = [f"n{i}" for i in range(30)]
    sources = [(nan, None), (pd.DataFrame(nan, names, names), None), (np.ma.array(full, mask=~mask), None)]
    junk = np.where(mask | np.eye(30, dtype=bool), full, 1 - full)  # what a mask hides says nothing
    sources += [(junk, mask), (full, pd.DataFrame(mask)), (scipy.sparse.csr_array(full), mask), (PAIRS, mask)]
    sources += [(nx.from_numpy_array(full), mask), (torch.tensor(nan), None)]
    for source, observed in sources:
        for directed in (None, False):
            if source is PAIRS and directed is None:
                continue
            data = graph(source, mask=observed, directed=directed)
            assert not data.directed and data.hidden is None
            assert np.array_equal(data.x.to_dense().numpy(), full)


def test_a_dyad_that_is_known_in_no_direction_is_hidden_and_other_differences_are_directions():
    full, upper = half_known()
    nan = np.where(upper, full, np.nan)
    nan[2, 7] = np.nan
    data = graph(nan)
    assert not data.directed and data.hidden is not None and data.hidden.tolist() == [[2], [7]]
    one_way = full.copy()
    one_way[9, 3], one_way[0, 5] = 1 - one_way[9, 3], np.nan
    with warnings.catch_warnings(action="error"):
        data = graph(one_way)
    assert data.directed and data.hidden is not None and data.hidden.tolist() == [[0], [5]]
