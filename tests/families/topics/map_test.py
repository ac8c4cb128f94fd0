"""LDA by points: slopes at the end, folding in, what fits are; the updates are in points_against_references_test."""

import numpy as np
import pytest
import torch

from custom_inference import Fit, VariationalEM
from ppl_models import LDA
from tests.references import _topics, plsa

pytestmark = pytest.mark.filterwarnings("ignore::ppl_models.DataWarning")


def corpus(seed, num_documents=12, vocabulary_size=8, num_topics=3, longest=25):
    """The first document is empty, and the last word never occurs."""
    rng = np.random.default_rng(seed)
    topic = rng.dirichlet(np.full(vocabulary_size, 0.4), num_topics)
    words = rng.dirichlet(np.full(num_topics, 0.4), num_documents) @ topic
    lengths = [0, *rng.integers(1, longest + 1, num_documents - 1)]
    x = np.array([rng.multinomial(n, p / p.sum()) for n, p in zip(lengths, words, strict=True)], dtype=float)
    x[:, -1] = 0
    return x


def model_of(x, num_topics=3, alpha=1.0, gamma=1.0):
    model = LDA(num_topics=num_topics, vocabulary_size=x.shape[1])
    return model.with_concentration(alpha=torch.tensor(alpha), gamma=torch.tensor(gamma))


PRIORS = pytest.mark.parametrize(("alpha", "gamma"), [(1.5, 1.2), (0.4, 0.3), ([0.5, 1.0, 2.0], 1.0)])


def pseudo(concentration):
    """In the softmax basis where some concentration is below 1."""
    value = np.asarray(concentration, dtype=float)
    return value if value.min() < 1 else value - 1


@PRIORS
def test_fits_end_where_the_log_joint_has_no_slope(alpha, gamma):
    """Over the logits of topics and proportions: there is no constraint, and the density is the basis'."""
    x = corpus(0)
    method = VariationalEM(guide="map", tolerance=1e-11, max_iterations=5000)
    fit = method.fit(model_of(x, alpha=alpha, gamma=gamma), x, progress=False)
    start = [np.log(fit.params[site].numpy()) for site in ("topic", "topic_proportion")]

    def objective(logits):
        topic, proportion = (np.exp(a) / np.exp(a).sum(1, keepdims=True) for a in logits)
        prior = (pseudo(alpha) * np.log(proportion)).sum() + (pseudo(gamma) * np.log(topic)).sum()
        return _topics.log_likelihood(topic, x, proportion).sum() + prior

    h = 1e-4
    for site in range(2):
        for index in np.ndindex(start[site].shape):
            moved = [[a.copy() for a in start] for _ in range(2)]
            moved[0][site][index] += h
            moved[1][site][index] -= h
            assert abs(objective(moved[0]) - objective(moved[1])) / (2 * h) < 2e-3, (site, index)


@pytest.mark.parametrize("accelerate", [None, "squarem", "anderson"])
@PRIORS
def test_the_objective_never_falls(accelerate, alpha, gamma):
    x = corpus(1, num_documents=30)
    method = VariationalEM(guide="map", search=None, accelerate=accelerate, max_iterations=60)
    trace = method.fit(model_of(x, alpha=alpha, gamma=gamma), x, progress=False).elbo.numpy()
    assert np.diff(trace).min() > -1e-8
    assert trace[-1] > trace[0] + 1


@PRIORS
def test_new_documents_are_folded_in_at_the_topics(alpha, gamma, tmp_path):
    x, new = corpus(3), corpus(4, num_documents=5)
    fit = VariationalEM(guide="map").fit(model_of(x, alpha=alpha, gamma=gamma), x, progress=False)
    expected = plsa.fold_in(new, fit.params["topic"].numpy(), pseudo(alpha))
    found = fit.transform(new)
    likelihoods = [_topics.log_likelihood(fit.params["topic"].numpy(), new, p) for p in (found.numpy(), expected)]
    assert np.allclose(*likelihoods, atol=1e-5)
    assert np.allclose(found.numpy(), expected, atol=1e-2)
    loaded = Fit.load(fit.save(tmp_path / "fit"))
    assert torch.allclose(loaded.transform(new), found)
    plugged = fit.plugin_log_likelihood(new)
    assert np.allclose(plugged.numpy(), likelihoods[0], atol=1e-9)


@pytest.mark.parametrize("alpha", [0.3, 1.0, 2.0])
def test_one_topic_is_the_words_frequencies(alpha):
    x = corpus(7)
    fit = VariationalEM(guide="map").fit(model_of(x, 1, alpha, 2.0), x, progress=False)
    expected = (x.sum(0) + 1) / (x.sum() + x.shape[1])
    assert np.allclose(fit.params["topic"][0].numpy(), expected, atol=1e-9)
    assert (fit.params["topic_proportion"] == 1).all()


def test_empty_documents_have_the_priors_mode():
    x = corpus(8)
    method, alphas = VariationalEM(guide="map"), (1.0, [1.0, 2.0, 3.0])
    flat, skew = (method.fit(model_of(x, alpha=alpha), x, progress=False) for alpha in alphas)
    assert torch.allclose(flat.params["topic_proportion"][0], torch.full((3,), 1 / 3))
    assert torch.allclose(skew.params["topic_proportion"][0], torch.tensor([0.0, 1 / 3, 2 / 3]), atol=1e-9)


def test_minibatches_climb():
    x = corpus(10, num_documents=80, longest=60)
    model = model_of(x, alpha=1.3, gamma=1.1)
    online = VariationalEM(guide="map", batch_size=16, max_iterations=30).fit(model, x, progress=False)
    batch = VariationalEM(guide="map").fit(model, x, progress=False)
    assert float(online.elbo[-1]) > float(batch.elbo[-1]) - 0.05 * abs(float(batch.elbo[-1]))
