"""Biases that change in time: the bound, the program's log joint, predictions of periods old and new."""

import math
from typing import Any

import numpy as np
import pyro.distributions as dist
import pytest
import torch

import custom_inference as ci
from custom_inference.families.ratings.drift import Bins, Drift
from custom_inference.families.ratings.incidence import Incidence
from custom_inference.families.ratings.vb import RatingsVB
from ppl_models import PMF, DataError, MethodError, PriorError, ratings
from ppl_models.distributions import Flat
from tests.families.ratings import _toy as toy
from tests.families.ratings.variational_test import posterior_draws, toy_fit

QUIET = {"progress": False}
USERS, ITEMS = 12, 6


def drift_of_toy():
    """Two bins of items and two of users, with priors that say something."""
    ratings_ = Incidence.of(toy.USER, toy.ITEM, toy.VALUE, toy.USERS, toy.ITEMS)
    place, own = np.array([0, 1, 1, 1, 0]), np.array([1, 1, 0, 1, 0])
    bins = {
        "bin_bias": Bins.of(place, (2,), np.full(2, 0.1), np.full(2, 4.0)),
        "item_bin_bias": Bins.of(2 * toy.ITEM + place, (2, 2), np.zeros(4), np.arange(2.0, 6.0)),
        "user_bin_bias": Bins.of(2 * toy.USER + own, (3, 2), np.full(6, -0.2), np.full(6, 3.0)),
    }
    return Drift.of(ratings_, bins)


def log_normal(x, mean, variance):
    return -0.5 * (np.log(2 * np.pi * variance) + (x - mean) ** 2 / variance).sum(-1)


def test_the_bound_is_the_expectation_that_it_stands_for():
    at, rng = toy_fit(sweeps=7, drift=drift_of_toy()), np.random.default_rng(0)
    draws, log_q = posterior_draws(at, 40_000, rng)
    assert at.drift is not None
    offset, terms = 0.0, toy.log_prior(draws) - log_q
    for one in at.drift.bins.values():
        value = one.mean + np.sqrt(one.variance) * rng.standard_normal((40_000, len(one.mean)))
        offset = offset + value[:, one.group]
        terms = terms + log_normal(value, one.prior_mean, 1 / one.precision) - log_normal(value, one.mean, one.variance)
    terms = terms + toy.log_likelihood(draws, toy.VALUE - offset)
    assert abs(terms.mean() - at.bounds[-1]) < 4.5 * terms.std() / np.sqrt(len(terms))
    assert (np.diff(at.bounds) > -1e-9).all()


@pytest.fixture(scope="module")
def fits():
    """Ratings whose users drift; nobody's ratings of the last bin of users are known but those of user 0."""
    rng = np.random.default_rng(0)
    user, item = np.nonzero(rng.random((USERS, ITEMS)) < 0.8)
    time = rng.random(len(user)) * np.where(user == 0, 1.0, 0.66)
    drift = rng.normal(size=(USERS, 3))
    value = 3 + drift[user, (3 * time).astype(int)] + 0.3 * rng.normal(size=len(user))
    data = ratings(user, item, value, time=time, num_users=USERS, num_items=ITEMS)
    model = PMF.for_data(data, 1, varying_noise=math.inf, time_edges=(0.4,), user_time_edges=(1 / 3, 2 / 3))
    settings = {"vb": {}, "gibbs": {"num_samples": 20, "warmup": 5, "chains": 2}}
    return {name: ci.fit(model, data, method=name, seed=1, **one, **QUIET) for name, one in settings.items()}


def test_chains_have_the_log_joint_of_the_program(fits):
    """In precisions where the program has covariances and sigma, as without such biases."""
    fit, differences = fits["gibbs"], []
    model, data = fit.model, fit.data
    for place in ((0, 3), (0, 17), (1, 9)):
        at = {name: value[place] for name, value in fit.draws.items()}
        loading, offset = model.coefficients(at)
        eta = (at["user_profile"][data.user] * loading[data.item]).sum(-1) + offset[data.item]
        own = (3 * data.time).long()
        b = (data.time >= 0.4).long()
        eta = eta + at["bin_bias"][b] + at["item_bin_bias"][data.item, b] + at["user_bin_bias"][data.user, own]
        program = dist.Normal(eta, at["scale"]).log_prob(data.value).sum() + model.log_prior(at)
        program = program + model.prior("user_profile", like=eta, values=at).log_prob(at["user_profile"]).sum()
        program = program + 3 * (torch.logdet(at["user_covariance"]) + torch.logdet(at["item_covariance"]))
        differences.append(float(fit.sample_stats["lp"][place] - program - 3 * at["scale"].log()))
    assert np.allclose(differences, differences[0], atol=1e-6)


