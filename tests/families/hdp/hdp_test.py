"""The hierarchical Dirichlet process: sticks, the sampler against all partitions of a toy, the number of topics."""

from __future__ import annotations

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from scipy import stats

import custom_inference as ci
from custom_inference.core.diagnostics import effective_size
from custom_inference.families.hdp.engine import best_shares, expect_tables
from custom_inference.gibbs.protocol import sampler_of
from ppl_models import HDP
from ppl_models.distributions import StickBreaking
from tests.references import hdp as reference
from tests.references._shared import log_dirichlet_moment

pytestmark = pytest.mark.filterwarnings("ignore::ppl_models.DataWarning")


@pytest.mark.quick
@pytest.mark.parametrize("c", [0.5, 2.0])
def test_sticks_have_the_density_of_their_betas_and_their_mean(c):
    law = StickBreaking(torch.tensor(c), 3)
    drawn = law.sample(torch.Size([20000]))
    assert torch.allclose(drawn.mean(0), law.mean, atol=0.01)
    assert np.isclose(float(law.log_prob(drawn[0])), reference.log_sticks(drawn[0].numpy(), c))


def values_at(point: np.ndarray) -> tuple[np.ndarray, float, float]:
    """beta, a and c at logits of sticks and the logarithms of a and c."""
    stick = np.append(1 / (1 + np.exp(-point[:-2])), 1.0)
    weight = stick * np.append(1.0, np.cumprod(1 - stick[:-1]))
    return weight, float(np.exp(point[-2])), float(np.exp(point[-1]))


def density_of_shares(point: np.ndarray, counts: np.ndarray) -> float:
    """log p(counts of the documents' topics | a beta) and the log density of these coordinates: those of the values and
    the volume, v (1 - v) of each stick's logit, a and c."""
    weight, a, c = values_at(point)
    stick = 1 / (1 + np.exp(-point[:-2]))
    prior = stats.beta.logpdf(stick, 1.0, c).sum() + np.log(stick * (1 - stick)).sum()
    prior += sum(stats.gamma.logpdf(one, 1.0) + np.log(one) for one in (a, c))
    return float(log_dirichlet_moment(counts, a * weight).sum()) + prior


@pytest.mark.quick
def test_steps_of_the_shares_climb_to_where_the_gradient_vanishes():
    """Every M step raises the likelihood of the expected counts with its priors; finite differences at the end."""
    rng = np.random.default_rng(0)
    counts = np.stack([rng.multinomial(30, p) for p in rng.dirichlet([2.0, 1.0, 0.5, 0.05], 40)]) + 0.25
    model, parts = HDP(max_topics=4, vocabulary_size=3), torch.as_tensor(counts)
    one = torch.ones((), dtype=torch.float64)
    at = {"topic_weight": torch.full((4,), 0.25).double(), "concentration": one, "stick_concentration": one}
    before, point = -np.inf, np.zeros(5)
    for _ in range(400):
        at = best_shares(model, at, *expect_tables(at["concentration"] * at["topic_weight"], parts))
        weight, a, c = (value.numpy() for value in at.values())
        left = 1 - np.append(0.0, weight.cumsum()[:-2])
        stick = weight[:-1] / left
        point = np.concatenate([np.log(stick / (1 - stick)), [np.log(a), np.log(c)]])
        value = density_of_shares(point, counts)
        assert value >= before - 1e-9
        before = value
    assert np.allclose(values_at(point)[0], at["topic_weight"])
    slope = [density_of_shares(point + e, counts) - density_of_shares(point - e, counts) for e in 1e-5 * np.eye(5)]
    assert np.abs(slope).max() / 2e-5 < 1e-4


