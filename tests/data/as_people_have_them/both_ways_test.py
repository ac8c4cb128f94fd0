"""Undirected edges that are listed once or in both directions, self loops, and counts that are almost whole."""

import warnings

import networkx as nx
import pytest
import torch

from ppl_models import MMSB, SBM, DataError, DataWarning, PoissonSBM, graph
from ppl_models.data.graphs.edges import KINDS

KARATE = [(int(a), int(b)) for a, b in nx.karate_club_graph().edges()]
BACK = [(b, a) for a, b in KARATE]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("missing", [0, 1, 5, 30])
def test_lines_that_are_missing_in_one_direction_change_nothing_else(kind, missing):
    """78 edges of 1, however many of the lines back are missing, as long as most are there."""
    if missing:
        with pytest.warns(
            DataWarning, match=f"{78 - missing} pairs .* both directions .* {missing} in one; each is one"
        ):
            data = graph(KARATE + BACK[missing:], directed=False, kind=kind)
    else:
        data = graph(KARATE + BACK, directed=False, kind=kind)
    assert data.num_edges == 78 and bool((data.edge_values() == 1).all())
    assert torch.equal(data.x.to_dense(), graph(KARATE, directed=False).x.to_dense())


def test_counts_of_two_directions_are_added_up_where_few_pairs_have_both():
    """Messages: of 30 pairs five wrote back. 1 of each of two that wrote each other once is 2 messages."""
    messages = [*KARATE[:30], *BACK[:5]]
    with pytest.warns(DataWarning, match="5 pairs .* 25 in one; of 5 .* added up; list each pair once"):
        counted = graph(messages, directed=False, kind="counts")
    assert sorted(counted.edge_values().tolist()) == [1.0] * 25 + [2.0] * 5
    for kind in (None, "binary"):
        with pytest.warns(DataWarning, match="each is one edge"):
            assert graph(messages, directed=False, kind=kind).edge_values().sum() == 30


def test_weights_that_both_directions_share_stay_and_others_are_added_up():
    both = [(0, 1, 3), (1, 0, 3), (1, 2, 2), (2, 1, 2), (2, 3, 4), (3, 2, 1), (0, 3, 7)]
    with pytest.warns(DataWarning, match=r"3 pairs .* 1 in one; of 1 \(the first: 2 -- 3\) its two values were added"):
        data = graph(both, directed=False, kind=None)
    assert dict(zip(map(tuple, data.edges().T.tolist()), data.edge_values().tolist(), strict=True)) == {
        (0, 1): 3, (0, 3): 7, (1, 2): 2, (2, 3): 5,
    }  # fmt: skip


def test_a_directed_list_keeps_both():
    assert graph(KARATE + BACK[1:]).num_edges == 155


@pytest.mark.parametrize("kind", [SBM, PoissonSBM, MMSB])
def test_self_loops_are_dropped_by_the_model_that_has_none_and_kept_by_one_made_for_them(kind):
    loops = [(0, 0), *[(int(a), int(b)) for a, b in nx.cycle_graph(6).edges()]]
    data = graph(loops, directed=False, self_loops=True)
    without = kind(num_blocks=2, num_nodes=6, directed=False)
    with pytest.warns(DataWarning, match="1 self loops were left out .*; a model with self_loops=True keeps them"):
        assert without.prepare(data).num_edges == 6
    with pytest.warns(DataWarning, match=r"left out .*: at 0\); self_loops=True keeps them"):
        graph(loops, directed=False)
    with warnings.catch_warnings(action="error"):
        made = kind.for_data(data, 2)
        assert made.self_loops and made.prepare(data).num_edges == 7
        assert not kind.for_data(graph(loops[1:], directed=False), 2).self_loops


def test_an_entry_that_is_almost_whole_is_shown_with_the_digits_that_differ():
    assert graph([(0, 1, 3 + 1e-9), (1, 2, 1.0)], kind="counts", dtype=torch.float64).x.values().tolist() == [3, 1]
    edges = [(0, 1, 3 + 1e-6), (1, 2, 1.0)]
    with pytest.raises(DataError, match=r"no whole numbers \(the first: 0 -> 1 has 3\.000001\)"):
        graph(edges, kind="counts", dtype=torch.float64)
    from ppl_models import MixtureOfPoissons

    model = MixtureOfPoissons(num_components=1, num_features=2)
    with pytest.raises(DataError, match=r"the first: 3\.000001 in row 0"):
        model.prepare(torch.tensor([[3 + 1e-6, 1.0], [1, 0]], dtype=torch.float64))
    with pytest.raises(DataError, match=r"the first: 0\.25 in row 0"):
        model.prepare([[0.25, 1.0], [1, 0]])
