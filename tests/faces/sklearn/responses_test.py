"""Estimators of documents that respond: classifiers and regressors as scikit-learn's own."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.metrics import accuracy_score, r2_score
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline

import custom_inference as ci
from custom_inference.faces.sklearn import estimator_of
from ppl_models import DataError, DiscriminativeLDA, SupervisedLDA

pytestmark = [
    pytest.mark.filterwarnings("ignore::ppl_models.DataWarning"),
    pytest.mark.filterwarnings("ignore:.*stopped at the limit:sklearn.exceptions.ConvergenceWarning"),
]

Supervised: Any = estimator_of(SupervisedLDA)
Discriminative: Any = estimator_of(DiscriminativeLDA)
#: Few iterations, of the default of each.
QUICK = {"random_state": 1, "max_iter": 8, "settings": {"search": ci.Search(restarts=1)}}
SHORT = {"random_state": 1, "max_iter": 16, "settings": {"begin": 4, "average": 8, "chains": 1, "weight": 10.0}}
WORDS = [f"{kind}{place}" for kind in ("river", "money", "word") for place in range(6)]


def drawn(number: int = 90, seed: int = 0):
    """Word counts (N, 18) of three topics, their proportions."""
    rng = np.random.default_rng(seed)
    share = rng.dirichlet(np.full(3, 0.2), number)
    topic = np.kron(np.eye(3), np.full(6, 1 / 6))
    return np.stack([rng.multinomial(25, p) for p in share @ topic]).astype(float), share


def made(response: str = "binary", **settings):
    return Supervised(n_components=3, response=response, **{**SHORT, **settings})


def test_a_binary_response_of_any_labels_is_a_classifier():
    x, share = drawn()
    y = np.where(share[:, 0] > share[:, 1], "wet", "dry")
    model = made().fit(x[:60], y[:60])
    assert model.classes_.tolist() == ["dry", "wet"]
    chance, found = model.predict_proba(x[60:]), model.predict(x[60:])
    assert chance.shape == (30, 2) and np.allclose(chance.sum(1), 1) and (chance >= 0).all()
    assert (found == model.classes_[chance.argmax(1)]).all()
    assert model.score(x[60:], y[60:]) == accuracy_score(y[60:], found) > 0.75
    assert np.allclose(chance[:, 1], model.fit_.predict(x[60:]))
    assert np.isfinite(model.score(x[60:])) and model.transform(x[60:]).shape == (30, 3)


def test_classes_and_unknown_labels():
    x, share = drawn()
    y = np.array(["a", "b", "c"], dtype=object)[share.argmax(1)]
    y[:5] = None
    model = made("categorical").fit(x, y)
    assert model.classes_.tolist() == ["a", "b", "c"] and model.predict_proba(x).shape == (90, 3)
    assert model.fit_.model.num_classes == 3 and model.score(x[5:], y[5:].astype(str)) > 0.8
    with pytest.raises(DataError, match='3 classes .a, b, c, .*expected two, or response="categorical".*"real"'):
        made().fit(x, y)


@pytest.mark.parametrize("kind", ["real", "counts"])
def test_numbers_are_a_regressor(kind):
    x, share = drawn()
    rng = np.random.default_rng(1)
    eta = share @ [1.5, 0.0, -1.5]
    y = eta + 0.1 * rng.normal(size=90) if kind == "real" else rng.poisson(np.exp(eta)).astype(float)
    model = made(kind).fit(x[:60], y[:60])
    found = model.predict(x[60:])
    assert found.shape == (30,) and model.score(x[60:], y[60:]) == pytest.approx(r2_score(y[60:], found))
    assert np.corrcoef(found, eta[60:])[0, 1] > 0.8
    assert not hasattr(model, "predict_proba") and not hasattr(model, "classes_")
    assert (found >= 0).all() or kind == "real"


def test_several_responses():
    x, share = drawn()
    y = (share[:, :2] > 0.4).astype(float)
    y[0, 0] = np.nan
    model = made().fit(x, y)
    assert model.fit_.model.num_responses == 2
    assert model.predict_proba(x).shape == model.predict(x).shape == (90, 2)
    assert set(np.unique(model.predict(x))) <= {0, 1} and (model.predict(x)[1:] == y[1:]).mean() > 0.8


@pytest.mark.parametrize("estimator", [Supervised, Discriminative])
def test_it_fits_into_scikit_learn(estimator):
    x, share = drawn(60)
    texts = [" ".join(np.repeat(WORDS, row.astype(int))) for row in x]
    y = np.where(share[:, 0] > share[:, 1], "wet", "dry")
    pipe = make_pipeline(CountVectorizer(), estimator(n_components=3, **(SHORT if estimator is Supervised else QUICK)))
    scores = cross_val_score(pipe, texts, y, cv=2)
    assert scores.shape == (2,) and scores.mean() > 0.6
    found: Any = clone(pipe)
    found.fit(texts, y)
    assert found.score(texts, y) > 0.6
    again = pickle.loads(pickle.dumps(found))
    assert (again.predict(texts[:5]) == found.predict(texts[:5])).all()
    name = pipe.steps[-1][0]
    search = GridSearchCV(pipe, {f"{name}__n_components": [2, 3]}, cv=2).fit(texts, y)
    assert search.best_params_[f"{name}__n_components"] in (2, 3)
    with pytest.raises(NotFittedError):
        clone(found.steps[-1][1]).predict(x)


def test_discriminative_lda_is_a_classifier_of_any_number_of_classes():
    x, share = drawn()
    y = share.argmax(1) + 10.0
    y[:4] = np.nan
    model = Discriminative(n_components=3, **QUICK).fit(x, y)
    assert model.classes_.tolist() == [10, 11, 12] and model.fit_.model.num_classes == 3
    assert np.allclose(model.predict_proba(x).sum(1), 1) and model.score(x[4:], y[4:]) > 0.8
    same = Discriminative(n_components=3, **QUICK).fit(x, labels=y)
    assert np.array_equal(same.predict(x), model.predict(x))
    assert "num_responses" not in model.get_params() and "num_responses" in Supervised().get_params()


@pytest.mark.quick
def test_refusals():
    x, _ = drawn(20)
    with pytest.raises(DataError, match=r"no responses.*fit\(X, y\)"):
        made().fit(x)
    with pytest.raises(DataError, match=r"no responses.*fit\(X, y\)"):
        Discriminative(n_components=2).fit(x)
    with pytest.raises(DataError, match=r"shape \(19,\)"):
        made().fit(x, np.arange(19) % 2)
