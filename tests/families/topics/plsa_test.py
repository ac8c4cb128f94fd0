"""PLSA: the slides' symmetric EM, the likelihood of the fits, and held-out documents by eq. 24 of source 001."""

import numpy as np
import pytest
import torch
from scipy.special import logsumexp

from custom_inference import VariationalEM, empirical_bayes_log_likelihood, fit
from custom_inference.core.registry import engine_for
from ppl_models import LDA, PLSA, Data, MultinomialPCA
from tests.references import _topics, plsa

pytestmark = [pytest.mark.quick, pytest.mark.filterwarnings("ignore::ppl_models.DataWarning")]


def corpus(seed, num_documents=12, vocabulary_size=9, num_topics=3, length=20):
    rng = np.random.default_rng(seed)
    topic = rng.dirichlet(np.full(vocabulary_size, 0.3), num_topics)
    words = rng.dirichlet(np.full(num_topics, 0.3), num_documents) @ topic
    return np.array([rng.multinomial(rng.integers(1, length), p / p.sum()) for p in words], dtype=float)


def model_of(x, num_topics=3):
    return PLSA(num_topics=num_topics, vocabulary_size=x.shape[1])


def test_the_slides_symmetric_em_is_one_sweep_and_one_m_step():
    """P(d) is n(d) / R there: P(d | z) P(z) / P(d) = P(z | d). Responsibilities of documents x words x aspects.

    The engine updates P(w | z) from the responsibilities at the new P(z | d), the slides at the old ones: the
    proportions agree after one iteration from the same values, and all agree where neither moves.
    """
    x, rng = corpus(0), np.random.default_rng(1)
    topic, proportion = rng.dirichlet(np.ones(9), 3), rng.dirichlet(np.ones(3), len(x))
    length = x.sum(1)
    weight = proportion * length[:, None] / x.sum()  # P(d, z)
    aspect = weight.sum(0)
    new_word, new_document, new_aspect = plsa.symmetric_em_iteration(x, topic, (weight / aspect).T, aspect)
    joint = (new_document * new_aspect[:, None]).T
    steps = engine_for(model_of(x), "map", sweeps=1)
    rows = steps.rows(model_of(x), Data(x=torch.tensor(x)))
    step = steps.e_step(
        model_of(x), {"topic": torch.tensor(topic)}, rows, {"topic_proportion": torch.tensor(proportion)}
    )
    by_engine = step.locals["topic_proportion"].numpy()
    assert np.allclose(by_engine, joint / joint.sum(1, keepdims=True), atol=1e-11)
    share = plsa.responsibilities(topic, proportion)
    assert np.allclose(new_word, plsa.topic_update(x, share), atol=1e-12)


def test_the_ends_of_both_are_the_same():
    x = corpus(2)
    method = VariationalEM(guide="map", tolerance=1e-12, max_iterations=3000)
    result = method.fit(model_of(x), x, progress=False)
    topic, proportion = (result.params[site].numpy() for site in ("topic", "topic_proportion"))
    again = plsa.em_iteration(x, topic, proportion)
    assert np.abs(again[0] - topic).max() < 1e-4
    assert np.abs(again[1] - proportion).max() < 1e-4
    likelihood = _topics.log_likelihood(topic, x, proportion)
    assert float(result.elbo[-1]) == pytest.approx(likelihood.sum(), abs=1e-9)
    assert np.allclose(result.plugin_log_likelihood().numpy(), likelihood, atol=1e-9)


def test_the_default_fit_is_the_likelihoods_and_good_over_seeds():
    """As good as the best of 20 random starts by the reference, from every seed."""
    x = corpus(3, num_documents=25, num_topics=3, length=40)
    best = -np.inf
    for seed in range(20):
        rng = np.random.default_rng(seed)
        topic, proportion = rng.dirichlet(np.ones(9), 3), rng.dirichlet(np.ones(3), len(x))
        for _ in range(400):
            topic, proportion = plsa.em_iteration(x, topic, proportion)
        best = max(best, _topics.log_likelihood(topic, x, proportion).sum())
    for seed in range(3):
        result = fit(model_of(x), x, seed=seed, progress=False)
        assert result.bound_name == "map"
        assert result.params["topic_proportion"].shape == (25, 3)
        assert float(result.elbo[-1]) > best - 0.1 * len(x)


def test_as_many_topics_as_documents_reach_the_documents_own_frequencies():
    x = corpus(4, num_documents=4)
    result = VariationalEM(guide="map", tolerance=1e-10, max_iterations=2000).fit(model_of(x, 4), x, progress=False)
    frequency = x / x.sum(1, keepdims=True)
    saturated = (x * np.log(np.where(x > 0, frequency, 1))).sum()
    assert float(result.elbo[-1]) == pytest.approx(saturated, abs=1e-3)


def test_priors_above_flat_smooth():
    x = corpus(5)
    smooth = VariationalEM(guide="map").fit(model_of(x).with_concentration(gamma=1.01), x, progress=False)
    assert smooth.params["topic"].min() > 1e-5


@pytest.mark.parametrize(("kind", "guide"), [(PLSA, "map"), (LDA, "vb"), (MultinomialPCA, "dirichlet")])
def test_empirical_bayes_is_eq_24(kind, guide, monkeypatch):
    """log 1/N sum_n prod_t (sum_k s_nk b_kt)^x_t, document by document and word by word."""
    x, test = corpus(6), corpus(7, num_documents=5)
    test[0] = 0
    model = kind(num_topics=3, vocabulary_size=9)
    result = VariationalEM(guide=guide).fit(model, x, progress=False)
    topic, local = result.params["topic"].numpy(), result.posterior.mean.numpy()
    table = np.array([_topics.log_likelihood(topic, np.repeat(row[None], len(x), 0), local) for row in test])
    expected = logsumexp(table, axis=1) - np.log(len(x))
    if kind is MultinomialPCA:
        expected = expected + _topics.log_coefficient(test)
    found = empirical_bayes_log_likelihood(result, test)
    assert np.allclose(found.numpy(), expected, atol=1e-9)
    assert np.allclose(empirical_bayes_log_likelihood(result, torch.tensor(test).to_sparse_csr()), found)
    monkeypatch.setattr("custom_inference.checks.empirical_bayes._BLOCK_ENTRIES", 20)
    assert torch.allclose(empirical_bayes_log_likelihood(result, test), found)


def test_empirical_bayes_leaves_missing_entries_out():
    x, test = corpus(8), corpus(9, num_documents=5)
    mask = np.random.default_rng(0).random(test.shape) > 0.4
    result = VariationalEM(guide="map").fit(model_of(x), x, progress=False)
    found = empirical_bayes_log_likelihood(result, np.where(mask, test, 7.0), mask=mask)
    assert torch.allclose(found, empirical_bayes_log_likelihood(result, np.where(mask, test, 0.0)))


def test_a_word_that_no_document_can_write_is_impossible_or_all_but():
    x = corpus(10)
    x[:, 0] = 0
    result = VariationalEM(guide="map").fit(model_of(x), x, progress=False)
    test = np.zeros((1, 9))
    test[0, 0] = 1
    assert float(empirical_bayes_log_likelihood(result, test)) < -25
