"""Links are predicted by draws of what they are on, and by sums over the topics of the tokens of new documents."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import gammaln

from custom_inference import CollapsedGibbs, Fit
from ppl_models import RTM, CapacityError
from tests.families.links.cases import toy
from tests.support.fits import given

A = 0.4
TOKENS = [[0, 0, 3], [1, 2, 2], [0, 1], [3]]
X = np.array([np.bincount(row, minlength=4) for row in TOKENS])
KINDS = ("additive", "sigmoid", "exponential")


def mean_of(kind: str, score: np.ndarray) -> np.ndarray:
    return {"additive": score, "sigmoid": 1 / (1 + np.exp(-score)), "exponential": np.exp(score)}[kind]


def drawn(kind: str, on: str, seed: int = 0) -> tuple[Fit, list[tuple[np.ndarray, ...]]]:
    """A fit that holds two chains of three draws, of fifteen documents, and these: topics, weights, bias, counts."""
    rng, draws = np.random.default_rng(seed), []
    model = RTM(num_topics=3, vocabulary_size=4, link=kind, link_on=on).with_concentration(alpha=A)
    words = np.stack([rng.multinomial(rng.integers(1, 5), [0.25] * 4) for _ in range(15)])
    length, topics = words.sum(1, keepdims=True), rng.dirichlet([0.5] * 4, (2, 3))
    stats: dict[str, list] = {"link_weight": [], "link_bias": [], "share": []}
    for chain in range(2):
        for _ in range(3):
            count = np.stack([rng.multinomial(n, [0.5, 0.3, 0.2]) for n in length[:, 0]])
            weight, bias = rng.gamma(2.0, size=3), 0.2
            draws.append(
                (topics[chain], weight, bias, count / length if on == "tokens" else (A + count) / (3 * A + length))
            )
            for name, value in (
                ("link_weight", weight),
                ("link_bias", bias),
                ("share", (A + count) / (3 * A + length)),
            ):
                stats[name].append(value)
    each = {f"each_{n}": torch.as_tensor(np.array(v)).unflatten(0, (2, 3)) for n, v in stats.items()}
    params = {
        "topic": torch.as_tensor(topics[0]),
        "link_weight": torch.ones(3).double(),
        "link_bias": torch.ones(()).double(),
    }
    fit = given(
        model,
        params,
        model.prepare(words, dtype=torch.float64),
        sample_stats={"each_topic": torch.as_tensor(topics), **each},
    )
    return fit, draws


@pytest.mark.parametrize("on", ["tokens", "proportions"])
@pytest.mark.parametrize("kind", KINDS)
def test_documents_that_were_fitted_are_linked_by_the_mean_over_draws(kind, on):
    fit, draws = drawn(kind, on)
    want = np.mean([mean_of(kind, (q * w) @ q.T + b) for _, w, b, q in draws], 0)
    np.testing.assert_allclose(fit.predict(None).numpy(), want, rtol=1e-6)
    np.testing.assert_allclose(fit.predict(positions=([3, 1], [7, 9])).numpy(), want[[3, 1], [7, 9]], rtol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_new_documents_are_linked_by_sums_over_the_topics_of_their_tokens(kind):
    fit, draws = drawn(kind, "tokens")
    want = np.zeros((4, 15))
    for topic, weight, bias, share in draws:
        for m, row in enumerate(TOKENS):
            every = [np.array(z) for z in itertools.product(range(3), repeat=len(row))]
            count = np.array([np.bincount(z, minlength=3) for z in every])
            log_p = np.log([topic[z, row].prod() for z in every]) + gammaln(A + count).sum(1)
            chance = np.exp(log_p - np.logaddexp.reduce(log_p))
            want[m] += chance @ mean_of(kind, (count / len(row) * weight) @ share.T + bias) / 6
    np.testing.assert_allclose(fit.predict(X).numpy(), want, rtol=1e-6)
    if kind == "additive":  # on proportions it takes their posterior means
        fit, draws = drawn(kind, "proportions")
        found = fit.predict(X).numpy()
        for m, row in enumerate(TOKENS):
            total = 0.0
            for topic, weight, bias, share in draws:
                every = [np.array(z) for z in itertools.product(range(3), repeat=len(row))]
                count = np.array([np.bincount(z, minlength=3) for z in every])
                log_p = np.log([topic[z, row].prod() for z in every]) + gammaln(A + count).sum(1)
                mean = np.exp(log_p - np.logaddexp.reduce(log_p)) @ ((A + count) / (3 * A + len(row)))
                total = total + ((mean * weight) @ share.T + bias) / 6
            np.testing.assert_allclose(found[m], total, rtol=1e-6)


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.slow] * (kind != "additive")) for kind in KINDS]
)
def test_a_hidden_link_has_its_posterior_probability(kind):
    """Two or three tokens a document: all 2^8 topics of these, given the other links."""
    model, data, linked, params, _ = toy(kind, unknown=True)
    words = [[v for v in range(3) for _ in range(int(row[v]))] for row in data.x.numpy()]
    bias, weight, alpha, gamma, terms, says = params["link_bias"], params["link_weight"], 0.7, 0.5, [], []
    for z in itertools.product(range(2), repeat=8):
        parts, start = [], 0
        for row in words:
            parts.append(np.array(z[start : start + len(row)]))
            start += len(row)
        count = np.array([np.bincount(own, minlength=2) for own in parts])
        table = np.zeros((2, 3))
        for own, row in zip(parts, words, strict=True):
            np.add.at(table, (own, row), 1)
        share = count / count.sum(1, keepdims=True)
        score = (share * weight) @ share.T + bias
        log_p = gammaln(alpha + count).sum() + gammaln(gamma + table).sum() - gammaln(3 * gamma + table.sum(1)).sum()
        for i, j in ((0, 1), (1, 2)):
            law: Any = model.link_law(torch.tensor(score[i, j]))
            log_p += float(law.log_prob(torch.tensor(linked[i, j])))
        terms.append(log_p)
        says.append(mean_of(kind, score[0, 2]))
    want = np.exp(np.array(terms) - np.logaddexp.reduce(terms)) @ np.array(says)
    method = CollapsedGibbs(chains=1, warmup=100, num_samples=3000, thin=1, align=False)
    found = float(method.fit(model, data, progress=False).predict(positions=([0], [2]))[0])
    assert abs(found - want) < 0.03 * max(1.0, want)


def test_points_are_averaged_over_what_links_are_on():
    """By variational EM: of what is linear the means of its posterior, else draws from it."""
    fit = drawn("additive", "tokens")[0]
    fit.sample_stats = {}
    posterior: Any = fit.posterior
    share = (posterior.concentration.numpy() - A) / fit.data.x.sum(1, keepdim=True).numpy()
    np.testing.assert_allclose(fit.predict(None).numpy(), share @ share.T + 1, rtol=1e-6)
    fit, rng, total = drawn("sigmoid", "tokens")[0], np.random.default_rng(0), 0.0
    fit.sample_stats = {}
    topic, words = fit.params["topic"].numpy(), fit.data.x.numpy().astype(int)
    for _ in range(600):
        share = np.zeros((15, 3))
        for n, row in enumerate(words):
            pi = rng.dirichlet(posterior.concentration.numpy()[n])
            phi = pi[:, None] * topic[:, np.repeat(np.arange(4), row)]
            for one in (phi / phi.sum(0)).T:
                share[n, rng.choice(3, p=one)] += 1 / row.sum()
        total = total + mean_of("sigmoid", share @ share.T + 1.0) / 600
    away = ~np.eye(15, dtype=bool)
    found = fit.predict(None, uncertainty=True)
    assert np.abs(fit.predict(None).numpy() - total)[away].max() < 0.05
    assert np.array_equal(found.mean, fit.predict(None)) and float(found.sd.max()) > 0


def test_intervals_of_links_cover_as_often_as_they_say():
    fit, draws = drawn("exponential", "tokens")
    found, rng = fit.predict(None, uncertainty=True), np.random.default_rng(1)
    which = rng.integers(6, size=400)
    rate = np.array([mean_of("exponential", (draws[d][3] * draws[d][1]) @ draws[d][3].T + 0.2) for d in range(6)])
    links = rng.poisson(rate[which])
    low, high = (end.numpy() for end in found.interval(0.9))
    assert 0.89 < ((links >= low) & (links <= high)).mean() < 0.98
    np.testing.assert_allclose(found.mean, rate.mean(0), rtol=1e-6)
    np.testing.assert_allclose(found.sd, rate.std(0), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found.spread, np.sqrt(rate.var(0) + rate.mean(0)), rtol=1e-4)
    new = fit.predict(X, uncertainty=True)
    assert new.mean.shape == (4, 15) and new.draws.shape[1:] == (4, 15)
    with pytest.raises(CapacityError, match="uncertainty=True of 40000 links"):
        fit.predict(positions=(np.zeros(40_000, int), np.ones(40_000, int)), uncertainty=True)
