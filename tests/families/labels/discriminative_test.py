"""Discriminative LDA: its bound, its special cases, the M step, recovery and classification, refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import digamma

import custom_inference as ci
from custom_inference.core.local_inference import solve_local
from custom_inference.core.registry import engine_for
from ppl_models import LDA, DataError, DiscriminativeLDA, ModelError
from tests.references import discriminative_lda as reference

pytestmark = pytest.mark.filterwarnings("ignore::ppl_models.DataWarning")


def problem(seed: int):
    """A model of three topics and two classes, values of its globals, eight documents of four tokens, their classes."""
    rng = np.random.default_rng(seed)
    params = {"topic": rng.dirichlet(np.full(5, 0.7), 3), "transformation": rng.dirichlet(np.ones(3), (2, 3))}
    x = np.stack([rng.multinomial(4, rng.dirichlet(np.ones(5))) for _ in range(8)]).astype(float)
    model = DiscriminativeLDA(num_topics=3, vocabulary_size=5, num_classes=2).with_concentration(alpha=0.7)
    return model, params, x, np.eye(2)[np.arange(8) % 2]


def tensors(params):
    return {site: torch.as_tensor(value) for site, value in params.items()}


@pytest.mark.quick
def test_bound_is_below_the_sum_over_all_components_and_the_mean_is_near():
    model, params, x, labels = problem(1)
    labels[6:] = 0  # of unknown classes
    data = model.prepare(x, labels=labels, dtype=torch.float64)
    local = solve_local(model, tensors(params), data, bound="dirichlet")
    gap = reference.log_evidence(params, x, labels, 0.7) - local.bound.numpy()
    assert (gap > -1e-10).all() and gap.max() < 1.5
    exact = reference.posterior_mean(params, x, labels, 0.7)
    assert np.abs(local.posterior.mean.numpy() - exact).max() < 0.2


@pytest.mark.quick
def test_with_identities_it_is_lda_whatever_the_classes():
    model, params, x, labels = problem(2)
    params["transformation"] = np.tile(np.eye(3), (2, 1, 1))
    lda = LDA(num_topics=3, vocabulary_size=5).with_concentration(alpha=0.7)
    data = model.prepare(x, labels=labels, dtype=torch.float64), lda.prepare(x, dtype=torch.float64)
    found = [solve_local(m, tensors(params), d, bound="dirichlet") for m, d in zip((model, lda), data, strict=True)]
    assert torch.allclose(found[0].bound, found[1].bound, atol=1e-6)
    assert torch.allclose(found[0].posterior.mean, found[1].posterior.mean, atol=1e-3)


@pytest.mark.quick
def test_statistics_are_the_expected_tokens_at_the_posteriors():
    """Token by token: P(component j, topic k) is proportional to exp(E[log pi_j]) A_cjk b_kv."""
    model, params, x, labels = problem(3)
    engine = engine_for(model, "dirichlet", cold_sweeps=5000, threshold=1e-13)
    data = model.prepare(x, labels=labels, dtype=torch.float64)
    step = engine.e_step(model, tensors(params), engine.rows(model, data))
    words, moves = np.zeros((3, 5)), np.zeros((2, 3, 3))
    for i, g in enumerate(step.locals["concentration"].numpy()):
        tokens = np.zeros(3)
        for v in np.flatnonzero(x[i]):
            joint = np.exp(digamma(g))[:, None] * params["transformation"][i % 2] * params["topic"][:, v]
            joint *= x[i, v] / joint.sum()
            words[:, v] += joint.sum(0)
            moves[i % 2] += joint
            tokens += joint.sum(1)
        assert np.allclose(g, 0.7 + tokens, atol=1e-8)
    assert np.allclose(step.statistics["topic"], words, atol=1e-8)
    assert np.allclose(step.statistics["transformation"], moves, atol=1e-8)


@pytest.mark.quick
def test_the_m_step_is_where_the_bound_is_flat():
    """At a fixed point of EM the slope of the objective along every direction within the simplices is 0."""
    model, params, x, labels = problem(4)
    x = 5 * x + 1
    model = model.with_concentration(gamma=1.5)
    data = model.prepare(x, labels=labels, dtype=torch.float64)
    engine: Any = engine_for(model, "dirichlet", cold_sweeps=3000, threshold=1e-12)
    rows, at = engine.rows(model, data), tensors(params)
    for _ in range(500):
        at = engine.m_step(model, at, engine.e_step(model, at, rows), rows)

    def objective(values):
        return float(engine.e_step(model, values, rows).bound.sum() + engine.prior_term(model, values))

    generator, size = torch.Generator().manual_seed(0), 1e-5
    for site in ("topic", "transformation"):
        for _ in range(3):
            noise = torch.randn(at[site].shape, generator=generator, dtype=torch.float64)
            ahead, behind = (torch.softmax(at[site].log() + sign * size * noise, -1) for sign in (1, -1))
            slope = (objective({**at, site: ahead}) - objective({**at, site: behind})) / (2 * size)
            assert abs(slope) < 2e-3, site


def test_predictions_are_the_posterior_of_the_classes():
    model, _, x, labels = problem(5)
    fit = ci.VariationalEM(guide="dirichlet", max_iterations=3).fit(model, x, labels=labels, progress=False)
    params = {site: value.numpy() for site, value in fit.params.items()}
    exact = reference.class_posterior(params, x, labels.sum(0) + 1, 0.7)
    found = fit.predict(x).numpy()
    assert found.shape == (8, 2) and np.allclose(found.sum(1), 1) and np.abs(found - exact).max() < 0.08


def planted(seed: int, documents: int = 400):
    """Four topics over forty words, two of which both classes use, and one of each class alone."""
    rng = np.random.default_rng(seed)
    topic, matrix = rng.dirichlet(np.full(40, 0.08), 4), np.tile(np.eye(4), (2, 1, 1))
    matrix[0, 3], matrix[1, 2] = np.eye(4)[2], np.eye(4)[3]
    pi, number = rng.dirichlet(np.full(4, 0.3), documents), rng.integers(0, 2, documents)
    mean = np.einsum("nj,njk->nk", pi, matrix[number]) @ topic
    return topic, matrix, number, np.stack([rng.multinomial(60, p) for p in mean]).astype(float)


def test_planted_topics_are_found_and_classes_predicted():
    topic, matrix, number, x = planted(0)
    model = DiscriminativeLDA(num_topics=4, vocabulary_size=40, num_classes=2)
    fit = ci.fit(model, x[:300], labels=number[:300], seed=0, progress=False)
    order = ci.match_components(torch.as_tensor(topic), fit.params["topic"]).order
    assert 0.5 * np.abs(fit.params["topic"][order].numpy() - topic).sum(1).mean() < 0.05
    at_truth = replace(fit, params={"topic": torch.as_tensor(topic), "transformation": torch.as_tensor(matrix)})
    right = [(one.predict(x[300:]).argmax(1).numpy() == number[300:]).mean() for one in (at_truth, fit)]
    assert right[0] - right[1] < 0.04
    assert (fit.elbo.diff() > -1e-6 * float(fit.elbo[-1].abs())).all()


def test_unlabelled_documents_and_shares_of_topics():
    _, _, number, x = planted(9, 120)
    model = DiscriminativeLDA(num_topics=4, vocabulary_size=40, num_classes=2)
    labels = number.astype(float)
    labels[::4] = np.nan
    fit = ci.fit(model, x, labels=labels, progress=False)
    share = fit.report()["share"].sort_index().to_numpy()
    assert share.shape == (4,) and abs(share.sum() - 1) < 1e-3 and fit.transform(x[:3]).shape == (3, 4)
    assert fit.transform(x[:3], labels=[0, 1, np.nan]).shape == (3, 4)


@pytest.mark.quick
@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (None, "documents without their classes"),
        ([[1, 0]], r"shape \(1, 2\).*\(3, 2\)"),
        ([[1, 1], [1, 0], [0, 1]], "1 documents of several classes .the first: document 0"),
        ([0, 1, 2], "1 labels are unknown .the first: 2 of document 2"),
        ([0, 0, -1], r"1 labels without a document \(1\)"),
    ],
)
def test_refusals(labels, message):
    model = DiscriminativeLDA(num_topics=3, vocabulary_size=3, num_classes=2)
    with pytest.raises(DataError, match=message):
        ci.fit(model, torch.ones(3, 3), labels=labels, progress=False)
    with pytest.raises(ModelError, match="num_classes = 1"):
        DiscriminativeLDA(num_topics=3, vocabulary_size=3, num_classes=1)


@pytest.mark.quick
def test_sizes_come_from_the_data():
    model = DiscriminativeLDA(num_topics=3, vocabulary_size=3, num_classes=3)
    data = model.prepare(torch.ones(4, 3), labels=[0, 1, 2, np.nan])
    assert data.others["labels"].sum(1).tolist() == [1, 1, 1, 0]
    assert DiscriminativeLDA.for_data(data, 2).num_classes == 3
    assert torch.allclose(model.shares(data.others["labels"], data.x)[3], torch.full((3,), 1 / 3))


@pytest.mark.quick
def test_one_topic_of_each_class_is_naive_bayes():
    _, _, x, labels = problem(5)
    model = DiscriminativeLDA(num_topics=2, vocabulary_size=5, num_classes=2).with_own_topics()
    found = ci.fit(model, x, labels=labels, progress=False)
    topic = labels.T @ x + 0.05
    topic /= topic.sum(1, keepdims=True)
    assert np.allclose(found.params["topic"].numpy(), topic, atol=1e-6)
    joint = x @ np.log(topic).T + np.log(labels.sum(0) + 1)
    chance = np.exp(joint - joint.max(1, keepdims=True))
    assert np.allclose(found.predict(x).numpy(), chance / chance.sum(1, keepdims=True), atol=1e-4)


@pytest.mark.quick
def test_topics_of_the_classes_own_beside_shared_ones():
    model = DiscriminativeLDA(num_topics=7, vocabulary_size=5, num_classes=2)
    matrix = model.with_own_topics(3).known["transformation"]
    assert matrix.shape == (2, 7, 7) and torch.equal(matrix.sum(-1), torch.ones(2, 7).to(matrix))
    used = [set(each.any(0).nonzero().flatten().tolist()) for each in matrix]
    assert used == [{0, 1, 2, 3, 4}, {0, 1, 2, 5, 6}]
    for shared in (6, -1):
        with pytest.raises(ModelError, match=f"shared = {shared}"):
            model.with_own_topics(shared)
