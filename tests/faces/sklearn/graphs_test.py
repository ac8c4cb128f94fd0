"""The scikit-learn estimators of graphs."""

import pickle

import networkx as nx
import numpy as np
import pytest
import scipy.sparse
import torch
from sklearn.base import clone

import custom_inference as ci
from custom_inference.core.registry import presentation_of
from custom_inference.faces.sklearn import (
    ESTIMATORS,
    CovariateSBMEstimator,
    DegreeCorrectedSBMEstimator,
    MMSBEstimator,
    PoissonSBMEstimator,
    SBMEstimator,
)
from ppl_models import DataError, DataWarning, ModelError, graph
from tests.faces.sklearn.estimators_test import GRAPHS, QUICK, example_of

pytestmark = pytest.mark.filterwarnings("ignore:.*stopped at the limit:sklearn.exceptions.ConvergenceWarning")


@pytest.mark.parametrize("name", GRAPHS)
def test_graph_estimators_say_what_the_fit_says(name):
    example, x = example_of(name)
    size = example.model.num_blocks
    featured = name == "covariate_sbm"
    given = {"covariates": example.model.covariates} if featured else {}
    scale = {"centre": 0.0, "unit": 1.0} if featured else {}  # that of the example
    estimator = ESTIMATORS[name](size, max_iter=3, **scale, **QUICK).fit(x, **given)
    fit = ci.fit(example.model, x, seed=3, progress=False, max_iterations=3, search=ci.Search(restarts=1))
    assert estimator.fit_.model.directed == example.model.directed
    assert torch.equal(fit.params[fit.model.component_site], estimator.fit_.params[fit.model.component_site])
    assert np.array_equal(estimator.membership_, fit.posterior.mean.numpy())
    assert np.array_equal(estimator.labels_, estimator.membership_.argmax(1))
    assert np.array_equal(estimator.components_, presentation_of(fit.model).matrix(fit.model, fit.params).numpy())
    sparse = clone(estimator).fit(scipy.sparse.csr_array(x), **given)
    assert np.array_equal(sparse.labels_, estimator.labels_)
    assert np.array_equal(pickle.loads(pickle.dumps(estimator)).labels_, estimator.labels_)
    assert not hasattr(estimator, "score") and not hasattr(estimator, "transform")


def test_factions_of_the_karate_club():
    club = nx.karate_club_graph()
    frame = nx.to_pandas_adjacency(club, weight=None).rename(index="n{}".format, columns="n{}".format)
    estimator = DegreeCorrectedSBMEstimator(2, random_state=0)
    labels = estimator.fit_predict(frame)
    truth = np.array([club.nodes[node]["club"] == "Officer" for node in club])
    assert max((labels == truth).mean(), (labels != truth).mean()) > 0.9
    assert estimator.fit_.coords["node"][:2] == ["n0", "n1"] and not estimator.fit_.model.directed


def test_matrices_that_are_no_graphs_of_the_model():
    x = np.array([[0, 1, 0, 1], [1, 0, 0, 0], [0, 0, 0, 1], [1, 0, 1, 0]], dtype=float)
    with pytest.raises(DataError, match=r"shape \(4, 3\); expected a square adjacency matrix"):
        SBMEstimator(2).fit(x[:, :3])
    with pytest.raises(DataError):
        SBMEstimator(2).fit(x * 0.5)
    with pytest.raises(ModelError, match="no covariates"):
        CovariateSBMEstimator(2).fit(x)
    with pytest.warns(DataWarning, match="self loop"):
        MMSBEstimator(2, random_state=0, max_iter=2, settings={"search": None}).fit(x + np.eye(4))


CLUB = nx.karate_club_graph()
NAMED = nx.relabel_nodes(CLUB, "n{:02d}".format)


@pytest.mark.parametrize("kind", ["sbm", "poisson"])
def test_graphs_with_names_are_taken_as_graph_takes_them(kind):
    estimator = {"sbm": SBMEstimator, "poisson": PoissonSBMEstimator}[kind](2, random_state=0)
    plain = estimator.fit(nx.to_numpy_array(CLUB, weight=None))
    expected = list(plain.labels_)
    frame = nx.to_pandas_adjacency(NAMED, weight=None)
    bare = nx.Graph(NAMED.edges())  # without weights
    bare = nx.relabel_nodes(bare, {}, copy=True)
    order = list(bare)
    for source in (bare, nx.DiGraph(bare), frame, frame[frame.columns[::-1]], graph(bare)):
        found = clone(estimator).fit(source)
        named = dict(zip(found.feature_names_in_, found.labels_, strict=True))
        one = [named[name] for name in sorted(named)]
        assert one == expected or [1 - k for k in one] == expected
        assert found.fit_.data.directed == (nx.is_directed(source) if isinstance(source, nx.Graph) else False)
    assert list(clone(estimator).fit(bare).feature_names_in_) == order
    ids = clone(estimator).fit(nx.relabel_nodes(bare, {name: 100 + int(name[1:]) for name in bare}))
    assert not hasattr(ids, "feature_names_in_") and set(ids.fit_.data.nodes) == set(range(100, 134))
    alone = bare.copy()
    alone.add_node("alone")
    with pytest.warns(DataWarning, match="1 of 35 nodes have no edge"):
        assert len(clone(estimator).fit(alone).labels_) == 35 == estimator.fit(alone).n_features_in_


def test_weights_and_parallel_edges_are_those_of_the_model():
    with pytest.raises(DataError, match="neither 0 nor 1"):
        SBMEstimator(2).fit(CLUB)
    assert SBMEstimator(2, binarize=0.0).fit(CLUB).fit_.data.num_edges == 78
    assert PoissonSBMEstimator(2).fit(CLUB).fit_.data.edge_values().sum() == 231
    parallel = nx.MultiGraph([("a", "b"), ("a", "b"), ("b", "c"), ("c", "d")])
    assert PoissonSBMEstimator(2).fit(parallel).fit_.data.edge_values().sum() == 4
    with pytest.raises(DataError, match="'a' -> 'b' has 2|parallel edges"):
        SBMEstimator(2).fit(parallel)
    frame = nx.to_pandas_adjacency(NAMED, weight=None)
    with pytest.raises(DataError, match="name different nodes"):
        SBMEstimator(2).fit(frame.rename(columns={"n00": "other"}))
    assert SBMEstimator(2).fit(scipy.sparse.csr_array(frame.to_numpy())).fit_.data.num_edges == 78
