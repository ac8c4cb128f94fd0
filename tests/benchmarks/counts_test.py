"""The benchmarks of counts and of labels: thinned data and their score."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.quality._counts_data import counts, divergence, rank_one, score
from benchmarks.quality.multi_label import Labelled, Split, line


def test_the_score_is_the_log_likelihood_a_token_of_a_quarter_of_the_rate():
    rng = np.random.default_rng(0)
    train, test = rng.poisson(4.0, (30, 8)), rng.poisson(1.0, (30, 8))
    rate = rng.gamma(2.0, 2.0, (30, 8))
    unigram = (train.sum(0) + 0.5) / (train.sum() + 4)
    expected = 0.99 * rate / 4 + 0.01 * rate.sum(1, keepdims=True) / 4 * unigram
    found = (test * np.log(expected) - expected).sum() / test.sum()
    assert np.isclose(score(rate, train, test), found)
    best = 4.0 * np.maximum(test, 1e-9)
    assert score(best, train, test) > score(rank_one(train), train, test)


def test_the_divergence_is_that_of_scikit_learn():
    from sklearn.decomposition._nmf import _beta_divergence

    rng = np.random.default_rng(1)
    counts, w, h = rng.poisson(1.0, (20, 6)), rng.gamma(1.0, 1.0, (20, 3)), rng.gamma(1.0, 1.0, (3, 6))
    expected = _beta_divergence(counts.astype(float), w, h, 1) / counts.sum()
    assert divergence(w @ h, counts) == pytest.approx(expected) and divergence(counts, counts) == pytest.approx(0)


def test_thinned_counts_are_those_of_the_protocol(real_data):
    train, test = counts(real_data)
    assert train.shape == test.shape == (2240, 1000) and min(train.min(), test.min()) == 0
    assert (train.sum(), test.sum()) == (131588, 32580)
    assert score(rank_one(train), train, test) == pytest.approx(-4.433, abs=5e-4)


def test_hidden_labels_are_scored():
    rng = np.random.default_rng(1)
    labelled = Labelled("set", rng.standard_normal((40, 3)), (rng.random((40, 4)) < 0.5).astype(int))
    split = Split.of(labelled)
    assert len(split.train[0]) == 28 and split.shown.shape == split.test[1].shape == (12, 4)
    assert len(split.within().train[0]) == 22 and len(split.within().test[0]) == 6
    assert np.allclose(split.train[0].mean(0), 0) and np.allclose(split.train[0].std(0), 1)
    truth = split.test[1].astype(float)
    right = line("set", "truth", split, (truth, 0.5 * np.ones((12, 4)), 0.0))
    assert right[2] == pytest.approx(0, abs=1e-5) and right[3] == 0 and right[4] == pytest.approx(np.log(2))
    shown = np.where(split.shown, 1 - truth, truth)  # labels that are shown do not count
    assert line("set", "other", split, (shown, shown, 0.0))[2] == right[2]
