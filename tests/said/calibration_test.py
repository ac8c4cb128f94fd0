"""Simulated data of a calibration at a fit have its sizes, and what its rows are given."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from custom_inference import simulation_based_calibration
from custom_inference.checks.calibration.simulate import Problem
from ppl_models import LDA, MODELS, PMF, Data, DataError, DirichletMultinomialRegression, SupervisedLDA
from tests.support.fits import given


def fitted(name: str) -> Any:
    example = MODELS[name].example()
    model = example.model
    params = {site: example.truth[site] for site in model.global_sites}
    return given(model, params, model.prepare(example.data, dtype=torch.float64))


def simulated(fit: Any, **settings: Any) -> Data:
    """The last data set that a calibration at a fit draws."""
    seen: list[Data] = []
    quantities = {"watch": lambda values, data: seen.append(data) or 0.0}
    checked: Any = {"of": "locals", "num_simulations": 1, "num_draws": 1, "progress": False, **settings}
    simulation_based_calibration(fit.model, at=fit, quantities=quantities, **checked)
    return seen[-1]


@pytest.mark.parametrize("name", sorted(MODELS))
def test_every_model_draws_data_like_those_given(name):
    fit = fitted(name)
    like = fit.data
    problem = Problem(
        model=fit.model, method=None, of="locals", num_rows=len(like), num_draws=1, seed=0,
        at={site: value.double() for site, value in fit.globals.items()}, like=like,
    )  # fmt: skip
    data, like = (fit.model.as_read(one) for one in (problem.draw(problem.seeds(0)).data, like))
    assert data.x.shape == like.x.shape and set(data.others) == set(like.others)
    assert torch.equal(data.dense().observed_x.isnan(), like.dense().observed_x.isnan())
    for site in fit.model.sites_of("given"):
        if site in like.others:
            assert torch.equal(data.others[site].to_dense(), like.others[site].to_dense())
    if "num_tokens" in fit.model.given(like):
        assert torch.equal(data.dense().x.sum(-1), like.dense().x.sum(-1))
    assert not torch.equal(data.dense().x.nan_to_num(), like.dense().x.nan_to_num())


def test_data_at_a_fit_are_like_its_own():
    fit = fitted("dirichlet_multinomial_regression")
    assert isinstance(fit.model, DirichletMultinomialRegression)
    data = simulated(fit, method="dirichlet")
    assert torch.equal(data.others["covariates"], fit.data.others["covariates"].double())
    assert torch.equal(data.dense().x.sum(1), fit.data.dense().x.sum(1).double())
    assert len(simulated(fit, method="dirichlet", num_rows=7)) == 7
    # Data that are said go before those of the fit.
    few = fit.data.rows(slice(0, 5))
    assert len(simulated(fit, method="dirichlet", like=few)) == 5


def test_what_is_not_known_of_the_fit_is_not_known_of_what_is_drawn():
    example: Any = SupervisedLDA.example()
    response = example.data.others["response"].double().clone()
    response[:4] = torch.nan
    params = {site: example.truth[site] for site in example.model.global_sites}
    words = example.data.x
    half = given(example.model, params, example.model.prepare(words, response=response, dtype=torch.float64))
    data = simulated(half, method="dirichlet").others["response"]
    assert torch.equal(data.isnan(), response.isnan())
    none = given(example.model, params, example.model.prepare(words, dtype=torch.float64))
    assert "response" not in simulated(none, method="dirichlet").others
    ratings = PMF.example()
    rated = given(ratings.model, {s: ratings.truth[s] for s in ratings.model.global_sites}, ratings.data)
    drawn = simulated(rated, method="exact")
    assert torch.equal(drawn.dense().observed_x.isnan(), ratings.data.dense().observed_x.isnan())


def test_documents_whose_lengths_are_not_known_are_refused_by_name():
    example = LDA.example()
    x = example.data.dense().x.double().numpy().copy()
    x[0, 0] = np.nan
    params = {site: example.truth[site] for site in example.model.global_sites}
    fit = given(example.model, params, example.model.prepare(x, dtype=torch.float64))
    with pytest.raises(DataError, match="documents with missing entries.*or num_rows="):
        simulated(fit, method="exact")
    assert len(simulated(fit, method="exact", num_rows=6)) == 6
