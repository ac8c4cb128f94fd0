"""Standard errors by the information: in any units, of questions with different answers, and none at an edge."""

from __future__ import annotations

import numpy as np
import pytest

import custom_inference as ci
from ppl_models import DataWarning, GaussianPCA, MethodError, MixtureOfBernoullis, MixtureOfCategoricals

RNG = np.random.default_rng(12)
PEOPLE = (RNG.random((150, 3)) < [0.3, 0.5, 0.1]) * 1.0
TIGHT = ci.EM(tolerance=1e-11, max_iterations=3000)


@pytest.mark.parametrize("unit, origin", [(1.0, 100.0), (1.0, 2000.0), (1e15, 0.0), (1e-15, 0.0)])
def test_real_data_in_any_units_from_any_origin(unit, origin):
    x = RNG.normal(size=(100, 3)) @ np.array([[1, 0.8, 0.6], [0, 0.5, 0], [0, 0, 0.5]])
    model = GaussianPCA(num_components=1, num_features=3)
    usual, found = (ci.observed_information(TIGHT.fit(model, one, progress=False)) for one in (x, unit * x + origin))
    for site, error in usual.standard_error.items():
        assert np.allclose(found.standard_error[site] / unit, error, rtol=1e-2), site


def test_questions_with_different_numbers_of_answers():
    """Of one class sqrt(p (1 - p) / N) of every answer, and 0 of answers that a question lacks."""
    x = np.c_[RNG.integers(0, 2, 90), RNG.integers(0, 3, 90)]
    model = MixtureOfCategoricals(num_components=1, num_features=2, num_categories=(2, 3))
    found = ci.observed_information(TIGHT.fit(model, x, progress=False)).standard_error["response"][0]
    share = np.array([np.bincount(column, minlength=3) / 90 for column in x.T])
    assert np.allclose(found, np.sqrt(share * (1 - share) / 90), atol=1e-6)


@pytest.mark.parametrize("value", [0.0, 1.0])
@pytest.mark.parametrize("column", [0, 2])
def test_what_never_happened_is_at_an_edge(value, column):
    """Of a column that is always off, or always on, there is no standard error; of one case in all rows there is."""
    x, model = PEOPLE.copy(), MixtureOfBernoullis(num_components=1, num_features=3)
    x[:, column] = value
    with pytest.warns(DataWarning, match="columns are always"):
        fit = TIGHT.fit(model, x, progress=False)
    with pytest.raises(MethodError, match="'probability' has 1 values at the edge"):
        ci.observed_information(fit)
    x[7, column] = 1 - value
    error = ci.observed_information(TIGHT.fit(model, x, progress=False)).standard_error["probability"][0, column]
    assert float(error) == pytest.approx(np.sqrt(149) / 150**1.5, rel=1e-2)


def test_answers_that_nobody_gave_are_at_an_edge():
    x = np.c_[RNG.integers(0, 2, 90), RNG.integers(0, 2, 90)]
    model = MixtureOfCategoricals(num_components=1, num_features=2, num_categories=(2, 3))
    with pytest.raises(MethodError, match="'response' has 1 values at the edge"):
        ci.observed_information(TIGHT.fit(model, x, progress=False))
