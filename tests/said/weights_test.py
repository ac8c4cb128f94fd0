"""Weights of rows: whole ones are numbers of equal rows, others say how much a row matters, in errors and scores."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyro.distributions as dist
import pytest

import custom_inference as ci
from custom_inference.core.evaluate import num_parameters
from custom_inference.core.fit import Fit
from ppl_models import NOCA, AspectBernoulli, MethodError, MixtureOfBernoullis

RNG = np.random.default_rng(4)
X = (RNG.random((60, 5)) < np.where(np.arange(60)[:, None] % 2, 0.7, 0.3)).astype(float)
COUNT = RNG.integers(0, 4, 60)
ANY = RNG.gamma(1.0, size=60) * (np.arange(60) > 5)
MODEL: Any = MixtureOfBernoullis(num_components=1, num_features=5)
QUIET: Any = {"progress": False}


def fitted(x: np.ndarray, weights: Any = None, model: Any = MODEL) -> Fit:
    return ci.EM(search=None, tolerance=1e-10).fit(model, x, weights=weights, **QUIET)


def numbers(fit: Fit) -> np.ndarray:
    error = ci.observed_information(fit).standard_error["probability"].numpy().ravel()
    return np.array([fit.aic(), fit.bic(), *error])


def test_whole_weights_are_equal_rows_and_rows_without_weight_are_absent():
    for count in (np.full(60, 2), COUNT):
        np.testing.assert_allclose(numbers(fitted(X, count)), numbers(fitted(np.repeat(X, count, 0))), rtol=1e-5)
    seen = ANY > 0
    np.testing.assert_allclose(numbers(fitted(X, ANY)), numbers(fitted(X[seen], ANY[seen])), rtol=1e-5)


def test_weights_without_a_unit_have_none_and_rows_have_no_order():
    plain, order = numbers(fitted(X)), RNG.permutation(60)
    np.testing.assert_allclose(numbers(fitted(X, np.full(60, 0.5))), plain, rtol=1e-5)
    np.testing.assert_allclose(numbers(fitted(X, 0.3 * ANY)), numbers(fitted(X, ANY)), rtol=1e-5)
    np.testing.assert_allclose(numbers(fitted(X[order], ANY[order])), numbers(fitted(X, ANY)), rtol=1e-5)


def test_errors_are_those_of_weighted_means():
    """Of one class the estimate is sum w x / sum w, whose variance is p (1 - p) sum w^2 / (sum w)^2."""
    fit = fitted(X, ANY)
    p = ANY @ X / ANY.sum()
    want = np.sqrt(p * (1 - p) * (ANY**2).sum()) / ANY.sum()
    found = ci.observed_information(fit).standard_error["probability"].numpy().ravel()
    np.testing.assert_allclose(found, want, rtol=1e-4)
    log_p = X @ np.log(p) + (1 - X) @ np.log1p(-p)
    rows = ANY.sum() ** 2 / (ANY**2).sum()
    assert fit.bic() == pytest.approx(-2 * rows * (ANY @ log_p) / ANY.sum() + 5 * np.log(rows), rel=1e-6)
    # The prior's part of the curvature is no part of what rows vary by.
    held = fitted(X, np.full(60, 0.5), NOCA(num_components=1, num_features=5).with_priors(source_prior=0.5))
    same = fitted(X, np.full(60, 1.0), held.model)
    one, other = (ci.observed_information(each).standard_error["loading"] for each in (held, same))
    np.testing.assert_allclose(one, other, rtol=0.05)


def test_leave_one_out_is_of_as_many_rows_as_weights_say():
    model: Any = MODEL.with_priors(probability=dist.Beta(1.0, 1.0))
    method = ci.VariationalEM(guide="vb", search=None, max_iterations=200)
    one = method.fit(model, X, weights=COUNT, seed=1, **QUIET)
    other = method.fit(model, np.repeat(X, COUNT, 0), seed=1, **QUIET)
    found, want = (ci.loo(fit, num_draws=400, seed=2, **QUIET) for fit in (one, other))
    assert len(found.pointwise) == COUNT.sum() == len(want.pointwise)
    assert found.elpd == pytest.approx(want.elpd, abs=0.1) and found.se == pytest.approx(want.se, rel=0.05)
    assert found.labels[:2] == [str(n) for n in np.repeat(np.arange(60), COUNT)[:2]]
    half = method.fit(model, X, weights=ANY, **QUIET)
    with pytest.raises(MethodError, match="leave-one-out of rows whose weights are no whole numbers.*fit.bic"):
        ci.loo(half, **QUIET)


def test_locals_that_are_points_are_counted_row_by_row():
    model: Any = AspectBernoulli(num_components=2, num_features=5)
    for weights, rows in ((COUNT, COUNT.sum()), (ANY, (ANY > 0).sum())):
        fit = ci.VariationalEM(guide="map", search=None, max_iterations=3).fit(model, X, weights=weights, **QUIET)
        assert num_parameters(fit) == model.num_parameters(int(rows)) > model.num_parameters(int(rows) - 1)
