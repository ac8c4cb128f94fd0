"""Models that apply to data, compared by what they predict of held-out entries."""

import math
from typing import Any
from unittest import mock

import networkx as nx
import numpy as np
import pytest
import torch

import custom_inference as ci
from custom_inference.checks import held_entries, suggest
from custom_inference.checks.read_as import recognise
from ppl_models import MODELS, DataError, GraphData, MethodError, MixtureOfBernoullis, ModelError, Ratings, ratings

RNG = np.random.default_rng(0)


def in_classes(rows=200):
    """Two classes of 0/1 rows that differ in all eight columns."""
    on = np.array([[0.9] * 4 + [0.1] * 4, [0.1] * 4 + [0.9] * 4])
    return (RNG.random((rows, 8)) < on[RNG.integers(0, 2, rows)]).astype(float)


@pytest.mark.quick
def test_rows_of_two_classes_are_predicted_by_a_mixture_and_best_first():
    found = ci.suggest(in_classes(), 2, models=["mixture_of_bernoullis", "logistic_pca"], progress=False)
    assert found.kind == "binary" and list(found.table.columns) == ["score", "gain", "seconds", "model"]
    assert (np.diff(found.table["score"]) <= 0).all() and bool((found.table["gain"] > 0.1).all())
    # the best that can be had of a row of known class, and what independent columns give
    entropy = -(0.9 * math.log(0.9) + 0.1 * math.log(0.1))
    assert -entropy - 0.1 < found.table["score"].iloc[0] < -entropy + 0.05
    assert found.baseline == pytest.approx(-math.log(2), abs=0.02)
    fit = found.fit(progress=False)
    assert type(fit.model) is type(found.best) and len(fit.data) == 200
    assert "taken for rows of 0/1 entries" in repr(found) and "2 models that apply" in found._repr_html_()


def test_where_there_is_no_structure_it_says_so():
    x = (np.random.default_rng(3).random((60, 6)) < 0.3).astype(float)
    found = ci.suggest(x, 3, models=["mixture_of_bernoullis"], progress=False)
    assert bool((found.table["gain"] <= 0).all()) and "no model predicts better" in repr(found)


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("binary", [[0, 1.0], [1, 0]]),
        ("real", [[0.5, 1.0], [1, 0]]),
        ("real", [[-1, 1.0], [1, 0]]),
        ("counts", [[3, 1.0], [1, 0]]),
        ("documents", np.pad([[3.0, 1], [1, 0]], ((0, 0), (0, 60)))),
        ("documents", ["a word", "another word"]),
        ("graph", nx.karate_club_graph()),
    ],
)
def test_what_data_are_taken_for(kind, data):
    asked = kind if isinstance(data, nx.Graph) else None
    found, read = recognise(nx.Graph(data.edges) if asked else data, asked)[:2]
    assert found == kind and isinstance(read, GraphData) == (kind == "graph")
    assert suggest._applicable(kind, None, read)


def test_ratings_graphs_and_documents_have_scores_of_their_own():
    user, item = np.divmod(np.arange(240), 12)
    value = np.where((user % 2) == (item % 2), 5.0, 1.0) + 0.1 * RNG.normal(size=240)
    rated = ci.suggest(ratings(user, item, value), 1, progress=False)
    assert rated.kind == "ratings" and isinstance(rated.data, Ratings) and rated.table.loc["pmf", "gain"] > 0.5
    groups = nx.planted_partition_graph(2, 12, 0.9, 0.1, seed=0)
    linked = ci.suggest(nx.Graph(groups.edges), 2, kind="graph", models=["sbm"], progress=False)
    assert linked.table.loc["sbm", "gain"] > 0.05
    texts = ["cat dog cat dog cat dog"] * 20 + ["sun sea sun sea sun sea"] * 20
    read = ci.suggest(texts, 2, models=["mixture_of_multinomials"], progress=False)
    assert read.kind == "documents" and read.table["score"].iloc[0] == pytest.approx(-math.log(2), abs=0.1)
    assert read.baseline == pytest.approx(-math.log(4), abs=0.05)


