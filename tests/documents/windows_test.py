"""Coherence over sliding windows against its definition, by loops over windows in plain Python."""

from __future__ import annotations

import math

import numpy as np
import pytest

from custom_inference import coherence
from custom_inference import fit as default_fit
from ppl_models import LDA, DataWarning, MethodError, documents, sequences

TEXTS = [
    "the river bank was steep and the river ran along the bank",
    "a loan from the bank and money from the bank is a loan",
    "money in the bank",
    "the stream met the river and the river met the sea",
    "sea",
    "loan money loan money river",
]
WORDS = ["bank", "loan", "money", "river", "sea", "stream"]
KNOWN = [" ".join(word for word in text.split() if word in WORDS) for text in TEXTS]
TOPICS = np.array([[0.4, 0.3, 0.2, 0.06, 0.03, 0.01], [0.05, 0.02, 0.03, 0.5, 0.3, 0.1]])


def windows(width):
    """Sets of the words of every window."""
    found = []
    for text in TEXTS:
        tokens = [word for word in text.split() if len(word) > 1]
        found += [set(tokens[at : at + width]) for at in range(max(1, len(tokens) - width + 1))]
    return found


def by_definition(topic, width, measure):
    every = windows(width)

    def share(*words):
        return sum(all(word in one for word in words) for one in every) / len(every)

    def pmi(a, b):
        return math.log((share(a, b) + 1e-12) / (share(a) * share(b)))

    def npmi(a, b):
        return pmi(a, b) / -math.log(share(a, b) + 1e-12)

    if measure != "window_cv":
        score = npmi if measure == "window_npmi" else pmi
        pairs = [(a, b) for i, a in enumerate(topic) for b in topic[:i]]
        return sum(score(a, b) for a, b in pairs) / len(pairs)
    vectors = [[npmi(a, b) for b in topic] for a in topic]
    whole = [sum(column) for column in zip(*vectors, strict=True)]
    cosines = [
        sum(a * b for a, b in zip(one, whole, strict=True)) / math.hypot(*one) / math.hypot(*whole) for one in vectors
    ]
    return sum(cosines) / len(cosines)


@pytest.mark.parametrize("measure", ["window_cv", "window_npmi", "window_uci"])
@pytest.mark.parametrize("width", [3, 5])
def test_windows_are_their_definition(measure, width):
    fit = default_fit(LDA(num_topics=2, vocabulary_size=6), documents(KNOWN), progress=False)
    fit.params["topic"] = fit.params["topic"].new_tensor(TOPICS)
    expected = [by_definition(one, width, measure) for one in (["bank", "loan", "money"], ["river", "sea", "stream"])]
    lists = [[word for word in text.split() if len(word) > 1] for text in TEXTS]
    sentences = [[one[:1], one[1:]] if len(one) > 1 else one for one in lists]
    for texts in (TEXTS, lists, sentences, sequences(lists)):
        found = coherence(fit, measure=measure, texts=texts, window=width, top=3)
        assert found.tolist() == pytest.approx(expected, abs=1e-9) and found.name == measure


def test_windows_by_default_are_of_110_and_10_tokens():
    rng = np.random.default_rng(0)
    numbers = [rng.integers(0, 6, 150).tolist(), rng.integers(0, 6, 20).tolist(), [0, 1], [3]]
    for measure, width in {"window_cv": 110, "window_npmi": 10, "window_uci": 10}.items():
        own, plain = (coherence(TOPICS, measure=measure, texts=numbers, window=w, top=3) for w in (width, None))
        assert own.tolist() == plain.tolist()
    with pytest.warns(DataWarning, match="1 of the top words are in no reference text"):
        apart = coherence(TOPICS, measure="window_cv", texts=[[0, 1, 3, 4], [2, 3, 4]], top=3)
    assert np.isfinite(apart).all()


def test_what_is_missing_is_said():
    counts = [[1, 1, 0, 1, 0, 1], [1, 1, 1, 0, 1, 0], [0, 0, 1, 1, 1, 1]]
    counts = np.array(counts)
    with pytest.raises(MethodError, match="expected texts="):
        coherence(TOPICS, counts, "c_v", top=3)
    with pytest.raises(MethodError, match="counts documents"):
        coherence(TOPICS, counts, "npmi", texts=TEXTS, top=3)
    with pytest.raises(MethodError, match="c_v"):
        coherence(TOPICS, counts, "cv", top=3)
