"""Scores of held-out documents against sums over every assignment of tokens to topics, and against brute force."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.special import gammaln, logsumexp

from custom_inference import Fit
from custom_inference.documents import HeldOut, held_out, perplexity
from custom_inference.documents.samplers import Estimate, _log_dirichlet
from ppl_models import (
    CTM,
    LDA,
    MODELS,
    NOCA,
    Data,
    DataError,
    DataWarning,
    MethodError,
    MixtureOfMultinomials,
    MultinomialPCA,
    as_documents,
)
from ppl_models.datasets import river_bank, sample_lda
from tests.support.fits import given

TOPIC = np.array([[0.5, 0.3, 0.1, 0.05, 0.05], [0.05, 0.05, 0.3, 0.5, 0.1], [0.1, 0.1, 0.1, 0.1, 0.6]])
ALPHA = np.array([0.3, 0.7, 0.2])
#: Tokens by document: of all lengths up to six, the empty one too.
DOCUMENTS = [[0, 0, 3, 3, 4, 1], [2, 2, 2], [4], [], [0, 3, 0, 3, 0, 3], [1, 4, 4, 4]]
COUNTS = np.array([np.bincount(d, minlength=5) for d in DOCUMENTS])


def exact(tokens: list[int], topic: np.ndarray, alpha: np.ndarray) -> float:
    """log sum over all K^L assignments of p(z) p(w | z): Dirichlet-multinomial times the words' probabilities."""
    terms = []
    for z in itertools.product(range(len(alpha)), repeat=len(tokens)):
        n = np.bincount(np.array(z, dtype=int), minlength=len(alpha))
        prior = gammaln(alpha.sum()) - gammaln(alpha.sum() + n.sum()) + (gammaln(alpha + n) - gammaln(alpha)).sum()
        with np.errstate(divide="ignore"):
            terms.append(prior + np.log(topic[list(z), tokens]).sum())
    return float(logsumexp(terms))


EXACT = np.array([exact(d, TOPIC, ALPHA) for d in DOCUMENTS])


def fitted(model, **params) -> Fit:
    """A fit with given globals."""
    tensors = {site: torch.as_tensor(value) for site, value in params.items()}
    data = as_documents(COUNTS[:, : model.vocabulary_size])
    return given(model, tensors, data, elbo=torch.zeros(0), bound_name="exact")


def lda(topic: np.ndarray = TOPIC, alpha: np.ndarray = ALPHA, kind=LDA) -> Fit:
    model = kind(num_topics=len(topic), vocabulary_size=topic.shape[1])
    return fitted(model.with_concentration(alpha=alpha), topic=topic)


def mixture() -> Fit:
    model = MixtureOfMultinomials(num_topics=3, vocabulary_size=5)
    return fitted(model, topic=TOPIC, mixing_proportion=np.array([0.5, 0.2, 0.3]))


def test_exact_evidence_is_the_sum_over_all_assignments():
    found = held_out(lda(), COUNTS, how="exact")
    np.testing.assert_allclose(found.log_probability, EXACT, atol=1e-10)
    assert found.tokens.tolist() == [len(d) for d in DOCUMENTS]
    # Of counts the multinomial coefficient is no part of the score.
    np.testing.assert_allclose(
        held_out(lda(kind=MultinomialPCA), COUNTS, how="exact").log_probability, EXACT, atol=1e-10
    )
    bound = held_out(lda(), COUNTS, how="dirichlet").log_probability.numpy()
    assert (bound <= EXACT + 1e-10).all() and (bound[[0, 1]] < EXACT[[0, 1]] - 1e-3).all()


SAMPLERS = [
    ("importance", {"samples": 300}),
    ("importance", {"samples": 300, "from_prior": 1.0}),
    ("left_to_right", {"particles": 6}),
    ("left_to_right", {"particles": 1, "sweeps": 0}),
    ("left_to_right", {"particles": 3, "sweeps": 2}),
]


@pytest.mark.parametrize(("how", "settings"), SAMPLERS)
def test_samplers_are_unbiased_for_the_evidence(how, settings):
    """The mean of exp(estimate) / p over many seeds is 1, within five of its standard errors."""
    copies = 1500
    counts = np.tile(COUNTS, (copies, 1))
    found = held_out(lda(), counts, how=how, **settings).log_probability.numpy().reshape(copies, len(DOCUMENTS))
    ratio = np.exp(found - EXACT)
    error = ratio.std(0, ddof=1) / copies**0.5
    assert (np.abs(ratio.mean(0) - 1) <= 5 * error + 1e-10).all(), (ratio.mean(0), error)
    # The test can fail: a bias of a tenth would be seen wherever there is anything to estimate.
    assert error.max() < 0.03
    # Documents of no token and of one have nothing to average over, once topics are summed out.
    if how == "left_to_right":
        np.testing.assert_allclose(found[:, [2, 3]], np.tile(EXACT[[2, 3]], (copies, 1)), atol=1e-12)


