"""Topics of a start of HDP are merged while the variational bound gains, with the entropy of the tokens' topics."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from scipy.special import gammaln, xlogy

from custom_inference import fit, perplexity
from custom_inference.families.topics.propose import Cells, merge_topics
from ppl_models import HDP

pytestmark = pytest.mark.filterwarnings("ignore::ppl_models.DataWarning")


def bound(x: np.ndarray, share: np.ndarray, alpha: np.ndarray, gamma: float) -> float:
    """What of the bound depends on the topics, at shares (N, V, K) of every cell: Dirichlet-multinomials of the
    documents' and of the topics' expected tokens, and the entropy."""
    tokens = x[:, :, None] * share
    found = -float((x[:, :, None] * xlogy(share, share)).sum())
    for counts, prior in ((tokens.sum(1), alpha), (tokens.sum(0).T, np.full(x.shape[1], gamma))):
        found += float((gammaln(prior + counts) - gammaln(prior)).sum())
        found += float((gammaln(prior.sum()) - gammaln(prior.sum() + counts.sum(1))).sum())
    return found


def merge(share: np.ndarray, alpha: np.ndarray, pair: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    kept, gone = pair
    share, alpha = share.copy(), alpha.copy()
    share[..., kept] += share[..., gone]
    alpha[kept] += alpha[gone]
    return np.delete(share, gone, -1), np.delete(alpha, gone)


@pytest.mark.parametrize("seed", range(6))
def test_mergers_are_those_that_the_bound_gains_the_most_by_and_end_where_it_gains_nothing(seed):
    rng = np.random.default_rng(seed)
    topic, gamma = rng.dirichlet(np.full(7, 0.2), 2), 0.1
    x = np.stack([rng.multinomial(12, p) for p in rng.dirichlet([0.3, 0.3], 9) @ topic]).astype(float)
    alpha, sharp = rng.gamma(1.0, 0.3, 5), 0.3 if seed % 2 else 3.0
    share = rng.dirichlet(np.full(5, sharp), x.shape)
    at, own = share, alpha
    while at.shape[-1] > 1:
        every = {pair: merge(at, own, pair) for pair in itertools.combinations(range(at.shape[-1]), 2)}
        best = max(every, key=lambda pair: bound(x, every[pair][0], every[pair][1], gamma))
        if bound(x, *every[best], gamma) <= bound(x, at, own, gamma):
            break
        at, own = every[best]
    tokens, cell = x[:, :, None] * share, x > 0
    cells = Cells(torch.tensor(share[cell].T), torch.tensor(x[cell]))
    words, documents, a, g = (torch.tensor(one) for one in (tokens.sum(0).T, tokens.sum(1), alpha, gamma))
    found = merge_topics(words, documents, a, g, 1, cells).numpy()
    expected = (x[:, :, None] * at).sum(0).T
    assert found[np.lexsort(found.T)] == pytest.approx(expected[np.lexsort(expected.T)])


def test_topics_of_few_tokens_are_not_merged_into_one():
    """Ten topics in a hundred short documents, sixty at most: by log p(w, q) alone every merger gains, down to one."""
    rng = np.random.default_rng(2)
    topic = rng.dirichlet(np.full(150, 0.3), 10)
    x = np.stack([rng.multinomial(60, p) for p in rng.dirichlet(np.full(10, 0.05), 200) @ topic])
    found = fit(HDP(max_topics=60, vocabulary_size=150), x[:100], seed=0, progress=False)
    tokens = found.transform().sum(0)
    assert 7 <= int((tokens > 0.01 * tokens.sum()).sum()) <= 13
    assert perplexity(found, x[100:]) < 110  # of one topic 129
