"""Responses are predicted by sums over the topics of tokens, or draws of them, at draws of the globals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyro.distributions as dist
import pytest
import torch

import custom_inference as ci
from custom_inference import CollapsedGibbs, Fit
from custom_inference.core.posteriors import DirichletPosterior
from custom_inference.families.topics import numbers
from ppl_models import LDA, LabeledLDA, MethodError, SupervisedLDA
from tests.references.supervised_lda import mean_response
from tests.support.fits import given

KINDS: dict[str, dict[str, Any]] = {
    "binary": {},
    "categorical": {"num_classes": 3},
    "real": {"centre": [1.0], "unit": [2.0]},
    "counts": {},
    "several": {"num_responses": 2},
}
X = np.array([[2, 1, 0, 0], [0, 0, 1, 2], [1, 0, 1, 1], [0, 3, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]])
LONG = np.array([[9, 4, 7, 0], [0, 8, 8, 9], [3, 3, 3, 3], [9, 4, 7, 0]])


def fitted(name: str, draws: int = 0, seed: int = 0, topics: int = 3) -> Fit:
    """A fit of a point, or of so many draws by two chains, with response weights of size 2."""
    rng, kind = np.random.default_rng(seed), "binary" if name == "several" else name
    model = SupervisedLDA(num_topics=topics, vocabulary_size=4, response=kind, **KINDS[name])
    shape = (2, draws // 2) if draws else ()
    params = {"topic": rng.dirichlet([0.5] * 4, (*shape, topics))}
    params["response_weight"] = 2 * rng.normal(size=(*shape, *model.shapes["response_weight"]))
    if kind == "real":
        params["response_scale"] = np.full(shape, 0.5)
    made = {site: torch.as_tensor(value) for site, value in params.items()}
    point = {site: value.flatten(0, 1).mean(0) for site, value in made.items()} if draws else made
    data = model.prepare(X, dtype=torch.float64)
    return given(model, point, data, draws=made if draws else None)


def at_draws(fit: Fit, x: np.ndarray) -> np.ndarray:
    """The mean over the draws of the exact means."""
    values = fit.params if fit.draws is None else {s: v.flatten(0, 1) for s, v in fit.draws.items()}
    number = 1 if fit.draws is None else len(values["topic"])
    kind: Any = fit.model
    each = []
    for draw in range(number):
        own = {s: (v if fit.draws is None else v[draw]).numpy() for s, v in values.items()}
        each.append(mean_response(own, x, 0.1, kind.response))
    found = np.mean(each, 0)
    if kind.response == "real":  # of no tokens: the centre
        found[x.sum(1) == 0] = 1.0
    return found


@pytest.mark.parametrize("draws", [0, 6])
@pytest.mark.parametrize("name", KINDS)
def test_short_texts_are_summed_out_at_every_draw(name, draws):
    fit = fitted(name, draws)
    np.testing.assert_allclose(fit.predict(X).numpy(), at_draws(fit, X), atol=1e-9)
    # The test can fail: at the mean of the draws it is another number.
    point = fitted(name, draws)
    point.draws = None
    assert not draws or np.abs(point.predict(X).numpy() - at_draws(fit, X)).max() > 0.02


@pytest.mark.parametrize("name", KINDS)
def test_longer_texts_are_drawn_near_the_sums_and_alone_as_among_others(name, monkeypatch):
    fit = fitted(name, 20, topics=2)
    exact = at_draws(fit, LONG)
    np.testing.assert_allclose(fit.predict(LONG).numpy(), exact, atol=1e-9)
    monkeypatch.setattr(numbers, "TERMS", 10)
    found = fit.predict(LONG).numpy()
    spread = fit.predict(LONG, uncertainty=True).sd.numpy()
    assert (np.abs(found - exact) < 4 * spread / 20**0.5 + 1e-3).all()
    for one, other in ((found[0], found[3]), (found[1], fit.predict(LONG[1:2]).numpy()[0])):
        np.testing.assert_allclose(one, other, atol=1e-12)
    monkeypatch.setattr(numbers, "_NUMBERS", 100)  # in blocks
    np.testing.assert_allclose(fit.predict(LONG).numpy(), found, atol=1e-12)


def test_posteriors_of_the_topics_alone_are_drawn_from():
    """As of a guide: Dirichlets of the topics, the weights points."""
    fit = fitted("binary")
    concentration = 5 * fit.params["topic"] + 0.1
    own = dist.Dirichlet(concentration)
    torch.manual_seed(0)
    truth = np.mean([
        mean_response({"topic": t.numpy(), "response_weight": fit.params["response_weight"].numpy()}, X)
        for t in own.sample((2000,))
    ], 0)  # fmt: skip
    fit.global_posterior = {"topic": DirichletPosterior(concentration)}
    found = fit.predict(X).numpy()
    assert np.abs(found - truth).max() < 0.05 < np.abs(fitted("binary").predict(X).numpy() - truth).max()


def test_priors_of_proportions_that_are_no_dirichlet_are_weighed_in():
    law = dist.LogisticNormal(torch.tensor([0.5, -0.5]).double(), torch.tensor([1.5, 1.0]).double())
    fit = fitted("counts")
    fit.model = fit.model.with_priors(topic_proportion=law)
    torch.manual_seed(1)
    pi, weight = law.sample((200_000,)), fit.params["response_weight"]
    truth = []
    for row in X[:5]:
        words = np.repeat(np.arange(4), row)
        joint = pi[:, None] * fit.params["topic"].T[words]  # (S, L, K)
        evidence = joint.sum(-1).prod(-1)
        phi = joint / joint.sum(-1, keepdim=True)
        mean = (phi * (weight / len(words)).exp()).sum(-1).prod(-1)
        truth.append(float((evidence * mean).sum() / evidence.sum()))
    found = fit.predict(X[:5]).numpy()
    np.testing.assert_allclose(found, truth, rtol=0.15)


def simulate(name: str, number: int, seed: int) -> tuple[SupervisedLDA, dict, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    topic, weight = np.array([[0.6, 0.3, 0.05, 0.05], [0.05, 0.05, 0.3, 0.6]]), np.array([2.0, 0.3])
    x, y = np.zeros((number, 4), int), np.zeros(number)
    for n, theta in enumerate(rng.dirichlet([0.5, 0.5], number)):
        z = rng.choice(2, 6, p=theta)
        for k in z:
            x[n, rng.choice(4, p=topic[k])] += 1
        eta = weight[z].mean()
        y[n] = rng.poisson(np.exp(eta)) if name == "counts" else eta + 0.3 * rng.standard_normal()
    model = SupervisedLDA(num_topics=2, vocabulary_size=4, response=name).with_concentration(alpha=0.5)
    params = {"topic": topic, "response_weight": weight} | ({"response_scale": 0.3} if name == "real" else {})
    return model, params, x, y


def cover(fit: Fit, x: np.ndarray, y: np.ndarray) -> float:
    low, high = (end.numpy() for end in fit.predict(x, uncertainty=True).interval(0.9))
    return float(((y >= low) & (y <= high)).mean())


@pytest.mark.parametrize("name", ["real", "counts"])
def test_intervals_cover_as_often_as_they_say(name):
    model, params, x, y = simulate(name, 1500, 3)
    tensors = {site: torch.as_tensor(value, dtype=torch.float64) for site, value in params.items()}
    fit = given(model, tensors, model.prepare(x[:1], response=y[:1], dtype=torch.float64))
    known = cover(fit, x, y)
    assert 0.88 < known < (0.92 if name == "real" else 0.98)
    sampled = CollapsedGibbs(chains=1, warmup=100, num_samples=40).fit(model, x[:200], response=y[:200], progress=False)
    assert 0.86 < cover(sampled, x[200:], y[200:]) < 0.98
    trained = ci.fit(model, x[:200], response=y[:200], progress=False, sweeps=12, begin=4, average=6, weight=5.0)
    assert 0.80 < cover(trained, x[200:], y[200:]) < 0.98


def test_moments_are_those_of_the_predictive_distribution():
    fit = fitted("real", 6)
    found = fit.predict(X[:5], uncertainty=True)
    np.testing.assert_allclose(found.mean, fit.predict(X[:5]), atol=1e-12)
    np.testing.assert_allclose(found.draws.mean(0), found.mean, atol=0.3)
    np.testing.assert_allclose(found.draws.std(0), found.spread, rtol=0.15)
    np.testing.assert_allclose(found.spread**2 - found.sd**2, 0.25, atol=1e-9)
    classes = fitted("categorical").predict(X, uncertainty=True)
    assert classes.mean.shape == classes.sd.shape == (6, 3) and classes.draws.shape == (1000, 6)
    share = torch.stack([(classes.draws == c).double().mean(0) for c in range(3)], 1)
    np.testing.assert_allclose(share, classes.mean, atol=0.06)
    with pytest.raises(MethodError, match="an interval of classes, which have no order"):
        classes.interval()
    with pytest.raises(MethodError, match="level = 1.0"):
        found.interval(1.0)


def test_what_is_predicted_is_not_taken():
    fit = fitted("binary")
    with pytest.raises(MethodError, match="argument of predict of SupervisedLDA 'response'; valid: uncertainty"):
        fit.predict(X, response=np.zeros(6))
    labelled = LabeledLDA(num_topics=2, vocabulary_size=4, num_labels=2)
    topics = given(
        labelled, {"topic": torch.full((2, 4), 0.25).double()}, labelled.prepare(X, labels=np.eye(2)[[0] * 6])
    )
    with pytest.raises(MethodError, match="unknown argument of predict of LabeledLDA 'labels'"):
        topics.predict(X, labels=np.zeros((6, 2)))
    with pytest.raises(MethodError, match="LDA has no response to predict"):
        given(LDA(num_topics=2, vocabulary_size=4), {"topic": torch.full((2, 4), 0.25)}, topics.data).predict(X)
