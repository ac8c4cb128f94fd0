"""Posteriors of hidden units without a partition function: at sizes at which there is none to be had, and at others."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import custom_inference as ci
from custom_inference.faces.sklearn import RBMEstimator, ReplicatedSoftmaxEstimator
from custom_inference.families.boltzmann import annealing
from custom_inference.families.boltzmann.stochastic import ContrastiveDivergence, PersistentCD
from custom_inference.families.boltzmann.training import _PRODUCTS, Training
from ppl_models import RBM, ReplicatedSoftmax
from ppl_models.distributions import Energy
from tests.families.boltzmann.stochastic_test import training

RNG = np.random.default_rng(0)
BINARY = (RNG.random((40, 40)) < 0.3) * 1.0
HOLES = np.where(RNG.random((40, 40)) < 0.2, np.nan, BINARY)
REAL, COUNTS = RNG.normal(size=(40, 40)), RNG.poisson(1.0, (40, 40)) * 1.0


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


@pytest.fixture
def no_normaliser(monkeypatch):
    """A partition function that is asked for is an error."""

    def refused(*_, **__):
        raise AssertionError("log Z was computed")

    monkeypatch.setattr(Energy, "log_partition", refused)
    monkeypatch.setattr(annealing, "estimate_log_partition", refused)


CASES = {
    "binary": (lambda k: RBM(num_hidden=k, num_features=40), BINARY),
    "probability": (lambda k: RBM(num_hidden=k, num_features=40, visible="probability"), sigmoid(REAL)),
    "gaussian": (lambda k: RBM(num_hidden=k, num_features=40, visible="gaussian"), REAL),
    "gaussian-hidden": (lambda k: RBM(num_hidden=k, num_features=40, hidden="gaussian"), BINARY),
    "categorical": (lambda k: RBM(num_hidden=k, num_features=40, visible="categorical", num_categories=2), BINARY),
    "absent": (lambda k: RBM(num_hidden=k, num_features=40, missing="absent"), HOLES),
    "documents": (lambda k: ReplicatedSoftmax(num_hidden=k, num_features=40), COUNTS),
}


@pytest.mark.parametrize("hidden", [3, 30])
@pytest.mark.parametrize("case", CASES)
def test_posteriors_of_hidden_units_need_no_normaliser(case, hidden, no_normaliser, monkeypatch):
    """E[h | x] as eqs. 27.101 and 27.111 have it, of rows of the fit and of further ones; of documents of n tokens with
    n c in place of c."""
    make, x = CASES[case]
    monkeypatch.setattr(Training, "_watch", lambda self, again=False: self.trace.append(0.0) or True)
    method = ContrastiveDivergence(max_iterations=1, restarts=1, ascent=False, learning_rate=0.01)
    fit = method.fit(make(hidden), x, progress=False)
    weight, bias = (fit.params[site].numpy() for site in ("weight", "hidden_bias"))
    for rows in (x, x[1:4]):
        centre, unit = fit.model.units
        filled = (np.nan_to_num(rows) - centre) / unit
        entries = np.stack([1 - filled, filled], -1).reshape(len(rows), -1) if case == "categorical" else filled
        total = filled.sum(1, keepdims=True) if case == "documents" else 1
        zeta = total * bias + entries @ weight.reshape(hidden, -1).T
        expected = zeta if case == "gaussian-hidden" else sigmoid(zeta)
        assert np.allclose(fit.transform(rows), expected, atol=1e-10)
        assert np.allclose(fit.posterior_of(rows).mean, expected, atol=1e-10)
    assert np.allclose(fit.posterior.mean, fit.transform(), atol=1e-12) and fit.local is None


def test_evidence_is_there_when_it_is_asked_for():
    fit = ci.fit(
        CASES["binary"][0](3), BINARY, method="pcd", max_iterations=1, restarts=1, ascent=False, progress=False
    )
    fit.transform()
    assert torch.allclose(fit.local_posterior().bound, fit.log_likelihood())


@pytest.mark.parametrize("kind, x", [(RBMEstimator, BINARY), (ReplicatedSoftmaxEstimator, COUNTS)])
def test_estimators_transform_without_it(kind, x, monkeypatch):
    estimator = kind(30, max_iter=1, method="cd", random_state=0).fit(x)
    monkeypatch.setattr(Energy, "log_partition", None)
    monkeypatch.setattr(annealing, "estimate_log_partition", None)
    assert estimator.transform(x).shape == (40, 30)


def test_default_fits_have_a_bounded_cost():
    """Of wide rows: no exact ascent, whose coordinates are matrices of all columns, and as many passes as a bounded
    number of products allows, but no fewer than the fewest; of narrow ones as ever."""
    wide, narrow = torch.zeros(200, 800), torch.zeros(200, 64)
    for hidden, x, ascends in ((8, wide, False), (8, narrow, True), (256, wide, False)):
        model = RBM(num_hidden=hidden, num_features=x.shape[1])
        state = training(PersistentCD(), model, model.prepare(x), None)
        assert state.ascends == ascends
        assert state.passes * state.products_of_pass <= _PRODUCTS or state.passes == 60
    assert state.products_of_pass == 200 * 800 * 264 and state.passes == _PRODUCTS // state.products_of_pass
