"""What stands beside rows, items and nodes is known by their labels where both have some, in any order."""

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch

import custom_inference as ci
from custom_inference.families.aspects.explain import expand
from ppl_models import (
    CTM,
    DTM,
    NOCA,
    PMF,
    AspectBernoulli,
    BilinearPMF,
    CovariateSBM,
    DataError,
    DegreeCorrectedSBM,
    DirichletMultinomialRegression,
    LabeledLDA,
    ModelError,
    PoissonPCA,
    SupervisedLDA,
    graph,
    ratings,
)
from ppl_models.data.ratings.covariates import covariate_blocks

ROWS = ["d1", "d2", "d3", "d4"]
X = pd.DataFrame([[1, 0, 2], [0, 1, 1], [3, 1, 0], [1, 1, 1]], index=ROWS, columns=list("abc"))
VALUE = pd.Series([0.0, 1.0, 1.0, 0.0], index=ROWS)
TOPICS = {"num_topics": 2, "vocabulary_size": 3}
#: Model, the site beside x, what is given there.
BESIDE = {
    "covariates": (DirichletMultinomialRegression(**TOPICS, num_covariates=1), "covariates", VALUE.to_frame()),
    "response": (SupervisedLDA(**TOPICS), "response", VALUE),
    "labels": (LabeledLDA(**TOPICS, num_labels=2), "labels", pd.DataFrame({"p": VALUE, "q": 1 - VALUE})),
    "offset": (PoissonPCA(num_components=1, num_features=3), "offset", VALUE),
    "time": (DTM(**TOPICS, num_times=2), "time", VALUE),
}


@pytest.mark.parametrize("name", BESIDE)
def test_what_stands_beside_rows_is_put_in_their_order(name):
    model, site, given = BESIDE[name]
    expected = model.prepare(X, **{site: given}).others[site]
    assert len(torch.unique(expected[:2], dim=0)) == 2
    for order in ([3, 1, 0, 2], [1, 0, 3, 2]):
        assert torch.equal(model.prepare(X, **{site: given.iloc[order]}).others[site], expected)
    assert torch.equal(model.prepare(X, **{site: given.to_numpy()}).others[site], expected)  # in the order of the rows
    assert torch.equal(model.prepare(X.to_numpy(), **{site: given}).others[site], expected)
    backwards = model.prepare(X.iloc[::-1], **{site: given}).others[site]
    assert torch.equal(backwards, expected.flip(0))
    with pytest.raises(DataError, match=f"site '{site}'.*1 unknown rows .*'other'"):
        model.prepare(X, **{site: given.rename({"d2": "other"})})
    with pytest.raises(DataError, match="nothing is given of 1 of 4 labels .*'d4'"):
        model.prepare(X, **{site: given.iloc[:3]})


def test_slices_are_known_by_their_labels():
    model, years = DTM(**TOPICS, num_times=3), pd.Categorical([2008, 2010, 2012, 2010])
    data = model.prepare(X, time=years)
    for given in ([2012, 2008], np.array([2012, 2008]), pd.Series([2012, 2008]), pd.Categorical([2012, 2008])):
        assert model.prepare_new(X[:2], data, time=given).others["time"].tolist() == [2, 0]
    assert model.prepare_new(data, data).others["time"].tolist() == [0, 1, 2, 1]
    unknown = ([2, 0], "2 documents .*: 2 of document 0"), ([2012, 2013], "1 documents .*2013"), (["2008"], "'2008'")
    for given, message in unknown:
        with pytest.raises(DataError, match=message):
            model.prepare_new(X[: len(given)], data, time=given)
    by_row = pd.Series(years, index=ROWS)
    assert model.prepare(X, time=by_row.iloc[::-1]).others["time"].tolist() == [0, 1, 2, 1]


def test_covariates_of_users_and_items_are_put_in_their_order():
    data = ratings(["ann", "bob", "cleo"], ["Heat", "Alien", "Heat"], [1.0, 0.0, 1.0])
    age = pd.DataFrame({"age": [1.0, 2.0, 3.0]}, index=["ann", "bob", "cleo"])
    year = pd.DataFrame({"year": [5.0, 6.0]}, index=["Heat", "Alien"])
    sizes = {"num_components": 1, "num_users": 3, "num_items": 2, "num_user_covariates": 1, "num_item_covariates": 1}
    for model in (PMF(**sizes), BilinearPMF(**sizes)):
        given = {"user_covariates": age.iloc[::-1], "item_covariates": year.iloc[::-1]}
        others = model.prepare(data, **given).others
        assert others["user_covariates"].flatten().tolist() == [1.0, 2.0, 3.0]
        assert others["item_covariates"].flatten().tolist() == [5.0, 6.0]
        with pytest.raises(DataError, match="1 unknown features .*'Heat II'"):
            model.prepare(data, **{**given, "item_covariates": year.rename({"Heat": "Heat II"})})
    blocks, turned = (covariate_blocks(one, data.users) for one in (age, age.iloc[::-1]))
    assert np.array_equal(blocks["age"], turned["age"])
    with pytest.raises(DataError, match="1 unknown rows .*'dan'"):
        covariate_blocks(age, ["ann", "dan"])
    with pytest.raises(DataError, match="a frame with an index"):
        covariate_blocks({"age": [1, 2, 3]}, data.users)


