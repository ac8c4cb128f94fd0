"""Concentrations and shapes by maximum likelihood, against a search and a grid."""

import numpy as np
import pytest
import torch
from scipy.special import digamma

from custom_inference.families.conjugate import learn as _learn
from tests.references import _collapsed


def test_inverse_digamma():
    value = torch.tensor([-1e3, -30.0, -2.3, -2.2, 0.0, 1.5, 20.0])
    assert torch.allclose(torch.digamma(_learn.inverse_digamma(value)), value, rtol=1e-10)


def test_minkas_fixed_point_climbs_to_the_maximum():
    draws = torch.distributions.Dirichlet(torch.tensor([0.2, 1.0, 3.0])).sample(torch.Size([500]))
    mean_log, value = draws.log().mean(0), torch.ones(3)

    def density(alpha):
        return float(torch.distributions.Dirichlet(alpha).log_prob(draws).mean())

    for _ in range(8):
        following = _learn.fit_concentration(mean_log, value, iterations=1)
        assert density(following) >= density(value)
        value = following
    best = _learn.fit_concentration(mean_log, value, iterations=3000)
    reference = _collapsed.best_alpha(lambda alpha: density(torch.as_tensor(alpha)), np.ones(3))
    assert best.numpy() == pytest.approx(np.asarray(reference), rel=1e-4)


def test_learned_strength_is_the_maximum():
    base = torch.tensor([0.5, 0.2, 0.3])
    draws = torch.distributions.Dirichlet(4.0 * base).sample(torch.Size([400]))
    found = float(_learn.fit_scale(draws.log().mean(0), base, torch.ones(())))
    grid = torch.linspace(0.5, 8.0, 3001)
    scores = torch.stack([torch.distributions.Dirichlet(s * base).log_prob(draws).mean() for s in grid])
    assert found == pytest.approx(float(grid[scores.argmax()]), abs=0.003)


def test_learned_shape_solves_its_equation():
    truth = torch.tensor([0.05, 0.4, 3.0, 80.0])
    mean = torch.tensor([0.2, 1.0, 5.0, 2.0])
    mean_log = torch.as_tensor(digamma(truth.numpy())) - (truth / mean).log()
    assert torch.allclose(_learn.fit_shape(mean, mean_log, torch.ones(4)), truth, rtol=1e-8)
