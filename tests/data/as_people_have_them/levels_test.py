"""Frames and Series with two levels of an index, as ``groupby`` makes them: users and items, or the ends of edges."""

import pandas as pd
import pytest

from ppl_models import DataError, DataWarning, graph, ratings

RATED = pd.DataFrame({"user": list("aabbc"), "item": list("xyxyx"), "rating": [1, 2, 3, 4, 5], "time": range(5)})
FLAT = ratings(RATED[["user", "item", "rating"]])


@pytest.mark.parametrize("order", [["user", "item"], ["item", "user"]])
def test_users_and_items_in_the_index(order):
    mean = RATED.groupby(order)[["rating"]].mean()
    several = RATED.groupby(order)[["rating"]].agg(["mean"])
    for source in (mean, mean["rating"], mean.rename(columns={"rating": "liked"}), several):
        data = ratings(source)
        assert data.users == FLAT.users and data.items == FLAT.items
        assert data.value.tolist() == FLAT.value.tolist() and data.time is None
    timed = ratings(RATED.groupby(order)[["time", "rating"]].max())
    assert timed.value.tolist() == FLAT.value.tolist() and timed.time is not None
    assert timed.time.tolist() == [0, 1, 2, 3, 4]
    unnamed = mean.rename_axis([None, None]) if order[0] == "user" else None
    assert unnamed is None or ratings(unnamed).users == FLAT.users


def test_other_levels_are_refused():
    with pytest.raises(DataError, match="an index of 3 levels beside 1 columns"):
        ratings(RATED.set_index(["user", "item", "time"]))


def test_ends_of_edges_in_the_index():
    edges = pd.DataFrame({"from": list("aab"), "to": list("bcc"), "n": [2, 1, 3]})
    flat = graph(edges.rename(columns={"n": "weight"}), directed=False)
    counted = edges.set_index(["from", "to"])
    for source in (counted, counted["n"], counted.rename_axis([None, None])):
        data = graph(source, directed=False)
        assert data.nodes == flat.nodes and data.x.to_dense().tolist() == flat.x.to_dense().tolist()
    assert graph(counted[[]], directed=False).num_edges == 3


def test_a_text_and_a_number_of_one_look_are_warned_of():
    with pytest.warns(DataWarning, match="the items '2010' and 2010, a text and a number, are taken for two"):
        assert ratings(["a", "b", "c"], ["2010", 2010, 2010], [1, 2, 3]).items == ["2010", 2010]
    with pytest.warns(DataWarning, match="the nodes '1' and 1"):
        assert len(graph([("1", "a"), (1, "a")])) == 3
