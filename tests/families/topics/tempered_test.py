"""Tempered EM: how tokens are held out, how beta is found, and what the fit then is."""

import math

import numpy as np
import pyro
import pytest
import torch

import custom_inference as ci
from custom_inference import TemperedEM, VariationalEM
from custom_inference.core.registry import engine_for
from custom_inference.families.rows.documents import DocumentRows
from custom_inference.families.topics.tempered import split_tokens, temper_engine
from ppl_models import LDA, NOCA, PLSA, Data, DataError, MethodError, ModelError
from tests.references import _topics, plsa

#: The corpora are so small that some words never occur; fits say so.
pytestmark = [pytest.mark.quick, pytest.mark.filterwarnings("ignore::ppl_models.DataWarning")]


def corpus(seed=0, num_documents=60, vocabulary_size=40, length=40, num_topics=3):
    """Sparse topics, few tokens: what overfits."""
    rng = np.random.default_rng(seed)
    topic = rng.dirichlet(np.full(vocabulary_size, 0.3), num_topics)
    words = rng.dirichlet(np.full(num_topics, 0.3), num_documents) @ topic
    return np.array([rng.multinomial(length, p / p.sum()) for p in words], dtype=float)


def model_of(x, num_topics=8):
    return PLSA(num_topics=num_topics, vocabulary_size=x.shape[1])


@pytest.fixture(scope="module")
def fitted():
    x = corpus()
    return x, TemperedEM().fit(model_of(x), x[:50], progress=False)


def test_every_document_loses_its_share_of_tokens():
    x = np.array([[7.0, 0.0, 3.0], [0.0, 0.0, 0.0], [1.0, 1.0, 2.0], [0.0, 1.0, 0.0]])
    rows = DocumentRows.of(Data(x=torch.tensor(x)))
    chances, draws = np.zeros_like(x), 400
    for seed in range(draws):
        observed, hidden = split_tokens(rows, 0.3, torch.Generator().manual_seed(seed))
        one, other = observed.counts.to_dense().numpy(), hidden.counts.to_dense().numpy()
        assert np.array_equal(one + other, x)
        assert (one >= 0).all()
        assert (other >= 0).all()
        assert hidden.lengths.tolist() == [3, 0, 1, 0]  # of 10, 0, 4 and 1 tokens
        chances += other / draws
    # Every token of a document is as likely: five standard errors of a hypergeometric mean.
    assert np.abs(chances[0] - 0.3 * x[0]).max() < 5 * math.sqrt(3 * 0.7 * 0.3 * 7 / 9 / draws) + 1e-9
    again = [split_tokens(rows, 0.3, torch.Generator().manual_seed(7))[1].counts.values() for _ in range(2)]
    assert torch.equal(*again)
    with pytest.raises(DataError, match="no document is long enough"):
        split_tokens(rows, 0.01, torch.Generator())


def test_beta_falls_as_long_as_held_out_tokens_are_better_predicted(fitted):
    _, fit = fitted
    beta, perplexity = np.array(fit.details["beta"]), np.array(fit.details["held_out_perplexity"])
    assert len(beta) == len(perplexity)
    assert beta[0] == 1.0
    steps = beta[1:] / beta[:-1]
    assert ((steps == 1) | np.isclose(steps, 0.9)).all()
    assert fit.details["best_perplexity"] == perplexity.min()
    assert fit.details["best_beta"] == beta[perplexity.argmin()] < 1
    # The last beta gained nothing, for as long as the patience lasts.
    last = perplexity[beta == beta[-1]]
    assert len(last) == 3
    assert last.min() > perplexity.min() * math.exp(-1e-4)
    assert "held-out perplexity" in fit.status


def test_it_predicts_held_out_tokens_better_than_the_likelihood_does(fitted):
    x, fit = fitted
    by_likelihood = VariationalEM(guide="map").fit(model_of(x), x[:50], progress=False)
    observed, hidden = split_tokens(DocumentRows.of(Data(x=torch.tensor(x[50:]))), 0.5, torch.Generator())
    scores = []
    for one in (fit, by_likelihood):
        word = one.transform(observed.counts.to_dense()) @ one.params["topic"]
        scores.append(float((hidden.counts.to_dense() * word.log()).sum() / hidden.lengths.sum()))
    assert scores[0] > scores[1] + 0.1


def test_the_refit_repeats_the_iterations_with_all_tokens(fitted):
    """Literally, by the references: tempered responsibilities of all documents, words and topics."""
    x, fit = fitted
    x, model = x[:50], model_of(x)
    start = {"topic": torch.tensor(np.random.default_rng(3).dirichlet(np.ones(x.shape[1]), 8))}
    fit = TemperedEM(max_iterations=30, eta=0.6).fit(model, x, init=start, progress=False)
    betas = fit.details["path"]
    assert betas[0] == 1
    assert betas[-1] == fit.details["best_beta"] < 1
    assert len(fit.elbo) == len(betas) > 2
    topic, proportion = start["topic"].numpy(), None
    for i, beta in enumerate(betas):
        if proportion is None:
            proportion = np.full((len(x), 8), 1 / 8)
            for _ in range(19):
                proportion = plsa.proportion_update(x, plsa.responsibilities(topic, proportion))
        length = x.sum(1)
        weight = length @ proportion / length.sum()
        share = tempered_share(topic, proportion, weight, beta)
        proportion = plsa.proportion_update(x, share)
        assert float(fit.elbo[i]) == pytest.approx(_topics.log_likelihood(topic, x, proportion).sum(), rel=1e-9)
        topic = plsa.topic_update(x, tempered_share(topic, proportion, weight, beta))
    # What is kept 1e-12 off 0 counts as (1e-12)^.6 = 6e-8 at the lowest beta.
    assert np.allclose(fit.params["topic"].numpy(), topic, atol=1e-6)


