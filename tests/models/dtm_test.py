"""The door of the dynamic topic model: slices as numbers and as labels, and what is refused."""

import numpy as np
import pandas as pd
import pytest
import torch

import custom_inference as ci
from ppl_models import DTM, DataError
from tests.references import dtm as reference

pytestmark = pytest.mark.quick

MODEL = DTM(num_topics=2, vocabulary_size=3, num_times=3)
X = np.array([[1.0, 0, 2], [0, 3, 1], [2, 2, 0], [1, 1, 1]])


def test_slices_are_whole_numbers():
    data = MODEL.prepare(X, time=[0, 2, 2, 1])
    assert data.others["time"].tolist() == [0, 2, 2, 1] and MODEL.prepare(data).others["time"].tolist() == [0, 2, 2, 1]
    assert MODEL.prepare_new(X[:2], data, time=[2, 0]).others["time"].tolist() == [2, 0]
    with pytest.raises(DataError, match="unknown times .*: 7 of document 1.*; expected one of 0, 1, 2, or no times"):
        MODEL.prepare_new(X[:2], data, time=[2, 7])
    dated = MODEL.dated(data).x.to_dense()
    assert dated.shape == (4, 9) and torch.equal(dated[1, 6:], torch.as_tensor(X[1])) and dated.sum() == X.sum()
    with pytest.raises(DataError, match="documents without their slices"):
        ci.fit(MODEL, X, progress=False)
    assert DTM.for_data(data, 2).num_times == 3


@pytest.mark.filterwarnings("ignore:.*ordered by letters")
@pytest.mark.parametrize(
    ("time", "message"),
    [
        ([0, 1, 2, 3], r"4 different times, 0, 1, 2, 3; expected num_times = 3 of them, or whole numbers 0..2"),
        ([0, 1, 0.5, 2], "4 different times, 0.0, 0.5, 1.0, 2.0"),
        ([0, 1, np.nan, 2], "1 times are missing .the first: of document 2"),
        ([1990, 1991, 1992, 1993], "4 different times, 1990.*pandas.cut"),
        ([0, 1, 2], r"shape \(3,\); expected \(4,\), one a document"),
        (pd.Categorical(["a", "b", "b", "a"]), "2 different times, a, b; expected num_times = 3"),
        (pd.Categorical(["a", "b", None, "c"]), "1 times are missing .the first: of document 2"),
        (["a", 2, 3, 4], "times of the types number, str, which have no common order"),
    ],
)
def test_other_times_are_refused(time, message):
    with pytest.raises(DataError, match=f"'time'.*: {message}"):
        MODEL.prepare(X, time=time)


def test_categories_stay_as_labels():
    years = pd.Series(["1990s", "2010s", "2010s", "2000s"], dtype="category")
    data = MODEL.prepare(X, time=years)
    assert data.others["time"].tolist() == [0, 2, 2, 1] and data.coords["time"] == ["1990s", "2000s", "2010s"]
    assert MODEL.prepare_new(X[:1], data, time=pd.Categorical(["2010s"])).others["time"].tolist() == [2]
    with pytest.raises(DataError, match="'2020s' of document 0.; expected one of 1990s, 2000s, 2010s"):
        MODEL.prepare_new(X[:1], data, time=pd.Categorical(["2020s"]))


def test_the_program_draws_walks_and_their_documents():
    """Moments of the prior of the walk, and words by the topics of the documents' own slices."""
    hypers = {"drift_variance": torch.tensor(0.5), "background": torch.tensor([1.0, 0.0, -1.0])}
    hypers["initial_scale"] = torch.tensor(2.0)
    walk = MODEL.prior("topic_logit", values=hypers)
    draws = walk.sample(torch.Size([20_000]))
    assert draws.shape == (20_000, 3, 2, 3) and torch.allclose(draws.mean((0, 1, 2)), hypers["background"], atol=0.05)
    assert torch.allclose(draws.var(0).mean((1, 2)), torch.tensor([4.0, 4.5, 5.0]), rtol=0.03)
    value = draws[0]
    params = {**{site: v.numpy() for site, v in hypers.items()}, "topic_logit": value.numpy()}
    assert float(walk.log_prob(value)) == pytest.approx(reference.log_walk(params))
    known = MODEL.with_priors(drift_variance=0.01)
    assert float(known.known["drift_variance"]) == pytest.approx(0.01)
