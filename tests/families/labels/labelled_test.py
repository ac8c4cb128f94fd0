"""Labelled and partially labelled LDA: bounds, special cases, the sampler, predictions, refusals."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyro.distributions as dist
import pytest
import torch

import custom_inference as ci
from custom_inference.core.local_inference import solve_local
from custom_inference.core.registry import engine_for
from custom_inference.gibbs.protocol import sampler_of
from ppl_models import LDA, DataError, LabeledLDA, MethodError, MixtureOfMultinomials, ModelError, PartiallyLabeledLDA
from ppl_models.distributions import FaceDirichlet
from tests.references import labeled_lda as reference

pytestmark = pytest.mark.filterwarnings("ignore::ppl_models.DataWarning")

LABELS = np.array([[1, 0], [0, 1], [1, 1], [0, 0], [1, 0], [0, 1]], dtype=float)


def problem(seed: int, *, per_label: int = 1, common: int = 1, words: int = 5):
    """A model, values of its topics, documents of four tokens."""
    rng = np.random.default_rng(seed)
    size = 2 * per_label + common
    settings = {"num_topics": size, "vocabulary_size": words, "num_labels": 2}
    kind: Callable[..., LabeledLDA] = LabeledLDA if per_label == 1 else PartiallyLabeledLDA
    model = kind(**settings, **({} if per_label == 1 else {"topics_per_label": per_label}))
    x = np.stack([rng.multinomial(4, rng.dirichlet(np.ones(words))) for _ in LABELS]).astype(float)
    return model.with_concentration(alpha=0.7), rng.dirichlet(np.full(words, 0.7), size), x


@pytest.mark.quick
@pytest.mark.parametrize(("per_label", "common"), [(1, 0), (1, 1), (2, 1)])
def test_bound_is_below_the_sum_over_the_topics_that_a_document_has(per_label, common):
    model, topic, x = problem(1, per_label=per_label, common=common)
    params = {"topic": torch.as_tensor(topic)}
    data = model.prepare(x, labels=LABELS, dtype=torch.float64)
    local = solve_local(model, params, data, bound="dirichlet")
    evidence = reference.log_evidence(topic, x, LABELS, 0.7, per_label)
    gap = evidence - local.bound.numpy()
    assert (gap >= -1e-10).all() and gap.max() < 1.5
    mean = reference.posterior_mean(topic, x, LABELS, 0.7, per_label)
    found = local.posterior.mean.numpy()
    assert ((found == 0) == (mean == 0)).all() and np.abs(found - mean).max() < 0.2
    single = [i for i, own in enumerate(reference.topics_of(LABELS, model.num_topics, per_label)) if len(own) == 1]
    assert np.abs(gap[single]).max(initial=0) < 1e-10  # of one topic there is nothing to approximate
    drawn = local.posterior.sample(2000)
    assert torch.equal(drawn.amax(0) == 0, torch.as_tensor(mean == 0))
    assert torch.allclose(drawn.mean(0), local.posterior.mean, atol=0.05)


@pytest.mark.quick
def test_a_face_dirichlet_is_the_dirichlet_of_its_coordinates():
    concentration = torch.tensor([[0.5, 0.0, 2.0], [1.5, 2.5, 3.5]])
    law = FaceDirichlet(concentration)
    drawn = law.sample(torch.Size([4000]))
    share, full = drawn[0, 0, 0], drawn[0, 1]
    expected = (
        torch.distributions.Beta(0.5, 2.0).log_prob(share),
        torch.distributions.Dirichlet(concentration[1]).log_prob(full),
    )
    assert torch.allclose(law.log_prob(drawn[0]), torch.stack(expected))
    assert torch.allclose(drawn.mean(0), law.mean, atol=0.02) and torch.allclose(drawn.var(0), law.variance, atol=0.01)


@pytest.mark.parametrize("engine", ["dirichlet", "vb", "cvb0"])
def test_without_labels_or_with_all_of_them_it_is_lda(engine):
    """Of LDA, from the same start, every engine takes the same steps."""
    model, topic, x = problem(2, per_label=2)
    lda = LDA(num_topics=5, vocabulary_size=5).with_concentration(alpha=0.7)
    method = ci.VariationalEM(guide=engine, search=None, max_iterations=5)
    init = {"topic": torch.as_tensor(topic)}
    plain = method.fit(lda, x, init=init, progress=False)
    found = method.fit(model, x, labels=np.ones((6, 2)), init=init, progress=False)
    assert torch.allclose(found.elbo, plain.elbo, rtol=1e-9)
    assert torch.allclose(found.params["topic"], plain.params["topic"], atol=1e-8)
    bounds = [solve_local(m, init, m.prepare(x, dtype=torch.float64), bound="dirichlet").bound for m in (model, lda)]
    assert torch.allclose(*bounds, atol=1e-10)


def test_one_label_a_document_and_no_common_topic_is_the_multinomial_mixture():
    """p(words | label) is a product of word probabilities, and predictions are those of naive Bayes."""
    model, topic, x = problem(3, common=0)
    number = np.array([0, 1, 1, 0, 1, 1])
    fit = ci.VariationalEM(guide="dirichlet", max_iterations=3).fit(
        model, x, labels=number, init={"topic": torch.as_tensor(topic)}, progress=False
    )
    counts = np.stack([x[number == label].sum(0) for label in (0, 1)]) + 0.05
    assert np.allclose(fit.params["topic"], counts / counts.sum(1, keepdims=True), atol=1e-9)
    log_topic = np.log(fit.params["topic"].numpy())
    joint = np.log([2 + 1, 4 + 1]) + x @ log_topic.T
    expected = np.exp(joint - np.logaddexp.reduce(joint, 1, keepdims=True))
    assert np.allclose(fit.predict(x), expected, atol=1e-9)
    mixture = MixtureOfMultinomials(num_topics=2, vocabulary_size=5)
    at = {"topic": fit.params["topic"], "mixing_proportion": torch.tensor([3 / 8, 5 / 8])}
    shares = solve_local(mixture, at, mixture.prepare(x, dtype=torch.float64), bound="exact").posterior.mean
    assert torch.allclose(fit.predict(x), shares.to(torch.float64), atol=1e-6)


def test_predictions_weigh_the_sets_of_labels_by_their_evidence():
    model, _, x = problem(4)
    fit = ci.VariationalEM(guide="dirichlet", max_iterations=2).fit(model, x, labels=LABELS, progress=False)
    found = fit.predict(x).numpy()
    sets = np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    exact = reference.label_posterior(fit.params["topic"].numpy(), x, sets, np.array([3.0, 3.0, 2.0]), 0.7)
    assert found.shape == (6, 2) and np.abs(found - exact).max() < 0.08  # by bounds of the evidence


def test_the_sampler_has_the_exact_posterior_of_the_topics_of_tokens():
    """At given topics: draws of the proportions against the sum over all topics of the tokens."""
    model, topic, x = problem(5, per_label=2)
    data = model.prepare(x, labels=LABELS, dtype=torch.float64)
    local = ci.CollapsedGibbs().local_posterior(model, {"topic": torch.as_tensor(topic)}, data, seed=1)
    exact = reference.posterior_mean(topic, x, LABELS, 0.7, 2)
    mean = local.posterior.mean.numpy()
    assert (mean[exact == 0] == 0).all() and np.abs(mean - exact).max() < 0.08


def planted(seed: int, documents: int = 200):
    """Three labels of two topics each and a common one, over forty words; two labels in every third document."""
    rng = np.random.default_rng(seed)
    topic = rng.dirichlet(np.full(40, 0.08), 7)
    labels = np.eye(3)[rng.integers(0, 3, documents)]
    labels[::3] = np.maximum(labels[::3], np.eye(3)[rng.integers(0, 3, len(labels[::3]))])
    model = PartiallyLabeledLDA(num_topics=7, vocabulary_size=40, num_labels=3, topics_per_label=2)
    allowed = model.allowed(torch.as_tensor(labels)).numpy()
    weight = rng.gamma(0.5, size=allowed.shape) * allowed
    mean = (weight / weight.sum(1, keepdims=True)) @ topic
    return model, topic, labels, np.stack([rng.multinomial(60, p) for p in mean]).astype(float)


@pytest.mark.parametrize("method", ["default", "gibbs"])
def test_planted_topics_are_found_under_their_labels_and_labels_are_predicted(method):
    found = []
    for seed in range(3):
        model, topic, labels, x = planted(seed, 300)
        chosen = ci.CollapsedGibbs(num_samples=20, warmup=30, chains=1) if method == "gibbs" else None
        settings = {} if chosen is None else {"method": chosen}
        fit = ci.fit(model, x[:250], labels=labels[:250], seed=seed, progress=False, **settings)
        away = 0.5 * np.abs(topic[:, None] - fit.params["topic"].numpy()[None]).sum(-1)
        for label in range(3):  # the two topics of a label may come in either order
            own = away[2 * label : 2 * label + 2, 2 * label : 2 * label + 2]
            found.append(min(own.trace(), np.fliplr(own).trace()) / 2)
        found.append(away[6, 6])
        predicted = fit.predict(x[250:]).numpy() > 0.5
        assert (predicted == labels[250:]).mean() > 0.9
    assert np.median(found) < 0.15 and np.mean(found) < 0.2


def test_chains_match_topics_within_labels_and_learn_the_concentration():
    model, _, labels, x = planted(7, 120)
    fit = ci.CollapsedGibbs(num_samples=4, warmup=30, chains=2, learn=True).fit(model, x, labels=labels, progress=False)
    alpha = fit.model.priors["topic_proportion"].concentration
    assert alpha.shape == (7,) and 0.2 < float(alpha.median()) < 1.2  # .5 in truth, .1 at first
    allowed = model.allowed(torch.as_tensor(labels))
    assert torch.equal(fit.transform() == 0, allowed == 0)


def test_a_chains_log_joint_is_that_of_the_topics_a_document_has():
    model, _, x = problem(6)
    data = model.prepare(x, labels=LABELS, dtype=torch.float64)
    chain = sampler_of(model).chain(model, data, 3, None)
    chain.sweep()
    topics = chain.indicators().numpy()
    document = np.repeat(np.arange(6), 4)
    word = np.concatenate([np.repeat(np.arange(5), row.astype(int)) for row in x])
    expected = 0.0
    for i, own in enumerate(reference.topics_of(LABELS, 3)):
        counts = np.bincount(topics[document == i], minlength=3)
        assert set(topics[document == i]) <= set(own.tolist())
        expected += float(reference._shared.log_dirichlet_moment(counts[own], np.full(len(own), 0.7)))
    for k in range(3):
        counts = np.bincount(word[topics == k], minlength=5)
        expected += float(reference._shared.log_dirichlet_moment(counts, np.full(5, 0.05)))
    assert np.isclose(chain.log_joint(), expected, rtol=1e-12)


@pytest.mark.quick
def test_labels_come_as_numbers_too_and_missing_ones_are_none():
    model = LabeledLDA(num_topics=3, vocabulary_size=3, num_labels=2)
    x = torch.ones(4, 3)
    found = model.prepare(x, labels=[0, 1, -1, np.nan]).others["labels"]
    assert found.tolist() == [[1, 0], [0, 1], [0, 0], [0, 0]]
    table = model.prepare(x, labels=[[1, 0], [0, np.nan], [1, 1], [0, 0]]).others["labels"]
    assert table.tolist() == [[1, 0], [0, 0], [1, 1], [0, 0]]
    assert model.allowed(table).tolist() == [[1, 0, 1], [1, 1, 1], [1, 1, 1], [1, 1, 1]]
    data = model.prepare(x, labels=table)
    assert (LabeledLDA.for_data(data, 3).num_labels, PartiallyLabeledLDA.for_data(data, 7).num_common_topics) == (2, 3)
    assert model.prepare(x).others == {} and model.label_of_topic().tolist() == [0, 1, -1]


@pytest.mark.quick
@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([[1, 0]], r"shape \(1, 2\).*\(3, 2\)"),
        ([[1, 0], [0, 2], [0, 1]], "neither 0 nor 1 .the first: 2, document 1, label 1"),
        ([0, 1, 2], "1 labels are unknown .the first: 2 of document 2"),
        ([0.5, 1, 0], "labels are unknown"),
        ([[1, 0], [1, 0], [1, 0]], r"1 labels without a document \(1\)"),
    ],
)
def test_refusals(labels, message):
    model = LabeledLDA(num_topics=3, vocabulary_size=3, num_labels=2)
    with pytest.raises(DataError, match=message):
        ci.fit(model, torch.ones(3, 3), labels=labels, progress=False)


@pytest.mark.quick
def test_refused_settings():
    with pytest.raises(ModelError, match="num_topics = 3, but 2 labels need 4"):
        PartiallyLabeledLDA(num_topics=3, vocabulary_size=3, num_labels=2)
    model = LabeledLDA(num_topics=3, vocabulary_size=3, num_labels=2)
    with pytest.raises(ModelError, match="expected a Dirichlet"):
        model.with_priors(topic_proportion=dist.LogisticNormal(torch.zeros(2), torch.ones(2)))
    with pytest.raises(MethodError, match="learn='alpha'"):
        engine_for(model, "vb", learn="alpha")
    with pytest.raises(MethodError, match="fitted without labels"):
        ci.VariationalEM(guide="vb", max_iterations=1).fit(model, torch.ones(3, 3), progress=False).predict(
            torch.ones(1, 3)
        )
    with pytest.raises(MethodError, match="exactly 0 with some probability"):
        ci.SVI(steps=2).fit(model, torch.ones(3, 3), labels=[0, 1, 0], progress=False)
