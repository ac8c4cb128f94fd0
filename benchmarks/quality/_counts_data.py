"""Counts of words in four newsgroups, thinned into what is fitted and what is predicted, and the score of a rate.

The training documents of the by-date split; the 1000 most frequent of the words of at least three letters that are no
English stop words and occur in at least 10 and at most a quarter of the documents; documents of at least 10 such words.
Thinning: train ~ Binomial(counts, 4/5), test = counts - train.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ppl_models import DataError

#: The share of the tokens that is fitted.
SHARE = 0.8
#: The share of the unigram in every prediction.
_MIXED = 0.01
_WORDS, _LEAST_TOKENS = 1000, 10

Counts = NDArray[np.int64]


def counts(folder: Path | None = None) -> tuple[Counts, Counts]:
    """(train, test), each (N, V): the same documents' tokens, thinned. folder: of the data; by default $PPL_DATA."""
    found = folder or os.environ.get("PPL_DATA")
    if found is None:
        raise DataError("no folder of data: set PPL_DATA")
    whole = _documents(Path(found))
    most = np.sort(np.argsort(-np.asarray(whole.sum(0)).ravel())[:_WORDS])
    whole = whole[:, most]
    whole = whole[np.asarray(whole.sum(1)).ravel() >= _LEAST_TOKENS].toarray()
    train = np.random.default_rng(0).binomial(whole, SHARE)
    return train, whole - train


def score(rate: NDArray[Any], train: Counts, test: Counts) -> float:
    """Poisson log-likelihood a test token, its constants left out: [sum x log r - sum r] / sum x, at the prediction r,
    the fitted rate (N, V) of ``train`` times (1 - 4/5) / (4/5), of which 1 % is the row's total times the unigram."""
    unigram = (train.sum(0) + 0.5) / (train.sum() + train.shape[1] / 2)
    expected = np.maximum(rate, 0) * (1 - SHARE) / SHARE
    expected = (1 - _MIXED) * expected + _MIXED * expected.sum(1, keepdims=True) * unigram
    return float(((test * np.log(np.maximum(expected, 1e-12))).sum() - expected.sum()) / test.sum())


def divergence(rate: NDArray[Any], train: Counts) -> float:
    """The generalised Kullback-Leibler divergence of the counts from the rate, sum [x log(x / r) - x + r], a token."""
    rate = np.maximum(rate, 1e-12)
    logs = train * np.log(np.maximum(train, 1) / rate)
    return float((logs - train + rate).sum() / train.sum())


def rank_one(train: Counts) -> NDArray[Any]:
    """The rate (N, V) of the row's total times the unigram."""
    unigram = (train.sum(0) + 0.5) / (train.sum() + train.shape[1] / 2)
    return train.sum(1, keepdims=True) * unigram


def _documents(folder: Path) -> Any:
    """Training documents by words, sparse."""
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

    path = folder / "newsgroups4" / "newsgroups4.npz"
    counted = sp.load_npz(path).astype(np.int64)
    with np.load(path, allow_pickle=False) as archive:
        test, words = archive["is_test"].astype(bool), archive["words"]
    number = np.asarray((counted[~test] > 0).sum(0)).ravel()
    plain = np.array([len(word) >= 3 and word not in ENGLISH_STOP_WORDS for word in words])
    kept = counted[:, plain & (number >= 10) & (number <= 0.25 * (~test).sum())]
    train = kept[~test]
    return train[np.asarray(train.sum(1)).ravel() >= _LEAST_TOKENS]
