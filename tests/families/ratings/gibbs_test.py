"""Gibbs sampling of ratings: its moments against weighed draws from the prior, its conditionals, its predictions."""

from __future__ import annotations

import numpy as np
import pytest

from custom_inference.families.ratings import gibbs as sampler
from custom_inference.families.ratings.exchange import scale_density
from custom_inference.families.ratings.features import implicit_feedback
from custom_inference.families.ratings.incidence import Incidence
from custom_inference.families.ratings.variational import variational
from tests.families.ratings import _toy as toy
from tests.families.ratings.variational_test import problem, toy_fit


def summaries(draws):
    """Bounded functions of draws: their moments exist whatever the prior's tails are."""
    pairs = np.tanh(toy.pair_means(draws, np.array([0, 1, 2, 2]), np.array([0, 1, 0, 1])))
    gains = np.concatenate([draws["user_gain"], draws["item_gain"]], 1)
    shrunk = [1 / (1 + np.linalg.det(draws[f"{side}_precision"])) for side in ("user", "item")]
    means = [np.tanh(draws[f"{side}_mean"][:, 0]) for side in ("user", "item")]
    ridge = np.tanh(draws["ridge"])
    return np.column_stack([pairs, pairs**2, draws["tau"], np.tanh(gains), *shrunk, *means, ridge])


def test_moments_are_those_of_the_posterior():
    """Under features, whose coefficients and ridges are beside all else; ``joint_test`` is without."""
    start = toy_fit(5, user_features=[toy.FEATURES])
    columns = start.user.design.columns
    prior = toy.prior_draws(np.random.default_rng(0), 300_000, columns)
    log_weight = toy.log_likelihood(prior)
    weight = np.exp(log_weight - log_weight.max())
    weight /= weight.sum()
    exact = weight @ summaries(prior)
    chain, generator = sampler.Chain.of(start), np.random.default_rng(1)
    draws = {f"{side}{part}": [] for side in ("user", "item") for part in ("", "_gain", "_precision", "_mean")}
    draws |= {"tau": [], "ridge": []}
    pool = sampler.Pool(1)
    for _ in range(2500):
        sampler.sweep(chain, pool, generator)
        for side in ("user", "item"):
            at = getattr(chain, side)
            kept = (at.mean.copy(), at.gain.copy(), at.precision, at.prior.coefficient[0])
            for part, value in zip(("", "_gain", "_precision", "_mean"), kept, strict=True):
                draws[f"{side}{part}"].append(value)
        draws["tau"].append(chain.tau)
        draws["ridge"].append(chain.user.prior.ridges[0])
    found = summaries({name: np.array(value) for name, value in draws.items()})[500:]
    batches = found.reshape(25, -1, found.shape[1]).mean(1)
    error = batches.std(0, ddof=1) / 5 + np.sqrt(weight @ weight) * found.std(0)
    assert (np.abs(batches.mean(0) - exact) < 4.5 * error).all()
    assert error.max() < 0.08


def run_chain(at, sweeps, burn_in, threads=1, seed=0):
    """Yield a chain after each sweep that counts."""
    chain, generator = sampler.Chain.of(at), np.random.default_rng(seed)
    pool = sampler.Pool(threads)
    for number in range(sweeps):
        sampler.sweep(chain, pool, generator)
        if number >= burn_in:
            yield chain


def test_predictions_approach_the_truth_and_intervals_cover():
    user, item, value, mean = problem(3, users=150, items=100)
    held = np.random.default_rng(0).random(len(user)) < 0.2
    at = variational(Incidence.of(user[~held], item[~held], value[~held], 150, 100), 4, sweeps=10)
    means, noise = [], []
    for chain in run_chain(at, 80, 20):
        w, z = chain.user.mean[user[held]], chain.item.mean[item[held]]
        means.append(chain.ratings.centre + w[:, 0] + z[:, 0] + (w[:, 1:] * z[:, 1:]).sum(1))
        noise.append(1 / (chain.tau * chain.user.gain[user[held]] * chain.item.gain[item[held]]))
    found, signal = np.mean(means, 0), np.std(means, 0)
    total = np.sqrt(signal**2 + np.mean(noise, 0))
    assert np.sqrt(np.mean((found - mean[held]) ** 2)) < 0.25
    assert 0.86 < np.mean(np.abs(found - value[held]) < 1.645 * total) < 0.94
    assert 0.82 < np.mean(np.abs(found - mean[held]) < 1.645 * signal) < 0.96