@pytest.mark.quick
def test_shares_under_a_dirichlet_climb_to_where_the_gradient_vanishes():
    """In the softmax basis: proportional slopes of the likelihood, and the prior's powers, are 0 in sum."""
    rng = np.random.default_rng(1)
    counts, prior = rng.poisson([9.0, 4.0, 1.0], (30, 3)).astype(float), np.array([2.0, 1.0, 3.0])
    model = HDP(max_topics=3, vocabulary_size=3).with_priors(topic_weight=dist.Dirichlet(torch.tensor(prior)))
    one = torch.ones((), dtype=torch.float64)
    at = {"topic_weight": torch.full((3,), 1 / 3).double(), "concentration": one, "stick_concentration": one}
    for _ in range(400):
        at = best_shares(model, at, *expect_tables(at["concentration"] * at["topic_weight"], torch.as_tensor(counts)))
    weight, a = at["topic_weight"].numpy(), float(at["concentration"])

    def density(logit: np.ndarray) -> float:
        share = np.exp(logit) / np.exp(logit).sum()
        return float(log_dirichlet_moment(counts, a * share).sum()) + float(prior @ np.log(share))

    slope = [density(np.log(weight) + e) - density(np.log(weight) - e) for e in 1e-5 * np.eye(3)]
    assert np.abs(slope).max() / 2e-5 < 1e-4


def test_the_sampler_has_the_exact_posterior_over_partitions():
    """Six tokens of two documents, a and c known: which tokens share a topic, against all 203 partitions; within 4
    standard errors by the chain's effective size."""
    x = np.array([[2.0, 1.0, 0.0], [0.0, 1.0, 2.0]])
    document, word = np.array([0, 0, 0, 1, 1, 1]), np.array([0, 0, 1, 1, 2, 2])
    gamma, a, c = 0.6, 1.3, 0.9
    priors = {"topic": dist.Dirichlet(torch.full((3,), gamma)), "concentration": a, "stick_concentration": c}
    model = HDP(max_topics=12, vocabulary_size=3).with_priors(**priors)
    every, probability, _ = reference.posterior(document, word, np.full(3, gamma), a, c)
    together = sum(p * (one[:, None] == one) for one, p in zip(every, probability, strict=True))
    number = float(sum(p * (one.max() + 1) for one, p in zip(every, probability, strict=True)))
    chain = sampler_of(model).chain(model, model.prepare(x, dtype=torch.float64), 3, None)
    for _ in range(200):
        chain.sweep()
    pairs, sizes = [], []
    for _ in range(12000):
        chain.sweep()
        q = chain.indicators().numpy()
        pairs.append((q[:, None] == q)[np.triu_indices(6, 1)])
        sizes.append(chain.watch()["num_topics"])
    drawn = np.array(pairs, dtype=float)
    effective = np.array([effective_size(drawn[None, :, j]) for j in range(drawn.shape[1])])
    exact = together[np.triu_indices(6, 1)]
    error = np.abs(drawn.mean(0) - exact) / np.sqrt(exact * (1 - exact) / effective)
    assert effective.min() > 300 and error.max() < 4
    spread = np.std(sizes) / np.sqrt(float(effective_size(np.array(sizes)[None])))
    assert abs(np.mean(sizes) - number) < 4 * spread


@pytest.mark.parametrize("seed", range(3))
def test_the_planted_number_of_topics_is_found(seed):
    rng = np.random.default_rng(seed)
    topic = rng.dirichlet(np.full(60, 0.05), 5)
    x = np.stack([rng.multinomial(60, p) for p in rng.dirichlet(np.full(5, 0.3), 150) @ topic])
    model = HDP(max_topics=20, vocabulary_size=60)
    fit = ci.CollapsedGibbs(num_samples=15, warmup=40, chains=1).fit(model, x, seed=seed, progress=False)
    large = fit.sample_stats["num_large_topics"]
    assert large.shape == (1, 15) and float(large.median()) == 5
    assert "topics in use" in fit.status
    order = ci.match_components(topic, fit.params["topic"]).order[:5]
    assert 0.5 * np.abs(fit.params["topic"][order].numpy() - topic).sum(1).max() < 0.15
