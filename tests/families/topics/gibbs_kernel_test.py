"""Collapsed Gibbs sampling of LDA: the kernel's conditional, the exact posterior, and what a fit promises."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import softmax
from scipy.stats import chisquare

import custom_inference as ci
from custom_inference import CollapsedGibbs
from custom_inference.core.diagnostics import effective_size
from custom_inference.core.posteriors import DirichletDraws
from custom_inference.families.conjugate.learn import update_concentration
from custom_inference.families.rows.documents import DocumentRows
from custom_inference.families.topics.chain import LdaChain, TokenList, sweep_topics
from custom_inference.families.topics.exact import CollapsedPosterior, collapsed_posterior
from ppl_models import LDA, Data
from tests.references import _collapsed as reference
from tests.references._shared import log_dirichlet_moment
from tests.references._topics import assignment_table, tokens_of

X = np.array([[2.0, 1, 0, 1], [0, 1, 3, 0], [0, 0, 0, 0], [1, 0, 1, 2]])
ALPHA, GAMMA = np.array([0.5, 1.2, 0.8]), np.array([0.3, 0.4, 0.7, 0.2])


def rows_of(x) -> DocumentRows:
    return DocumentRows.of(Data(x=torch.as_tensor(x)))


def chain_of(x=X, num_topics=3, alpha=ALPHA, gamma=GAMMA, seed=0, **settings) -> LdaChain:
    tokens = TokenList.of(rows_of(x))
    return LdaChain(tokens, num_topics, torch.as_tensor(alpha), torch.as_tensor(gamma), seed, **settings)


def model_of(num_topics=3, alpha=ALPHA, gamma=GAMMA, kind=LDA) -> LDA:
    model = kind(num_topics=num_topics, vocabulary_size=len(gamma))
    return model.with_concentration(alpha=torch.as_tensor(alpha), gamma=torch.as_tensor(gamma))


def split(topic, x=X):
    return reference.split(topic, tokens_of(x))


def first_topics(chain: LdaChain, q: np.ndarray, draws: int) -> np.ndarray:
    """The topics that a sweep gives its first token when the others have topics q."""
    found = np.empty(draws, dtype=int)
    for i in range(draws):
        chain.assign(q.astype(np.int32))
        chain.sweep()
        found[i] = chain.topic[0]
    return found


@pytest.mark.parametrize("num_topics", [2, 3, 17, 40])
def test_conditional_is_the_ratio_of_the_collapsed_law(num_topics):
    """The first token that a sweep visits is drawn from p(q_1 | the rest) ~ p(y, q), eqs. 27.34 and 27.36, brute force.

    More than 16 topics take more than one block of the kernel. Bins of at least 5 expected draws, chi squared within
    5 sigma of its degrees of freedom.
    """
    rng, draws = np.random.default_rng(num_topics), 20000
    alpha, gamma = rng.uniform(0.1, 2, num_topics), rng.uniform(0.1, 1, 4)
    chain = chain_of(num_topics=num_topics, alpha=alpha, gamma=gamma, seed=5)
    q = rng.integers(0, num_topics, len(chain.tokens))
    log_joint = np.empty(num_topics)
    for k in range(num_topics):
        other = q.copy()
        other[0] = k
        log_joint[k] = reference.log_joint(tokens_of(X), split(other), num_topics, 4, alpha, gamma)
    expected = np.exp(log_joint - log_joint.max())
    expected *= draws / expected.sum()
    printed = reference.gibbs_conditional(tokens_of(X), split(q), 0, 0, num_topics, 4, alpha, gamma)
    assert np.allclose(expected / draws, printed)
    observed = np.bincount(first_topics(chain, q, draws), minlength=num_topics)
    large = expected >= 5
    statistic = ((observed - expected)[large] ** 2 / expected[large]).sum()
    freedom = large.sum() - 1
    assert large.sum() >= 2 and statistic < freedom + 5 * np.sqrt(2 * freedom)


def test_counts_stay_consistent_with_the_topics():
    chain = chain_of(np.random.default_rng(0).poisson(1.5, (30, 7)).astype(float), gamma=np.full(7, 0.1), seed=3)
    for _ in range(20):
        chain.sweep()
    counts = np.zeros((7, 3), dtype=int)
    np.add.at(counts, (chain.tokens.word, chain.topic), 1)
    assert (counts == chain.word_topic).all() and (chain.topic >= 0).all() and (chain.topic < 3).all()
    assert (chain.document_topic.sum(1) == np.diff(chain.tokens.start)).all()


def test_log_joint_is_the_references_and_its_increments_the_conditional():
    chain = chain_of(seed=2)
    for _ in range(3):
        chain.sweep()
        expected = reference.log_joint(tokens_of(X), split(chain.topic), 3, 4, ALPHA, GAMMA)
        assert chain.log_joint() == pytest.approx(expected, abs=1e-12)
    values, q = [], chain.topic.copy()
    for k in range(3):
        q[4] = k  # the first token of the second document
        chain.assign(q.copy())
        values.append(chain.log_joint())
    conditional = reference.gibbs_conditional(tokens_of(X), split(q), 1, 0, 3, 4, ALPHA, GAMMA)
    assert np.allclose(np.diff(values), np.diff(np.log(conditional)), atol=1e-12)


def test_sequential_start_draws_from_the_predictive():
    """Before the first sweep nothing is assigned: the very first token's topic comes from the prior alpha."""
    first = np.bincount([_started(seed) for seed in range(1500)], minlength=3) / 1500
    prior = ALPHA / ALPHA.sum()
    assert (np.abs(first - prior) < 4 * np.sqrt(prior * (1 - prior) / 1500)).all()


