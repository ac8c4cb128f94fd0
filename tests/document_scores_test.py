"""Scores of held-out documents against sums over every assignment of tokens to topics, and against brute force."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import scipy.sparse
import torch
from scipy.special import gammaln, logsumexp

from custom_inference import Fit
from custom_inference.documents import HeldOut, held_out, perplexity, split_tokens
from custom_inference.documents._fold_in import fold_in
from custom_inference.documents._samplers import Estimate, _log_dirichlet
from custom_inference.steps._documents import DocumentRows
from ppl_models import (
    LDA,
    NOCA,
    PLSA,
    Data,
    DataError,
    DataWarning,
    MethodError,
    MixtureOfMultinomials,
    MultinomialPCA,
    _sparse,
    as_documents,
)
from ppl_models.datasets import river_bank, sample_lda

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
    return Fit(
        model=model, params=tensors, elbo=torch.zeros(0), bound_name="evidence", status="given", method="given",
        data=data, seed=0,
    )  # fmt: skip


def lda(topic: np.ndarray = TOPIC, alpha: np.ndarray = ALPHA, kind=LDA) -> Fit:
    model = kind(num_topics=len(topic), vocabulary_size=topic.shape[1])
    return fitted(model.with_concentration(alpha=alpha), topic=topic)


def mixture() -> Fit:
    model = MixtureOfMultinomials(num_topics=3, vocabulary_size=5)
    return fitted(model, topic=TOPIC, mixing_proportion=np.array([0.5, 0.2, 0.3]))


# ----- the evidence ---------------------------------------------------------------------------------------


def test_exact_evidence_is_the_sum_over_all_assignments():
    found = held_out(lda(), COUNTS, how="evidence")
    np.testing.assert_allclose(found.log_probability, EXACT, atol=1e-10)
    assert found.tokens.tolist() == [len(d) for d in DOCUMENTS]
    # Of counts the multinomial coefficient is no part of the score.
    np.testing.assert_allclose(
        held_out(lda(kind=MultinomialPCA), COUNTS, how="evidence").log_probability, EXACT, atol=1e-10
    )
    bound = held_out(lda(), COUNTS, how="dirichlet").log_probability.numpy()
    assert (bound <= EXACT + 1e-10).all() and (bound[[0, 1]] < EXACT[[0, 1]] - 1e-3).all()


SAMPLERS = [
    ("importance", {"samples": 300}),
    ("importance", {"samples": 300, "from_prior": 1.0}),
    ("left_to_right", {"particles": 6}),
    ("left_to_right", {"particles": 1, "sweeps": 0}),
    ("left_to_right", {"particles": 3, "sweeps": 2}),
    ("annealed", {"temperatures": 8, "chains": 4}),
    ("annealed", {"temperatures": 1, "chains": 60}),
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
    ("how", "settings"),
    [
        ("importance", {"samples": 4000}),
        ("left_to_right", {"particles": 50, "runs": 10}),
        ("annealed", {"temperatures": 30, "chains": 200}),
    ],
)
def test_standard_errors_say_how_far_estimates_are_off(how, settings):
    counts = np.tile(COUNTS, (40, 1))
    found = held_out(lda(), counts, how=how, **settings)
    error = found.standard_error.numpy()
    z = (found.log_probability.numpy() - np.tile(EXACT, 40))[error > 1e-9] / error[error > 1e-9]
    assert len(z) > 100 and abs(z.mean()) < 0.3 and 0.7 < z.std() < 1.4
    assert error.max() < 0.1
    assert held_out(lda(), COUNTS, how="left_to_right").standard_error is None  # of one run there is no spread


def test_the_default_samplers_agree_on_longer_documents():
    """Eight topics, forty tokens: no sum is feasible; three estimates by different means agree within their errors."""
    rng = np.random.default_rng(0)
    topic, alpha = rng.dirichlet([0.2] * 60, 8), np.full(8, 0.4)
    drawn = sample_lda(torch.as_tensor(topic), 12, alpha=0.4, length=40, seed=1)
    fit = lda(topic, alpha)
    found = [
        held_out(fit, drawn.x, how="importance", samples=20_000),
        held_out(fit, drawn.x, how="left_to_right", particles=40, runs=6),
        held_out(fit, drawn.x, how="annealed", temperatures=1000, chains=30),
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
    for how in ("importance", "left_to_right", "annealed", "plugin"):
        with pytest.warns(DataWarning, match="4 documents have probability 0, .*floor=1e-12"):
            assert perplexity(fit, drawn.x, how=how) == math.inf
        assert perplexity(fit, drawn.x, how=how, floor=1e-6) < 1e6
    # Words that one topic alone writes: exact zeros along the way, and still unbiased.
    sharp = np.array([[0.0, 0, 1, 1, 1], [1, 1, 1, 0, 0]]) / 3
    tokens = [0, 2, 2, 1, 3]
    counts = np.tile(np.bincount(tokens, minlength=5), (3000, 1))
    truth = exact(tokens, sharp, np.array([0.4, 0.6]))
    for how, settings in (("left_to_right", {"particles": 4}), ("annealed", {"temperatures": 10, "chains": 20})):
        with np.errstate(divide="ignore"):
            score = held_out(lda(sharp, np.array([0.4, 0.6])), counts, how=how, floor=0.0, **settings)
        ratio = torch.exp(score.log_probability - truth).numpy()
        assert abs(ratio.mean() - 1) < 5 * ratio.std() / 3000**0.5


def test_the_same_seed_gives_the_same_estimate_and_leaves_no_trace():
    before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    for how in ("importance", "left_to_right", "annealed", "completion"):
        first, again, other = (held_out(lda(), COUNTS, how=how, seed=s).log_probability for s in (1, 1, 2))
        assert torch.equal(first, again) and not torch.equal(first, other)
    assert torch.equal(before, torch.get_rng_state())
    assert (numpy_before == np.random.get_state()[1]).all()  # noqa: NPY002


def test_mixtures_are_scored_exactly_by_every_sampler():
    fit = mixture()
    pi = fit.params["mixing_proportion"].numpy()
    expected = [logsumexp(np.log(pi) + sum(np.log(TOPIC[:, w]) for w in d)) for d in DOCUMENTS]
    for how in ("evidence", "importance", "left_to_right", "annealed"):
        np.testing.assert_allclose(held_out(fit, COUNTS, how=how).log_probability, expected, atol=1e-12)


# ----- folding in -----------------------------------------------------------------------------------------


def folded(counts: np.ndarray, alpha: np.ndarray, iterations: int) -> np.ndarray:
    """The fixed point token by token, in loops."""
    found = []
    for row in counts:
        theta = np.ones(len(alpha))
        for _ in range(iterations):
            new = alpha.copy()
            for v, n in enumerate(row):
                if n:
                    new = new + n * theta * TOPIC[:, v] / (theta * TOPIC[:, v]).sum()
            theta = new
        found.append(theta / theta.sum() if theta.sum() else np.full(len(alpha), 1 / len(alpha)))
    return np.array(found)


def test_folding_in_is_the_fixed_point():
    rows = DocumentRows.of(as_documents(COUNTS))
    model, params = lda().model, {"topic": torch.as_tensor(TOPIC)}
    np.testing.assert_allclose(fold_in(model, params, rows, iterations=7), folded(COUNTS, ALPHA, 7), atol=1e-12)
    flat = PLSA(num_topics=3, vocabulary_size=5)
    mine = fold_in(flat, params, rows, iterations=7)
    np.testing.assert_allclose(mine, folded(COUNTS, np.zeros(3), 7), atol=1e-12)
    assert torch.equal(mine, fold_in(model, params, rows, alpha=0, iterations=7))
    # Of PLSA it climbs the likelihood: no small step on the simplex does better at the end.
    theta = fold_in(flat, params, rows, iterations=5000).numpy()
    score = (COUNTS * np.log(theta @ TOPIC)).sum(1)
    for direction in np.random.default_rng(0).dirichlet(np.ones(3), 50):
        moved = 0.999 * theta + 0.001 * direction
        assert ((COUNTS * np.log(moved @ TOPIC)).sum(1) <= score + 1e-9).all()


def test_plugin_and_completion_are_what_they_say():
    for fit, alpha in ((lda(), ALPHA), (fitted(PLSA(num_topics=3, vocabulary_size=5), topic=TOPIC), np.zeros(3))):
        theta = folded(COUNTS, alpha, 20)
        expected = (COUNTS * np.log(theta @ TOPIC)).sum(1)
        found = held_out(fit, COUNTS, how="plugin", iterations=20)
        np.testing.assert_allclose(found.log_probability, expected, atol=1e-12)
        observed, other = COUNTS, COUNTS[::-1].copy()
        scored = held_out(fit, observed, held_out=other, iterations=20)
        np.testing.assert_allclose(scored.log_probability, (other * np.log(theta @ TOPIC)).sum(1), atol=1e-12)
        assert scored.tokens.tolist() == other.sum(1).tolist()
    # A mixture predicts with the posterior of the document's topic.
    pi = np.array([0.5, 0.2, 0.3]) * np.exp(COUNTS @ np.log(TOPIC).T)
    expected = (COUNTS * np.log(pi / pi.sum(1, keepdims=True) @ TOPIC)).sum(1)
    np.testing.assert_allclose(held_out(mixture(), COUNTS, held_out=COUNTS).log_probability, expected, atol=1e-12)


def test_splits_keep_every_token_once_and_masked_ones_never():
    drawn = sample_lda(torch.as_tensor(TOPIC), 300, length=9, seed=2)
    for share in (0.5, 0.3):
        first, second = split_tokens(drawn.data, share=share, seed=4)
        total = _sparse.dense(first.x) + _sparse.dense(second.x)
        assert torch.equal(total, _sparse.dense(drawn.x))
        lengths = total.sum(1)
        assert torch.equal(_sparse.dense(first.x).sum(1), torch.floor(share * lengths + 1e-9))
    # Every token is as likely in the first part as any other.
    many = as_documents(np.tile([[4, 2, 0, 0, 2]], (4000, 1)))
    first, _ = split_tokens(many, seed=0)
    mean = _sparse.dense(first.x).mean(0).numpy()
    np.testing.assert_allclose(mean, [2, 1, 0, 0, 1], atol=0.06)
    mask = np.ones((1, 5), dtype=bool)
    mask[0, 0] = False
    masked = as_documents(np.array([[4, 2, 0, 0, 2]]), mask=mask)
    parts = [_sparse.dense(part.x) for part in split_tokens(masked)]
    assert sum(parts).tolist() == [[0, 2, 0, 0, 2]]
    with pytest.raises(MethodError, match="share = 1"):
        split_tokens(many, share=1.0)


def test_the_evaluator_of_the_benchmarks_is_reproduced_by_settings():
    """Document completion as other programs are scored with: fold-in of 100 rounds at alpha = .1, floored topics."""
    rng = np.random.default_rng(3)
    topic = rng.dirichlet(np.full(40, 0.05), 6)
    topic[:, 7] = 0  # a word that no topic has
    drawn = sample_lda(torch.as_tensor(topic / topic.sum(1, keepdims=True)), 30, length=30, seed=5)
    observed, held = (_sparse.to_scipy(part.x).tolil() for part in split_tokens(drawn.data, seed=1))
    held[0, 7] = 2
    observed, held = observed.tocsr(), held.tocsr()

    phi = np.maximum(topic, 1e-12)
    phi = phi / phi.sum(1, keepdims=True)
    coo = observed.tocoo()
    g = np.ones((observed.shape[0], 6))
    for _ in range(100):
        r = coo.data / np.maximum((g[coo.row] * phi.T[coo.col]).sum(1), 1e-300)
        g = 0.1 + g * (scipy.sparse.csr_matrix((r, (coo.row, coo.col)), observed.shape) @ phi.T)
    cells = held.tocoo()
    p = ((g / g.sum(1, keepdims=True)) @ phi)[cells.row, cells.col]
    expected = np.exp(-(cells.data * np.log(p)).sum() / cells.data.sum())

    fit = fitted(LDA(num_topics=6, vocabulary_size=40), topic=topic)
    fit.data = drawn.data
    settings = {"alpha": 0.1, "iterations": 100, "floor": 1e-12}
    assert perplexity(fit, observed, held_out=held, **settings) == pytest.approx(expected, rel=1e-10)


# ----- means ----------------------------------------------------------------------------------------------


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
    for how in ("evidence", "plugin", "completion", "left_to_right", "annealed"):
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


# ----- refusals -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"how": "guess"}, "unknown score of held-out documents 'guess'; valid: .*completion.*left_to_right"),
        ({"how": "map"}, "unknown score"),
        ({"how": "importance", "particles": 3}, "unknown setting of how = 'importance' 'particles'; valid: from_prior"),
        ({"how": "importance", "samples": 1}, "samples = 1"),
        ({"how": "importance", "from_prior": 0.0}, "from_prior = 0"),
        ({"how": "left_to_right", "particles": 0}, "particles = 0"),
        ({"how": "annealed", "temperatures": 0}, "temperatures = 0"),
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
    with pytest.raises(MethodError, match="whose documents have one topic each"):
        held_out(mixture(), COUNTS, alpha=0.1)
    example = NOCA.example()
    fit = Fit(
        model=example.model, params={}, elbo=torch.zeros(0), bound_name="", status="", method="", data=example.data,
        seed=0,
    )  # fmt: skip
    with pytest.raises(MethodError, match="NOCA is no model of documents"):
        perplexity(fit, COUNTS)
    assert isinstance(lda().data, Data)
