"""What is given with rows (covariates, times) in scikit-learn's estimators: each fold and each new row has its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import sklearn
from sklearn.base import clone
from sklearn.model_selection import KFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

import custom_inference as ci
from custom_inference.faces.sklearn import estimator_of
from ppl_models import (
    CTM,
    DTM,
    MODELS,
    DataError,
    DirichletMultinomialRegression,
    LabeledLDA,
    MethodError,
    MultinomialRegressionLDA,
    RandomEffectsLDA,
)

pytestmark = pytest.mark.filterwarnings(
    "ignore::ppl_models.DataWarning", "ignore::sklearn.exceptions.ConvergenceWarning"
)

#: Model -> the site that is given, and parameters that make fits brief.
GIVEN: dict[Any, tuple[str, dict[str, Any]]] = {
    CTM: ("covariates", {"num_covariates": 1, "method": ci.VariationalEM(guide="gaussian", search=None)}),
    DTM: ("time", {"num_times": 2, "method": ci.SVI(guide="delta"), "max_iter": 4}),
    DirichletMultinomialRegression: ("covariates", {"method": ci.VariationalEM(guide="dirichlet", search=None)}),
    MultinomialRegressionLDA: ("covariates", {"method": ci.EM(search=None)}),
    RandomEffectsLDA: ("covariates", {"method": ci.VariationalEM(guide="gaussian", search=None)}),
}


def rows(kind: Any):
    """An estimator, counts (N, 4), and what is given with them."""
    rng = np.random.default_rng(0)
    flag = np.arange(18) % 2
    words = np.where(flag[:, None] == 1, [0.4, 0.4, 0.1, 0.1], [0.1, 0.1, 0.4, 0.4])
    x = np.stack([rng.multinomial(9, p) for p in words])
    site, settings = GIVEN[kind]
    given = flag if site == "time" else 2000.0 + flag[:, None]
    estimator = estimator_of(kind)(n_components=2, random_state=0, **{"max_iter": 3, **settings})
    return estimator, x, site, given


@pytest.fixture
def routing():
    with sklearn.config_context(enable_metadata_routing=True):
        yield


@pytest.mark.parametrize("kind", GIVEN)
def test_each_fold_is_scored_with_its_own(kind, routing):
    estimator, x, site, given = rows(kind)
    estimator.set_fit_request(**{site: True}).set_score_request(**{site: True})
    folds = KFold(3, shuffle=True, random_state=1)
    found = cross_val_score(estimator, x, cv=folds, params={site: given})
    expected = []
    for train, test in folds.split(x):
        one = clone(estimator).fit(x[train], **{site: given[train]})
        expected.append(float(one.fit_.log_likelihood(x[test], bound=one.bound_name_, **{site: given[test]}).mean()))
    assert np.allclose(found, expected) and np.isfinite(found).all()
    assert np.ptp(found) > 0


@pytest.mark.parametrize("kind", GIVEN)
def test_rows_without_what_the_fit_had_are_refused(kind):
    estimator, x, site, given = rows(kind)
    estimator.fit(x, **{site: given})
    for ask in (estimator.transform, estimator.score, estimator.score_samples, estimator.perplexity, estimator.bic):
        with pytest.raises(DataError, match=f"rows without their {site}"):
            ask(x)
    with pytest.raises(MethodError, match="unknown site that"):
        estimator.transform(x, **{site: given, "age": given})
    one = estimator.transform(x[:4], **{site: given[:4]})
    other = estimator.transform(x[:4], **{site: given[1:5]})
    assert np.allclose(one, estimator.fit_.local_posterior(x[:4], **{site: given[:4]}).posterior.mean)
    assert not np.allclose(one, other, atol=1e-9, rtol=0)
    assert np.allclose(clone(estimator).fit_transform(x, **{site: given}), estimator.transform(x, **{site: given}))
    assert np.isfinite(estimator.perplexity(x, **{site: given}))


def test_what_fit_takes_as_y_is_taken_so_by_score():
    estimator, x, site, given = rows(DirichletMultinomialRegression)
    estimator.fit(x, given)
    assert estimator.score(x, given) == estimator.score(x, **{site: given})


def test_pipelines_pass_on_what_is_asked_for(routing):
    estimator, x, _, given = rows(MultinomialRegressionLDA)
    estimator.set_fit_request(covariates=True).set_transform_request(covariates=True).set_score_request(covariates=True)
    pipeline = make_pipeline(FunctionTransformer(), estimator)
    pipeline.fit(x, covariates=given)
    assert np.array_equal(pipeline.transform(x, covariates=given), pipeline[-1].transform(x, covariates=given))


def test_labels_may_be_left_out_of_new_documents():
    _, x, _, _ = rows(DTM)
    estimator = estimator_of(LabeledLDA)(n_components=2, random_state=0, max_iter=3)
    estimator.fit(x, labels=np.eye(2)[np.arange(18) % 2])
    assert np.isfinite(estimator.transform(x)).all() and np.isfinite(estimator.score(x))


def test_estimators_say_what_is_given_with_rows():
    known = {name: estimator_of(kind) for name, kind in MODELS.items() if "component" in kind.axes}
    found = {name: one._given_rows for name, one in known.items() if one._given_rows}
    assert found["dtm"] == ("time",) and found["ctm"] == found["random_effects_lda"] == ("covariates",)
    assert found["labeled_lda"] == ("labels",) and found["poisson_pca"] == ("offset",)
    assert found["pmf"] == found["bilinear_pmf"] == ("user_covariates",)  # users are the rows; items are not
    assert "covariate_sbm" not in found  # those are given with nodes
    assert all(hasattr(known[name], "set_fit_request") for name in found)