@pytest.mark.parametrize("kind", list(held_entries.BASELINES))
def test_baselines_are_independent_columns(kind):
    rng = np.random.default_rng(5)
    x = {"binary": rng.integers(0, 2, (40, 3)), "categories": rng.integers(0, 3, (40, 3)),
         "counts": rng.poisson(2.0, (40, 3)), "real": rng.normal(size=(40, 3))}[kind].astype(float)  # fmt: skip
    seen = rng.random(x.shape) < 0.7
    total = 0.0
    for j in range(3):
        known, other = x[seen[:, j], j], x[~seen[:, j], j]
        for value in other:
            if kind == "binary":
                chance = ((known == value).sum() + 1) / (len(known) + 2)
            elif kind == "categories":
                chance = ((known == value).sum() + 1) / (len(known) + 3)
            elif kind == "counts":
                rate = (known.sum() + 0.5) / (len(known) + 0.5)
                chance = math.exp(-rate) * rate**value / math.factorial(int(value))
            else:
                spread = known.std(ddof=1)
                chance = math.exp(-0.5 * ((value - known.mean()) / spread) ** 2) / (spread * math.sqrt(2 * math.pi))
            total += math.log(chance)
    given = (torch.as_tensor(one) for one in (x, seen, ~seen))
    assert held_entries.BASELINES[kind](*given) == pytest.approx(total, rel=1e-9)


def test_refusals():
    x = in_classes(20)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"kind": "pictures"}, "pictures"),
        ({"models": ["lda"]}, "lda"),
        ({"models": "noca"}, "a list of names"),
        ({"share": 1.0}, "between 0 and 1"),
    ]
    for settings, found in cases:
        with pytest.raises(MethodError, match=found):
            ci.suggest(x, 2, **settings, progress=False)
    with pytest.raises(DataError, match="no entry would be held out"):
        ci.suggest([[1.0]], 1, progress=False)
    with pytest.raises(DataError, match="LDAHMM"):
        ci.suggest(MODELS["ldahmm"].example().data, 2, progress=False)
    with pytest.raises(ModelError):  # every model refuses: the first error
        ci.suggest(x, 50, models=["logistic_pca"], progress=False)


def test_one_that_refuses_is_named_and_ctrl_c_keeps_the_others():
    x = in_classes(40)
    found = ci.suggest(x, 9, models=["logistic_pca", "mixture_of_bernoullis"], progress=False)
    assert list(found.refused) == ["logistic_pca"] and "logistic_pca refused" in repr(found)
    fits = iter([ci.fit(MixtureOfBernoullis(num_components=2, num_features=8), x, progress=False)])

    def one_only(*_, **__):
        try:
            return next(fits)
        except StopIteration:
            raise KeyboardInterrupt from None

    with mock.patch.object(suggest, "default_fit", one_only):
        stopped = ci.suggest(x, 2, models=["mixture_of_bernoullis", "noca"], progress=False)
        assert stopped.interrupted and list(stopped.table.index) == ["mixture_of_bernoullis"]
        with pytest.raises(KeyboardInterrupt):
            ci.suggest(x, 2, models=["noca"], progress=False)


def test_models_that_are_slow_on_long_documents_are_compared_where_they_are_named():
    x = np.random.default_rng(0).poisson(10.0, (60, 60)).astype(float)
    found = ci.suggest(x, 2, models=["mixture_of_multinomials"], progress=False)
    assert found.slow == ()
    line = {"score": -1.0, "seconds": 0.0, "model": ""}
    with mock.patch.object(suggest, "_line", lambda *_: line):
        every, named = ci.suggest(x, 2, progress=False), ci.suggest(x, 2, models=["replicated_softmax"], progress=False)
    assert every.slow == ("replicated_softmax",) and "softmax_pca" in every.table.index
    assert "not compared, as slow on such data: replicated_softmax; name them in models" in repr(every)
    assert list(named.table.index) == ["replicated_softmax"] and named.slow == ()