@pytest.mark.parametrize("name", ["vb", "gibbs"])
def test_predictions_are_averages_over_draws_at_their_times(fits, name, tmp_path):
    fit, pairs = fits[name], (np.array([0, 3, 5]), np.array([2, 2, 4]))
    time = np.array([0.1, 0.5, 0.9])
    flat = {site: value.flatten(0, 1) for site, value in fit.draws.items()}
    expected = flat["mean"][:, None] + flat["item_bias"][:, pairs[1]] + flat["user_profile"][:, pairs[0], 0]
    expected = expected + (flat["user_profile"][:, pairs[0], 1:] * flat["item"][:, pairs[1]]).sum(-1)
    assert torch.allclose(fit.predict(pairs), expected.mean(0))
    b, own = np.array([0, 1, 1]), np.array([0, 1, 2])
    expected = expected + flat["bin_bias"][:, b] + flat["item_bin_bias"][:, pairs[1], b]
    expected = expected + flat["user_bin_bias"][:, pairs[0], own]
    found = fit.predict(pairs, time=time, uncertainty=True)
    assert torch.allclose(found.mean, expected.mean(0))
    assert torch.allclose(found.sd, expected.std(0, correction=0), atol=1e-6)
    loaded = ci.Fit.load(fit.save(tmp_path / "fit"))
    assert torch.equal(loaded.predict(pairs, time=time), found.mean)


@pytest.mark.parametrize("name", ["vb", "gibbs"])
def test_in_a_period_without_ratings_biases_have_their_prior(fits, name):
    """Of 11 users in the last of three bins: Normal(0, .2)."""
    new = fits[name].draws["user_bin_bias"].flatten(0, 1)[:, 1:, 2]
    error = 0.2 / np.sqrt(new.numel())
    assert abs(float(new.mean())) < 4.5 * error and abs(float(new.std()) - 0.2) < 4.5 * error


def test_profiles_are_those_of_ratings_less_the_biases(fits):
    fit = fits["vb"]
    found: Any = RatingsVB().local_posterior(fit.model, fit.globals, fit.data).posterior
    data, at = fit.data, fit.globals
    b, own = (data.time >= 0.4).long(), (3 * data.time).long()
    bias = at["bin_bias"][b] + at["item_bin_bias"][data.item, b] + at["user_bin_bias"][data.user, own]
    less = ratings(data.user, data.item, data.value - bias, num_users=USERS, num_items=ITEMS)
    plain = PMF.for_data(less, 1, varying_noise=math.inf)
    expected: Any = ci.Exact().local_posterior(plain, at, less).posterior
    assert torch.allclose(found.mean, expected.mean) and torch.allclose(found.covariance, expected.covariance)


def test_new_users_have_the_biases_of_items_and_the_spread_of_their_own(fits):
    fit = fits["gibbs"]
    first, second = (
        fit.predict(([0], [2]), ratings=fit.data, time=[0.9], uncertainty=True),
        fit.predict(([0], [2]), ratings=fit.data, uncertainty=True),
    )
    flat = {site: value.flatten(0, 1) for site, value in fit.draws.items()}
    bias = flat["bin_bias"][:, 1] + flat["item_bin_bias"][:, 2, 1]
    assert torch.allclose(first.mean - second.mean, bias.mean())
    assert float(first.sd**2 - second.sd**2) > 0.2**2 - float(bias.var()) - 0.1 * float(second.sd)


def test_what_does_not_fit_is_said(fits):
    fit, data = fits["vb"], fits["vb"].data
    with pytest.raises(DataError, match=r"shape \(2,\)"):
        fit.predict(([0], [0]), time=[0.1, 0.2])
    model = fit.model
    with pytest.raises(PriorError, match="'user_bin_bias' is flat"):
        ci.fit(model.with_priors(user_bin_bias=Flat(dist.Normal(0.0, 1.0))), data, method="vb", **QUIET)
    with pytest.raises(DataError, match="without their times"):
        ci.fit(model, ratings(data.user, data.item, data.value), method="vb", **QUIET)
    plain = PMF(num_components=1, num_users=USERS, num_items=ITEMS)
    with pytest.raises(DataError, match="no biases change in time"):
        ci.fit(plain, data, sweeps=1, **QUIET).predict(([0], [0]), time=[0.1])
    logistic = PMF(num_components=1, num_users=USERS, num_items=ITEMS, adaptive=True, likelihood="logistic",
                   user_time_edges=(0.5,))  # fmt: skip
    with pytest.raises(MethodError, match="unknown method"):
        ci.fit(logistic, data, method="vb", **QUIET)
