"""The hierarchical Dirichlet process: sticks, the sampler against all partitions of a toy, the number of topics."""

from __future__ import annotations

import numpy as np
import pyro.distributions as dist
import pytest
import torch

import custom_inference as ci
from custom_inference.core.diagnostics import effective_size
from custom_inference.families.hdp.engine import _point, _values
from custom_inference.gibbs.protocol import sampler_of
from ppl_models import HDP
from ppl_models.distributions import StickBreaking
from tests.references import hdp as reference

pytestmark = pytest.mark.filterwarnings("ignore::ppl_models.DataWarning")


@pytest.mark.quick
@pytest.mark.parametrize("c", [0.5, 2.0])
def test_sticks_have_the_density_of_their_betas_and_their_mean(c):
    law = StickBreaking(torch.tensor(c), 3)
    drawn = law.sample(torch.Size([20000]))
    assert torch.allclose(drawn.mean(0), law.mean, atol=0.01)
    assert np.isclose(float(law.log_prob(drawn[0])), reference.log_sticks(drawn[0].numpy(), c))


@pytest.mark.quick
def test_coordinates_of_sticks_go_there_and_back():
    weight = torch.tensor([0.5, 0.3, 0.15, 0.05])
    values = {"topic_weight": weight, "concentration": torch.tensor(2.0), "stick_concentration": torch.tensor(0.7)}
    for found, known in zip(_values(_point(values)), values.values(), strict=True):
        assert torch.allclose(found, known)


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