@pytest.mark.parametrize(
    ("how", "settings"), [("importance", {"samples": 4000}), ("left_to_right", {"particles": 50, "runs": 10})]
)
def test_standard_errors_say_how_far_estimates_are_off(how, settings):
    counts = np.tile(COUNTS, (40, 1))
    found = held_out(lda(), counts, how=how, **settings)
    error = found.standard_error.numpy()
    z = (found.log_probability.numpy() - np.tile(EXACT, 40))[error > 1e-9] / error[error > 1e-9]
    assert len(z) > 100 and abs(z.mean()) < 0.3 and 0.7 < z.std() < 1.4
    assert error.max() < 0.1
    assert held_out(lda(), COUNTS, how="left_to_right").standard_error is None  # of one run there is no spread


@pytest.mark.slow
def test_the_default_samplers_agree_on_longer_documents():
    """Eight topics, forty tokens: no sum is feasible; three estimates by different means agree within their errors."""
    rng = np.random.default_rng(0)
    topic, alpha = rng.dirichlet([0.2] * 60, 8), np.full(8, 0.4)
    drawn = sample_lda(torch.as_tensor(topic), 12, alpha=0.4, length=40, seed=1)
    fit = lda(topic, alpha)
    found = [
        held_out(fit, drawn.x, how="importance", samples=20_000),
        held_out(fit, drawn.x, how="left_to_right", particles=40, runs=6),
        held_out(fit, drawn.x, how="ais", seconds=5.0),
    ]
    for one, other in itertools.pairwise(found):
        gap = (one.log_probability - other.log_probability).numpy()
        error = torch.sqrt(one.standard_error**2 + other.standard_error**2).numpy()
        assert (np.abs(gap) < 5 * error + 1e-3).all() and np.abs(gap).max() < 1
    bound = held_out(fit, drawn.x, how="dirichlet").log_probability
    assert (bound < found[1].log_probability + 5 * found[1].standard_error).all()


def test_tokens_that_no_topic_writes_have_probability_0_and_are_said():
    drawn = river_bank(4)
    topic = np.array([[0.0, 0, 0.5, 0.5, 0], [0, 0.5, 0.5, 0, 0]])  # neither writes "river" or "loan"
    fit = lda(topic, np.ones(2))
    for how in ("importance", "left_to_right", "plugin"):
        with pytest.warns(DataWarning, match="4 documents have probability 0, .*floor=1e-12"):
            assert perplexity(fit, drawn.x, how=how) == math.inf
        assert perplexity(fit, drawn.x, how=how, floor=1e-6) < 1e6
    # Words that one topic alone writes: exact zeros along the way, and still unbiased.
    sharp = np.array([[0.0, 0, 1, 1, 1], [1, 1, 1, 0, 0]]) / 3
    tokens = [0, 2, 2, 1, 3]
    counts = np.tile(np.bincount(tokens, minlength=5), (3000, 1))
    truth = exact(tokens, sharp, np.array([0.4, 0.6]))
    with np.errstate(divide="ignore"):
        score = held_out(lda(sharp, np.array([0.4, 0.6])), counts, how="left_to_right", floor=0.0, particles=4)
    ratio = torch.exp(score.log_probability - truth).numpy()
    assert abs(ratio.mean() - 1) < 5 * ratio.std() / 3000**0.5


def test_the_same_seed_gives_the_same_estimate_and_leaves_no_trace():
    before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    for how in ("importance", "left_to_right", "completion"):
        first, again, other = (held_out(lda(), COUNTS, how=how, seed=s).log_probability for s in (1, 1, 2))
        assert torch.equal(first, again) and not torch.equal(first, other)
    assert torch.equal(before, torch.get_rng_state())
    assert (numpy_before == np.random.get_state()[1]).all()  # noqa: NPY002


def test_mixtures_are_scored_exactly_by_every_sampler():
    fit = mixture()
    pi = fit.params["mixing_proportion"].numpy()
    expected = [logsumexp(np.log(pi) + sum(np.log(TOPIC[:, w]) for w in d)) for d in DOCUMENTS]
    for how in ("exact", "importance", "left_to_right"):
        np.testing.assert_allclose(held_out(fit, COUNTS, how=how).log_probability, expected, atol=1e-12)


