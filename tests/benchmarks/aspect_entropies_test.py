"""The entropies of eq. 31 against the expected log joint that they stand for where EM has converged."""

import numpy as np
import torch

from benchmarks.quality.aspect_entropies import climbed, entropies, line
from custom_inference.families.aspects.map import AspectMap
from ppl_models import AspectBernoulli


def test_entropies_are_minus_the_expected_log_joint_at_a_stationary_point():
    rng = np.random.default_rng(0)
    x = (rng.random((12, 5)) < rng.random((12, 5))).astype(float)
    model, engine = AspectBernoulli(num_components=2, num_features=5), AspectMap(update="newton")
    rows = engine.rows(model, model.prepare(x, dtype=torch.float64))
    params = engine.initial(model, rows, torch.Generator().manual_seed(0))
    step = engine.e_step(model, params, rows)
    for _ in range(300):
        params = engine.m_step(model, params, step, rows)
        step = engine.e_step(model, params, rows, step.locals)
    s, a = step.locals["membership"].numpy(), params["aspect_probability"].numpy()
    chance = np.where(x[:, None] > 0, a, 1 - a) * s[:, :, None]  # (N, K, T), dense
    q = chance / chance.sum(1, keepdims=True)
    expected = (q * np.log(np.maximum(chance, 1e-300))).sum()
    assert np.isclose(-entropies(x, s, a), expected, atol=1e-2)
    assert not np.isclose(entropies(x, np.full_like(s, 0.5), a), -expected, atol=1.0)


def test_they_fall_while_the_likelihood_rises():
    rng = np.random.default_rng(1)
    x = (rng.random((60, 12)) < np.where(rng.random((60, 1)) < 0.5, 0.8, 0.05)).astype(float)
    trace = climbed(x, 2, 0, iterations=60)
    assert (np.diff(trace[:, 0]) > -1e-9).all() and trace[-1, 1] < trace[0, 1]
    row = line("drawn", 0, trace)
    assert row[:2] == ["drawn", 0] and row[6].endswith("of 59")
