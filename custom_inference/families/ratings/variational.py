"""Variational Bayes of matrix factorisation with biases, adaptive priors and features (Ilin & Raiko 2010; 27.90-93).

    y_m ~ N(centre + a_u + c_i + v_u'v_i, 1 / (tau g_u h_i)),   g, h ~ Gamma(unit_shape, unit_shape),
    tau ~ Gamma(noise_shape, noise_rate),

with (a, v) and (c, v) as in ``hyper``. q has one Gaussian with full covariance for each row, a Gamma for each of g, h
and tau, and a normal-Wishart for the prior of each side: q(rows) q(g) q(h) q(tau) q(m, beta, L). A sweep takes each at
its best given the others, so the bound cannot fall (the ridge of features is one of a grid, by the bound; g and h
may be held at 1 at first).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.sparse
from scipy.special import gammaln

from custom_inference.families.ratings.drift import Drift
from custom_inference.families.ratings.features import Design
from custom_inference.families.ratings.incidence import Array, Incidence
from custom_inference.families.ratings.outcomes import Outcomes
from custom_inference.families.ratings.sides import Blocks, FactorSide, Pool, Settings, design_of

#: Ratings of nothing but the mean that means of users and items are shrunk by.
_FEW = 3
#: Numbers in a table from which on it is held in single precision.
LARGE = 2**22


@dataclass
class RatingFactors:
    """The state of a fit. tau_shape, tau_rate: q(tau); bounds: the evidence lower bound after each sweep.

    interrupted: whether Ctrl-C ended it. outcomes: of ratings that are not Gaussian, which have no tau (1, 1)."""

    ratings: Incidence
    user: FactorSide
    item: FactorSide
    settings: Settings
    tau_shape: float
    tau_rate: float
    bounds: list[float] = field(default_factory=list)
    interrupted: bool = False
    outcomes: Outcomes | None = None
    drift: Drift | None = None

    @property
    def tau(self) -> float:
        return self.tau_shape / self.tau_rate

    @property
    def sigma(self) -> float | None:
        """The scale of ratings that are not Gaussian; None of others, which have tau."""
        return None if self.outcomes is None else self.outcomes.scale


@dataclass(frozen=True)
class Start:
    """Values that a fit starts at: rows (I, d) and gain (I,) of the items; mean (U, d) and precision (d, d) of the
    users' prior; scale: sigma; bins: of biases that change in time, by site."""

    rows: Array
    gain: Array
    mean: Array
    precision: Array
    scale: float
    bins: dict[str, Array]


def initial(
    ratings: Incidence, num_factors: int, *, user_features: Blocks | Design = (),
    item_features: Blocks | Design = (), settings: Settings | None = None, seed: int = 0, size: float = 0.3,
    outcomes: Outcomes | None = None, drift: Drift | None = None, single: bool = False, start: Start | None = None,
) -> RatingFactors:  # fmt: skip
    """Users at 0 and items' factors at random, of variance size^2, turned towards where the ratings differ; or items
    and the users' prior as ``start`` has them.

    single: sums over ratings, here and of chains from here, are in single precision; they are where tables are large.
    """
    from custom_inference.families.ratings.kernels import table_width

    settings, ratings = settings or Settings(), ratings if outcomes is None else outcomes.ratings
    if drift is not None:
        drift, ratings = drift.copy(None if start is None else start.bins), ratings.copy()
        drift.write(ratings)
    users, items = (len(one.start) - 1 for one in (ratings.users, ratings.items))
    user_design = design_of(user_features, users, settings.rank, "user_features")
    item_design = design_of(item_features, items, settings.rank, "item_features")
    # Tables that no cache holds are half as long in single precision, and what a sweep takes is reading them.
    single = single or max(users, items) * table_width(num_factors + 1) > LARGE
    dtype = np.float32 if single else np.float64
    user = FactorSide.empty(ratings.users, num_factors + 1, user_design, settings.user, dtype)
    item = FactorSide.empty(ratings.items, num_factors + 1, item_design, settings.item, dtype)
    if start is None:
        directions = np.random.default_rng(seed).standard_normal((items, num_factors))
        item.mean[:, 1:] = size * (directions if outcomes is not None else _iterate_subspace(ratings, directions))
    else:
        item.mean[:], item.gain[:] = start.rows, start.gain
        user.prior_mean, user.precision = start.mean.copy(), start.precision
    item.lend()
    if outcomes is not None:
        outcomes.scale = outcomes.scale if start is None else start.scale
        user.lend()
        return RatingFactors(ratings, user, item, settings, 1.0, 1.0, outcomes=outcomes)
    shape = settings.noise_shape + 0.5 * ratings.num_ratings
    rate = settings.noise_rate + 0.5 * float(ratings.users.value @ ratings.users.value)
    rate = rate if start is None else shape * start.scale**2
    return RatingFactors(ratings, user, item, settings, shape, rate, drift=drift)


