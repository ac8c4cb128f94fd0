"""Annealed estimates over proportions as real numbers, against sums over all topics of the tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.distributions import Dirichlet, StickBreakingTransform

from custom_inference.core.annealing.estimate import Budget, estimate_log_evidence, lack_of
from custom_inference.core.annealing.local import chains_of
from custom_inference.core.programs.sticks import PreciseSticks
from ppl_models import DiscriminativeLDA, LabeledLDA, Model
from tests.said.document_scores_test import TOKENS, TOPIC, X, summed


def of_classes(alpha: np.ndarray) -> tuple[Model, dict, dict, list]:
    matrix, label = np.random.default_rng(1).dirichlet([0.5] * 4, (2, 4)), np.array([0, 1, 1, -1])
    model = DiscriminativeLDA(num_topics=4, vocabulary_size=4, num_classes=2)
    mixed = [matrix[c] if c >= 0 else matrix.mean(0) for c in label]
    params = {"topic": TOPIC, "transformation": matrix}
    return model, params, {"labels": label}, [(alpha, m @ TOPIC) for m in mixed]


def of_labels(alpha: np.ndarray) -> tuple[Model, dict, dict, list]:
    labels = np.array([[1, 1, 1], [1, 1, 1], [1, 1, 1], [0, 0, 0]])
    model = LabeledLDA(num_topics=4, vocabulary_size=4, num_labels=3)
    return model, {"topic": TOPIC}, {"labels": labels}, [(alpha, TOPIC)] * 4


@pytest.mark.parametrize("case", [of_classes, of_labels])
@pytest.mark.parametrize("alpha", [0.03, 0.5])
def test_sparse_proportions_are_moved_to_where_the_words_are(case, alpha):
    """At concentrations of a few hundredths draws lie at corners of the simplex, where coordinates are far out."""
    concentration = np.full(4, alpha)
    model, params, beside, laws = case(concentration)
    model = model.with_concentration(alpha=torch.as_tensor(concentration))
    data = model.as_read(model.prepare(X, **beside, dtype=torch.float64))
    params = {site: torch.as_tensor(value) for site, value in params.items()}
    truth = np.array([summed(row, *law) for row, law in zip(TOKENS, laws, strict=True)])
    found = estimate_log_evidence(chains_of(model, params, data), Budget(error=0.1, seconds=2.5, chains=24))
    assert (np.abs(found.log_evidence.numpy() - truth) < 5 * found.standard_error.numpy()).all()
    assert float(found.standard_error.max()) < 0.8


def test_coordinates_of_the_simplex_are_those_of_torch_and_precise_beyond():
    precise: Any = PreciseSticks()
    rounded: Any = StickBreakingTransform()
    near = torch.randn(20, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    point = precise(near)
    assert torch.allclose(point, rounded(near)) and torch.allclose(precise.inv(point), near)
    volume = precise.log_abs_det_jacobian(near, point)
    assert torch.allclose(volume, rounded.log_abs_det_jacobian(near, point))
    # Along a coordinate the density of a Dirichlet falls by what is concentrated behind, however far one goes.
    law = Dirichlet(torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64), validate_args=False)
    for far, slope in ((60.0, -0.5), (-60.0, 0.1)):
        u = torch.tensor([far, 0.0], dtype=torch.float64, requires_grad=True)
        point = precise(u)
        assert torch.allclose(precise.inv(point), u)
        (law.log_prob(point) + precise.log_abs_det_jacobian(u, point)).backward()
        assert u.grad is not None and float(u.grad[0]) == pytest.approx(slope, abs=1e-9)


def test_an_error_covers_what_no_chain_has_met():
    """Weights of two parts, of which the chains from one end have met the smaller one alone."""
    forward = torch.full((64, 1), -5.0, dtype=torch.float64) + 0.1 * torch.randn(64, 1, dtype=torch.float64)
    back = torch.zeros(32, 1, dtype=torch.float64) + 0.1 * torch.randn(32, 1, dtype=torch.float64)
    assert lack_of(forward, back).item() == pytest.approx(5.0, abs=0.2)
    assert lack_of(forward, back - 5).item() < 0.1
