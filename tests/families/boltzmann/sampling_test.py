"""Completions and fantasies against the references' sums."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import softmax

import custom_inference as ci
from custom_inference.families.boltzmann import sampling
from ppl_models import RBM, MethodError, ReplicatedSoftmax
from ppl_models.distributions.tokens import draw_counts
from tests.references import rbm as reference
from tests.references import replicated_softmax as documents
from tests.support.fits import given


def fitted(model, x, mask=None, seed=0):
    """A fit at given weights."""
    generator = torch.Generator().manual_seed(seed)
    params = {
        site: torch.randn(shape, generator=generator, dtype=torch.float64) for site, shape in model.shapes.items()
    }
    fit = given(model, params, model.prepare(x, mask=mask, dtype=torch.float64), bound_name="exact")
    return fit, {site: value.numpy() for site, value in params.items()}


X = np.array([[1.0, 0.0, 1.0, 0.0], [0.0, 0.0, 1.0, 1.0]])
MASK = np.array([[True, True, False, True], [True, False, False, True]])


def test_missing_entries_have_their_conditional_means(monkeypatch):
    fit, params = fitted(RBM(num_hidden=3, num_features=4), X, MASK)
    found = ci.complete(fit).numpy()
    monkeypatch.setattr(sampling, "_FEW_BITS", 0)
    drawn = ci.complete(fit, sweeps=3000, temperatures=3).numpy()
    assert (found[MASK] == X[MASK]).all() and (drawn[MASK] == X[MASK]).all()
    for n, d in np.argwhere(~MASK):
        both, seen = np.repeat(X[n : n + 1], 2, 0), np.repeat(MASK[n : n + 1], 2, 0)
        both[:, d], seen[:, d] = [0, 1], True
        chance = softmax(reference.log_evidence(params, both, seen))[1]
        assert abs(found[n, d] - chance) < 1e-9 and abs(drawn[n, d] - chance) < 0.03


def test_temperatures_lead_out_of_a_mode(monkeypatch):
    """Two patterns of one probability: a single chain stays in one of them, chains that exchange states do not."""
    monkeypatch.setattr(sampling, "_FEW_BITS", 0)
    params = {"weight": np.full((2, 6), 5.0), "visible_bias": np.full(6, -5.0), "hidden_bias": np.full(2, -15.0)}
    model = RBM(num_hidden=2, num_features=6)
    x, mask = np.tile([1.0, 1, 1, 0, 0, 0], (8, 1)), np.zeros((8, 6), dtype=bool)
    tensors = {site: torch.as_tensor(value) for site, value in params.items()}
    fit = given(model, tensors, model.prepare(x, mask=mask, dtype=torch.float64), bound_name="exact")
    found = ci.complete(fit, sweeps=1000, temperatures=8).numpy()
    assert abs(found.mean() - 0.5) < 0.15 and np.abs(found - 0.5).max() < 0.3
    alone = ci.complete(fit, sweeps=200, temperatures=1).numpy()
    assert np.abs(alone - 0.5).min() > 0.3


def test_an_absent_unit_is_the_one_more_of_its_row():
    """p(x_d | row) in the machine of the row's units and d, by that small machine's evidence."""
    fit, params = fitted(RBM(num_hidden=3, num_features=4, missing="absent"), X, MASK)
    found = ci.complete(fit).numpy()
    for n, d in np.argwhere(~MASK):
        there = MASK[n].copy()
        there[d] = True
        own = {"weight": params["weight"][:, there], "visible_bias": params["visible_bias"][there],
               "hidden_bias": params["hidden_bias"]}  # fmt: skip
        both = np.repeat(X[n : n + 1], 2, 0)
        both[:, d] = [0, 1]
        assert np.isclose(found[n, d], softmax(reference.log_evidence(own, both[:, there]))[1], atol=1e-10)


def test_the_next_word_of_a_document():
    counts = np.array([[2, 0, 1], [0, 0, 0], [1, 3, 0.0]])
    fit, params = fitted(ReplicatedSoftmax(num_hidden=2, num_features=3), counts)
    found = ci.complete(fit).numpy()
    for n, row in enumerate(counts):
        assert np.allclose(found[n], softmax(documents.log_evidence(params, row + np.eye(3))), atol=1e-10)
    with pytest.raises(MethodError, match="expected an RBM"):
        ci.fantasies(fit)
    assert ci.log_partition(fit, length=3).value == pytest.approx(documents.log_partition(params, 3))
    found = ci.log_partition(fit, length=3, exact=False, temperatures=200)
    assert found.value - 0.1 < documents.log_partition(params, 3) < found.reverse + 0.1


@pytest.mark.parametrize("how", ["gibbs", "annealed", "tempered"])
def test_fantasies_have_the_models_moments(how):
    fit, params = fitted(RBM(num_hidden=3, num_features=4), X)
    drawn = ci.fantasies(fit, 4000, how=how, sweeps=60, temperatures=5).numpy()
    assert np.abs(drawn.mean(0) - reference.model_moments(params)["visible_bias"]).max() < 0.04


def test_posteriors_out_of_reach_are_sampled():
    """More units than are summed over: beside those without weights, the posterior of a smaller machine."""
    model = RBM(num_hidden=22, num_features=24)
    x = np.tile(X, (1, 6))
    mask = np.tile(MASK, (1, 6))
    fit, params = fitted(model, x, mask)
    fit.params["weight"][3:] = 0
    small = RBM(num_hidden=3, num_features=24)
    few = {site: value if site == "visible_bias" else value[:3] for site, value in fit.globals.items()}
    exact = given(small, few, fit.data, bound_name="exact").transform()
    assert float((fit.transform()[:, :3] - exact).abs().max()) < 0.25
    assert params["weight"].shape == (22, 24)


def test_words_are_drawn_by_their_probabilities():
    """Means within 5 standard errors; lengths as asked, one long document among short ones; impossible words never."""
    generator = torch.Generator().manual_seed(3)
    probs = torch.tensor([[0.2, 0.0, 0.8], [0.5, 0.5, 0.0], [0.0, 0.0, 1.0]]).repeat(1000, 1)
    lengths = torch.tensor([3, 0, 40]).repeat(1000)
    drawn = draw_counts(probs, lengths, generator)
    assert torch.equal(drawn.sum(1), lengths.to(drawn)) and float(drawn[probs == 0].sum()) == 0
    assert abs(float(drawn[::3, 0].mean()) - 0.6) < 5 * (3 * 0.16 / 1000) ** 0.5
