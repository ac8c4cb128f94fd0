"""``sample_weight`` of the estimators: in the signature of ``fit``, so that scikit-learn routes it, and refused where a
method cannot weigh rows."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import sklearn
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from custom_inference.faces.sklearn import (
    ESTIMATORS,
    GraphEstimator,
    LDAEstimator,
    MixtureOfPoissonsEstimator,
    RBMEstimator,
    SBMEstimator,
    SupervisedLDAEstimator,
)
from ppl_models import MethodError


def counts(rows=40):
    rng = np.random.default_rng(0)
    kind = rng.random(rows) < 0.5
    rate = np.where(kind, 1.0, 6.0)[:, None] * np.array([1.0, 0.5, 2.0])
    return rng.poisson(rate), rng.integers(0, 3, rows)


@pytest.mark.parametrize("name", [n for n, kind in ESTIMATORS.items() if not issubclass(kind, GraphEstimator)])
def test_it_is_in_the_signature_and_can_be_routed(name):
    made = ESTIMATORS[name](2)
    for method in (made.fit, made.fit_transform):
        assert inspect.signature(method).parameters["sample_weight"].default is None
    with sklearn.config_context(enable_metadata_routing=True):
        routed = made.set_fit_request(sample_weight=True)
        assert routed.get_metadata_routing().fit.requests["sample_weight"] is True


def test_weights_are_repeated_rows():
    x, weight = counts()
    made = MixtureOfPoissonsEstimator(2, random_state=0, tol=1e-9)
    weighed = made.fit(x, sample_weight=weight).components_
    repeated = made.fit(np.repeat(x, weight, axis=0)).components_
    assert np.allclose(np.sort(weighed, 0), np.sort(repeated, 0), rtol=1e-3)


def test_routing_takes_them_through_pipelines_and_folds():
    x, weight = counts()
    with sklearn.config_context(enable_metadata_routing=True):
        made = MixtureOfPoissonsEstimator(2, random_state=0).set_fit_request(sample_weight=True)
        made = made.set_score_request(sample_weight=True)
        pipeline = make_pipeline(FunctionTransformer(), made).fit(x, sample_weight=weight)
        assert np.array_equal(pipeline[-1].components_, made.fit(x, sample_weight=weight).components_)
        assert np.isfinite(cross_val_score(made, x, cv=2, params={"sample_weight": weight + 1})).all()


def test_where_rows_cannot_be_weighed_it_is_an_error():
    x, weight = counts()
    binary = (x > 1).astype(float)
    for made in (RBMEstimator(2, n_iter=2), MixtureOfPoissonsEstimator(2, method="nuts")):
        with pytest.raises(MethodError, match="cannot weigh rows"):
            made.fit(binary, sample_weight=weight)
    with pytest.raises(MethodError, match="beside batch_size"):
        LDAEstimator(2, learning_method="online").fit(x, sample_weight=weight)
    with pytest.raises(MethodError, match="sample_weight of partial_fit"):
        LDAEstimator(2).partial_fit(x, sample_weight=weight)
    with pytest.raises(MethodError, match="sample_weight of a graph"):
        SBMEstimator(2).fit(np.ones((4, 4)) - np.eye(4), sample_weight=np.ones(4))
    y = np.where(weight > 0, "yes", "no")
    assert "since the default cannot weigh" in SupervisedLDAEstimator(2).fit(x + 1, y, sample_weight=weight).fit_.status
