"""Labels and classes are ranked by the evidence of the words, against sums over all topics of the tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from custom_inference import Fit
from custom_inference.families.labels import engines
from ppl_models import DataWarning, DiscriminativeLDA, LabeledLDA, PartiallyLabeledLDA
from tests.said.document_scores_test import TOPIC, summed
from tests.support.fits import given

ALPHA = np.array([0.3, 0.7, 0.2, 0.5])
TOKENS = [[0, 0, 3, 1], [1, 2, 2], [0, 1, 3], [2, 3], [1]]
X = np.array([np.bincount(row, minlength=4) for row in TOKENS])
#: Sets of labels of the training documents, of one to three.
TRAINED = np.array([[1, 0, 0], [0, 1, 1], [1, 1, 1], [0, 1, 1], [0, 0, 1], [0, 0, 0]])


def labelled(kind: Any, trained: np.ndarray, **sizes: Any) -> Fit:
    model = kind(num_topics=4, vocabulary_size=4, **sizes).with_concentration(alpha=torch.as_tensor(ALPHA))
    data = model.prepare(np.ones((len(trained), 4)), labels=trained, dtype=torch.float64)
    return given(model, {"topic": torch.as_tensor(TOPIC)}, data)


def ranked(fit: Fit, trained: np.ndarray, tokens: list[list[int]]) -> np.ndarray:
    """P(label | words), by every set of labels and every assignment of topics."""
    model: Any = fit.model
    sets, count = np.unique(trained[trained.sum(1) > 0], axis=0, return_counts=True)
    allowed = model.allowed(torch.as_tensor(sets, dtype=torch.float64)).numpy()
    found = []
    for row in tokens:
        log_p = np.array([summed(row, ALPHA * own, TOPIC) for own in allowed]) + np.log(count + 1)
        weight = np.exp(log_p - log_p.max())
        found.append(weight / weight.sum() @ sets)
    return np.array(found)


CASES = {
    "a topic each": (LabeledLDA, TRAINED, {"num_labels": 3}),
    "several": (PartiallyLabeledLDA, TRAINED[[0, 1, 3, 3, 1, 0]][:, :1], {"num_labels": 1, "topics_per_label": 3}),
    "common": (LabeledLDA, TRAINED[:, :2], {"num_labels": 2}),
}


@pytest.mark.parametrize("name", CASES)
def test_sets_of_different_sizes_compare_as_their_evidence_does(name):
    kind, trained, sizes = CASES[name]
    fit = labelled(kind, trained, **sizes)
    np.testing.assert_allclose(fit.predict(X).numpy(), ranked(fit, trained, TOKENS), atol=1e-9)


def test_longer_documents_are_estimated_and_what_is_unsure_is_said(monkeypatch):
    fit = labelled(LabeledLDA, TRAINED, num_labels=3)
    long = np.array([[9, 4, 7, 2], [1, 8, 8, 3], [1, 1, 2, 1]])
    exact = fit.predict(long).numpy()  # sums are exact for short documents, and for these
    bounds = engines._SLACK
    monkeypatch.setattr(engines, "_TERMS", 1)
    monkeypatch.setattr(engines, "_PARTICLES", 2000)
    np.testing.assert_allclose(fit.predict(long).numpy(), exact, atol=0.03)
    # The test can fail: bounds alone rank otherwise.
    monkeypatch.setattr(engines, "_SLACK", -1.0)
    assert bounds > 0 and np.abs(fit.predict(long).numpy() - exact).max() > 0.06
    monkeypatch.setattr(engines, "_SLACK", bounds)
    monkeypatch.setattr(engines, "_PARTICLES", 2)
    monkeypatch.setattr(engines, "_UNSURE", 0.01)
    with pytest.warns(DataWarning, match="labels: the standard error of a probability is"):
        fit.predict(long)


def test_classes_are_ranked_by_their_evidence():
    matrix = np.random.default_rng(1).dirichlet([0.4] * 4, (2, 4))
    model = DiscriminativeLDA(num_topics=4, vocabulary_size=4, num_classes=2)
    model = model.with_concentration(alpha=torch.as_tensor(ALPHA))
    data = model.prepare(np.ones((5, 4)), labels=[0, 1, 1, 1, -1], dtype=torch.float64)
    fit = given(model, {"topic": torch.as_tensor(TOPIC), "transformation": torch.as_tensor(matrix)}, data)
    log_p = np.array([[summed(row, ALPHA, a @ TOPIC) for a in matrix] for row in TOKENS]) + np.log([2, 4])
    weight = np.exp(log_p - log_p.max(1, keepdims=True))
    np.testing.assert_allclose(fit.predict(X).numpy(), weight / weight.sum(1, keepdims=True), atol=1e-9)
    empty = fit.predict(np.zeros((1, 4))).numpy()
    np.testing.assert_allclose(empty, [[2 / 6, 4 / 6]], atol=1e-9)
