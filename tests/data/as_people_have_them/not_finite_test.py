"""What leaves the finite numbers, or meets a singular matrix, is an error of our own, whichever method it is."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import custom_inference as ci
from custom_inference.faces.sklearn import GaussianPCAEstimator
from ppl_models import CVQ, DataError, GaussianPCA, MethodError

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
