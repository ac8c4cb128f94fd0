"""Monte Carlo EM of supervised LDA: its M step, a case without Monte Carlo noise, known values, recovery, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import log_expit

import custom_inference as ci
from custom_inference.families.responses import monte_carlo
from custom_inference.families.responses.gibbs import SupervisedSampler
from custom_inference.families.responses.monte_carlo import m_step
from ppl_models import LDA, MethodError, SupervisedLDA

pytestmark = pytest.mark.filterwarnings("ignore::ppl_models.DataWarning")


def certain(seed: int, number: int = 60):
    """Words that tell their topic for sure: known topics (2, 4), counts of ten tokens, the documents' means (N, 2)."""
    rng = np.random.default_rng(seed)
    topic = np.array([[0.5, 0.5, 0.0, 0.0], [0.0, 0.0, 0.5, 0.5]]).clip(1e-12)
    share = rng.random(number)
    x = np.stack([rng.multinomial(10, [w / 2, w / 2, (1 - w) / 2, (1 - w) / 2]) for w in share]).astype(float)
    mean = x[:, :2].sum(1) / 10
    return torch.as_tensor(topic / topic.sum(1, keepdims=True)), x, np.stack([mean, 1 - mean], 1), rng


def test_without_noise_it_ends_at_the_mode_of_the_regression():
    topic, x, q, rng = certain(1)
    response = (rng.random(60) < 1 / (1 + np.exp(-q @ [2.0, -2.0]))).astype(float)
    model = SupervisedLDA(num_topics=2, vocabulary_size=4).with_priors(topic=topic)
    fit = ci.fit(model, x, response=response, method="monte_carlo_em", rounds=6, draws=2, progress=False)

    def loss(weight):
        return -log_expit((2 * response - 1) * (q @ weight)).sum() + 0.5 * (weight**2).sum() / 25

    best = minimize(loss, np.zeros(2), tol=1e-10).x
    assert np.allclose(fit.params["response_weight"], best, atol=1e-4)
    assert "6 rounds of Monte Carlo EM, 2 sweeps each" in fit.status
    assert model.priors["response_weight"] is fit.model.priors["response_weight"]
    assert fit.draws is not None and fit.draws["response_weight"].std() < 10  # a point in every draw
    assert bool((fit.draws["response_weight"] == fit.draws["response_weight"][:1, :1]).all())


def test_ctrl_c_in_a_round_is_said(monkeypatch):
    topic, x, q, rng = certain(1)
    calls = []

    def stop(*arguments):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return m_step(*arguments)

    monkeypatch.setattr(monte_carlo, "m_step", stop)
    model = SupervisedLDA(num_topics=2, vocabulary_size=4).with_priors(topic=topic)
    settings = {"rounds": 6, "draws": 2, "num_samples": 2, "warmup": 1, "progress": False}
    response = (rng.random(60) < q[:, 0]).astype(float)
    fit = ci.fit(model, x, response=response, method="monte_carlo_em", **settings)
    assert fit.interrupted and fit.status.startswith("interrupted: weights by 2 rounds")


def test_of_real_responses_weights_and_scale_are_those_of_least_squares():
    topic, x, q, rng = certain(2)
    response = q @ [1.5, -0.5] + 0.4 * rng.normal(size=60)
    model = SupervisedLDA(num_topics=2, vocabulary_size=4, response="real", centre=0.0, unit=1.0)
    model = model.with_priors(topic=topic)
    fit = ci.fit(model, x, response=response, method="monte_carlo_em", rounds=40, draws=1, progress=False)
    found, scale = fit.params["response_weight"].numpy(), float(fit.params["response_scale"])
    ridge = scale**2 / 100
    assert np.allclose(found, np.linalg.solve(q.T @ q + ridge * np.eye(2), q.T @ response), atol=1e-4)
    assert np.isclose(scale, np.sqrt(((response - q @ found) ** 2).mean()), atol=1e-4)


def test_the_m_step_takes_every_draw_as_a_part_of_the_data():
    """The mean over the draws of the log likelihood, with the prior, has slope 0 there; one class is unknown."""
    rng = np.random.default_rng(3)
    model = SupervisedLDA(num_topics=3, vocabulary_size=4, response="categorical", num_classes=3)
    y = rng.integers(0, 3, 20).astype(float)
    y[3] = np.nan
    data = model.prepare(rng.integers(1, 4, (20, 4)).astype(float), response=y, dtype=torch.float64)
    held = model.with_priors(response_weight=torch.zeros(3, 3).double())
    chain: Any = SupervisedSampler().chain(held, data, 0, None)
    means = [torch.as_tensor(rng.dirichlet(np.ones(3), 20)) for _ in range(4)]
    weight = m_step(model, chain, means)["response_weight"].clone().requires_grad_()
    seen = np.flatnonzero(~np.isnan(y))
    label = torch.as_tensor(y[seen]).long()
    each = [torch.log_softmax(q[seen] @ weight.T, -1)[torch.arange(19), label].sum() for q in means]
    total = torch.stack(each).mean() - 0.5 * weight.square().sum() / 25
    assert float(torch.autograd.grad(total, weight)[0].abs().max()) < 1e-5


def test_planted_weights_predict_and_known_ones_stay():
    rng = np.random.default_rng(4)
    share = rng.dirichlet(np.full(3, 0.3), 300)
    topic = np.kron(np.eye(3), np.ones(10)) + 0.02
    x = np.stack([rng.multinomial(40, p) for p in share @ (topic / topic.sum(1, keepdims=True))]).astype(float)
    response = share @ [3.0, 0.0, -3.0] + 0.3 * rng.normal(size=300)
    model = SupervisedLDA(num_topics=3, vocabulary_size=30, response="real")
    fit = ci.fit(model, x[:200], response=response[:200], method="monte_carlo_em", progress=False)
    left = response[200:] - fit.predict(x[200:]).numpy()
    assert 1 - left.var() / response[200:].var() > 0.8
    assert np.allclose(np.sort(fit.params["response_weight"]), [-3, 0, 3], atol=0.6)
    known = model.with_priors(response_scale=torch.tensor(0.3))
    again = ci.fit(known, x[:200], response=response[:200], method="monte_carlo_em", rounds=3, progress=False)
    assert float(again.params["response_scale"]) == pytest.approx(0.3)
    twice = [
        ci.fit(model, x[:50], response=response[:50], method="monte_carlo_em", rounds=2, progress=False)
        for _ in range(2)
    ]
    assert torch.equal(twice[0].params["response_weight"], twice[1].params["response_weight"])


@pytest.mark.quick
def test_refusals():
    from custom_inference.families.responses.monte_carlo import MonteCarloEM

    with pytest.raises(MethodError, match="Monte Carlo EM is for SupervisedLDA"):
        MonteCarloEM().fit(LDA.example().model, LDA.example().data, progress=False)
    with pytest.raises(MethodError, match="rounds = 0"):
        MonteCarloEM(rounds=0)
