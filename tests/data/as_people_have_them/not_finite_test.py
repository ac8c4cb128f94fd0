"""What leaves the finite numbers, or meets a singular matrix, is an error of our own, whichever method it is."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

import custom_inference as ci
from custom_inference import fit
from custom_inference.faces.sklearn import GaussianPCAEstimator
from ppl_models import (
    CVQ,
    DTM,
    LDA,
    NMF,
    PMF,
    DataError,
    DirichletMultinomialRegression,
    GammaPoisson,
    GaussianPCA,
    MethodError,
    MixtureOfPoissons,
    PoissonPCA,
)

ROWS = np.random.default_rng(0).standard_normal((20, 4))


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
def test_fits_with_values_that_are_not_finite_name_the_site(wrong):
    fit = ci.fit(CVQ(num_components=2, num_features=4), ROWS, progress=False)
    weight = fit.params["weight"].clone()
    weight[0, 1] = wrong
    with pytest.raises(MethodError, match="1 of 8 values of 'weight' are NaN or infinite"):
        replace(fit, params={**fit.params, "weight": weight})
    with pytest.raises(MethodError, match="1 of 8 draws of 'weight' are NaN or infinite"):
        replace(fit, draws={"weight": weight[None, None]})


def test_rows_that_do_not_vary_are_refused_where_nothing_holds_the_scale():
    with pytest.raises(DataError, match=r"one row.*columns that vary"):
        GaussianPCAEstimator(2).fit(ROWS[:1])
    with pytest.raises(DataError, match="all 4 columns are constant"):
        ci.fit(GaussianPCA(num_components=2, num_features=4), np.full((6, 4), 3.0), progress=False)


def test_a_singular_matrix_is_an_error_in_plain_words(monkeypatch):
    def singular(*_):
        return torch.linalg.cholesky(torch.zeros(2, 2))

    monkeypatch.setattr("custom_inference.families.factors.gaussian.least_squares", singular)
    with pytest.raises(MethodError, match="GaussianPCA met a matrix that is singular.*float32; expected dtype=torch"):
        ci.fit(GaussianPCA(num_components=2, num_features=4), ROWS, dtype=torch.float32, progress=False)


@pytest.mark.parametrize("model", [LDA, GammaPoisson, MixtureOfPoissons, PoissonPCA])
def test_counts_that_double_precision_cannot_count_are_refused(model):
    x = 1e20 * np.random.default_rng(0).poisson(3.0, (6, 4))
    with pytest.raises(DataError, match="are no counts .*at most 2.53"):
        model.for_data(x, 2).prepare(x, dtype=torch.float64)


@pytest.mark.parametrize("size", [1e300, 1e-300])
def test_units_that_no_prior_can_be_meant_on_are_refused(size):
    x, given = np.ones((6, 4)), size * np.random.default_rng(0).normal(size=(6, 1))
    model = DirichletMultinomialRegression(num_topics=2, vocabulary_size=4, num_covariates=1)
    with pytest.raises(DataError, match="site 'covariates'.*column 0 varies by about .*change its unit"):
        fit(model, x, covariates=given, progress=False)


def test_times_are_finite_and_edges_may_be_dates():
    with pytest.raises(DataError, match="the time of document 1 is infinite"):
        fit(DTM(num_topics=1, vocabulary_size=2, num_times=2), np.ones((2, 2)), time=[0.5, np.inf], progress=False)
    edges = pd.to_datetime(["2020-01-05", "2020-02-01"])
    assert PMF(num_components=1, num_users=2, num_items=2, time_edges=tuple(edges)).time_edges == (18266.0, 18293.0)


def test_factors_of_numbers_of_any_size_are_found():
    x = np.random.default_rng(0).dirichlet(np.ones(2), 12) @ np.array([[3.0, 1, 0.5, 4, 2, 1], [1, 5, 2, 0.3, 1, 6]])
    found = fit(NMF(num_components=2, num_features=6), 1e20 * x, progress=False)
    assert found.reconstruct().numpy() / 1e20 == pytest.approx(x, rel=0.02)