def _iterate_subspace(ratings: Incidence, directions: Array, rounds: int = 2) -> Array:
    """Random directions (J, K) after rounds of subspace iteration on what the means of users and items leave.

    One that is at right angles to what there is to find would let the first sweeps end with no factors at all.
    """
    users, items = ratings.users, len(ratings.items.start) - 1
    if not 0 < directions.shape[1] <= min(items, len(users.start) - 1):
        return directions
    user, rest = np.repeat(np.arange(len(users.counts)), users.counts), users.value
    for row, count in ((users.index, ratings.items.counts), (user, users.counts)):
        rest = rest - (np.bincount(row, rest, len(count)) / (count + _FEW))[row]
    matrix = scipy.sparse.csr_matrix((rest, users.index, users.start), (len(users.counts), items))
    for _ in range(rounds):
        directions, _ = np.linalg.qr(matrix.T @ (matrix @ directions))
        directions *= np.sqrt(items)
    return directions


def sweep(at: RatingFactors, pool: Pool) -> float:
    """Users, their prior, items, their prior, tau: in place; returns the bound, which ``bounds`` has too."""
    if at.drift is not None and at.bounds:  # rows of the start say nothing
        at.drift.update(at)
    unit_shape = at.settings.unit_shape if len(at.bounds) >= at.settings.noise_after else None
    for side, other in ((at.user, at.item), (at.item, at.user)):
        if at.outcomes is not None:
            at.outcomes.refresh(at)
        axis = "user" if side is at.user else "item"
        beside = None if at.drift is None else at.drift.beside(axis, other.gain, len(side.mean))
        side.update(other, at.tau, unit_shape, pool, beside)
        side.set_prior(side.prior_given_rows(learn=len(at.bounds) >= at.settings.ridge_after))
    if at.outcomes is None:
        at.tau_rate = at.settings.noise_rate + 0.5 * squared_error(at)
    else:
        at.outcomes.learn_scale(at)
    at.bounds.append(bound(at))
    return at.bounds[-1]


def squared_error(at: RatingFactors) -> float:
    """sum_m E[g h (y - prediction)^2], from what the items' half sweep left."""
    return float(at.item.gain @ at.item.error)


def bound(at: RatingFactors) -> float:
    """The evidence lower bound after a sweep."""
    found = 0.0 if at.drift is None else -sum(one.divergence() for one in at.drift.bins.values())
    for side in (at.user, at.item):
        assert side.prior is not None
        d = side.mean.shape[1]
        found += side.prior.evidence + side.half_log_det.sum() + 0.5 * len(side.mean) * d * (1 + np.log(2 * np.pi))
        if at.settings.unit_shape:
            prior, shape = at.settings.unit_shape, at.settings.unit_shape + 0.5 * side.ratings.counts
            found += _gamma_terms(prior, prior, shape, shape / side.gain).sum()
    if at.outcomes is not None:
        return float(found + at.outcomes.log_likelihood(at))
    prior = at.settings.noise_shape, at.settings.noise_rate
    found += -0.5 * at.ratings.num_ratings * np.log(2 * np.pi)
    found += _gamma_terms(*prior, at.tau_shape, at.tau_rate)
    return float(found - 0.5 * at.tau * squared_error(at))


def _gamma_terms(prior_shape: float, prior_rate: float, shape: Array | float, rate: Array | float) -> Any:
    """E[log prior(x) - log q(x) + (shape - prior_shape) log x] under q = Gamma(shape, rate)."""
    found = prior_shape * np.log(prior_rate) - gammaln(prior_shape) - shape * np.log(rate) + gammaln(shape)
    return found + (rate - prior_rate) * shape / rate


def variational(
    ratings: Incidence, num_factors: int = 10, *, user_features: Blocks | Design = (),
    item_features: Blocks | Design = (), settings: Settings | None = None, sweeps: int = 30,
    tolerance: float = 0.0, threads: int = 1, seed: int = 0, outcomes: Outcomes | None = None,
    drift: Drift | None = None, single: bool = False, watch: Callable[[RatingFactors], Any] | None = None,
    start: Start | None = None,
) -> RatingFactors:  # fmt: skip
    """``sweeps`` from a random start, or a given one, fewer where the bound rises by less than ``tolerance`` a rating,
    or after Ctrl-C.

    watch: is shown where the fit stands after each sweep.
    """
    at = initial(
        ratings, num_factors, user_features=user_features, item_features=item_features, settings=settings, seed=seed,
        outcomes=outcomes, drift=drift, single=single, start=start,
    )  # fmt: skip
    try:
        pool = Pool(threads)
        for _ in range(sweeps):
            sweep(at, pool)
            if watch is not None:
                watch(at)
            learning = len(at.bounds) > max(1, at.settings.noise_after)
            if learning and at.bounds[-1] - at.bounds[-2] < tolerance * ratings.num_ratings:
                break
    except KeyboardInterrupt:
        if not at.bounds:
            raise
        at.interrupted = True
    return at
