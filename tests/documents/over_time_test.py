"""Topics over time as people read them, on a fit whose topics are set by hand."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import custom_inference as ci
from custom_inference.documents import over_time
from ppl_models import DTM, LDA, MethodError, documents

OLD, NEW, WAR = ["nerve", "wire", "reflex"], ["calcium", "network", "channel"], ["war", "peace", "treaty"]


@cache
def fitted():
    """Twelve decades; one topic changes its words in the middle, the other does not; a decade without documents."""
    rng, texts, years = np.random.default_rng(0), [], []
    for decade in range(12):
        for n in range(0 if decade == 4 else 10):
            chosen = WAR if n % 2 else (OLD if decade < 6 else NEW)
            texts.append(" ".join(rng.choice(chosen, 15)))
            years.append(1900 + 10 * decade)
    labels = [f"{year}s" for year in range(1900, 2020, 10)]
    time = pd.Categorical([f"{year}s" for year in years], categories=labels)
    words = documents(texts)
    fit = ci.fit(DTM(num_topics=2, vocabulary_size=words.num_features, num_times=12), words, time=time, progress=False)
    return fit, int(fit.transform()[0].argmax())


def test_words_by_slice():
    fit, topic = fitted()
    table = over_time.words_over_time(fit, topic, top=3)
    assert table.shape == (3, 12) and list(table.columns)[:2] == ["1900s", "1910s"]
    assert set(table["1900s"]) == set(OLD) and set(table["2010s"]) == set(NEW)
    assert set(over_time.words_over_time(fit, 1 - topic, top=3, every=11)["2010s"]) == set(WAR)


def test_probabilities_have_intervals_that_widen_where_nothing_is_known():
    fit, topic = fitted()
    found: Any = over_time.word_probabilities(fit, topic, ["nerve", "calcium"], ahead=3)
    assert list(found.columns) == ["probability", "low", "high"] and len(found) == 2 * 15
    assert (found["low"] <= found["probability"]).all() and (found["probability"] <= found["high"]).all()
    width = (found["high"] - found["low"]).loc["calcium"]
    assert width["+3"] > width["+1"] > width["2010s"]
    exact = torch.softmax(fit.params["topic_logit"], -1)[:, topic]
    column = fit.coords["word"].index("nerve")
    assert np.allclose(found["probability"].loc["nerve"].to_numpy()[:12], exact[:, column].numpy(), atol=0.06)
    assert found.equals(over_time.word_probabilities(fit, topic, ["nerve", "calcium"], ahead=3))


def test_shares_and_documents():
    fit, topic = fitted()
    shares = over_time.shares_over_time(fit)
    assert shares.loc["1940s"].isna().all() and np.allclose(shares.drop("1940s").sum(axis=1), 1)
    assert np.allclose(shares[topic].dropna(), 0.5, atol=0.05)
    best: Any = over_time.documents_of_topic(fit, topic, 8)
    assert len(best) == 8 and (best["proportion"] > 0.9).all() and best["slice"].is_monotonic_increasing


@pytest.mark.parametrize("measure", over_time.SIMILARITIES)
def test_documents_are_found_in_the_words_of_another_time(measure):
    fit, topic = fitted()
    found: Any = over_time.similar_documents(fit, 0, 5, slice_="2010s", measure=measure)
    assert (found["slice"] == "2010s").all() and (fit.transform()[list(found.index), topic] > 0.9).all()
    assert found["similarity"].between(0, 1).all() and found["similarity"].is_monotonic_decreasing
    new = over_time.similar_documents(fit, ["calcium network"], 5, time=pd.Categorical(["2010s"]), slice_="1900s")
    assert (fit.transform()[list(new.index), topic] > 0.9).all()
    assert 0 not in over_time.similar_documents(fit, 0, 200).index


def test_held_out_scores_are_by_the_topics_of_the_slice():
    fit, _ = fitted()
    names = fit.data.coords["time"]
    wrong = [names[11 - int(slice_)] for slice_ in fit.data.others["time"]]
    right = ci.perplexity(fit, fit.data)
    assert right < 3.5 < ci.perplexity(fit, fit.data.x, time=wrong)
    assert ci.perplexity(fit, fit.data, how="importance", samples=200) < 5


def test_bad_questions_are_named():
    fit, _ = fitted()
    other = ci.VariationalEM(guide="map", search=None, max_iterations=1).fit(
        LDA(num_topics=2, vocabulary_size=9), fit.data.x, progress=False
    )
    for ask, message in (
        (lambda: over_time.words_over_time(fit, 7), "unknown topic '7'"),
        (lambda: over_time.word_probabilities(fit, 0, ["sputnik"]), "'sputnik' is not in the vocabulary"),
        (lambda: over_time.word_probabilities(fit, 0, ["war"], level=2.0), "level = 2.0"),
        (lambda: over_time.similar_documents(fit, 999), "query = 999"),
        (lambda: over_time.similar_documents(fit, 0, slice_="1890s"), "unknown slice '1890s'"),
        (lambda: over_time.similar_documents(fit, 0, measure="dot"), "unknown similarity"),
        (lambda: over_time.shares_over_time(other), "expected a fit of DTM"),
    ):
        with pytest.raises(MethodError, match=message):
            ask()


def test_figures_are_drawn():
    fit, topic = fitted()
    figure = fit.plot("topic_over_time", topic=topic, ahead=2)
    assert len(figure.axes) == 3 and {t.get_text() for t in figure.axes[0].texts} >= {"1900s", "2010s", *OLD, *NEW}
    lines = fit.plot("words_over_time", topic=topic, words=["nerve", "calcium"]).axes[0]
    assert [text.get_text() for text in lines.get_legend().get_texts()] == ["nerve", "calcium"]
    assert len(fit.plot("shares_over_time").axes) == 2
    still = replace(fit, global_posterior={})  # points alone: no bands
    found = over_time.word_probabilities(still, topic, ["nerve"])
    assert np.allclose(found["low"], found["high"])
