"""Intervals of ratings whose noise differs between users and items."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from custom_inference import fit
from custom_inference.families.ratings.fold_in import ProfileRows
from custom_inference.families.ratings.gains import Gains, gains_given
from custom_inference.families.ratings.rows import RatingRows
from ppl_models import PMF, Data

USERS, ITEMS, RATED = 150, 100, 60


def simulate(by_item: bool = False):
    """Ratings (U, I) by two factors and biases with noise of sd .3 or 2 by the user, or by the item."""
    rng = np.random.default_rng(0)
    user, item = rng.normal(size=(USERS, 2)), rng.normal(size=(ITEMS, 2))
    mean = user @ item.T + 0.5 * rng.normal(size=(USERS, 1)) + 0.5 * rng.normal(size=ITEMS)
    loud = np.arange(ITEMS)[None] % 2 == 1 if by_item else np.arange(USERS)[:, None] % 2 == 1
    loud = np.broadcast_to(loud, mean.shape)
    value = mean + np.where(loud, 2.0, 0.3) * rng.normal(size=mean.shape)
    seen = np.argsort(rng.random(mean.shape), 1) < RATED
    return value, seen, loud


def coverage(said, value, loud):
    low, high = (end.numpy() for end in said.interval(0.9))
    inside = (low < value) & (value < high)
    return inside[~loud].mean(), inside[loud].mean()


@pytest.mark.parametrize("method", [None, "gibbs"])
def test_intervals_cover_ratings_of_quiet_and_loud_users(method):
    value, seen, loud = simulate()
    data, (user, item) = np.where(seen, value, np.nan), np.nonzero(~seen)
    settings = {} if method is None else {"num_samples": 30, "warmup": 30, "chains": 1}
    found = fit(PMF(num_components=2, varying_noise=2.0), data, method=method, progress=False, **settings)
    said = found.predict(positions=(user, item), uncertainty=True)
    for share in coverage(said, value[user, item], loud[user, item]):
        assert 0.85 < share < 0.95
    # Users in place of those of the fit, with the same ratings, are as loud as these.
    new = found.predict(positions=(user, item), ratings=data, uncertainty=True)
    for share in coverage(new, value[user, item], loud[user, item]):
        assert 0.85 < share < 0.95
    one = found.predict(positions=(user[:1], item[:1]), uncertainty=True)  # gains of this user alone
    assert torch.allclose(one.spread, said.spread[:1])


def test_default_widens_the_intervals_of_loud_users():
    """Gamma(20, 20) expects noise that differs by a quarter: 60 ratings move it most of the way."""
    value, seen, loud = simulate()
    user, item = np.nonzero(~seen)
    found = fit(PMF(num_components=2), np.where(seen, value, np.nan), progress=False)
    said = found.predict(positions=(user, item), uncertainty=True)
    quiet_share, loud_share = coverage(said, value[user, item], loud[user, item])
    assert quiet_share > 0.9
    assert loud_share > 0.75


def test_intervals_of_new_items_are_those_of_their_own_noise():
    value, seen, loud = simulate(by_item=True)
    data, (user, item) = np.where(seen, value, np.nan), np.nonzero(~seen)
    found = fit(PMF(num_components=2, varying_noise=2.0), data, progress=False)
    rated = np.nonzero(seen[:, ::-1])
    backwards = (*rated, value[:, ::-1][rated])  # in another order than the items of the fit
    new = found.predict(positions=(user, ITEMS - 1 - item), item_ratings=backwards, uncertainty=True)
    for share in coverage(new, value[user, item], loud[user, item]):
        assert 0.85 < share < 0.95


@pytest.mark.parametrize("rated", [0, 1, 5])
def test_gains_have_the_posterior_that_quadrature_gives(rated):
    rng = np.random.default_rng(rated)
    shape, scale, loading, offset = 1.7, 0.8, rng.normal(size=(5, 2)), rng.normal(size=5)
    profile, gains, x = rng.normal(size=2), rng.gamma(2, 0.5, size=5), rng.normal(size=5)
    data = Data(x=torch.tensor(x[None]), mask=torch.arange(5)[None] < rated)
    numbers = [torch.tensor(one) for one in (profile[None], loading, offset, gains)]
    found = gains_given(shape, {"scale": torch.tensor(scale)}, RatingRows.of(data, 0.3),
                        ProfileRows(numbers[0], None), (numbers[1], numbers[2]), numbers[3])  # fmt: skip
    mean, own = offset + loading @ profile, slice(0, rated)

    def density(a: float) -> float:
        sd = scale / np.sqrt(a * gains[own])
        return float(stats.gamma.pdf(a, shape, scale=1 / shape) * stats.norm.pdf(x[own], mean[own], sd).prod())

    total, first, inverse = (
        integrate.quad(lambda a, power=power: density(a) * a**power, 0, np.inf)[0] for power in (0, 1, -1)
    )
    assert float(found.mean) == pytest.approx(first / total, rel=1e-5)
    assert float(found.inverse) == pytest.approx(inverse / total, rel=1e-4)


def test_inverse_of_gains_is_finite_where_its_mean_is_not():
    assert Gains.prior(0.5, torch.ones(2)).inverse.tolist() == [1.0, 1.0]
