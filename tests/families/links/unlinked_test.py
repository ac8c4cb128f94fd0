"""Links without negative examples, on the tokens' topics and on the proportions, against sums over everything."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import custom_inference as ci
from custom_inference.families.links.pairs import LinkPairs
from custom_inference.families.links.sampler import LinkSampler, ProportionsChain
from custom_inference.families.links.variational import LinkedDirichlet
from ppl_models import RTM, ModelError, PriorError
from tests.families.links.cases import ALPHA, GAMMA, PARAMS, X, toy
from tests.references import rtm as reference

#: All topics of the eight tokens.
Q = np.array(list(itertools.product(range(2), repeat=8)))


def together(log_weight, labels):
    """P(every two have the same value): labels (M, L)."""
    weight = np.exp(log_weight - log_weight.max())
    same = (labels[:, :, None] == labels[:, None, :]).astype(float)
    return np.tensordot(weight / weight.sum(), same, 1)


@pytest.mark.parametrize("gamma", [GAMMA, None])
def test_links_on_the_proportions_have_topics_by_the_exact_posterior(gamma):
    """Tokens and links that share a topic, weights (and topics) known: all 2^8 topics of tokens, all 3^3 of links."""
    known: dict[str, Any] = {} if gamma else {"topic": torch.tensor(PARAMS["topic"])}
    model, data, _, params, _ = toy("additive", **known)
    chain: Any = LinkSampler().chain(replace(model, link_on="proportions", negatives=0), data, 3, None)
    assert isinstance(chain, ProportionsChain)
    chain.plain_sweeps = 0
    ends = np.stack(chain._links, 1)
    assert ends.tolist() == [[0, 1], [1, 2], [1, 2]]
    labels = np.array(list(itertools.product(range(3), repeat=len(ends))))
    every = [(q, label) for q in Q for label in labels]
    log_joint = [reference.log_joint_of_link_topics(X, q, ends, label, params, ALPHA, gamma) for q, label in every]
    exact = together(np.array(log_joint), np.array([np.concatenate(one) for one in every]))
    total, number = 0.0, 6000
    for _ in range(number):
        chain.sweep()
        state = np.concatenate([chain.topic, chain.label])
        total = total + (state[:, None] == state[None, :])
    assert np.abs(total / number - exact).max() < 0.04
    alone = np.array([reference.log_joint_of_link_topics(X, q, [], [], params, ALPHA, gamma) for q in Q])
    assert np.abs(together(alone, Q) - exact[:8, :8]).max() > 0.04  # the links matter
    mass = chain.document_topic + ALPHA
    share = mass / mass.sum(1, keepdims=True)
    every = (share[0] * share[1] + share[0] * share[2] + share[1] * share[2]) @ params["link_weight"]
    exposure = every + 3 * params["link_bias"]
    expected = reference.log_joint_of_link_topics(X, chain.topic, ends, chain.label, params, ALPHA, gamma)
    assert np.isclose(chain.log_joint(), expected - exposure + chain.pairs.constant)
    assert chain.linked.sum() == 2 * (chain.label < 2).sum()


def test_tokens_without_negatives_read_the_links_alone():
    """Which tokens share a topic, at known weights, where only the rates of the links count."""
    model, data, links, params, _ = toy("additive", unknown=True)
    chain: Any = LinkSampler().chain(replace(model, negatives=0), data, 5, None)
    chain.plain_sweeps = 0
    log_joint = [reference.log_joint_of_topics(X, q, links, params, ALPHA, GAMMA, kind="rate") for q in Q]
    exact, total, number = together(np.array(log_joint), Q), 0.0, 10000
    for _ in range(number):
        chain.sweep()
        total = total + (chain.topic[:, None] == chain.topic[None, :])
    assert np.abs(total / number - exact).max() < 0.04


def regularised(kind):
    """The toy without negatives, and what its links are worth: the linked pairs, and the other at the prior means."""
    model, data, links, params, settings = toy(kind)
    score = float(0.25 * params["link_weight"].sum() + params["link_bias"])  # of two topics, alpha the same for both
    other = -np.logaddexp(0, score) if kind == "sigmoid" else -np.exp(score)
    return replace(model, negatives=0), data, np.where(links > 0, links, np.nan), params, settings, other


OF_REGRESSION = pytest.mark.parametrize("kind", ["sigmoid", "exponential"])


@OF_REGRESSION
def test_regularised_pairs_have_the_probability_of_the_links(kind):
    model, data, linked, params, _, other = regularised(kind)
    share = np.random.default_rng(0).dirichlet([1.0, 1.0], 3)
    found = LinkPairs.of(model, data).regularise(np.full(2, ALPHA))
    expected = reference.log_links(params, share, linked, kind) + other
    assert np.isclose(found.log_prob(kind, share, params["link_weight"], params["link_bias"]), expected, rtol=1e-12)
    part = found.among(np.array([1, 0]))
    assert part.y.shape == part.e.shape == part.first.shape == (1,)


@OF_REGRESSION
def test_the_regularised_bound_is_below_its_evidence(kind):
    model, data, linked, params, settings, other = regularised(kind)
    state: Any = {**{name: torch.as_tensor(params[name]) for name in ("topic", "link_weight")}, **model.known}
    engine = LinkedDirichlet()
    rows = engine.rows(model, data)
    step = engine.e_step(model, state, rows)
    for _ in range(5):
        step = engine.e_step(model, state, rows, step.locals)
    exact = reference.log_evidence(params, X, linked, ALPHA, **settings) + other
    assert exact - 3.0 < float(step.bound.sum()) <= exact


@OF_REGRESSION
def test_the_regularised_sampler_has_the_exact_posterior(kind):
    model, data, linked, params, settings, other = regularised(kind)
    chain: Any = LinkSampler().chain(model, data, 5, None)
    chain.plain_sweeps = 0
    log_joint = [reference.log_joint_of_topics(X, q, linked, params, ALPHA, GAMMA, **settings) for q in Q]
    exact, total, number = together(np.array(log_joint), Q), 0.0, 8000
    for _ in range(number):
        chain.sweep()
        total = total + (chain.topic[:, None] == chain.topic[None, :])
    assert np.abs(total / number - exact).max() < 0.04
    expected = reference.log_joint_of_topics(X, chain.topic, linked, params, ALPHA, GAMMA, **settings) + other
    assert np.isclose(chain.log_joint(), expected)


@OF_REGRESSION
def test_regularised_weights_stay_small(kind):
    """Where all links are within topics: without any negatives nothing but the prior would hold the weights."""
    own = np.repeat([0, 1], 10)
    words = np.where(np.arange(8) // 4 == own[:, None], 3.0, 0.0)
    links = (own[:, None] == own) & ~np.eye(20, dtype=bool)
    model = RTM(num_topics=2, vocabulary_size=8, link=kind, negatives=0)
    method = ci.VariationalEM(guide="dirichlet", max_iterations=30)
    fit = method.fit(model, words, links=links.astype(float), seed=0, progress=False)
    found = fit.predict(None).numpy()
    assert found[links].mean() > 3 * found[own[:, None] != own].mean()
    assert 0 < float(fit.params["link_weight"].max()) < 5
    assert (fit.elbo[1:] >= fit.elbo[:-1] - 1e-6 * abs(float(fit.elbo[-1]))).all()


def test_links_on_the_proportions_predict():
    """Forty documents of two topics, linked within these: by default, with the weights that the density implies."""
    rng = np.random.default_rng(0)
    own = np.repeat([0, 1], 20)
    words = np.stack([rng.multinomial(12, np.where(np.arange(8) // 4 == k, 0.23, 0.02)) for k in own]).astype(float)
    same = own[:, None] == own[None, :]
    upper = np.triu(rng.random((40, 40)) < np.where(same, 0.3, 0.01), 1)
    model = RTM(num_topics=2, vocabulary_size=8, link_on="proportions", negatives=0)
    method = ci.CollapsedGibbs(chains=1, warmup=40, num_samples=10)
    fit = method.fit(model, words, links=(upper | upper.T).astype(float), seed=0, progress=False)
    found = fit.predict(None).numpy()
    assert found[same].mean() > 5 * found[~same].mean()
    assert np.isclose(found[np.triu_indices(40, 1)].sum(), upper.sum(), rtol=0.2)
    assert torch.allclose(fit.transform().sum(1), torch.ones(40).to(fit.transform()))


def test_what_cannot_be_sampled_is_refused():
    model, data, *_ = toy("additive")
    with pytest.raises(PriorError, match="negatives=0"):
        LinkSampler().check(replace(model, link_on="proportions"), data)
    with pytest.raises(ModelError, match="negatives"):
        replace(model, negatives=-1)
