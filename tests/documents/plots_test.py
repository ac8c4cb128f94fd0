"""Tables and figures of topics, and what pyLDAvis is given."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg

from custom_inference import Fit, to_pyldavis, topic_table
from custom_inference.documents.topics import shares
from ppl_models import LDA, NOCA, Data, MethodError, as_documents
from tests.support.fits import given

WORDS = ["bank", "river", "stream", "loan", "money", "unused"]
TOPIC = np.array([[0.4, 0.3, 0.25, 0.02, 0.02, 0.01], [0.35, 0.05, 0.01, 0.3, 0.28, 0.01]])
MIX = np.array([[0.9, 0.1], [0.2, 0.8], [0.5, 0.5], [0.3, 0.7]])
COUNTS = np.array([[3, 2, 2, 0, 0, 0], [4, 0, 0, 5, 4, 0], [0] * 6, [2, 1, 0, 3, 2, 0]])
LABELS = ["canoe", "credit", "blank", "savings"]


def made(sparse: bool = True) -> Fit:
    """A fit of four documents, the third of them empty, whose proportions are given."""
    data = as_documents(COUNTS, vocabulary=WORDS)
    x = data.x.to_sparse_csr() if sparse else data.x
    params = {"topic": torch.as_tensor(TOPIC), "topic_proportion": torch.as_tensor(MIX)}
    labelled = Data(x=x, coords={**data.coords, "row": LABELS})
    return given(LDA(num_topics=2, vocabulary_size=6), params, labelled, elbo=torch.zeros(0))


@pytest.fixture(autouse=True)
def _quiet():
    import warnings

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        yield


def test_shares_weigh_documents_by_their_tokens():
    lengths = COUNTS.sum(1)
    np.testing.assert_allclose(shares(made()), (lengths[:, None] * MIX).sum(0) / lengths.sum())
    np.testing.assert_allclose(shares(made(sparse=False)), shares(made()))


def test_the_table_has_the_words_of_the_most_used_topic_first():
    table = topic_table(made(), top=3)
    assert table.index.names == ["topic", "rank"]
    assert table.index.tolist() == [(1, 1), (1, 2), (1, 3), (0, 1), (0, 2), (0, 3)]
    assert table.loc[1, "word"].tolist() == ["bank", "loan", "money"]
    assert table.loc[0, "word"].tolist() == ["bank", "river", "stream"]
    assert table["probability"].tolist() == [0.35, 0.3, 0.28, 0.4, 0.3, 0.25]
    wide = table["word"].unstack("topic")
    assert wide.shape == (3, 2) and wide.loc[1, 0] == "bank"


def test_rankings_are_their_definitions():
    share = shares(made())
    overall = share @ TOPIC
    lift = topic_table(made(), 6, by="lift")
    relevance = topic_table(made(), 6, by="relevance", weight=0.3)
    frex = topic_table(made(), 6, by="frex", weight=0.5)
    for k in range(2):
        for j, word in enumerate(WORDS):

            def score(table: pd.DataFrame, k: int = k, word: str = word) -> float:
                return float(table.loc[k].set_index("word").loc[word, "score"])

            assert score(lift) == pytest.approx(TOPIC[k, j] / overall[j])
            expected = 0.3 * np.log(TOPIC[k, j]) + 0.7 * np.log(TOPIC[k, j] / overall[j])
            assert score(relevance) == pytest.approx(expected)
            exclusive = TOPIC / TOPIC.sum(0)
            shares_below = [np.mean(values[k] <= values[k, j]) for values in (exclusive, TOPIC)]
            assert score(frex) == pytest.approx(2 / (1 / shares_below[0] + 1 / shares_below[1]))
    # "bank" is in both topics: its own words come first by lift.
    assert lift.loc[0, "word"].tolist()[:2] == ["stream", "river"]


def test_words_that_no_topic_has_are_ranked_last():
    fit = made()
    fit.params["topic"] = torch.tensor([[0.6, 0.4, 0, 0, 0, 0], [0, 0, 0, 0.5, 0.5, 0]])
    for by in ("lift", "relevance", "frex"):
        table = topic_table(fit, 6, by=by)
        assert np.isfinite(table["score"]).all()
        assert set(table.loc[0, "word"].tolist()[:2]) == {"bank", "river"}


def drawn(figure) -> None:
    """Lays the figure out: every warning of that is an error here."""
    FigureCanvasAgg(figure).draw()


def test_bars_are_the_probabilities_of_the_top_words():
    figure = made().plot("topics", top=4)
    drawn(figure)
    panels = [axes for axes in figure.axes if axes.patches]
    assert [axes.get_title() for axes in panels] == [
        f"topic s{k}  share {made().report()['share'][k]:.3f}" for k in (1, 0)
    ]
    assert [bar.get_width() for bar in panels[0].patches] == [0.35, 0.3, 0.28, 0.05]
    assert [text.get_text() for text in panels[1].get_yticklabels()] == ["bank", "river", "stream", "loan"]
    assert panels[0].get_xlim() == panels[1].get_xlim()
    first = made().plot("topics", by="lift", top=2).axes[0]
    by_lift = topic_table(made(), 2, by="lift").loc[1, "word"].tolist()
    assert [text.get_text() for text in first.get_yticklabels()] == by_lift != ["bank", "loan"]


def test_the_heat_map_has_documents_by_topics_with_labels():
    figure = made().plot("documents")
    drawn(figure)
    axes = figure.axes[0]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["topic s1", "topic s0"]
    # Ordered by strongest topic: credit .8, savings .7, blank .5 of the first, then canoe.
    assert [text.get_text() for text in axes.get_yticklabels()] == ["credit", "savings", "blank", "canoe"]
    np.testing.assert_allclose(axes.images[0].get_array(), MIX[[1, 3, 2, 0]][:, ::-1])
    assert figure.axes[1].get_ylabel() == "topic proportion"
    unsorted = made().plot("documents", sort=False).axes[0]
    assert [text.get_text() for text in unsorted.get_yticklabels()] == LABELS
    few = made().plot("documents", max_documents=2).axes[0]
    assert [text.get_text() for text in few.get_yticklabels()] == ["credit", "canoe"]


def test_many_documents_and_topics_can_be_drawn():
    rng = np.random.default_rng(0)
    counts = rng.poisson(0.3, (300, 80))
    sizes = {"topic": (80, 23), "topic_proportion": (23, 300)}
    params = {s: torch.as_tensor(rng.dirichlet(np.full(size, 0.1), rows)) for s, (size, rows) in sizes.items()}
    fit = given(LDA(num_topics=23, vocabulary_size=80), params, as_documents(counts), elbo=torch.zeros(0))
    for kind in ("topics", "documents"):
        drawn(fit.plot(kind))
    assert "300 documents, ordered" in fit.plot("documents").axes[0].get_ylabel()


@pytest.mark.parametrize("sparse", [True, False])
def test_pyldavis_gets_distributions_without_empty_documents_and_unused_words(sparse):
    given = to_pyldavis(made(sparse))
    assert set(given) == {"topic_term_dists", "doc_topic_dists", "doc_lengths", "vocab", "term_frequency"}
    assert given["topic_term_dists"].shape == (2, 5) and given["doc_topic_dists"].shape == (3, 2)
    np.testing.assert_allclose(given["topic_term_dists"], TOPIC[:, :5] / TOPIC[:, :5].sum(1, keepdims=True))
    np.testing.assert_allclose(given["doc_topic_dists"], MIX[[0, 1, 3]])
    assert given["doc_lengths"].tolist() == [7, 13, 8]
    assert given["vocab"] == WORDS[:5]
    assert given["term_frequency"].tolist() == COUNTS.sum(0)[:5].tolist()


def test_what_has_no_topics_or_no_meaning_is_refused():
    example = NOCA.example()
    other = given(example.model, {}, example.data)
    for call in (topic_table, to_pyldavis, lambda fit: fit.plot("topics"), lambda fit: fit.plot("documents")):
        with pytest.raises(MethodError, match="NOCA has no topics"):
            call(other)
    for settings, message in (
        ({"by": "tfidf"}, "unknown ranking of words 'tfidf'; valid: frex, lift, probability, relevance"),
        ({"top": 0}, "top = 0, expected a whole number"),
        ({"weight": 0.5}, "weight = 0.5 for by = 'probability'"),
        ({"weight": 1.5, "by": "frex"}, "weight = 1.5"),
    ):
        with pytest.raises(MethodError, match=message):
            topic_table(made(), **settings)
    everything = topic_table(made(), top=99)  # more words than there are: all of them
    assert everything.groupby("topic").size().eq(6).all()
    empty = made()
    empty.data = as_documents(np.zeros((4, 6)))
    with pytest.raises(MethodError, match="every document is empty"):
        to_pyldavis(empty)