def _started(seed: int) -> int:
    chain = chain_of(seed=seed * 7919 + 13)
    chain.sweep()
    return int(chain.topic[0])


def test_minkas_step_climbs_to_where_the_gradient_vanishes():
    rng = np.random.default_rng(1)
    counts = np.stack([rng.multinomial(n, rng.dirichlet([0.4, 1.5, 0.8])) for n in rng.integers(5, 40, 60)])
    alpha, before = np.ones(3), -np.inf
    for _ in range(400):
        value = log_dirichlet_moment(counts, alpha).sum()
        assert value >= before - 1e-9
        before, alpha = value, update_concentration(counts, alpha)
    assert np.abs(reference.moment_gradient(counts, alpha)).max() < 1e-4
    same = np.ones(3)
    for _ in range(400):
        same = update_concentration(counts, same, symmetric=True)
    assert np.ptp(same) == 0 and abs(reference.moment_gradient(counts, same).sum()) < 1e-4


@pytest.mark.parametrize("seed", [0, 1])
def test_co_assignments_and_means_are_exact_within_monte_carlo_error(seed):
    """Every pair of tokens, and every mean, within 4.5 standard errors by its effective sample size; R-hat near 1."""
    model, x = model_of(), np.array([[2.0, 1, 0, 1], [0, 1, 2, 0], [1, 0, 0, 1]])
    exact = collapsed_posterior(model, x)
    gibbs = CollapsedGibbs(num_samples=1500, thin=2, warmup=50, chains=2, align=False, indicators=True)
    fit = gibbs.fit(model, x, seed=seed, progress=False)
    assert fit.draws is not None
    q = fit.draws["indicator"]
    same = (q[..., :, None] == q[..., None, :]).double()
    _within(same.numpy(), exact.co_assignment.numpy())
    proportion, topic = exact_means(exact)
    _within(fit.draws["topic"].numpy(), topic)
    _within(fit.draws["topic_proportion"].numpy(), proportion)
    assert np.allclose(fit.params["topic"].numpy(), topic, atol=0.05)
    assert np.allclose(fit.posterior.mean.numpy(), proportion, atol=0.05)
    assert fit.details["lp_r_hat"] < 1.02 and fit.details["topic_r_hat"] < 1.02


