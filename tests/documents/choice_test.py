"""Coherence against its definition, and the choice of the number of topics by held-out documents."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pandas as pd
import pytest
import torch

from custom_inference import coherence, cross_validate, held_out
from custom_inference import fit as default_fit
from ppl_models import LDA, NOCA, PLSA, DataWarning, MethodError, ModelError
from ppl_models.datasets import topic_corpus
from tests.documents.scores_test import lda

pytestmark = pytest.mark.quick

CORPUS = [[1, 2, 0, 1, 0], [0, 3, 1, 0, 0], [2, 1, 1, 0, 0], [0, 0, 1, 4, 0], [1, 1, 0, 0, 0], [0, 0, 5, 1, 0]]
TOPICS = np.array([[0.5, 0.3, 0.15, 0.05, 0.0], [0.1, 0.2, 0.25, 0.45, 0.0]])


def by_definition(words: list[int], measure: str) -> float:
    """Sets of documents and loops over pairs, the more probable word first."""
    having = [{i for i, row in enumerate(CORPUS) if row[v]} for v in range(5)]
    values = []
    for m, less in enumerate(words):
        for more in words[:m]:
            both, n = len(having[less] & having[more]), len(CORPUS)
            if measure == "umass":
                values.append(math.log((both + 1) / len(having[more])))
                continue
            joint = both / n + 1e-12
            pmi = math.log(joint / (len(having[less]) / n * len(having[more]) / n))
            values.append(pmi if measure == "uci" else pmi / -math.log(joint))
    return sum(values) / len(values)


@pytest.mark.parametrize("measure", ["umass", "uci", "npmi"])
def test_coherence_is_its_definition(measure):
    found = coherence(TOPICS, CORPUS_ARRAY, measure, top=3)
    assert found.name == measure and found.index.tolist() == [0, 1]
    assert found.tolist() == pytest.approx([by_definition([0, 1, 2], measure), by_definition([3, 2, 1], measure)])


CORPUS_ARRAY = np.array(CORPUS)


def test_coherence_of_a_fit_is_that_of_its_topics_in_its_own_documents():
    fit = lda()
    own = coherence(fit, measure="npmi", top=3)
    pd.testing.assert_series_equal(own, coherence(fit.params["topic"], fit.data, "npmi", top=3))
    other = coherence(fit, [[0, 1, 1, 1, 1], [1, 1, 0, 0, 1], [0, 0, 1, 1, 0]] * np.ones((1, 1)), "umass", top=2)
    # Of the first topic words 0 and 1 are in one document together, 0 in one; of the second 3 and 2 in two; 4 and 0.
    assert other.tolist() == pytest.approx([math.log(2), math.log(3 / 2), math.log(2 / 2)])


def test_limits_of_npmi_and_words_without_documents():
    always = np.array([[1, 1, 0], [2, 1, 0], [1, 1, 1]])
    assert coherence([[0.5, 0.4, 0.1]], always, "npmi", top=2).tolist() == [1.0]
    never = np.array([[1, 0], [0, 1]])
    assert coherence([[0.5, 0.5]], never, "npmi", top=2).tolist() == [pytest.approx(-1, abs=0.06)]
    with pytest.warns(DataWarning, match="1 of the top words are in no reference document"):
        partly = coherence(TOPICS[:, [0, 1, 4]], CORPUS_ARRAY[:, [0, 1, 4]], "uci", top=3)
    assert partly[0] == pytest.approx(by_definition([0, 1], "uci"))
    with pytest.warns(DataWarning):
        assert np.isnan(coherence([[0.1, 0.9, 0.0]], np.array([[1, 0, 0]]), "uci", top=2)[0])


def test_planted_topics_are_more_coherent_than_random_words():
    drawn = topic_corpus(300, 200, 5, length=40, seed=1)
    x = drawn.data.dense().x
    topic, x = drawn.truth["topic"][:, x.sum(0) > 0], x[:, x.sum(0) > 0]
    mixed = torch.as_tensor(np.random.default_rng(0).permuted(topic.numpy(), axis=1))
    assert coherence(topic, x, "npmi").mean() > 0.1 > coherence(mixed, x, "npmi").mean() + 0.05


def occurring(drawn) -> torch.Tensor:
    """Counts of the words that occur."""
    x = drawn.data.dense().x
    return x[:, x.sum(0) > 0]


def test_cross_validation_finds_how_many_topics_there_are():
    x = occurring(topic_corpus(150, 60, 4, length=60, seed=3))
    settings = {"model": {"alpha": 0.1, "gamma": 0.05}, "fitting": {"search": None, "max_iterations": 60}}
    found = cross_validate(LDA, x, [1, 4], folds=3, method="map", **settings)
    assert found.folds.shape == (6, 5) and found.best == 4
    table = found.table
    assert table.loc[4, "perplexity"] < 0.8 * table.loc[1, "perplexity"]
    assert table.loc[4, "error"] == pytest.approx(found.folds.query("num_topics == 4")["perplexity"].std() / 3**0.5)
    # Each document is scored once, half of its tokens at a time.
    tokens = float(torch.ceil(x.sum(1) / 2).sum())
    assert found.folds.groupby("num_topics")["tokens"].sum().tolist() == [tokens, tokens]
    again = cross_validate("lda", x, [4], folds=3, method="map", **settings)
    np.testing.assert_allclose(again.folds["perplexity"], found.folds.query("num_topics == 4")["perplexity"], rtol=1e-9)
    axes = found.plot().axes[0]
    assert axes.get_xlabel() == "number of topics" and "completion" in axes.get_ylabel()


def test_a_fold_is_a_fit_without_its_documents():
    x = occurring(topic_corpus(20, 30, 2, length=30, seed=4))
    settings = {"search": None, "max_iterations": 20}
    found = cross_validate(PLSA, x, [2], folds=2, seed=5, how="plugin", per="document", fitting=settings)
    part = np.random.default_rng(5).permutation(np.arange(20) % 2)
    model = PLSA(num_topics=2, vocabulary_size=x.shape[1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        fit = default_fit(model, x[part != 0], seed=5, progress=False, **settings)
    expected = held_out(fit, x[part == 0], how="plugin", floor=1e-12).perplexity("document")
    assert found.folds["perplexity"][0] == pytest.approx(expected)


def test_what_cannot_be_chosen_from_is_refused():
    x = CORPUS_ARRAY
    for arguments, kind, message in (
        ((NOCA, x, [2]), MethodError, "'NOCA' is no model of documents"),
        (("ldaa", x, [2]), ModelError, "unknown model 'ldaa'"),
        ((LDA, x, []), MethodError, "no numbers of topics"),
    ):
        with pytest.raises(kind, match=message):
            cross_validate(*arguments)
    with pytest.raises(MethodError, match="folds = 7, expected 2 to the 6 documents"):
        cross_validate(LDA, x, [2], folds=7)
    with pytest.raises(MethodError, match="unknown measure of coherence 'cv'"):
        coherence(TOPICS, x, "cv")
    with pytest.raises(MethodError, match="top = 1, expected 2 to 5"):
        coherence(TOPICS, x, top=1)
    with pytest.raises(MethodError, match="need a reference corpus"):
        coherence(TOPICS)
