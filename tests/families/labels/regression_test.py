"""Dirichlet-multinomial regression: its bound, its special case LDA, ascent, the sampler, recovery, refusals."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import custom_inference as ci
from custom_inference.core.local_inference import solve_local
from custom_inference.families.topics.learned import log_prevalence
from ppl_models import LDA, DataError, DirichletMultinomialRegression
from tests.references import _shared
from tests.references import dirichlet_multinomial_regression as reference

pytestmark = pytest.mark.filterwarnings("ignore::ppl_models.DataWarning")


def problem(seed: int):
    rng = np.random.default_rng(seed)
    params = {"topic": rng.dirichlet(np.full(5, 0.7), 3), "prevalence_bias": rng.normal(-0.5, 0.5, 3)}
    params["prevalence_weight"] = rng.normal(size=(2, 3))
    x = np.stack([rng.multinomial(4, rng.dirichlet(np.ones(5))) for _ in range(8)]).astype(float)
    model = DirichletMultinomialRegression(num_topics=3, vocabulary_size=5, num_covariates=2, centre=0.0, unit=1.0)
    return model, params, x, rng.normal(size=(8, 2))


@pytest.mark.quick
def test_bound_is_below_the_sum_over_all_topics_and_the_mean_is_near():
    model, params, x, covariates = problem(1)
    tensors = {site: torch.as_tensor(value) for site, value in params.items()}
    local = solve_local(model, tensors, model.prepare(x, covariates=covariates, dtype=torch.float64), bound="dirichlet")
    gap = reference.log_evidence(params, x, covariates) - local.bound.numpy()
    assert (gap > -1e-10).all() and gap.max() < 2.0
    exact = reference.posterior_mean(params, x, covariates)
    assert np.abs(local.posterior.mean.numpy() - exact).max() < 0.3
    drawn = ci.CollapsedGibbs().local_posterior(model, tensors, model.prepare(x, covariates=covariates), seed=1)
    assert np.abs(drawn.posterior.mean.numpy() - exact).max() < 0.1


@pytest.mark.quick
def test_without_covariates_it_is_lda_with_the_concentration_of_the_bias():
    model, params, x, _ = problem(2)
    tensors = {site: torch.as_tensor(value) for site, value in params.items()}
    lda = LDA(num_topics=3, vocabulary_size=5).with_concentration(alpha=tensors["prevalence_bias"].exp())
    bounds = [solve_local(m, tensors, m.prepare(x, dtype=torch.float64), bound="dirichlet").bound for m in (model, lda)]
    assert torch.allclose(*bounds, atol=1e-4)  # LDA's is that of the sweep before the last
    assert (bounds[0] >= bounds[1] - 1e-12).all()


@pytest.mark.quick
def test_the_likelihood_of_counts_is_the_dirichlet_multinomials():
    rng = np.random.default_rng(3)
    alpha, counts = rng.gamma(1.0, size=(4, 3)), rng.integers(0, 5, (4, 3))
    expected = sum(float(_shared.log_dirichlet_moment(n, a)) for n, a in zip(counts, alpha, strict=True))
    assert np.isclose(float(log_prevalence(torch.as_tensor(alpha), torch.as_tensor(counts))), expected)


def planted(seed: int):
    rng = np.random.default_rng(seed)
    topic, covariates = rng.dirichlet(np.full(40, 0.08), 4), rng.normal(size=(300, 2))
    weight = np.array([[1.5, -1.5, 0.0, 0.0], [0.0, 0.0, 1.2, -1.2]])
    alpha = np.exp(-1.0 + covariates @ weight)
    drawn = rng.gamma(alpha).clip(1e-8)
    mean = (drawn / drawn.sum(1, keepdims=True)) @ topic
    return topic, weight, covariates, np.stack([rng.multinomial(60, p) for p in mean]).astype(float)


@pytest.mark.parametrize("method", ["dirichlet", "gibbs"])
def test_planted_weights_are_found_and_em_climbs(method):
    topic, weight, covariates, x = planted(5)
    model = DirichletMultinomialRegression(num_topics=4, vocabulary_size=40, num_covariates=2)
    fit = ci.fit(model, x, covariates=covariates, method=method, progress=False)
    order = ci.match_components(topic, fit.params["topic"]).order
    assert 0.5 * np.abs(fit.params["topic"][order].numpy() - topic).sum(1).max() < 0.15
    found = fit.params["prevalence_weight"][:, order].numpy()
    assert np.corrcoef(found.ravel(), weight.ravel())[0, 1] > 0.9 and np.abs(found - weight).max() < 0.8
    assert method == "gibbs" or float(fit.elbo.diff().min()) > -1e-6


@pytest.mark.quick
@pytest.mark.parametrize(
    ("covariates", "message"),
    [
        (np.full((3, 2), np.nan), "6 values are not finite .the first: row 0, column 0"),
        (np.zeros((2, 2)), r"shape \(2, 2\).*\(3, 2\)"),
        (np.zeros((3, 1)), r"shape \(3, 1\).*\(3, 2\)"),
    ],
)
def test_refusals(covariates, message):
    model = DirichletMultinomialRegression(num_topics=2, vocabulary_size=3, num_covariates=2)
    with pytest.raises(DataError, match=message):
        ci.fit(model, torch.ones(3, 3), covariates=covariates, progress=False)