def tempered_share(topic, proportion, weight, beta):
    joint = weight ** (1 - beta) * (proportion[:, None, :] * topic.T[None]) ** beta
    total = joint.sum(-1, keepdims=True)  # 0 for words that never occur
    return np.divide(joint, total, out=np.zeros_like(joint), where=total > 0)


def test_new_documents_are_folded_in_at_the_best_beta(fitted, tmp_path):
    x, fit = fitted
    beta, topic = fit.details["best_beta"], fit.params["topic"].numpy()
    found = fit.transform(x[50:]).numpy()
    weight = x[:50].sum(1) @ fit.params["topic_proportion"].numpy()
    at_rest = plsa.proportion_update(x[50:], tempered_share(topic, found, _share(fit), beta))
    assert np.allclose(found, at_rest, atol=1e-5)
    assert np.allclose(_share(fit), weight / weight.sum(), atol=0.05)
    plain = VariationalEM(guide="map").local_posterior(fit.model, fit.globals, Data(x=torch.tensor(x[50:])))
    assert np.abs(plain.posterior.mean.numpy() - found).max() > 0.05
    loaded = ci.Fit.load(fit.save(tmp_path / "fit"))
    assert np.allclose(loaded.transform(x[50:]), found, atol=1e-12)


def _share(fit):
    return np.array(fit.solver.engine.share)


def test_one_topic_empty_documents_and_single_precision():
    x = corpus()[:10]
    x[3] = 0
    with pytest.warns(match="empty"):
        one = TemperedEM().fit(model_of(x, 1), x, dtype=torch.float32, progress=False)
    assert one.params["topic"].dtype == torch.float32
    assert np.allclose(one.params["topic"][0].numpy(), x.sum(0) / x.sum(), atol=1e-6)
    with pytest.warns(match="empty"):
        fit = TemperedEM(refit=False).fit(model_of(x, 3), x, progress=False)
    assert np.allclose(fit.params["topic_proportion"].sum(1).numpy(), 1)
    assert torch.isfinite(fit.params["topic_proportion"]).all()


def test_random_starts_and_seeds():
    x = corpus()[:20]
    method = TemperedEM(informed=False, max_iterations=20)
    first, second, other = (method.fit(model_of(x), x, seed=seed, progress=False) for seed in (1, 1, 2))
    assert torch.equal(first.params["topic"], second.params["topic"])
    assert not torch.equal(first.params["topic"], other.params["topic"])
    assert "limit" in first.status or "gained" in first.status


def test_interrupted_it_keeps_the_best_state(monkeypatch):
    x, calls = corpus()[:20], []

    def interrupting(*arguments):
        calls.append(arguments)
        if len(calls) == 6:
            raise KeyboardInterrupt
        return temper_engine(*arguments)

    monkeypatch.setattr("custom_inference.families.topics.tempered.temper_engine", interrupting)
    fit = TemperedEM().fit(model_of(x), x, progress=False)
    assert "interrupted after 5 iterations" in fit.status
    assert torch.isfinite(fit.params["topic"]).all()


def test_what_cannot_be_done_is_refused():
    x = corpus()[:20]
    for settings in ({"eta": 1.0}, {"held_out": 0.0}, {"patience": 0}, {"tolerance": -1.0}):
        with pytest.raises(MethodError):
            TemperedEM(**settings)
    with pytest.raises(MethodError, match="NOCA"):
        TemperedEM().fit(NOCA(num_components=2, num_features=x.shape[1]), (x > 0).astype(float), progress=False)
    with pytest.raises(ModelError, match="topic"):
        TemperedEM().fit(model_of(x), x, init={"topic": torch.ones(2, 2)}, progress=False)
    with pytest.raises(MethodError, match="below 1"):
        temper_engine(engine_for(model_of(x), "map"), DocumentRows.of(Data(x=torch.tensor(x))), None, 0.5)


def test_it_is_a_method_of_the_models_of_documents():
    from custom_inference.methods import methods_for

    assert "tempered" in methods_for(model_of(corpus()))
    assert "tempered" in methods_for(LDA(num_topics=2, vocabulary_size=5))
    assert "tempered" not in methods_for(NOCA(num_components=2, num_features=5))
    x = corpus()[:20]
    assert ci.fit(model_of(x), x, method="tempered", eta=0.8, progress=False).method_name == "TemperedEM"


def test_any_prior_of_the_topics_is_taken():
    x = corpus(num_documents=20, vocabulary_size=10)
    prior = pyro.distributions.LogisticNormal(torch.zeros(9), 0.1 * torch.ones(9))
    narrow = TemperedEM().fit(model_of(x, 2).with_priors(topic=prior), x, progress=False)
    plain = TemperedEM().fit(model_of(x, 2), x, progress=False)
    assert "numerical M steps of topic" in narrow.status and "numerical" not in plain.status
    spread = [float(fit.params["topic"].log().std(1).max()) for fit in (narrow, plain)]
    assert spread[0] < 0.5 * spread[1]  # the prior holds the topics near equal probabilities
    known = torch.full((2, 10), 0.1)
    held = TemperedEM().fit(model_of(x, 2).with_priors(topic=known), x, progress=False)
    assert torch.equal(held.params["topic"], known) and "known: topic" in held.status
