"""Sentence-blocked collapsed Gibbs sampling of topics and syntax, against all states and topics of a toy."""

from __future__ import annotations

import itertools

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from scipy.special import softmax

import custom_inference as ci
from custom_inference.core.diagnostics import effective_size
from custom_inference.families.syntax.gibbs import SyntaxChain
from custom_inference.families.syntax.rows import SentenceRows
from ppl_models import LDAHMM
from tests.references import ldahmm as reference

X = np.array([[1.0, 2, 1, 0, 1], [2, 3, 0, 0, 0]])
PRIORS = {"topic": 0.05, "emission": 0.1, "transition": 0.4, "initial": 0.7, "topic_proportion": 0.3}


def model_of(num_states: int = 2) -> LDAHMM:
    model = LDAHMM(num_topics=2, num_states=num_states, vocabulary_size=3)
    sites = {"transition": (num_states, 0.4), "initial": (num_states, 0.7)} if num_states > 1 else {}
    return model.with_priors(**{site: dist.Dirichlet(torch.full((n,), c)) for site, (n, c) in sites.items()})


def chain_of(num_states: int = 2, seed: int = 1, **start) -> SyntaxChain:
    return SyntaxChain(model_of(num_states), SentenceRows(torch.as_tensor(X), 3), seed, start or None)


def joint(state, topic, num_states: int = 2) -> float:
    return reference.collapsed_log_joint(X, state, topic, (2, num_states, 3), PRIORS)


@pytest.mark.parametrize("num_states", [1, 2, 3])
def test_log_joint_and_counts_are_those_of_the_states(num_states):
    """After sweeps that changed counts in place, rejections among them, they are what the states say."""
    chain = chain_of(num_states)
    for _ in range(30):
        chain.sweep()
        assert np.isclose(chain.log_joint(), joint(chain.state, chain.topic, num_states))
        before, tables = chain.counts, [one.copy() for one in chain._tables]
        chain.assign(chain.state, chain.topic)
        assert all(np.array_equal(one, chain.counts[site]) for site, one in before.items())
        assert all(np.allclose(*pair, rtol=1e-12) for pair in zip(tables, chain._tables, strict=True))  # sums too
        assert ((chain.topic >= 0) == (chain.state == 0)).all()


def test_chain_draws_from_the_exact_posterior():
    """Of all 3^6 states and topics; shares within 5 standard errors by effective sample sizes."""
    values = [(0, 0), (0, 1), (1, -1)]
    every = list(itertools.product(range(3), repeat=6))
    weight = softmax([joint(*zip(*(values[a] for a in one), strict=True)) for one in every])
    table = np.array(every)
    chain, draws, moved = chain_of(), 20000, 0
    found = np.empty((draws, 6), dtype=int)
    for n in range(draws):
        chain.sweep()
        moved += chain.accepted
        found[n] = np.where(chain.state == 1, 2, chain.topic)
    assert 0.5 < moved / (3 * draws) < 1.0  # some are rejected: that the correction is right matters
    watched = [(table == a, found == a) for a in range(3)]
    same = [(table[:, [i]] == table[:, [j]], found[:, [i]] == found[:, [j]]) for i, j in ((0, 2), (0, 3), (1, 4))]
    for exact, drawn in [*watched, *same]:
        mean, series = weight @ exact, drawn.astype(float)
        for column in range(series.shape[1]):
            size = effective_size(series[None, :, column])
            error = np.sqrt(mean[column] * (1 - mean[column]) / max(float(size), 1.0))
            assert abs(series[:, column].mean() - mean[column]) < 5 * error + 1e-4


def test_means_and_draws_are_conditional_on_the_states():
    chain = chain_of()
    chain.sweep()
    means, sums = chain.means(), {site: 0.0 for site in PRIORS}
    for _ in range(2000):
        for site, value in chain.draw().items():
            sums[site] = sums[site] + value / 2000
    for site, mean in means.items():
        assert torch.allclose(mean.sum(-1), torch.ones(()).double()) and torch.allclose(mean, sums[site], atol=0.06)
    assert torch.allclose(chain.locals() / chain.locals().sum(1, keepdim=True), means["topic_proportion"])


def test_a_chain_is_a_function_of_its_seed():
    runs = []
    for seed in (5, 5, 6):
        chain = chain_of(3, seed)
        for _ in range(10):
            chain.sweep()
        runs.append((chain.state.tolist(), chain.topic.tolist()))
    assert runs[0] == runs[1] != runs[2]


def test_sampled_fits_agree_with_variational_ones():
    example = LDAHMM.example()
    method = ci.CollapsedGibbs(num_samples=60, warmup=40, chains=2)
    fit = method.fit(example.model, example.data, seed=0, progress=False)
    other = ci.fit(example.model, example.data, method="vb", seed=0, progress=False)
    order = ci.align(fit.params, to=other.params).apply(fit.params, example.model.dims)
    assert (order["topic"] - other.params["topic"]).abs().sum(-1).max() / 2 < 0.25
    assert fit.draws is not None and fit.draws["emission"].shape[1:] == (60, 2, 9)  # a chain may be left out
    assert set(fit.tokens()["state"]) <= {0, 1, 2}
