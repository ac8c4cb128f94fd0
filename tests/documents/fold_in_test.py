"""New documents folded in: fixed points, completion, splits of tokens."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
import torch

from custom_inference.documents import held_out, perplexity, split_tokens
from custom_inference.documents.scores import fold_in
from custom_inference.families.topics.admixture import read_admixture
from ppl_models import LDA, PLSA, MethodError, as_documents
from ppl_models.data import sparse as _sparse
from ppl_models.datasets import sample_lda
from tests.documents.scores_test import ALPHA, COUNTS, TOPIC, fitted, lda, mixture

pytestmark = pytest.mark.quick


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
    params, data = {"topic": torch.as_tensor(TOPIC)}, as_documents(COUNTS)
    said = read_admixture(lda().model, params, data)
    np.testing.assert_allclose(fold_in(said, iterations=7), folded(COUNTS, ALPHA, 7), atol=1e-12)
    flat = read_admixture(PLSA(num_topics=3, vocabulary_size=5), params, data)
    mine = fold_in(flat, iterations=7)
    np.testing.assert_allclose(mine, folded(COUNTS, np.zeros(3), 7), atol=1e-12)
    assert torch.equal(mine, fold_in(said, alpha=0, iterations=7))
    # Of PLSA it climbs the likelihood: no small step on the simplex does better at the end.
    theta = fold_in(flat, iterations=5000).numpy()
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