def small(features=False):
    user, item, value, _ = problem()
    ratings = Incidence.of(user, item, value, 60, 40)
    blocks = {"user_features": [implicit_feedback(ratings.users, ratings.items.counts)]} if features else {}
    return user, item, value, variational(ratings, 2, sweeps=10, **blocks)


def dense_products(chain, side, other):
    """sum g h z z' * (x, t) (x, t)' one rating after the other, z = (w, 1)."""
    found, rated = 0.0, side.ratings
    for n in range(len(side.mean)):
        z = np.append(side.mean[n], 1.0)
        for m in range(rated.start[n], rated.start[n + 1]):
            j = rated.index[m]
            line = np.concatenate([[1.0], other.mean[j, 1:], [rated.value[m] - other.mean[j, 0]]])
            found = found + side.gain[n] * other.gain[j] * np.outer(z * line, z * line)
    return found


def test_products_are_sums_over_ratings_and_give_the_squared_error():
    *_, at = small()
    chain, generator = sampler.Chain.of(at), np.random.default_rng(0)
    pool = sampler.Pool(2)
    for side, other in ((chain.user, chain.item), (chain.item, chain.user)):
        side.draw(other, 1.3, 20.0, pool, generator)
        np.testing.assert_allclose(side.products, dense_products(chain, side, other), rtol=1e-9, atol=1e-9)
    row = np.repeat(np.arange(60), chain.ratings.users.counts)
    w, z = chain.user.mean[row], chain.item.mean[chain.ratings.users.index]
    rest = chain.ratings.users.value - w[:, 0] - z[:, 0] - (w[:, 1:] * z[:, 1:]).sum(1)
    gains = chain.user.gain[row] * chain.item.gain[chain.ratings.users.index]
    assert np.isclose(sampler.squared_error(chain), (gains * rest**2).sum())


def test_half_sweeps_in_single_precision_are_those_in_double():
    """From the same numbers, to the precision of the sums."""
    *_, at = small(features=True)
    drawn = []
    for dtype in (np.float64, np.float32):
        chain, generator = sampler.Chain.of(at), np.random.default_rng(0)
        pool = sampler.Pool(1)
        for side, other in ((chain.user, chain.item), (chain.item, chain.user)):
            side.table = side.table.astype(dtype)
            side.draw(other, 1.3, 20.0, pool, generator)
        drawn.append((chain.user.mean, chain.item.mean, chain.item.gain, sampler.squared_error(chain)))
    for double, single in zip(*drawn, strict=True):
        np.testing.assert_allclose(single, double, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("which", ["user", "item"])
def test_rescaling_has_the_density_of_the_joint(which):
    """The log joint along c, with the Jacobian of rows, m, beta and L, is what c is drawn from."""
    *_, at = small(features=True)
    chain, generator = sampler.Chain.of(at), np.random.default_rng(0)
    pool = sampler.Pool(1)
    sampler.sweep(chain, pool, generator)
    for side, other in ((chain.user, chain.item), (chain.item, chain.user)):
        side.draw(other, chain.tau, 20.0, pool, generator)
    side, other = (chain.user, chain.item) if which == "user" else (chain.item, chain.user)
    side.products = dense_products(chain, side, other)
    d, k = side.mean.shape[1], 1
    before, each = (
        (side.mean, side.prior_mean, side.prior, side.precision),
        np.append(np.ones(side.mean.shape[1]), -1.0),
    )
    score, _ = scale_density(side, chain.tau, each, k)
    lines, found = len(side.mean) + len(side.prior.coefficient), []
    for log in (0.0, 0.2, -0.4):
        side.mean, side.prior_mean, side.prior, side.precision = before
        scale = np.where(np.arange(d) == k, np.exp(log), 1.0)
        side.move(scale, np.zeros(d))
        chain.item.products = dense_products(chain, chain.item, chain.user)
        found.append(sampler.log_joint(chain) + (lines - (d + 1)) * log)
    np.testing.assert_allclose(np.diff(found), np.diff([score(log) for log in (0.0, 0.2, -0.4)]), rtol=1e-6, atol=1e-6)


def test_threads_and_seeds():
    *_, at = small(features=True)
    before = at.user.mean.copy()
    one, two, other = (list(run_chain(at, 6, 5, t, s))[-1].item.mean for t, s in ((1, 0), (2, 0), (1, 1)))
    np.testing.assert_array_equal(one, two)
    assert not np.array_equal(one, other)
    np.testing.assert_array_equal(at.user.mean, before)
