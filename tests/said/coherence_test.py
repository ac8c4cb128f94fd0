"""Coherence by gensim's names has gensim's numbers, counted window by window; ours have other names."""

from __future__ import annotations

import numpy as np
import pytest

from custom_inference import coherence
from ppl_models import DataWarning
from tests.references import gensim_coherence as reference

RNG = np.random.default_rng(3)
#: Words come back soon, and some texts are shorter than a window.
TEXTS = [RNG.choice(8, size, p=RNG.dirichlet(np.full(8, 0.6))).tolist() for size in (40, 3, 25, 12, 1, 60, 9, 10)]
TOPICS = RNG.dirichlet(np.full(8, 0.8), 3)
TOP = np.argsort(-TOPICS, axis=1)[:, :4].tolist()
COUNTS = np.array([np.bincount(text, minlength=8) for text in TEXTS])


@pytest.mark.parametrize("measure", ["c_uci", "c_npmi", "c_v"])
@pytest.mark.parametrize("window", [2, 5, 10, None])
def test_windows_by_gensims_names_are_gensims(measure, window):
    found = coherence(TOPICS, measure=measure, texts=TEXTS, top=4, window=window)
    expected = [reference.coherence_of(topic, TEXTS, measure, window) for topic in TOP]
    assert found.tolist() == pytest.approx(expected, rel=1e-9)
    own = {"c_uci": "window_uci", "c_npmi": "window_npmi", "c_v": "window_cv"}[measure]
    ours = coherence(TOPICS, measure=own, texts=TEXTS, top=4, window=window)
    assert (window is None and measure == "c_v") or ours.tolist() != pytest.approx(
        found.tolist(), abs=1e-3
    )  # words come back


def test_u_mass_is_gensims():
    apart = COUNTS.copy()
    apart[::2, 0], apart[1::2, 1] = 0, 0  # words that never meet
    topics = np.array([[0.3, 0.4, 0.1, 0.2, 0, 0, 0, 0]])
    texts = [np.repeat(np.arange(8), row).tolist() for row in apart]
    found = coherence(topics, apart, "u_mass", top=4)
    assert found.tolist() == pytest.approx([reference.coherence_of([1, 0, 3, 2], texts, "u_mass")], rel=1e-9)
    assert found.mean() < coherence(topics, apart, "umass", top=4).mean() - 1
    without = apart * (np.arange(8) != 1)
    texts = [np.repeat(np.arange(8), row).tolist() for row in without]
    with pytest.warns(DataWarning, match="count as in gensim"):
        found = coherence(topics, without, "u_mass", top=4)
    assert found.tolist() == pytest.approx([reference.coherence_of([1, 0, 3, 2], texts, "u_mass")], rel=1e-9)


def test_words_of_every_window_have_the_limit_and_gensims_number():
    always, topics = [[0, 1, 2], [1, 0], [0, 1, 1]], np.array([[0.6, 0.3, 0.1]])
    assert coherence(topics, measure="window_npmi", texts=always, top=2).tolist() == [1.0]
    assert coherence(topics, measure="c_npmi", texts=always, top=2).tolist() == [-1.0]
    assert reference.coherence_of([0, 1], always, "c_npmi") == pytest.approx(-1.0)
    found = coherence(topics, measure="c_v", texts=always, top=3).tolist()
    assert found == pytest.approx([reference.coherence_of([0, 1, 2], always, "c_v")])
