"""Supervised LDA: the program's exact response, the engine's bound, and that responses shape topics."""

from __future__ import annotations

import numpy as np
import pyro.distributions as dist
import pytest
import torch

import custom_inference as ci
from custom_inference.core.local_inference import solve_local
from custom_inference.core.registry import engines_of, family_of
from ppl_models import LDA, DataError, ModelError, SupervisedLDA
from ppl_models.distributions import TopicMeanBernoulli
from tests.references import supervised_lda as reference


def problem(size: int, scale: float, seed: int):
    rng = np.random.default_rng(seed)
    params = {"topic": rng.dirichlet(np.full(4, 0.6), size), "response_weight": scale * rng.normal(size=size)}
    x = rng.multinomial(5, np.full(4, 0.25), 6).astype(float)
    return SupervisedLDA(num_topics=size, vocabulary_size=4), params, x, rng.integers(0, 2, 6).astype(float)


@pytest.mark.quick
@pytest.mark.parametrize(("size", "scale"), [(2, 1.0), (2, 20.0), (3, 5.0)])
def test_the_response_given_proportions_is_the_sum_over_all_assignments(size, scale):
    model, params, x, response = problem(size, scale, 1)
    proportion = np.random.default_rng(2).dirichlet(np.full(size, 0.7), len(x))
    values = {**params, "topic_proportion": proportion}
    tensors = {site: torch.as_tensor(value) for site, value in values.items()}
    law = TopicMeanBernoulli(
        tensors["topic_proportion"], tensors["topic"], torch.as_tensor(x), tensors["response_weight"]
    )
    assert torch.allclose(law.log_prob(torch.ones(6)).exp() + law.log_prob(torch.zeros(6)).exp(), torch.ones(6))
    words = model.prepare(x, dtype=torch.float64)
    with_response = reference.log_joint(params, x, proportion, None, {}, response)
    without = reference.log_joint(params, x, proportion, None, {}, np.full(6, np.nan))
    assert np.isclose(float(law.log_prob(torch.as_tensor(response)).sum()), with_response - without, atol=1e-8)
    assert words.others == {}


@pytest.mark.quick
@pytest.mark.parametrize(("size", "scale"), [(2, 1.0), (2, 6.0), (3, 3.0)])
def test_bound_is_below_the_sum_over_all_assignments(size, scale):
    model, params, x, response = problem(size, scale, 3)
    tensors = {site: torch.as_tensor(value) for site, value in params.items()}
    response[1] = np.nan
    data = model.prepare(x, response=response, dtype=torch.float64)
    bound = solve_local(model, tensors, data, bound="dirichlet").bound.numpy()
    evidence = reference.log_evidence(params, x, response, 0.1)
    assert (bound <= evidence + 1e-8).all() and (evidence - bound).max() < 3.0
    lda = LDA(num_topics=size, vocabulary_size=4)
    plain = solve_local(lda, {"topic": tensors["topic"]}, lda.prepare(x, dtype=torch.float64), bound="dirichlet")
    assert np.isclose(bound[1], float(plain.bound[1]), atol=1e-3)  # without a response it is LDA's


def test_em_climbs_finds_the_weights_and_predicts():
    rng = np.random.default_rng(0)
    topic = np.full((3, 30), 0.002)
    for k in range(3):
        topic[k, 10 * k : 10 * k + 10] = 0.1
    topic /= topic.sum(1, keepdims=True)
    weight, proportion = np.array([5.0, 0.0, -5.0]), rng.dirichlet(np.full(3, 0.3), 400)
    x, mean = np.zeros((400, 30)), np.zeros((400, 3))
    for n in range(400):
        q = rng.choice(3, 40, p=proportion[n])
        mean[n] = np.bincount(q, minlength=3) / 40
        x[n] = rng.multinomial(np.bincount(q, minlength=3), topic).sum(0)
    response = (rng.random(400) < 1 / (1 + np.exp(-mean @ weight))).astype(float)
    model = SupervisedLDA(num_topics=3, vocabulary_size=30)
    fit = ci.fit(model, x[:300], response=response[:300], method="dirichlet", progress=False)
    assert float(fit.elbo.diff().min()) > -1e-6
    order = ci.match_components(topic, fit.params["topic"]).order
    assert np.abs(fit.params["response_weight"][order].numpy() - weight).max() < 1.5
    chance = fit.predict(x[300:]).numpy()
    truth = 1 / (1 + np.exp(-mean[300:] @ weight))
    assert chance.shape == (100,) and np.abs(chance - truth).mean() < 0.08
    assert np.isclose(float(fit.predict(x[300:301])), chance[0], atol=1e-4)


def test_the_sampler_moves_under_a_narrow_prior_without_moments():
    """Weights are proposed from a regression under a Normal by the prior's quartiles: it has no mean or variance."""
    example = SupervisedLDA.example()
    shift = torch.distributions.transforms.AffineTransform(1.5, 1.0)
    narrow = dist.TransformedDistribution(dist.Cauchy(0.0, 1e-3), [shift])
    model = example.model.with_priors(response_weight=narrow)
    sampler = ci.CollapsedGibbs(chains=1, warmup=30, num_samples=30, search=False)
    draws = sampler.fit(model, example.data, progress=False).draws["response_weight"]
    assert float((draws - 1.5).abs().median()) < 0.05 and float(draws.std()) > 0.0


def test_it_has_none_of_ldas_engines():
    model = SupervisedLDA(num_topics=2, vocabulary_size=3)
    assert list(engines_of(model)) == ["dirichlet"] and family_of(model).sampler is not None
    assert not {"vb", "cvb0", "tempered", "map"} & set(ci.methods_for(model))


@pytest.mark.parametrize(
    ("response", "message"),
    [
        ([0, 1], r"shape \(2,\).*\(3,\), one a document"),
        ([0, 1, 2], "neither 0 nor 1 .the first: 2 of document 2"),
        (None, "no responses"),
    ],
)
def test_refusals(response, message):
    model = SupervisedLDA(num_topics=2, vocabulary_size=3)
    with pytest.raises(DataError, match=message):
        ci.fit(model, torch.ones(3, 3), response=response, progress=False)
    with pytest.raises(ModelError, match="kind of response 'ranked'; valid: binary"):
        SupervisedLDA(num_topics=2, vocabulary_size=3, response="ranked")
