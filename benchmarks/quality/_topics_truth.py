"""Corpora drawn from the topic models that know more than words, with their truth: documents to fit and to score.

Five topics over 200 words, Dirichlet(.05), and 500 documents of 60 tokens to fit where nothing else is said. Each
function gives a draw by its seed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyro.distributions as dist
import scipy.sparse as sp
import torch
from numpy.typing import NDArray

from benchmarks.quality._dynamic_data import DRIFT, synthetic
from benchmarks.quality.topics_and_syntax import Problem
from ppl_models import (
    CTM,
    DTM,
    HDP,
    LDAHMM,
    DirichletMultinomialRegression,
    LabeledLDA,
    PartiallyLabeledLDA,
    RandomEffectsLDA,
    SupervisedLDA,
)

Array = NDArray[Any]
TOPICS, WORDS, DOCUMENTS, TOKENS = 5, 200, 500, 60


@dataclass(frozen=True)
class Draw:
    """model; x to fit, with what is given or responded; truth: site -> value of every global, topics (K, V) or
    (T, K, V) among them; fresh: further documents (N, V) to be scored, None where their tokens have an order; slices
    (N,) of these."""

    model: Any
    x: Any
    truth: dict[str, Array]
    topic: Array
    fresh: Any = None
    slices: Array | None = None
    others: dict[str, Array] = field(default_factory=dict)


def topics(rng: np.random.Generator, size: int = TOPICS) -> Array:
    return rng.dirichlet(np.full(WORDS, 0.05), size)


def counts(rng: np.random.Generator, share: Array, topic: Array) -> Any:
    return sp.csr_matrix(np.stack([rng.multinomial(TOKENS, one / one.sum()) for one in share @ topic]))


def _halves(rng: np.random.Generator, share: Array, topic: Array) -> tuple[Any, Any]:
    x = counts(rng, share, topic)
    return x[:DOCUMENTS], x[DOCUMENTS:]


def _softmax(logit: Array) -> Array:
    weight = np.exp(logit - logit.max(1, keepdims=True))
    return weight / weight.sum(1, keepdims=True)


_COVARIANCE = 1.5**2 * (np.eye(5) + np.array(
    [[0, .7, 0, 0, 0], [.7, 0, 0, 0, 0], [0, 0, 0, -.5, 0], [0, 0, -.5, 0, 0], [0, 0, 0, 0, 0]]))  # fmt: skip


def ctm(seed: int) -> Draw:
    """Two topics that go together, two that do not; standard deviations of 1.5."""
    rng = np.random.default_rng(seed)
    topic, mean = topics(rng), np.zeros(TOPICS)
    share = _softmax(rng.multivariate_normal(mean, _COVARIANCE, 2 * DOCUMENTS))
    x, fresh = _halves(rng, share, topic)
    truth = {"topic": topic, "mean": mean, "covariance": _COVARIANCE}
    return Draw(CTM(num_topics=TOPICS, vocabulary_size=WORDS), x, truth, topic, fresh)


def random_effects(seed: int) -> Draw:
    """An intercept and one further covariate, Normal(0, 1)."""
    rng = np.random.default_rng(seed)
    topic, mean = topics(rng), np.stack([np.zeros(TOPICS), np.array([1.0, -1.0, 0.5, -0.5, 0.0])])
    u = np.stack([np.ones(2 * DOCUMENTS), rng.normal(size=2 * DOCUMENTS)], 1)
    noise = rng.multivariate_normal(np.zeros(TOPICS), _COVARIANCE / 2, len(u))
    share = _softmax(u @ mean + np.sqrt((u**2).sum(1, keepdims=True)) * noise)
    x, fresh = _halves(rng, share, topic)
    truth = {"topic": topic, "mean": mean, "covariance": _COVARIANCE / 2}
    model = RandomEffectsLDA(num_topics=TOPICS, vocabulary_size=WORDS, num_covariates=2)
    return Draw(model, x, truth, topic, fresh, others={"covariates": u[:DOCUMENTS]})


def dtm(seed: int) -> Draw:
    """Ten slices of 100 documents of 80 tokens; steps of variance .09."""
    dated, topic = synthetic(seed)
    model = DTM(num_topics=TOPICS, vocabulary_size=WORDS, num_times=10).with_concentration(alpha=0.2)
    rng, time = np.random.default_rng(seed + 100), np.repeat(np.arange(10), 50)
    share = rng.dirichlet(np.full(TOPICS, 0.2), len(time))
    fresh = sp.csr_matrix(np.stack([rng.multinomial(80, p @ topic[t]) for p, t in zip(share, time, strict=True)]))
    logit = np.log(topic)
    logit = logit - logit.mean(-1, keepdims=True)
    truth = {"drift_variance": np.array(DRIFT), "background": np.zeros(WORDS), "initial_scale": np.array(2.0),
             "topic_logit": logit}  # fmt: skip
    return Draw(model, dated.counts, truth, topic, fresh, time, others={"time": dated.time})


def lda_hmm(seed: int) -> Draw:
    """200 documents of 20 sentences, four classes of 25 words of syntax (``topics_and_syntax``)."""
    problem = Problem.drawn(seed)
    model = LDAHMM(num_topics=5, num_states=5, vocabulary_size=500)
    model = model.with_priors(emission=dist.Dirichlet(torch.full((500,), 0.3)))
    truth = {"topic": problem.topic.clip(1e-9), "emission": problem.emission, "transition": problem.moves,
             "initial": problem.first}  # fmt: skip
    return Draw(model, problem.data, truth, problem.topic)


def supervised(seed: int) -> Draw:
    """A response of two kinds by the shares of the topics among the tokens, weights from 4 to -4."""
    rng = np.random.default_rng(seed)
    topic, weight = topics(rng), np.array([4.0, 2.0, 0.0, -2.0, -4.0])
    each = np.stack([rng.multinomial(TOKENS, p) for p in rng.dirichlet(np.full(TOPICS, 0.2), 2 * DOCUMENTS)])
    x = np.sum([[rng.multinomial(n, topic[k]) for n in each[:, k]] for k in range(TOPICS)], 0)
    y = (rng.random(DOCUMENTS) < 1 / (1 + np.exp(-each[:DOCUMENTS] / TOKENS @ weight))).astype(float)
    model = SupervisedLDA(num_topics=TOPICS, vocabulary_size=WORDS, response="binary")
    truth, fresh = {"topic": topic, "response_weight": weight}, sp.csr_matrix(x[DOCUMENTS:])
    return Draw(model, sp.csr_matrix(x[:DOCUMENTS]), truth, topic, fresh, others={"response": y})


def _labelled(model: Any, rng: np.random.Generator, labels: Array) -> Draw:
    topic, size = topics(rng, model.num_topics), model.num_topics
    allowed = model.allowed(torch.as_tensor(labels, dtype=torch.float64)).numpy()
    share = rng.gamma(0.3, size=(2 * DOCUMENTS, size)).clip(1e-9) * allowed
    x, fresh = _halves(rng, share / share.sum(1, keepdims=True), topic)
    return Draw(model, x, {"topic": topic}, topic, fresh, others={"labels": labels[:DOCUMENTS]})


def labelled(seed: int) -> Draw:
    """Four labels, each in a third of the documents, and a common topic; a tenth of the documents have none."""
    rng = np.random.default_rng(seed)
    labels = (rng.random((2 * DOCUMENTS, 4)) < 1 / 3) * (rng.random((2 * DOCUMENTS, 1)) < 0.9)
    return _labelled(LabeledLDA(num_topics=5, vocabulary_size=WORDS, num_labels=4), rng, labels.astype(float))


def partially_labelled(seed: int) -> Draw:
    """One of three labels a document, each of two topics, and two common topics."""
    rng = np.random.default_rng(seed)
    model = PartiallyLabeledLDA(num_topics=8, vocabulary_size=WORDS, num_labels=3, topics_per_label=2)
    return _labelled(model, rng, np.eye(3)[rng.integers(3, size=2 * DOCUMENTS)])


def regression(seed: int) -> Draw:
    """Two covariates, a group and a number, whose weights are Normal(0, 1)."""
    rng = np.random.default_rng(seed)
    topic, bias, weight = topics(rng), np.full(TOPICS, -1.5), rng.normal(size=(2, TOPICS))
    u = np.stack([rng.random(2 * DOCUMENTS) < 0.5, rng.normal(size=2 * DOCUMENTS)], 1).astype(float)
    share = rng.gamma(np.exp(bias + u @ weight)).clip(1e-9)
    x, fresh = _halves(rng, share / share.sum(1, keepdims=True), topic)
    model = DirichletMultinomialRegression(num_topics=TOPICS, vocabulary_size=WORDS, num_covariates=2)
    truth = {"topic": topic, "prevalence_bias": bias, "prevalence_weight": weight}
    return Draw(model, x, truth, topic, fresh, others={"covariates": u[:DOCUMENTS]})


def hdp(seed: int, size: int = TOPICS, most: int = 20) -> Draw:
    """``size`` topics of even shares, Dirichlet(.2) in each document, of at most ``most``."""
    rng = np.random.default_rng(seed)
    topic = topics(rng, size)
    x, fresh = _halves(rng, rng.dirichlet(np.full(size, 0.2), 2 * DOCUMENTS), topic)
    rest = np.full((most - size, WORDS), 1 / WORDS)
    weight = np.append(np.full(size, 1.0), np.full(most - size, 1e-6))
    truth = {"topic": np.concatenate([topic, rest]), "topic_weight": weight / weight.sum(),
             "stick_concentration": np.array(1.0), "concentration": np.array(0.2 * size)}  # fmt: skip
    return Draw(HDP(max_topics=most, vocabulary_size=WORDS), x, truth, topic, fresh)


MODELS: dict[str, Callable[[int], Draw]] = {
    "CTM": ctm,
    "random-effects LDA": random_effects,
    "DTM": dtm,
    "LDA-HMM": lda_hmm,
    "supervised LDA": supervised,
    "labelled LDA": labelled,
    "partially labelled LDA": partially_labelled,
    "Dirichlet-multinomial regression": regression,
    "HDP": hdp,
}
