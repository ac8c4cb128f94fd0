"""Multinomial regression LDA: exact evidence, the M step, recovery, the two-stage shortcut, predictions, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import custom_inference as ci
from custom_inference.core.local_inference import solve_local
from custom_inference.core.registry import engine_for
from ppl_models import DataError, MethodError, MultinomialRegressionLDA
from ppl_models.distributions import PointMass
from tests.references import multinomial_regression_lda as reference

pytestmark = pytest.mark.filterwarnings("ignore::ppl_models.DataWarning")


def problem(seed: int):
    rng = np.random.default_rng(seed)
    params = {"topic": rng.dirichlet(np.full(5, 0.7), 3), "prevalence_bias": rng.normal(-0.5, 0.5, 3)}
    params["prevalence_weight"] = rng.normal(size=(2, 3))
    x = np.stack([rng.multinomial(4, rng.dirichlet(np.ones(5))) for _ in range(8)]).astype(float)
    model = MultinomialRegressionLDA(num_topics=3, vocabulary_size=5, num_covariates=2, centre=0.0, unit=1.0)
    return model, params, x, rng.normal(size=(8, 2))


def tensors(params):
    return {site: torch.as_tensor(value) for site, value in params.items()}


@pytest.mark.quick
def test_the_evidence_is_the_sum_over_all_topics_of_the_tokens():
    model, params, x, covariates = problem(1)
    data = model.prepare(x, covariates=covariates, dtype=torch.float64)
    local = solve_local(model, tensors(params), data, bound="exact")
    assert np.allclose(local.bound, reference.log_evidence_by_topics(params, x, covariates))
    assert np.allclose(local.bound, reference.log_evidence(params, x, covariates))
    assert np.allclose(local.posterior.mean, reference.proportion(params, covariates, 8))
    assert (local.posterior.log_prob(local.posterior.sample(2)[1]) == 0).all()
    assert (local.posterior.log_prob(local.posterior.mean.flip(0)) == -torch.inf).all()


@pytest.mark.quick
def test_the_law_of_one_point():
    point = torch.tensor([[0.2, 0.8], [0.5, 0.5]])
    law = PointMass(point)
    assert torch.equal(law.sample(torch.Size([3]))[2], point) and torch.equal(law.mean, point)
    assert law.log_prob(point).tolist() == [0, 0] and (law.variance == 0).all()
    assert law.log_prob(point + torch.tensor([1e-3, 0.0])).tolist() == [-torch.inf] * 2
    assert law.expand(torch.Size([4, 2])).batch_shape == (4, 2)


def test_em_ends_where_the_log_joint_is_flat():
    model, params, x, covariates = problem(2)
    model = model.with_concentration(gamma=1.5)
    data = model.prepare(5 * x + 1, covariates=covariates, dtype=torch.float64)
    settings = {"search": None, "accelerate": None, "tolerance": 1e-13, "max_iterations": 4000}
    fit = ci.EM(**settings).fit(model, data, init=tensors(params), progress=False)
    engine: Any = engine_for(model, "exact")
    rows = engine.rows(model, data)
    assert (fit.elbo.diff() > -1e-9).all()

    def objective(values):
        return float(engine.e_step(model, values, rows).bound.sum() + engine.prior_term(model, values))

    generator, size = torch.Generator().manual_seed(0), 1e-5
    for site in model.global_sites:
        noise = torch.randn(fit.params[site].shape, generator=generator, dtype=torch.float64)

        def moved(sign, at=fit.params[site], noise=noise, site=site):
            step = sign * size * noise
            return {**fit.params, site: torch.softmax(at.log() + step, -1) if site == "topic" else at + step}

        assert abs(objective(moved(1)) - objective(moved(-1))) / (2 * size) < 5e-3, site


def planted(seed: int):
    """Four topics over forty words, whose proportions two covariates say."""
    rng = np.random.default_rng(seed)
    topic, covariates = rng.dirichlet(np.full(40, 0.08), 4), rng.normal(size=(300, 2))
    weight = np.array([[2.0, -2.0, 0.0, 0.0], [0.0, 0.0, 2.0, -2.0]])
    odds = np.exp(covariates @ weight)
    share = odds / odds.sum(1, keepdims=True)
    return topic, weight, covariates, np.stack([rng.multinomial(60, p) for p in share @ topic]).astype(float)


def test_planted_topics_and_weights_are_found_and_two_stages_fall_short():
    topic, weight, covariates, x = planted(0)
    model = MultinomialRegressionLDA(num_topics=4, vocabulary_size=40, num_covariates=2)
    fit, short = (
        ci.fit(model, x[:200], covariates=covariates[:200], method=method, seed=0, progress=False)
        for method in ("default", "two_stage")
    )
    order = ci.match_components(torch.as_tensor(topic), fit.params["topic"]).order
    assert 0.5 * np.abs(fit.params["topic"][order].numpy() - topic).sum(1).mean() < 0.08
    found = fit.params["prevalence_weight"][:, order].numpy()
    assert np.abs(found - found.mean(1, keepdims=True) - weight).mean() < 0.25
    assert short.objective == "log posterior" and torch.isfinite(short.elbo).all()
    new = [(x[200:] * np.log(one.predict(covariates[200:]).numpy())).sum() for one in (fit, short)]
    assert new[0] > new[1]  # joint training predicts the words of new documents better


def test_predictions_are_of_words_by_covariates_alone():
    model, _, x, covariates = problem(4)
    fit = ci.fit(model, x, covariates=covariates, progress=False)
    params = {site: value.numpy() for site, value in fit.params.items()}
    expected = reference.proportion(params, covariates, 8) @ params["topic"]
    assert np.allclose(fit.predict(covariates), expected)
    assert np.allclose(fit.transform(x[:2], covariates=covariates[:2]), reference.proportion(params, covariates[:2], 2))
    with pytest.raises(MethodError, match=r"covariates .N, 2., found shape .8, 5."):
        fit.predict(x)
    free = 3 * 4 + 2 + 2 * 2  # topics, bias, weights
    assert model.num_parameters(8) == free


@pytest.mark.quick
def test_refusals():
    model, _, x, covariates = problem(5)
    with pytest.raises(DataError, match="1 values are not finite .the first: row 3, column 1"):
        covariates[3, 1] = np.nan
        ci.fit(model, x, covariates=covariates, progress=False)
    with pytest.raises(MethodError, match="is a function of the covariates: it has no density"):
        ci.SVI(steps=2).fit(model, x, progress=False)