def exact_means(exact: CollapsedPosterior) -> list[np.ndarray]:
    """E[pi_i | y] (N, K) and E[b_k | y] (K, V): eqs. 27.31 and 27.32 over the table of all topics q of the tokens."""
    q = np.stack(np.unravel_index(np.arange(len(exact.log_joint)), (3,) * len(exact.word)))
    proportion, topic = np.tile(ALPHA, (q.shape[1], exact.num_documents, 1)), np.tile(GAMMA, (q.shape[1], 3, 1))
    each = np.arange(q.shape[1])
    for own, i, v in zip(q, exact.document.tolist(), exact.word.tolist(), strict=True):
        proportion[each, i, own] += 1
        topic[each, own, v] += 1
    weight = exact.log_probability.exp().numpy()
    return [np.einsum("m,mij->ij", weight, one / one.sum(-1, keepdims=True)) for one in (proportion, topic)]


def _within(draws: np.ndarray, mean: np.ndarray, sigmas: float = 4.5) -> None:
    size = np.nan_to_num(effective_size(draws), nan=1.0)
    assert np.min(size[draws.std((0, 1)) > 0]) > 200
    error = draws.std((0, 1)) / np.sqrt(size)
    assert (np.abs(draws.mean((0, 1)) - mean) <= sigmas * error + 1e-12).all()


def words_given(topic: np.ndarray, gamma: np.ndarray, rng) -> np.ndarray:
    """Words (n, T) given topics (n, T), whose distributions are integrated out: a Polya urn for each topic."""
    each, urns, word = np.arange(len(topic)), np.tile(gamma, (len(topic), 2, 1)), np.empty(topic.shape, dtype=np.int32)
    for t, uniform in enumerate(rng.random(topic.T.shape)):
        cumulative = urns[each, topic[:, t]].cumsum(1)
        word[:, t] = (cumulative < uniform[:, None] * cumulative[:, -1:]).sum(1)
        urns[each, topic[:, t], word[:, t]] += 1
    return word


def geweke_errors(draws: int, scale_alpha: float = 1.0, scale_gamma: float = 1.0) -> np.ndarray:
    """Differences, in standard errors, between moments of (topics, words) drawn from the joint law and those of a chain
    that alternates a sweep of the kernel, its concentrations scaled, with new words given the topics."""
    length, vocabulary, many = 4, 3, 100_000
    alpha, gamma = np.array([0.7, 1.5]), np.array([0.5, 0.8, 1.1])
    rng, start = np.random.default_rng(4), np.arange(4) * length
    document = np.repeat(np.arange(3), length)

    def moments(topic, word):
        """Of draws (n, T): (n, 6)."""
        first = topic == 1
        of_documents = np.stack([first[:, document == i].sum(1) for i in range(3)], 1)
        in_all = np.stack([(word == v).sum(1) for v in range(3)], 1)
        of_words = np.stack([(first & (word == v)).sum(1) for v in range(3)], 1)
        squares = (of_words**2 + (in_all - of_words) ** 2).sum(1)
        together = squares / (in_all**2).sum(1)  # how far tokens of one word share a topic
        in_documents = (of_documents**2 + (length - of_documents) ** 2).sum(1)
        parts = [topic.sum(1), in_documents, together, (in_all**2).sum(1), (in_all - of_words)[:, 2], in_all[:, 0]]
        return np.stack(parts, 1).astype(float)

    share = rng.dirichlet(alpha, (many, 3))[:, document, 0]
    drawn = (rng.random(share.shape) >= share).astype(np.int64)
    forward = moments(drawn, words_given(drawn, gamma, rng))
    topics, words = np.empty((draws, len(document)), np.int64), np.empty((draws, len(document)), np.int32)
    scaled = torch.as_tensor(alpha * scale_alpha), torch.as_tensor(gamma * scale_gamma)
    topic = drawn[:1]
    chain = LdaChain(TokenList(words_given(topic, gamma, rng)[0], start, vocabulary), 2, *scaled, 9)
    for i in range(draws):
        words[i] = words_given(topic, gamma, rng)[0]
        chain.tokens = TokenList(words[i], start, vocabulary)
        chain.assign(topic[0].astype(np.int32))
        chain.sweep()
        topics[i] = chain.topic
        topic = topics[i : i + 1]
    second = moments(topics, words)
    size = effective_size(second[None])
    assert size.min() > 500
    return np.abs(forward.mean(0) - second.mean(0)) / np.sqrt(forward.var(0) / many + second.var(0) / size)


