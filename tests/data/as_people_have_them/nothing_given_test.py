"""Documents without the times, covariates or labels on which a model rests: an error, or a warning of what is left."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import custom_inference as ci
from custom_inference.faces import sklearn as faces
from ppl_models import CTM, DTM, DataError, DataWarning, DirichletMultinomialRegression, RandomEffectsLDA

WORDS = np.random.default_rng(0).poisson(2, (12, 5))
NUMBERS = np.arange(12.0)
GIVEN = {
    "DTM": ("time", NUMBERS // 6),
    "DirichletMultinomialRegression": ("covariates", NUMBERS[:, None]),
    "MultinomialRegressionLDA": ("covariates", NUMBERS[:, None]),
    "LabeledLDA": ("labels", np.eye(2)[np.arange(12) % 2]),
    "PartiallyLabeledLDA": ("labels", np.eye(2)[np.arange(12) % 2]),
}
pytestmark = pytest.mark.filterwarnings("ignore:.*stopped at the limit:sklearn.exceptions.ConvergenceWarning")
SHORT = {"random_state": 0, "max_iter": 2, "tol": 1e3, "settings": {"search": None}}
SAMPLED = {"random_state": 0, "max_iter": 2, "settings": {"search": False, "warmup": 2}}


@pytest.mark.parametrize("name", GIVEN)
def test_estimators_say_what_they_miss(name):
    """A warning without it, none with it."""
    site, value = GIVEN[name]
    make = getattr(faces, f"{name}Estimator")
    short = SAMPLED if name in ("PartiallyLabeledLDA", "DirichletMultinomialRegression") else SHORT
    with pytest.warns(DataWarning, match=f"site '{site}': documents without {site}.*expected {site}="):
        make(2, **short).fit(WORDS)
    with warnings.catch_warnings():
        warnings.simplefilter("error", DataWarning)
        make(4 if name == "PartiallyLabeledLDA" else 2, **short).fit(WORDS, **{site: value})


def test_random_effects_ask_for_their_covariates():
    with pytest.raises(DataError, match="site 'covariates': documents without covariates; expected covariates="):
        faces.RandomEffectsLDAEstimator(2).fit(WORDS)
    with pytest.raises(DataError, match="documents without covariates"):
        RandomEffectsLDA.for_data(WORDS, 2)


@pytest.mark.parametrize("model, site", [
    (DTM(num_topics=2, vocabulary_size=5, num_times=1), "time"),
    (CTM(num_topics=2, vocabulary_size=5, num_covariates=2), "covariates"),
    (RandomEffectsLDA(num_topics=2, vocabulary_size=5, num_covariates=2), "covariates"),
    (DirichletMultinomialRegression(num_topics=2, vocabulary_size=5, num_covariates=2), "covariates"),
], ids=lambda value: type(value).__name__)  # fmt: skip
def test_models_warn_alike(model, site):
    method = ci.VariationalEM(search=None, max_iterations=2, guide="cvb0" if site == "time" else _guide(model))
    with pytest.warns(DataWarning, match=f"documents without {site}"):
        method.fit(model, WORDS, progress=False)


def test_an_intercept_alone_is_no_absence():
    model = RandomEffectsLDA(num_topics=2, vocabulary_size=5, num_covariates=1)
    data = model.prepare(WORDS, covariates=np.ones((12, 1)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.check_for_fitting(data)


def _guide(model):
    return "dirichlet" if isinstance(model, DirichletMultinomialRegression) else "gaussian"
