"""Comparisons with estimates where nothing is exact, or in its place; the method that gives them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import custom_inference as ci
from custom_inference.core.predictive import sample_rows
from ppl_models import NOCA, MethodError, ModelError
from tests.support.cases import globals_of, problem_of

METHODS = ["exact", "truncated", "factorized", "mean_field"]


def compared(methods=METHODS, name: str = "noca", **settings) -> ci.Comparison:
    problem = problem_of(name)
    return ci.compare(methods, problem.model, problem.data, at=globals_of(problem), progress=False, **settings)


def test_an_estimated_reference_measures_what_the_exact_one_does():
    exact, found = compared().table, compared(reference="ais", seconds=4.0)
    table = found.table
    error = table["gap_error"]
    assert (error > 0).all() and (exact["gap_error"] == 0).all() and (table["marginal_error"] > 0).all()
    assert ((table["gap_per_row"] - exact["gap_per_row"]).abs() < 5 * error).all()
    # The factorized bound is below the ELBO of its posterior.
    assert ((table["kl_per_row"] - exact["kl_per_row"]).abs() < 5 * error + 0.03).all()
    assert (table["worst_marginal_error"] - exact["worst_marginal_error"]).abs().max() < 0.15
    assert abs(found.reference_error) < 0.2 and compared().reference_error == 0
    assert any("annealed importance sampling" in line for line in found.remarks)
    assert any("drawn from the model" in line for line in found.remarks)


def test_where_the_codes_cannot_be_listed_there_are_a_gap_and_a_divergence_all_the_same():
    rng = np.random.default_rng(0)
    params = {
        "source_prior": torch.full((30,), 0.1),
        "loading": torch.as_tensor(rng.beta(0.3, 2.0, (30, 36))),
        "leak": torch.full((36,), 0.05),
    }
    model = NOCA(num_components=30, num_features=36)
    params = {site: value.double() for site, value in params.items()}
    x = sample_rows(model, params, 12, seed=1)["x"]
    found = ci.compare(["mean_field", "truncated"], model, x, at=params, progress=False, seconds=4.0)
    table = found.table
    assert np.isfinite(table[["evidence", "gap_per_row", "gap_error", "worst_marginal_error"]].to_numpy()).all()
    assert (table["gap_per_row"] > -5 * table["gap_error"]).all() and math.isfinite(found.reference_error)


def test_estimates_have_no_divergence_and_their_gaps_have_errors():
    """A posterior of draws has no density, beside an exact reference too."""
    table = compared(["exact", "ais", "smc"], "mixture_of_bernoullis").table
    assert list(table.index) == ["exact", "ais", "smc"] and table["kl_per_row"].isna().tolist() == [False, True, True]
    assert (table["gap_error"].iloc[1:] > 0).all()
    assert (table["gap_per_row"].abs() < 5 * table["gap_error"] + 1e-9).all()


def test_without_a_reference_only_bounds_remain():
    table = compared(METHODS[1:], reference="none").table
    assert table["evidence"].isna().all() and table["bound"].notna().all()


def test_unknown_references_and_ones_that_there_are_not_are_refused():
    with pytest.raises(MethodError, match="'best' is not a reference|unknown reference|reference 'best'"):
        compared(reference="best")
    for seconds in (-1.0, float("nan"), 0.0):
        with pytest.raises(MethodError, match="seconds = "):
            compared(seconds=seconds)


def test_the_method_gives_posteriors_and_learns_nothing():
    problem = problem_of("noca")
    params = globals_of(problem)
    found = ci.AIS(seconds=3.0).local_posterior(problem.model, params, problem.data)
    exact = ci.Exact().local_posterior(problem.model, params, problem.data)
    assert found.what == "estimate" and found.standard_error is not None
    assert float((found.posterior.mean - exact.posterior.mean).abs().max()) < 0.2
    assert found.posterior.sample(3).shape == (3, *exact.posterior.mean.shape)
    other = ci.SMC(chains=32).local_posterior(problem.model, params, problem.data)
    assert float((other.bound - exact.bound).abs().max()) < 0.5
    with pytest.raises(ModelError, match="loading"):
        ci.AIS().local_posterior(problem.model, {s: v for s, v in params.items() if s != "loading"}, problem.data)
    with pytest.raises(MethodError, match="learns none; fit by another method"):
        ci.AIS().fit(problem.model, problem.data, progress=False)


@pytest.mark.parametrize("settings", [{"chains": 2}, {"seconds": 0.0}, {"standard_error": -1.0}])
def test_settings_that_cannot_be_are_refused(settings):
    with pytest.raises(MethodError, match=next(iter(settings))):
        ci.AIS(**settings)


@pytest.mark.parametrize("name", ["lda", "noca", "pmf"])
def test_fits_give_the_estimate(name):
    problem = problem_of(name)
    fit = ci.fit(problem.model, problem.data, progress=False)
    assert "ais" not in fit.bounds  # it may exceed the evidence
    rows = fit.data.rows(torch.arange(3))
    found = fit.log_likelihood(rows.x, bound="ais")
    assert found.shape == (3,) and bool(torch.isfinite(found).all())