def test_geweke_joint_distribution():
    """Geweke, *Getting it right*, JASA 2004: within 4 standard errors. Concentrations that are off by a factor of 1.6
    would not pass."""
    assert geweke_errors(8000).max() < 4
    assert geweke_errors(3000, scale_alpha=1.6).max() > 4
    assert geweke_errors(8000, scale_gamma=1.6).max() > 4


def test_local_posterior_at_given_topics_is_exact_within_monte_carlo_error():
    """Against the exact posterior means at the same globals."""
    x, topic = X[:, :3].copy(), torch.tensor([[0.6, 0.3, 0.1], [0.1, 0.2, 0.7]])
    model = model_of(2, np.array([0.5, 1.2]), np.full(3, 0.5))
    data = model.prepare(x, dtype=torch.float64)
    local = CollapsedGibbs().local_posterior(model, {"topic": topic}, data, seed=1)
    exact = ci.Exact().local_posterior(model, {"topic": topic}, data)
    assert isinstance(local.posterior, DirichletDraws) and local.bound.isnan().all()
    assert (local.posterior.mean - exact.posterior.mean).abs().max() < 0.08
    assert torch.allclose(local.posterior.mean[2], torch.tensor([0.5, 1.2]) / 1.7)  # the empty document


def test_a_sweep_leaves_the_posterior_as_it_is():
    """q drawn exactly from p(q | y), one sweep each: independent draws, which must still have that law."""
    x, alpha, gamma = np.array([[2.0, 1.0, 0.0], [0.0, 1.0, 2.0]]), np.array([0.4, 1.1]), np.array([0.3, 0.8, 1.2])
    every, log_weight = reference.table(tokens_of(x), 2, 3, alpha, gamma)  # six tokens: 64 values of q, in order
    weight, chain = softmax(log_weight), chain_of(x, 2, alpha, gamma, 5)
    rng, size = np.random.default_rng(0), 20_000
    before = rng.choice(len(every), size, p=weight)
    after, moved = np.zeros(len(every)), 0
    assert (every @ 2 ** np.arange(5, -1, -1) == np.arange(64)).all()
    for place in before:
        chain.assign(every[place].astype(np.int32))
        chain.sweep()
        now = int("".join(map(str, chain.topic)), 2)
        after[now] += 1
        moved += now != place
    assert moved > size / 2 and chisquare(after, weight * size).pvalue > 1e-4


def test_sweeps_at_given_topics_leave_the_posterior_of_a_document_as_it_is():
    topic, alpha, x = np.array([[0.6, 0.3, 0.1], [0.1, 0.2, 0.7]]), np.array([0.4, 1.1]), np.array([[2.0, 1.0, 1.0]])
    q, table = assignment_table(topic, tokens_of(x)[0], alpha)
    weight, tokens = softmax(table), TokenList.of(rows_of(x))
    rng, state, after = np.random.default_rng(2), np.array([3], np.uint64), np.zeros(16)
    for place in rng.choice(16, 10_000, p=weight):
        drawn = q[place].astype(np.int32)
        sweep_topics(tokens, drawn, alpha, torch.tensor(topic), state)
        after[int("".join(map(str, drawn)), 2)] += 1
    assert chisquare(after, weight * 10_000).pvalue > 1e-4
