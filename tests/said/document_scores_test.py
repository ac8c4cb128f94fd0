"""A score of documents is of the program that was fitted: against sums over all topics of three tokens."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from scipy.special import gammaln

import custom_inference as ci
from custom_inference import Fit
from custom_inference.documents import HeldOut, cross_validate, held_out, perplexity
from ppl_models import (
    CTM,
    DTM,
    HDP,
    LDA,
    RTM,
    Data,
    DataWarning,
    DirichletMultinomialRegression,
    DiscriminativeLDA,
    LabeledLDA,
    MethodError,
    MultinomialRegressionLDA,
    PartiallyLabeledLDA,
    RandomEffectsLDA,
    SupervisedLDA,
)
from tests.support.fits import given

RNG = np.random.default_rng(5)
TOPIC = RNG.dirichlet([0.6] * 4, 4)
ALPHA = np.array([0.3, 0.7, 0.2, 0.5])
#: Documents of three tokens, and of two.
TOKENS = [[0, 0, 3], [1, 2, 2], [0, 1, 3], [2, 3]]
X = np.array([np.bincount(row, minlength=4) for row in TOKENS])
COVARIATES = np.array([[0.4], [-1.2], [0.9], [0.1]])


def summed(tokens: list[int], alpha: np.ndarray, topic: np.ndarray) -> float:
    """log p(tokens), summed over every assignment of topics to them; alpha may be 0."""
    terms, may = [], np.flatnonzero(alpha)
    for z in itertools.product(may, repeat=len(tokens)):
        n = np.bincount(np.array(z, int), minlength=len(alpha))[may]
        own = alpha[may]
        prior = gammaln(own.sum()) - gammaln(own.sum() + n.sum()) + (gammaln(own + n) - gammaln(own)).sum()
        terms.append(prior + np.log(topic[list(z), tokens]).sum())
    return np.logaddexp.reduce(terms)


def error_of(found: HeldOut) -> np.ndarray:
    assert found.standard_error is not None
    return found.standard_error.numpy()


def fitted(model: Any, **params: Any) -> Fit:
    values = {site: torch.as_tensor(np.asarray(value, float)) for site, value in params.items()}
    return given(model, values, Data(x=torch.as_tensor(X, dtype=torch.float64)))


def of_labels(kind: Any, labels: np.ndarray, **sizes: Any) -> tuple[Fit, dict, list]:
    model = kind(num_topics=4, vocabulary_size=4, **sizes).with_concentration(alpha=torch.as_tensor(ALPHA))
    each = sizes.get("topics_per_label", 1)
    allowed = np.concatenate([np.repeat(labels, each, 1), np.ones((4, 4 - each * labels.shape[1]))], 1)
    allowed[labels.sum(1) == 0] = 1
    return fitted(model, topic=TOPIC), {"labels": labels}, [(ALPHA * a, TOPIC) for a in allowed]


def of_classes() -> tuple[Fit, dict, list]:
    matrix, label = np.random.default_rng(1).dirichlet([0.5] * 4, (2, 4)), np.array([0, 1, 1, -1])
    model = DiscriminativeLDA(num_topics=4, vocabulary_size=4, num_classes=2).with_concentration(
        alpha=torch.as_tensor(ALPHA)
    )
    mixed = [matrix[c] if c >= 0 else matrix.mean(0) for c in label]
    fit = fitted(model, topic=TOPIC, transformation=matrix)
    return fit, {"labels": label}, [(ALPHA, m @ TOPIC) for m in mixed]


def of_covariates() -> tuple[Fit, dict, list]:
    bias, weight = np.array([-1.0, 0.2, -0.5, 0.1]), np.array([[0.8, -0.6, 0.3, 0.0]])
    model = DirichletMultinomialRegression(num_topics=4, vocabulary_size=4, num_covariates=1, centre=0.2, unit=1.0)
    fit = fitted(model, topic=TOPIC, prevalence_bias=bias, prevalence_weight=weight)
    return fit, {"covariates": COVARIATES}, [(np.exp(bias + (u - 0.2) @ weight), TOPIC) for u in COVARIATES]


def of_slices() -> tuple[Fit, dict, list]:
    logit, time = np.random.default_rng(2).normal(size=(3, 4, 4)), np.array([0, 2, 1, 2])
    model = DTM(num_topics=4, vocabulary_size=4, num_times=3).with_priors(
        topic_proportion=dist.Dirichlet(torch.as_tensor(ALPHA))
    )
    rest = {site: np.ones(shape) for site, shape in model.shapes.items() if site != "topic_logit"}
    topic = np.exp(logit - np.logaddexp.reduce(logit, -1, keepdims=True))
    return fitted(model, topic_logit=logit, **rest), {"time": time}, [(ALPHA, topic[t]) for t in time]


def alone(kind: Any, **params: Any) -> tuple[Fit, dict, list]:
    """Documents beside which nothing is observed, and is summed out of the model that would."""
    model = kind(num_topics=4, vocabulary_size=4)
    model = model if kind is HDP else model.with_concentration(alpha=torch.as_tensor(ALPHA))
    params |= {site: np.ones(shape) for site, shape in model.shapes.items() if site not in ("topic", *params)}
    return fitted(model, topic=TOPIC, **params), {}, [(ALPHA, TOPIC)] * 4


def of_sticks() -> tuple[Fit, dict, list]:
    weight = ALPHA / ALPHA.sum()
    params = {"topic_weight": weight, "concentration": ALPHA.sum(), "stick_concentration": 1.0}
    return fitted(HDP(max_topics=4, vocabulary_size=4), topic=TOPIC, **params), {}, [(ALPHA, TOPIC)] * 4


LABELS = np.array([[1, 0, 0], [0, 1, 1], [1, 1, 1], [0, 0, 0]])
CASES = {
    "lda": lambda: alone(LDA),
    "labelled": lambda: of_labels(LabeledLDA, LABELS, num_labels=3),
    "partially labelled": lambda: of_labels(
        PartiallyLabeledLDA, np.array([[1, 0], [0, 1], [1, 1], [0, 0]]), num_labels=2, topics_per_label=2
    ),
    "discriminative": of_classes,
    "covariates": of_covariates,
    "slices": of_slices,
    "sticks": of_sticks,
    "responses": lambda: alone(SupervisedLDA),
    "links": lambda: alone(RTM),
}


@pytest.mark.parametrize("name", CASES)
def test_every_estimate_is_of_the_program_given_what_stands_beside(name):
    fit, beside, laws = CASES[name]()
    truth = np.array([summed(row, *law) for row, law in zip(TOKENS, laws, strict=True)])
    estimates: Any = (
        ("importance", {"samples": 40_000}),
        ("left_to_right", {"particles": 400, "runs": 8}),
        ("ais", {"seconds": 2.0}),
    )
    for how, settings in estimates:
        found = held_out(fit, X, how=how, **settings, **beside)
        error = np.maximum(error_of(found), 1e-6)
        assert (np.abs(found.log_probability.numpy() - truth) < 5 * error).all(), (how, found, truth)
        assert error.max() < 0.1
    for how in {"dirichlet", "exact"} & set(fit.bounds):
        found = held_out(fit, X, how=how, **beside).log_probability.numpy()
        assert (found < truth + 1e-9).all() and (found > truth - 2.0).all()
        assert how != "exact" or np.allclose(found, truth)
    # The test can fail: without what stands beside the score is another one.
    if beside:
        other = held_out(fit, X, how="left_to_right", particles=200).log_probability.numpy()
        assert np.abs(other - truth).max() > 0.2


def folded(tokens: list[int], alpha: np.ndarray, topic: np.ndarray) -> np.ndarray:
    theta = (alpha > 0) * 1.0
    for _ in range(100):
        share = theta[:, None] * topic[:, tokens]
        theta = alpha + (share / share.sum(0)).sum(1)
    return theta / theta.sum()


@pytest.mark.parametrize("name", CASES)
def test_halves_are_scored_by_the_topics_that_documents_can_have(name):
    fit, beside, laws = CASES[name]()
    other = X[::-1].copy()
    want = [(n * np.log(folded(row, *law) @ law[1])).sum() for row, n, law in zip(TOKENS, other, laws, strict=True)]
    found = held_out(fit, X, held_out=other, **beside)
    np.testing.assert_allclose(found.log_probability.numpy(), want, atol=1e-8)
    own = [(n * np.log(folded(row, *law) @ law[1])).sum() for row, n, law in zip(TOKENS, X, laws, strict=True)]
    np.testing.assert_allclose(held_out(fit, X, how="plugin", **beside).log_probability.numpy(), own, atol=1e-8)
    assert np.isfinite(perplexity(fit, X, **beside))  # halves that keep what stands beside them


def test_proportions_that_covariates_decide_are_scored_exactly():
    bias, weight = np.array([-1.0, 0.2, -0.5, 0.1]), np.array([[0.8, -0.6, 0.3, 0.0]])
    model = MultinomialRegressionLDA(num_topics=4, vocabulary_size=4, num_covariates=1, centre=0.2, unit=1.0)
    fit = fitted(model, topic=TOPIC, prevalence_bias=bias, prevalence_weight=weight)
    eta = bias + (COVARIATES - 0.2) @ weight
    log_p = np.log(np.exp(eta - np.logaddexp.reduce(eta, 1, keepdims=True)) @ TOPIC)
    for how in ("exact", "importance", "left_to_right", "plugin"):
        found = held_out(fit, X, how=how, covariates=COVARIATES).log_probability.numpy()
        np.testing.assert_allclose(found, (X * log_p).sum(1), atol=1e-9)
    found = held_out(fit, X, held_out=X[::-1].copy(), covariates=COVARIATES).log_probability.numpy()
    np.testing.assert_allclose(found, (X[::-1] * log_p).sum(1), atol=1e-9)


@pytest.mark.parametrize("kind", [CTM, RandomEffectsLDA])
def test_logits_are_scored_given_covariates(kind):
    """Against means over many draws of the logits."""
    rng, covariance = np.random.default_rng(3), np.diag([0.5, 1.0, 0.3, 0.8]) + 0.2
    u = np.concatenate([np.ones((4, 1)), COVARIATES], 1) if kind is RandomEffectsLDA else COVARIATES
    size = u.shape[1]
    model = kind(num_topics=4, vocabulary_size=4, num_covariates=size, centre=[0.0] * size, unit=[1.0] * size)
    mean = rng.normal(size=model.shapes["mean"])
    params = {"mean": mean, "covariance": covariance}
    params |= {"prevalence_weight": rng.normal(size=(size, 4))} if kind is CTM else {}
    fit, draws = fitted(model, topic=TOPIC, **params), rng.multivariate_normal(np.zeros(4), covariance, 400_000)
    truth = []
    for row, one in zip(TOKENS, u, strict=True):
        spread = np.linalg.norm(one) if kind is RandomEffectsLDA else 1.0
        location = one @ mean if kind is RandomEffectsLDA else mean + one @ params["prevalence_weight"]
        eta = location + spread * draws
        theta = np.exp(eta - np.logaddexp.reduce(eta, 1, keepdims=True))
        truth.append(np.log(np.prod(theta @ TOPIC[:, row], 1).mean()))
    found = held_out(fit, X, how="ais", seconds=4.0, covariates=u)
    gap = np.abs(found.log_probability.numpy() - np.array(truth))
    assert (gap < 5 * error_of(found) + 0.01).all()
    with pytest.raises(MethodError, match='have no Dirichlet prior, .*expected how="completion" or how="ais"'):
        held_out(fit, X, how="importance", covariates=u)
    # A half of next to nothing: proportions are what the covariates say.
    held = held_out(fit, 0 * X, held_out=X, covariates=u).log_probability.numpy()
    expected = []
    for one, n in zip(u, X, strict=True):
        spread = np.linalg.norm(one) if kind is RandomEffectsLDA else 1.0
        location = one @ mean if kind is RandomEffectsLDA else mean + one @ params["prevalence_weight"]
        eta = location + spread * draws
        expected.append((n * np.log(np.exp(eta - np.logaddexp.reduce(eta, 1, keepdims=True)).mean(0) @ TOPIC)).sum())
    np.testing.assert_allclose(held, expected, atol=0.2)


def test_what_is_observed_beside_the_words_is_refused_by_name():
    for fit, beside, site in (
        (alone(SupervisedLDA)[0], {"response": [0, 1, 0, 1]}, "response"),
        (alone(RTM)[0], {"links": np.eye(4)[[1, 0, 3, 2]]}, "links"),
    ):
        for how in ("completion", "importance", "dirichlet", "ais"):
            with pytest.raises(MethodError, match=f"'{site}' of held-out documents .* expected documents without"):
                held_out(fit, X, how=how, **beside)


def test_documents_that_lack_what_the_fit_was_given_are_said():
    fit, beside, _ = of_labels(LabeledLDA, LABELS, num_labels=3)
    fit.data = fit.model.prepare(X, **beside, dtype=torch.float64)
    with pytest.warns(DataWarning, match="site 'labels': documents without labels: .*expected labels=.*as the fit had"):
        found = held_out(fit, X, how="ais", seconds=1.0).log_probability.numpy()
    np.testing.assert_allclose(found, [summed(row, ALPHA, TOPIC) for row in TOKENS], atol=0.1)
    assert np.allclose(held_out(fit, fit.data).log_probability, held_out(fit, X, **beside).log_probability)


def test_floors_are_those_of_topics_in_time_too_and_refused_without_topics():
    fit, beside, _ = of_slices()
    settings: Any = {"floor": 0.25, **beside}
    high = held_out(fit, X, how="left_to_right", **settings).log_probability
    np.testing.assert_allclose(high.numpy(), -X.sum(1) * np.log(4), atol=0.6)
    example: Any = __import__("ppl_models").ReplicatedSoftmax.example()
    machine = given(example.model, {s: example.truth[s] for s in example.model.shapes}, example.data)
    with pytest.raises(MethodError, match=r"floor = 0.1 of ReplicatedSoftmax, which has no topics"):
        held_out(machine, example.data.x, how="exact", floor=0.1)


def test_choices_of_the_number_of_topics_give_documents_what_they_have():
    labels = np.arange(40) % 2
    x = np.stack([np.random.default_rng(n).multinomial(12, TOPIC[k]) for n, k in enumerate(labels)])
    indicators = np.eye(2)[labels]
    found = cross_validate(LabeledLDA, x, [2], folds=2, labels=indicators, seed=3, fitting={"max_iterations": 50})
    perplexities = found.folds["perplexity"].tolist()
    part, tokens, total = np.random.default_rng(3).permutation(np.arange(40) % 2), 0.0, []
    for fold in range(2):
        train, test = part != fold, part == fold
        model = LabeledLDA(num_topics=2, vocabulary_size=4, num_labels=2)
        fit = ci.fit(model, x[train], labels=indicators[train], seed=3, progress=False, max_iterations=50)
        whole = held_out(fit, x[test], labels=indicators[test], how="importance").log_probability.sum()
        half = held_out(fit, x[test], labels=indicators[test])
        assert perplexities[fold] == pytest.approx(half.perplexity(), rel=1e-6)
        # Of one label a document a half is scored by its topic alone: the mean is that of the whole.
        tokens, total = tokens + x[test].sum(), [*total, float(whole)]
    assert np.exp(-sum(total) / tokens) == pytest.approx(np.mean(perplexities), rel=0.05)
    several = ci.compare_models(
        {"labelled": model, "plain": LDA(num_topics=2, vocabulary_size=4)}, x, labels=indicators, folds=2,
        criteria=("heldout",), seed=3, progress=False,
    )  # fmt: skip
    table = several.table["heldout"].to_dict()
    assert table["labelled"] == pytest.approx(sum(total) / tokens, abs=0.05) and table["labelled"] > table["plain"]
