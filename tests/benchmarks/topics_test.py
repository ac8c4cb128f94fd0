"""The helper functions of the topic models' benchmarks, against direct computation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from benchmarks.quality.topics_perplexity import per_document, per_token, words_at
from benchmarks.quality.topics_river_bank import exact_pairs, tokens_of
from benchmarks.speed._topic_evaluator import Corpus, first_at_most, fold_in, halved, perplexity
from benchmarks.speed._topic_trace import Trace, recorded

pytestmark = pytest.mark.quick


def counts(seed: int = 0) -> Any:
    return sp.csr_matrix(np.random.default_rng(seed).poisson(1.0, (6, 9)))


def test_halves_add_up_and_hold_half_of_each_document(tmp_path):
    whole = counts()
    first, rest = halved(whole, seed=3)
    assert ((first + rest) != whole).nnz == 0
    np.testing.assert_array_equal(np.asarray(first.sum(1)), np.asarray(whole.sum(1)) // 2)
    corpus = Corpus(whole, first, rest, 0.1, 0.05, np.full((2, 9), 1 / 9))
    corpus.save(tmp_path / "corpus.npz")
    again = Corpus.load(tmp_path / "corpus.npz")
    assert (again.held_out != rest).nnz == 0 and again.num_tokens == whole.sum() and again.alpha == 0.1


def test_perplexity_of_equal_words_is_their_number():
    first, rest = halved(counts())
    corpus = Corpus(counts(1), first, rest, 0.1, 0.05, np.full((3, 9), 1 / 9))
    assert perplexity(corpus.truth, corpus) == pytest.approx(9)


def test_folding_in_is_the_fixed_point_and_the_score_that_of_its_words():
    rng = np.random.default_rng(1)
    topic, whole = rng.dirichlet(np.ones(9), 3), counts()
    theta = fold_in(topic, whole, 0.3, iterations=3000)
    x = whole.toarray()
    share = theta[:, :, None] * topic / (theta @ topic)[:, None, :]
    expected = 0.3 + np.einsum("nv,nkv->nk", x, share)
    np.testing.assert_allclose(theta, expected / expected.sum(1, keepdims=True), rtol=1e-6)
    log_p = words_at(whole, theta, topic)
    np.testing.assert_allclose(log_p, (x * np.log(theta @ topic)).sum(1))
    length = x.sum(1)
    assert per_document(log_p, whole) == pytest.approx(np.exp(-np.mean(log_p / length)))
    assert per_token(log_p, whole) == pytest.approx(np.exp(-log_p.sum() / length.sum()))


@pytest.mark.parametrize(("level", "first"), [(100.0, 0), (9.0, 1), (5.5, 4), (5.0, 4), (4.9, None)])
def test_the_first_state_at_a_level_is_found_by_bisection(level, first):
    scores = [10.0, 9.0, 8.0, 7.0, 5.0]
    assert first_at_most(level, scores.__getitem__, 5) == first
    assert first_at_most(level, scores.__getitem__, 0) is None


def test_recording_leaves_the_steps_as_they_were():
    class Engine:
        def m_step(self, model, params, step, rows):
            return {"topic": params + 1}

    class Inherited(Engine):
        pass

    before = Engine.__dict__["m_step"]
    with recorded(Trace(4), Engine, Inherited) as trace:
        Engine().m_step(None, torch.zeros(2), None, [1, 2])
    assert trace.passes == [0.5] and len(trace.seconds) == 1 and trace.topics[0].tolist() == [1.0, 1.0]
    assert Engine.__dict__["m_step"] is before and "m_step" not in Inherited.__dict__


def test_exact_pairs_are_those_of_the_sum_over_all_assignments():
    """Token by token through the predictive rule of Polya's urns, instead of gamma functions."""
    x = torch.tensor([[1.0, 0, 1, 0, 1], [0, 2.0, 0, 0, 0]])
    tokens = tokens_of(x)
    gamma, alpha, size = 0.01, 1.0, len(tokens)
    total, same = 0.0, np.zeros((size, size))
    for code in range(2**size):
        z = [(code >> i) & 1 for i in range(size)]
        p = 1.0
        for i in range(size):
            before = range(i)
            mine = sum(tokens.document[j] == tokens.document[i] for j in before)
            here = sum(tokens.document[j] == tokens.document[i] and z[j] == z[i] for j in before)
            words = sum(z[j] == z[i] and tokens.word[j] == tokens.word[i] for j in before)
            p *= (here + alpha) / (mine + 2 * alpha)
            p *= (words + gamma) / (sum(z[j] == z[i] for j in before) + 5 * gamma)
        total += p
        same += p * (np.array(z)[:, None] == np.array(z))
    np.testing.assert_allclose(exact_pairs(tokens, alpha), same / total, rtol=1e-9)