@pytest.mark.parametrize("call", [lambda n: n + 1, lambda n: f"n{n}"])
def test_further_graphs_of_the_same_nodes_are_put_in_their_order(call):
    rng = np.random.default_rng(0)
    x, label = np.triu(rng.random((7, 7)) < 0.5, 1), [call(n) for n in range(7)]
    edges = [(label[i], label[j]) for i, j in np.argwhere(x)]
    like = graph(edges, directed=False, nodes=label, kind="counts")
    model = DegreeCorrectedSBM(num_nodes=7, num_blocks=2, directed=False)
    expected = model.prepare(like).x.to_dense()
    turned = graph(edges, directed=False, nodes=label[::-1], kind="counts")
    frame = pd.DataFrame((x | x.T).astype(float), index=label, columns=label).iloc[::-1, ::-1]
    without_last = [(a, b) for a, b in edges if label[6] not in (a, b)]  # numbers below 7 would pass for positions
    for given, same in ((turned, expected), (frame, expected), (edges[::-1], expected), (without_last, None)):
        found = model.prepare_new(given, model.prepare(like))
        kept = expected.clone()
        kept[6], kept[:, 6] = 0, 0
        assert torch.equal(found.x.to_dense(), kept if same is None else same) and list(found.nodes) == label
    with pytest.raises(DataError, match="1 unknown nodes .*'nobody'"):
        model.prepare_new([(label[0], "nobody")], model.prepare(like))


def test_features_of_nodes_are_numbers_in_the_order_of_these():
    features = pd.DataFrame({"age": [1.0, 2.0, 3.0]}, index=["a", "b", "c"])
    with pytest.raises(ModelError, match=r"labels of their rows \(the first: 'a'\).*frame.loc"):
        CovariateSBM(num_blocks=2, covariates=features)
    model = CovariateSBM(num_blocks=2, covariates=features.reset_index(drop=True))
    assert model.covariates.flatten().tolist() == [1.0, 2.0, 3.0] and model.num_nodes == 3


def test_a_row_is_not_known_by_its_number_where_labels_are_numbers():
    x = (np.random.default_rng(0).random((12, 4)) < 0.5).astype(float)
    frame = pd.DataFrame(x, index=range(1, 13))
    fits = [ci.fit(AspectBernoulli(num_components=2, num_features=4), one, max_iterations=3, progress=False)
            for one in (frame, frame.rename(lambda n: f"r{n}"))]  # fmt: skip
    assert expand(fits[0], 12, phantom=0).equals(expand(fits[1], "r12", phantom=0))
    assert expand(fits[1], 11, phantom=0).equals(expand(fits[1], "r12", phantom=0))
    for row in (0, -1):
        with pytest.raises(DataError, match=f"no row {row} among the 12"):
            expand(fits[0], row, phantom=0)


@pytest.mark.parametrize(
    "given",
    [
        lambda a: a,
        lambda a: a.tolist(),
        lambda a: pd.Series(a),
        lambda a: pd.DataFrame({"age": a}),
        lambda a: a.astype(object)[:, None],
        lambda a: pd.DataFrame({"age": a.astype(object)}),
        lambda a: scipy.sparse.csr_array(a[:, None]),
        lambda a: torch.as_tensor(a),
    ],
)
@pytest.mark.parametrize("kind", [DirichletMultinomialRegression, CTM])
def test_one_covariate_in_whatever_holds_a_column(kind, given):
    age = np.array([20.0, 31.0, 45.5])
    model = kind(num_topics=2, vocabulary_size=3, num_covariates=1)
    data = model.prepare(np.ones((3, 3)), covariates=given(age), dtype=torch.float64)
    assert data.others["covariates"][:, 0].tolist() == age.tolist()


@pytest.mark.parametrize("held", [np.array, pd.DataFrame])
def test_objects_that_are_numbers_are_numbers(held):
    x = held([[1, 0], [None, True]], dtype=object)
    data = NOCA(num_components=1, num_features=2).prepare(x)
    assert data.x.tolist() == [[1, 0], [0, 1]] and data.mask.tolist() == [[True, True], [False, True]]


def test_other_objects_are_named():
    with pytest.raises(DataError, match=r"entries of type Timestamp \(the first: Timestamp\('2020-01-01"):
        NOCA(num_components=1, num_features=2).prepare(np.array([[1, pd.Timestamp("2020-01-01")]], object))
