"""Filters over topics of tokens against sums over all topics of all tokens of a short document."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.special import gammaln

from custom_inference.core.annealing.estimate import Budget
from custom_inference.families.topics.tokens import TokenFilter

RNG = np.random.default_rng(3)
WORD = RNG.dirichlet(np.ones(4), size=3).T[[0, 1, 1, 3, 0, 2]]  # (T, K): b_kw of six tokens
ALPHA = np.array([0.3, 0.7, 0.2])
EVERY = np.array(list(itertools.product(range(3), repeat=len(WORD))))


def log_joints(alpha: np.ndarray = ALPHA) -> np.ndarray:
    """log p(z, w) of every assignment: Dirichlet-multinomial of the counts, and the words given the topics."""
    count = (EVERY[:, :, None] == np.arange(3)).sum(1)
    prior = gammaln(alpha + count).sum(1) - gammaln(alpha).sum() + gammaln(alpha.sum()) - gammaln(alpha.sum() + 6)
    return prior + np.log(WORD[np.arange(6), EVERY]).sum(1)


def token_filter(rows: int = 1, ahead: float = 0.2) -> TokenFilter:
    """The same document several times, with a look ahead that has nothing to do with the posterior."""
    known = torch.from_numpy(ahead * RNG.dirichlet(np.ones(3), size=6)).repeat(rows, 1)
    return TokenFilter(
        torch.full((rows,), 6), torch.from_numpy(WORD).repeat(rows, 1), torch.from_numpy(ALPHA).repeat(rows, 1),
        torch.zeros(rows, dtype=torch.float64), known,
    )  # fmt: skip


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("ahead", [0.0, 0.3, 1.0])
def test_estimates_of_the_evidence_are_unbiased_whatever_is_known_ahead(ahead):
    filters = token_filter(20_000, ahead)
    found, _ = filters.run(torch.full((20_000,), 3), generator())
    ratio = (found - np.logaddexp.reduce(log_joints())).exp()
    assert abs(ratio.mean() - 1) < 4 * ratio.std() / 20_000**0.5


def test_along_a_draw_from_the_posterior_the_inverse_is_unbiased():
    weight = np.exp(log_joints() - np.logaddexp.reduce(log_joints()))
    chosen = np.random.default_rng(0).choice(len(EVERY), 20_000, p=weight / weight.sum())
    kept = torch.from_numpy(EVERY[chosen].reshape(-1).astype(np.int32))
    found, drawn = token_filter(20_000, 0.3).run(torch.full((20_000,), 3), generator(), kept=kept, draws=1)
    ratio = (np.logaddexp.reduce(log_joints()) - found).exp()
    assert abs(ratio.mean() - 1) < 4 * ratio.std() / 20_000**0.5
    shares = torch.nn.functional.one_hot(drawn.reshape(-1, 6).long(), 3).double().mean(0)  # it leaves the posterior
    assert np.allclose(shares, marginals(), atol=0.02)


def marginals() -> np.ndarray:
    weight = np.exp(log_joints() - np.logaddexp.reduce(log_joints()))
    return np.einsum("s,stk->tk", weight, EVERY[:, :, None] == np.arange(3))


def test_sweeps_leave_the_posterior():
    """Chains that begin there have its marginals after a sweep, and the same two tokens are as often together."""
    weight = np.exp(log_joints() - np.logaddexp.reduce(log_joints()))
    chosen = np.random.default_rng(1).choice(len(EVERY), 40_000, p=weight / weight.sum())
    topic, often = torch.from_numpy(EVERY[chosen].astype(np.int32)), torch.zeros(6, 3, dtype=torch.float64)
    token_filter().sweep(topic, generator(), often)
    assert np.allclose(often / 40_000, marginals(), atol=0.01)
    together = (weight * (EVERY[:, 0] == EVERY[:, 3])).sum()
    assert abs((topic[:, 0] == topic[:, 3]).double().mean() - together) < 0.01


def test_draws_of_many_particles_are_from_the_posterior():
    _, drawn = token_filter(3).run(torch.full((3,), 20_000), generator(2), draws=4000)
    shares = torch.nn.functional.one_hot(drawn.reshape(4000, 3, 6).long(), 3).double().mean((0, 1))
    assert np.allclose(shares, marginals(), atol=0.03)


def test_rows_are_those_of_the_whole():
    """Documents of other lengths, chosen in another order, one without tokens among them."""
    length = torch.tensor([2, 0, 4])
    whole = TokenFilter(
        length, torch.from_numpy(WORD), torch.from_numpy(ALPHA).repeat(3, 1), torch.arange(3).double(),
        torch.zeros(6, 3, dtype=torch.float64),
    )  # fmt: skip
    some = whole.rows(torch.tensor([2, 1]))
    assert torch.equal(some.word, whole.word[2:]) and some.length.tolist() == [4, 0]
    found = whole.rows(torch.tensor([1, 0])).estimate(Budget(seconds=0.2), 0)
    two = np.log(((ALPHA / ALPHA.sum()) * WORD[0]).sum())  # the first token, and the second given each topic of it
    chance = ALPHA / ALPHA.sum() * WORD[0] / math.exp(two)
    two += np.log((chance[:, None] * (ALPHA + np.eye(3)) / (ALPHA.sum() + 1) * WORD[1]).sum())
    assert abs(found.log_evidence[0] - 1.0) < 1e-9
    assert abs(found.log_evidence[1] - two) < 5 * found.standard_error[1] + 1e-6


@pytest.mark.parametrize("seed", range(3))
def test_topics_that_are_alike_are_not_known_ahead(seed):
    """Pairs of equal topics, whose proportions add up to those of half as many: estimates of both models agree."""
    rng = np.random.default_rng(seed)
    topic, words = rng.dirichlet(np.full(20, 0.3), size=2), rng.choice(20, 80)
    found = []
    for word, alpha in ((np.repeat(topic, 2, 0), 0.1), (topic, 0.2)):
        filters = TokenFilter(
            torch.tensor([80]), torch.from_numpy(word.T[words]), torch.full((1, len(word)), alpha, dtype=torch.float64),
            torch.zeros(1, dtype=torch.float64), torch.zeros(80, len(word), dtype=torch.float64),
        )  # fmt: skip
        found.append(filters.estimate(Budget(seconds=1.0), seed))
    error = torch.hypot(found[0].standard_error, found[1].standard_error)
    assert abs(found[0].log_evidence - found[1].log_evidence) < 4 * error < 1.0


def test_impossible_words_have_no_probability():
    filters = token_filter()
    filters.word[3] = 0.0
    assert filters.run(torch.tensor([8]), generator())[0].item() == -math.inf
