"""Variational Bayes of ratings: its bound against the log joint and the evidence, its predictions against the truth."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from custom_inference.families.ratings import variational as core
from custom_inference.families.ratings import vb
from custom_inference.families.ratings.features import Design, implicit_feedback
from custom_inference.families.ratings.hyper import PriorSettings
from custom_inference.families.ratings.incidence import ByRow, Incidence
from custom_inference.families.ratings.sides import Pool, Settings, unpack_symmetric
from custom_inference.families.ratings.translate import RatingsProblem
from custom_inference.families.ratings.variational import variational
from custom_inference.families.ratings.vb import RatingsVB
from ppl_models import PMF
from ppl_models.core.errors import DataError, MethodError
from ppl_models.datasets import sample_ratings
from tests.families.ratings import _toy as toy

SIDE = PriorSettings(
    strength=toy.STRENGTH, degrees=toy.DEGREES, spread=toy.SPREAD,
    ridge=toy.RIDGE, ridge_shape=toy.RIDGE_SHAPE, ridge_rate=toy.RIDGE_RATE,
)  # fmt: skip
TOY = Settings(SIDE, SIDE, toy.SHAPE, toy.RATE, toy.UNIT, ridge_after=10**6)


def toy_fit(sweeps=200, **features):
    ratings = Incidence.of(toy.USER, toy.ITEM, toy.VALUE, toy.USERS, toy.ITEMS)
    return variational(ratings, toy.FACTORS, settings=TOY, sweeps=sweeps, seed=1, **features)


def posterior_draws(at, n, rng):
    """Draws from q, and their log density."""
    d, draws = toy.FACTORS + 1, {"tau": rng.gamma(at.tau_shape, 1 / at.tau_rate, n)}
    log_q = toy.log_gamma(draws["tau"], at.tau_shape, at.tau_rate)
    for name, side in (("user", at.user), ("item", at.item)):
        prior, covariance = side.prior, unpack_symmetric(side.covariance, d)
        row = side.mean + np.einsum(
            "iab,nib->nia", np.linalg.cholesky(covariance), rng.standard_normal((n, *side.mean.shape))
        )
        precision = toy.wishart_draws(rng, n, prior.degrees, prior.scale)
        mean = toy.normal_draws(rng, np.broadcast_to(prior.coefficient[0], (n, 1, d)), prior.strength * precision)
        shape = at.settings.unit_shape + 0.5 * side.ratings.counts
        gain = rng.gamma(shape, side.gain / shape, (n, len(shape)))
        log_q = log_q + toy.log_normal(row, side.mean, np.linalg.inv(covariance)[None])
        log_q = log_q + toy.log_wishart(precision, prior.degrees, prior.scale)
        log_q = log_q + toy.log_normal(mean, prior.coefficient[0], prior.strength * precision)
        log_q = log_q + toy.log_gamma(gain, shape, shape / side.gain).sum(-1)
        if side.design is not None:
            inverse = np.linalg.inv(prior.factor @ prior.factor.T)
            noise = toy.normal_draws(rng, np.zeros((n, len(inverse), d)), precision)
            beta = prior.coefficient[1:] + np.linalg.cholesky(inverse) @ noise
            whitened = np.linalg.solve(np.linalg.cholesky(inverse), beta - prior.coefficient[1:])
            log_q = log_q + toy.log_normal(whitened, 0.0, precision) - 0.5 * d * np.linalg.slogdet(inverse)[1]
            draws[f"{name}_beta"] = beta
        draws |= {name: row, f"{name}_precision": precision, f"{name}_mean": mean[:, 0], f"{name}_gain": gain}
    return draws, log_q


@pytest.mark.parametrize("with_features", [False, True])
def test_the_bound_is_the_expectation_that_it_stands_for(with_features):
    blocks = {"user_features": [toy.FEATURES]} if with_features else {}
    at = toy_fit(sweeps=7, **blocks)
    draws, log_q = posterior_draws(at, 40_000, np.random.default_rng(0))
    columns = {"user": at.user.design.columns} if with_features else None
    terms = (
        toy.log_likelihood(draws) + toy.log_prior(draws, columns, SIDE.ridge) - log_q + with_features * toy.LOG_RIDGE
    )
    assert abs(terms.mean() - at.bounds[-1]) < 4.5 * terms.std() / np.sqrt(len(terms))


def test_the_bound_is_below_the_evidence():
    at = toy_fit()
    log_likelihood = toy.log_likelihood(toy.prior_draws(np.random.default_rng(0), 400_000))
    top = log_likelihood.max()
    weight = np.exp(log_likelihood - top)
    evidence, error = np.log(weight.mean()) + top, weight.std() / weight.mean() / np.sqrt(len(weight))
    assert error < 0.02
    assert at.bounds[-1] < evidence + 4 * error


def problem(seed=0, users=60, items=40, factors=2, share=0.5, noise=0.5):
    rng = np.random.default_rng(seed)
    a, c = rng.normal(0, 0.5, users), rng.normal(0, 0.5, items)
    v, w = rng.normal(0, 0.7, (users, factors)), rng.normal(0, 0.7, (items, factors))
    user, item = np.nonzero(rng.random((users, items)) < share)
    mean = 3 + a[user] + c[item] + (v[user] * w[item]).sum(1)
    return user, item, mean + noise * rng.standard_normal(len(user)), mean


@pytest.mark.parametrize("features", [False, True])
def test_the_bound_never_falls(features):
    user, item, value, _ = problem()
    ratings, rng = Incidence.of(user, item, value, 60, 40), np.random.default_rng(1)
    blocks = {}
    if features:
        blocks["user_features"] = [implicit_feedback(ratings.users, ratings.items.counts), rng.standard_normal((60, 3))]
        blocks["item_features"] = [implicit_feedback(ratings.items, ratings.users.counts)]
    at = variational(ratings, 3, settings=Settings(ridge_after=5), sweeps=40, **blocks)
    assert np.diff(at.bounds).min() > -1e-9 * abs(at.bounds[-1])
    if features:
        assert (at.user.prior.ridges != 3).any()


@pytest.mark.parametrize("held", [1, 4])
def test_noise_is_equal_for_so_many_sweeps_and_the_bound_does_not_fall(held):
    user, item, value, _ = problem()
    gains = []
    at = variational(
        Incidence.of(user, item, value, 60, 40), 3, settings=Settings(noise_after=held), sweeps=30, tolerance=1e9,
        watch=lambda at: gains.append(np.concatenate([at.user.gain, at.item.gain])),
    )  # fmt: skip
    assert all((gain == 1).all() for gain in gains[:held]) and (gains[held] != 1).all()
    assert len(at.bounds) == held + 1  # equal noise alone ends no fit, whatever the tolerance
    at = variational(Incidence.of(user, item, value, 60, 40), 3, settings=Settings(noise_after=held), sweeps=30)
    assert np.diff(at.bounds).min() > -1e-9 * abs(at.bounds[-1])


def test_few_ratings_keep_the_greater_bound_of_equal_noise_first_and_not(monkeypatch):
    data = sample_ratings(60, 30, 2, density=0.4, seed=0).data
    model, found = PMF.for_data(data, 3), {}
    problem_of = RatingsProblem.of(model, data, 50, False)
    for held in ((0,), (8,), (0, 8), (8, 0)):
        found[held] = [at.bounds[-1] for at in problem_of.fits([0, 1], sweeps=12, noise_after=held)]
    greater = [max(pair) for pair in zip(found[0,], found[8,], strict=True)]
    assert found[0, 8] == found[8, 0] == greater
    whole = RatingsVB(sweeps=12, tolerance=0.0).fit(model, data, progress=False)
    assert whole.details["bounds"] == [pytest.approx(float(whole.elbo[-1]))]
    monkeypatch.setattr(vb, "_FEW", 0)
    many = RatingsVB(sweeps=12, tolerance=0.0).fit(model, data, progress=False)
    assert len(many.elbo) == 12 and whole.elbo[-1] - many.elbo[-1] == pytest.approx(greater[0] - found[0,][0], abs=1e-6)


@pytest.mark.parametrize("last", [7, 8])  # before the second fit's first sweep has ended, and after it
def test_ctrl_c_in_the_second_fit_of_a_start_is_said(last, monkeypatch):
    data, sweep, calls = sample_ratings(60, 30, 2, density=0.4, seed=0).data, core.sweep, []

    def stop(at, pool):
        calls.append(at)
        if len(calls) == last:
            raise KeyboardInterrupt
        return sweep(at, pool)

    monkeypatch.setattr(core, "sweep", stop)
    fit = RatingsVB(sweeps=6, tolerance=0.0).fit(PMF.for_data(data, 3), data, progress=False)
    assert fit.interrupted and len(fit.elbo) == 6


def test_intervals_cover_and_predictions_approach_the_truth():
    user, item, value, mean = problem(3, users=150, items=100)
    held = np.random.default_rng(0).random(len(user)) < 0.2
    at = variational(Incidence.of(user[~held], item[~held], value[~held], 150, 100), 4, sweeps=60)
    found, signal, total = toy.predict(at, user[held], item[held])
    assert np.sqrt(np.mean((found - mean[held]) ** 2)) < 0.25
    assert 0.86 < np.mean(np.abs(found - value[held]) < 1.645 * total) < 0.94
    assert 0.75 < np.mean(np.abs(found - mean[held]) < 1.645 * signal) < 0.96


def test_moments_of_pairs():
    at = toy_fit(10)
    draws, _ = posterior_draws(at, 200_000, np.random.default_rng(2))
    mean, signal, total = toy.predict(at, toy.USER, toy.ITEM)
    pairs = toy.pair_means(draws, toy.USER, toy.ITEM)
    precision = draws["tau"][:, None] * draws["user_gain"][:, toy.USER] * draws["item_gain"][:, toy.ITEM]
    np.testing.assert_allclose(mean - toy.VALUE.mean(), pairs.mean(0), atol=0.02)
    np.testing.assert_allclose(signal, pairs.std(0), rtol=0.02)
    np.testing.assert_allclose(total**2, pairs.var(0) + (1 / precision).mean(0), rtol=0.05)


def test_threads_change_nothing():
    user, item, value, _ = problem()
    ratings = Incidence.of(user, item, value, 60, 40)
    one, two = (variational(ratings, 3, sweeps=5, threads=threads) for threads in (1, 2))
    np.testing.assert_array_equal(one.user.mean, two.user.mean)
    np.testing.assert_array_equal(one.bounds, two.bounds)


def test_large_tables_in_single_precision_find_the_same(monkeypatch):
    user, item, value, _ = problem()
    ratings = Incidence.of(user, item, value, 60, 40)
    double = variational(ratings, 3, sweeps=15)
    monkeypatch.setattr(core, "LARGE", 0)
    single = variational(ratings, 3, sweeps=15)
    assert single.item.table.dtype == np.float32
    np.testing.assert_allclose(single.user.mean, double.user.mean, atol=2e-5)
    np.testing.assert_allclose(single.bounds, double.bounds, rtol=1e-6)


def test_columns_of_new_rows_are_those_of_rows_like_them():
    user, item, value, _ = problem()
    ratings = Incidence.of(user, item, value, 60, 40)
    design = Design.of([implicit_feedback(ratings.users, ratings.items.counts)], 60, 50)
    some = [5, 17]
    mine = np.isin(user, some)
    rows = ByRow.of(np.searchsorted(some, user[mine]), item[mine], value[mine] - ratings.centre, 2)
    columns = design.of_new([implicit_feedback(rows, ratings.items.counts)])
    np.testing.assert_allclose(columns, design.columns[some], atol=1e-9)


def test_rows_without_ratings_have_their_prior():
    user, item, value, _ = problem()
    at = variational(Incidence.of(user, item, value, 62, 40), 2, sweeps=30)
    expected = at.user.prior_mean.copy()
    at.user.update(at.item, at.tau, at.settings.unit_shape, Pool(1))
    np.testing.assert_allclose(at.user.mean[60:], expected[60:])
    assert toy.predict(at, [60], [0])[1] > toy.predict(at, [0], [0])[1]


def test_real_ratings(real_data):
    with np.load(real_data / "movielense" / "MovieLense.npz") as data:
        user, item, value, shape = data["u"], data["i"], data["r"].astype(float), data["shape"]
    order = np.random.default_rng(0).permutation(len(value))
    test, train = np.split(order, [len(order) // 10])
    at = variational(Incidence.of(user[train], item[train], value[train], *shape), 10)
    mean, _, total = toy.predict(at, user[test], item[test])
    assert np.sqrt(np.mean((np.clip(mean, 1, 5) - value[test]) ** 2)) < 0.884
    assert 0.88 < np.mean(np.abs(mean - value[test]) < 1.645 * total) < 0.92


def test_bad_input_is_refused():
    user, item, value = np.array([0, 1]), np.array([0, 0]), np.array([1.0, 2.0])
    ratings = Incidence.of(user, item, value, 2, 1)
    with pytest.raises(MethodError, match="threads"):
        variational(ratings, 1, threads=0)
    with pytest.raises(MethodError, match="positive"):
        Settings(noise_rate=0.0)
    with pytest.raises(DataError, match="user_features"):
        variational(ratings, 1, user_features=[np.ones((3, 1))])
    with pytest.raises(DataError, match="not all finite"):
        variational(ratings, 1, item_features=[np.full((1, 2), np.nan)])


def test_the_number_of_threads_changes_no_bit_of_a_fit():
    data, found = sample_ratings(60, 30, 2, density=0.4, seed=0).data, []
    for threads in (1, 2, 3):
        fit = RatingsVB(sweeps=4, threads=threads).fit(PMF.for_data(data, 3), data, progress=False)
        found.append([fit.elbo, fit.params["item"], fit.params["user_profile"], fit.params["item_precision"]])
    assert all(torch.equal(one, same) for other in found[1:] for one, same in zip(found[0], other, strict=True))