def test_perplexity_per_token_and_per_document():
    scores = HeldOut(log_probability=torch.tensor([-2.0, -9.0, 0.0]), tokens=torch.tensor([1.0, 3.0, 0.0]), how="x")
    assert scores.perplexity() == pytest.approx(math.exp(11 / 4))
    assert scores.perplexity("document") == pytest.approx(math.exp((2 + 3) / 2))  # the empty one says nothing
    with pytest.raises(DataError, match="no tokens to score"):
        HeldOut(log_probability=torch.zeros(2), tokens=torch.zeros(2), how="x").perplexity()
    with pytest.raises(MethodError, match="'word'; valid: document, token"):
        scores.perplexity("word")
    # Uniform words: as many as there are.
    uniform = lda(np.full((3, 5), 0.2))
    for how in ("exact", "plugin", "completion", "left_to_right"):
        for per in ("token", "document"):
            assert perplexity(uniform, COUNTS, how=how, per=per) == pytest.approx(5)
    assert perplexity(uniform, COUNTS, how="importance", from_prior=1.0) == pytest.approx(5)


def test_estimates_in_logs_neither_overflow_nor_vanish():
    found = Estimate.of(np.array([[-4000.0, -4000.0], [-np.inf, -np.inf], [0.0, -np.inf]]))
    assert found.log_mean.tolist() == [-4000.0, -math.inf, pytest.approx(math.log(0.5))]
    draws = _log_dirichlet(np.full((2000, 2), 1e-3), np.random.default_rng(0))
    assert np.isfinite(draws).all() and (draws.min(1) < -700).mean() > 0.3
    np.testing.assert_allclose(np.exp(draws).sum(1), 1)
    shares = np.exp(_log_dirichlet(np.tile([0.5, 1.5, 2.0], (100_000, 1)), np.random.default_rng(1)))
    np.testing.assert_allclose(shares.mean(0), [0.125, 0.375, 0.5], atol=4e-3)
    np.testing.assert_allclose(shares.var(0), np.array([0.125, 0.375, 0.5]) * (1 - shares.mean(0)) / 5, rtol=0.05)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"how": "guess"}, "unknown score of held-out documents 'guess'; valid: .*completion.*left_to_right"),
        ({"how": "map"}, "unknown score"),
        ({"how": "importance", "particles": 3}, "unknown setting of how = 'importance' 'particles'; valid: from_prior"),
        ({"how": "importance", "samples": 1}, "samples = 1"),
        ({"how": "importance", "from_prior": 0.0}, "from_prior = 0"),
        ({"how": "left_to_right", "particles": 0}, "particles = 0"),
        ({"how": "ais", "seconds": 0.0}, "seconds = 0"),
        ({"alpha": -1.0}, "alpha = -1"),
        ({"iterations": 0}, "iterations = 0"),
        ({"floor": 2.0}, "floor = 2"),
    ],
)
def test_settings_without_meaning_are_refused(settings, message):
    with pytest.raises(MethodError, match=message):
        held_out(lda(), COUNTS, **settings)


def test_documents_of_another_kind_are_refused():
    with pytest.raises(DataError, match="3 held-out documents beside 6 observed"):
        held_out(lda(), COUNTS, held_out=COUNTS[:3])
    with pytest.raises(MethodError, match="alpha = 0.1, but .*MixtureOfMultinomials have no Dirichlet prior"):
        held_out(mixture(), COUNTS, alpha=0.1)
    example = NOCA.example()
    fit = given(example.model, {}, example.data)
    with pytest.raises(MethodError, match="NOCA is no model of documents"):
        perplexity(fit, COUNTS)
    assert isinstance(lda().data, Data)


@pytest.mark.parametrize("name", [n for n, m in MODELS.items() if m.data_kind == "documents" and "topic" in m.sites])
def test_halves_of_documents_are_scored_under_every_model_of_topics(name):
    example = MODELS[name].example()
    fit = given(example.model, {s: v for s, v in example.truth.items() if s in example.model.shapes}, example.data)
    beside = {site: value for site, value in example.data.others.items() if example.model.sites[site].role == "given"}
    assert 1 < perplexity(fit, example.data.x, **beside) < 3 * example.data.num_features


def test_proportions_that_are_no_dirichlet_are_those_of_the_fits_own_inference():
    x = torch.as_tensor(COUNTS, dtype=torch.float64)
    mean, spread = torch.tensor([0.5, -0.2, -0.3], dtype=torch.float64), 1e-8 * torch.eye(3, dtype=torch.float64)
    params = {"topic": torch.as_tensor(TOPIC), "mean": mean, "covariance": spread}
    model = CTM(num_topics=3, vocabulary_size=5)
    fit = given(model, params, model.prepare(x))
    scored = held_out(fit, x, held_out=x)  # the observed half says nothing: all proportions are those of the mean
    wanted = x @ torch.log(torch.softmax(mean, 0) @ params["topic"])
    assert torch.allclose(scored.log_probability, wanted, atol=1e-2)
    with pytest.raises(MethodError, match='expected how="completion"'):
        held_out(fit, x, how="importance")
