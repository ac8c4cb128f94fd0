"""Softmax units with different numbers of categories: log Z, probabilities and fits without those that units lack."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from scipy.special import logsumexp

from custom_inference import VariationalEM, fit
from custom_inference.families.boltzmann.annealing import log_partition
from ppl_models import RBM, DataError, ModelError

SIZES = (2, 4, 3)


def machine(**settings):
    return RBM(num_hidden=2, num_features=3, visible="categorical", num_categories=list(SIZES), **settings)


def values():
    rng = np.random.default_rng(0)
    return {
        "weight": rng.normal(size=(2, 3, 4)),
        "visible_bias": rng.normal(size=(3, 4)),
        "hidden_bias": rng.normal(size=2),
    }


def log_weights(params, rows):
    """-F of rows of categories, by the units that there are."""
    found = []
    for row in rows:
        units = range(len(row))
        zeta = params["hidden_bias"] + sum(params["weight"][:, j, row[j]] for j in units)
        found.append(sum(params["visible_bias"][j, row[j]] for j in units) + np.logaddexp(0, zeta).sum())
    return np.array(found)


def test_log_z_and_probabilities_are_those_of_the_states_that_there_are():
    params, model = values(), machine()
    states = np.array(list(itertools.product(*map(range, SIZES))))
    weights = log_weights(params, states)
    energy = model.energy({site: torch.as_tensor(value) for site, value in params.items()})
    assert float(energy.log_partition()) == pytest.approx(logsumexp(weights), rel=1e-9)
    drawn = energy.draw_statistic(energy.visible_bias.expand(500, -1)).view(500, 3, 4)
    assert float(drawn[:, 0, 2:].sum()) == 0 and float(drawn[:, 2, 3:].sum()) == 0
    assert model.num_parameters(0) == 3 * (1 + 3 + 2) + 2
    with pytest.raises(DataError, match="the first: 3 in row 0, column 2, which has 3"):
        model.prepare(np.array([[0, 1, 3], [1, 1, 0]]))
    with pytest.raises(ModelError, match="num_categories of 2 features"):
        RBM(num_hidden=2, num_features=3, visible="categorical", num_categories=[2, 4])


@pytest.mark.filterwarnings("ignore")
def test_fits_are_of_the_states_that_there_are():
    rng = np.random.default_rng(1)
    kind = rng.random(80) < 0.5
    x = np.stack([np.where(kind, rng.integers(0, size, 80), size - 1) for size in SIZES], 1)
    model = RBM.for_data(machine().prepare(x), 2, visible="categorical")
    assert model.num_categories == SIZES
    exact = VariationalEM(guide="exact", max_iterations=20).fit(model, x, progress=False)
    params = {site: value.numpy() for site, value in exact.params.items()}
    states = np.array(list(itertools.product(*map(range, SIZES))))
    expected = log_weights(params, x) - logsumexp(log_weights(params, states))
    assert np.allclose(exact.log_likelihood(), expected, atol=1e-6)
    assert bool(torch.isfinite(exact.params["visible_bias"]).all())
    assert bool((exact.sample(100)["x"] <= torch.tensor(SIZES) - 1).all())
    estimate = log_partition(exact, chains=50, temperatures=200)
    assert float(estimate.value) == pytest.approx(logsumexp(log_weights(params, states)), abs=0.1)
    default = fit(model, x, progress=False)
    assert np.isfinite(default.log_likelihood().numpy()).all()
