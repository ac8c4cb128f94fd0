"""The sampler as a whole, by its joint distribution with the ratings.

Where ratings are drawn given the state and the state given the ratings by turns, states have their prior distribution
(Geweke, *Getting it right*, JASA 99, 2004). Learned priors, exchanges and the overall mean are in it.
"""

from __future__ import annotations

import numpy as np
import pytest

from custom_inference.families.ratings import gibbs as sampler
from custom_inference.families.ratings.drift import Bins, Drift
from custom_inference.families.ratings.hyper import PriorSettings
from custom_inference.families.ratings.incidence import Incidence
from custom_inference.families.ratings.outcomes import Outcomes, terms
from custom_inference.families.ratings.sides import Settings
from custom_inference.families.ratings.variational import variational
from tests.families.ratings import _toy as toy

SIDE = PriorSettings(toy.STRENGTH, toy.DEGREES, toy.SPREAD)
MEAN, PRECISION = 0.5, 4.0
LEVELS = {"gaussian": None, "drifting": None, "logistic": None, "ordinal": (0, 2)}
#: Of biases by bins: the group of each rating, the shape, the precision of the prior.
BINS = {
    "bin_bias": ([0, 1, 1, 1, 0], (2,), 4.0),
    "item_bin_bias": ([0, 3, 1, 3, 2], (2, 2), 3.0),
    "user_bin_bias": ([1, 1, 2, 3, 4], (3, 2), 2.0),
}


def drift_of(ratings):
    groups = {site: (np.array(group), shape) for site, (group, shape, _) in BINS.items()}
    bins = {site: Bins.of(*one, np.full(one[1], 0.1), np.full(one[1], BINS[site][2])) for site, one in groups.items()}
    return Drift.of(ratings, bins)


def start(kind):
    plain = kind in ("gaussian", "drifting")
    unit = toy.UNIT if plain else None
    noise = {"noise_shape": toy.SHAPE, "noise_rate": toy.RATE, "unit_shape": unit, "centre": (MEAN, PRECISION)}
    value = toy.VALUE if plain else (toy.VALUE > 2.7).astype(float)
    ratings, outcomes = Incidence.of(toy.USER, toy.ITEM, value, toy.USERS, toy.ITEMS), None
    if not plain:
        outcomes = Outcomes.of(ratings, LEVELS[kind], None, 0.6 if kind == "ordinal" else 1.0)
    settings = Settings(user=SIDE, item=SIDE, **noise)
    return sampler.Chain.of(variational(ratings, toy.FACTORS, settings=settings, sweeps=5, outcomes=outcomes,
                                        drift=drift_of(ratings) if kind == "drifting" else None))  # fmt: skip


def predictors(chain):
    one, two = chain.user.mean[toy.USER], chain.item.mean[toy.ITEM]
    time = 0.0 if chain.drift is None else chain.drift.offset
    return chain.ratings.centre + one[:, 0] + two[:, 0] + (one[:, 1:] * two[:, 1:]).sum(1) + time


def rate(chain, kind, rng):
    """New ratings given the state, in place; ``toy.USER`` is in order, and items are sorted stably."""
    eta, place = predictors(chain), np.argsort(toy.ITEM, kind="stable")
    if kind in ("gaussian", "drifting"):
        precision = chain.tau * chain.user.gain[toy.USER] * chain.item.gain[toy.ITEM]
        rest = eta + rng.standard_normal(len(eta)) / np.sqrt(precision) - chain.ratings.centre
        if chain.drift is not None:
            chain.drift.value[...] = rest + chain.ratings.centre
            rest = rest - chain.drift.offset
        chain.user.ratings.value[...], chain.item.ratings.value[...] = rest, rest[place]
        return
    noisy = eta + chain.scale * rng.logistic(size=len(eta))
    value = (noisy > 0).astype(float) if kind == "logistic" else np.clip(np.round(noisy), *LEVELS[kind])
    bound, sign = terms(value, LEVELS[kind])
    chain.outcomes.bound[...], chain.outcomes.sign[...] = bound - chain.ratings.centre, sign


def summaries(tau, mean, eta, rows, precisions, gains):
    """Bounded functions: their moments exist."""
    parts = [np.tanh(eta), np.tanh(eta) ** 2, np.tanh(mean)[:, None], np.tanh(rows), np.tanh(rows) ** 2]
    parts += [1 / (1 + np.linalg.det(one))[:, None] for one in precisions]
    parts += [np.tanh(one[:, 0, 1:2]) for one in precisions]
    return np.concatenate([*parts, np.tanh(tau)[:, None], np.tanh(gains)], 1)


@pytest.mark.parametrize("kind", LEVELS)
def test_states_have_their_prior_distribution_where_ratings_are_drawn_too(kind):
    rng, chain = np.random.default_rng(0), start(kind)
    count, kept = 2500, []
    pool = sampler.Pool(1)
    for _ in range(count):
        rate(chain, kind, rng)
        sampler.sweep(chain, pool, rng)
        gains = np.concatenate([chain.user.gain, chain.item.gain])
        precisions = chain.user.prior.precision.copy(), chain.item.prior.precision.copy()
        rows = [chain.user.mean.ravel(), chain.item.mean.ravel()]
        rows = np.concatenate([*rows, *(one.mean for one in chain.drift.bins.values())] if chain.drift else rows)
        kept.append((chain.tau, chain.ratings.centre, predictors(chain), rows, *precisions, gains))
    tau, mean, eta, rows, one, two, gains = (np.array(part) for part in zip(*kept, strict=True))
    found = summaries(tau, mean, eta, rows, (one, two), gains)
    prior = toy.prior_draws(np.random.default_rng(1), 40_000)
    mean = MEAN + np.random.default_rng(2).standard_normal(40_000) / np.sqrt(PRECISION)
    eta = mean[:, None] + toy.pair_means(prior, toy.USER, toy.ITEM)
    rows = [prior["user"].reshape(40_000, -1), prior["item"].reshape(40_000, -1)]
    for group, shape, precision in BINS.values() if kind == "drifting" else ():
        rows.append(
            0.1 + np.random.default_rng(3 + len(rows)).standard_normal((40_000, np.prod(shape))) / precision**0.5
        )
        eta = eta + rows[-1][:, group]
    rows = np.concatenate(rows, 1)
    gains = np.concatenate([prior["user_gain"], prior["item_gain"]], 1)
    tau = prior["tau"]
    if kind not in ("gaussian", "drifting"):
        tau, gains = np.ones_like(tau), np.ones_like(gains)
    exact = summaries(tau, mean, eta, rows, (prior["user_precision"], prior["item_precision"]), gains)
    error = found.reshape(25, -1, found.shape[1]).mean(1).std(0, ddof=1) / 5 + exact.std(0) / 200 + 1e-12
    assert (np.abs(found.mean(0) - exact.mean(0)) < 4.5 * error).all()
    assert error.max() < 0.13  # or so few draws would say little: those of 25 batches are known to a seventh
