"""Generated corpora: their law, their labels, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ppl_models import LDA, ModelError
from ppl_models.data import sparse as _sparse
from ppl_models.datasets import river_bank, sample_lda, topic_corpus

pytestmark = pytest.mark.quick


def dense(drawn) -> torch.Tensor:
    return _sparse.dense(drawn.x)


def test_the_river_bank_corpus_has_its_words_and_lengths():
    drawn = river_bank()
    assert drawn.x.shape == (16, 5)
    assert drawn.x.sum(1).tolist() == [16.0] * 16
    assert drawn.data.coords == {"feature": ["river", "stream", "bank", "money", "loan"]}
    assert drawn.coords["component"] == ["money", "river"]
    topic = drawn.truth["topic"]
    # "bank" has a third of both topics, river and stream none of the first.
    assert torch.allclose(topic[:, 2], torch.full((2,), 1 / 3))
    assert (topic[0, :2] == 0).all() and (topic[1, 3:] == 0).all()
    LDA(num_topics=2, vocabulary_size=5).prepare(drawn.x)


def test_counts_have_the_mean_and_the_variance_of_the_model():
    """Given pi, the counts are multinomial: E n_iv = L pi b, and over documents the law of total variance."""
    rng = np.random.default_rng(0)
    topic = torch.as_tensor(rng.dirichlet([1.0] * 4, 3))
    many, alpha, length = 40_000, torch.tensor([0.3, 1.0, 0.5]), 12
    drawn = sample_lda(topic, many, alpha=alpha, length=length, lengths="fixed", seed=3)
    x = dense(drawn)
    assert (x.sum(1) == length).all()
    residual = x - length * drawn.truth["topic_proportion"] @ topic
    assert (residual.mean(0).abs() < 5 * residual.std(0) / many**0.5).all()
    mean = alpha / alpha.sum()
    spread = (torch.diag(mean) - mean.outer(mean)) / (alpha.sum() + 1)  # covariance of the Dirichlet
    p, between = mean @ topic, (topic.T @ spread @ topic).diag()
    # Var n_v = L E[p_v (1 - p_v)] + L^2 Var p_v.
    expected = length * (p - p**2 - between) + length**2 * between
    assert torch.allclose(x.var(0), expected, rtol=0.05)


def test_poisson_lengths_and_their_minimum():
    topic = torch.full((2, 3), 1 / 3)
    lengths = dense(sample_lda(topic, 20_000, length=8.0, min_length=0, seed=1)).sum(1)
    assert abs(float(lengths.mean()) - 8) < 5 * (8 / 20_000) ** 0.5
    assert abs(float(lengths.var()) - 8) < 0.5
    assert float(dense(sample_lda(topic, 2000, length=8.0, min_length=6, seed=1)).sum(1).min()) == 6
    own = torch.tensor([0.0, 3.0, 5.0])
    drawn = sample_lda(topic, 3, length=own, lengths="fixed", min_length=0)
    assert torch.equal(dense(drawn).sum(1), own)


def test_planted_corpus_is_sparse_and_reproducible():
    first, again, other = (topic_corpus(50, 40, 3, seed=s) for s in (0, 0, 1))
    assert first.data.is_sparse and first.truth["topic"].shape == (3, 40)
    assert torch.equal(dense(first), dense(again)) and not torch.equal(dense(first), dense(other))
    assert not torch.equal(first.truth["topic"], other.truth["topic"])
    assert float(dense(first).sum(1).min()) >= 20


def test_global_random_state_is_left_alone():
    before, torch_before = np.random.get_state()[1].copy(), torch.get_rng_state()  # noqa: NPY002
    topic_corpus(5, 6, 2)
    assert (np.random.get_state()[1] == before).all() and torch.equal(torch.get_rng_state(), torch_before)  # noqa: NPY002


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"alpha": 0.0}, "alpha"),
        ({"alpha": [0.1, 0.2, 0.3]}, "alpha of shape"),
        ({"length": -1}, "length = -1"),
        ({"length": 2.5, "lengths": "fixed"}, "whole ones"),
        ({"lengths": "normal"}, "'poisson' or 'fixed'"),
        ({"num_documents": 0}, "num_documents = 0"),
        ({"topic": torch.ones(2, 3)}, "sum to 1"),
    ],
)
def test_settings_without_meaning_are_refused(settings, message):
    arguments = {"topic": torch.full((2, 3), 1 / 3), "num_documents": 4, **settings}
    with pytest.raises(ModelError, match=message):
        sample_lda(**arguments)
    with pytest.raises(ModelError, match="gamma"):
        topic_corpus(gamma=0.0)
