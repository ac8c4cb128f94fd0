"""Gibbs sampling of the model of ``variational`` (Bayesian PMF, Salakhutdinov & Mnih 2008, with biases and features).

A sweep draws, of users and then of items, (m, beta, L) and ridges given their rows, and every row with its g or h given
the other side, and then tau. What the ratings do not tell apart moves by itself (``exchange``). Predictions are
averages over draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import gammaln

from custom_inference.families.ratings.drift import Drift
from custom_inference.families.ratings.exchange import exchange, rescale
from custom_inference.families.ratings.features import Design
from custom_inference.families.ratings.hyper import (
    PriorSettings,
    RowPrior,
    draw_prior,
    log_density,
    log_density_of_rows,
)
from custom_inference.families.ratings.incidence import Array, ByRow, Incidence
from custom_inference.families.ratings.outcomes import Outcomes
from custom_inference.families.ratings.sides import FactorSide, Pool, Settings
from custom_inference.families.ratings.variational import RatingFactors
from ppl_models.core.errors import MethodError

#: Bytes that kept draws may take by default.
ROOM = 2**29
#: Settings of which draws predict best: factorised posteriors shrink rows, and want a wider prior than draws do.
FOR_DRAWS = Settings(user=PriorSettings(spread=0.1), item=PriorSettings(spread=0.1), rank=75)


@dataclass
class SideDraws:
    """Draws of one side. row (S, N, d), gain (S, N), of the dtype that was asked for; prior: S draws."""

    row: np.ndarray
    gain: np.ndarray
    prior: list[RowPrior]
    design: Design | None


@dataclass
class RatingDraws:
    """tau (S,); centre: the mean rating of training."""

    user: SideDraws
    item: SideDraws
    tau: Array
    centre: float
    settings: Settings

    def __len__(self) -> int:
        return len(self.tau)


@dataclass
class Chain:
    """The state of a chain: its sides hold draws, not posteriors."""

    ratings: Incidence
    user: FactorSide
    item: FactorSide
    tau: float
    settings: Settings
    outcomes: Outcomes | None = None
    drift: Drift | None = None

    @classmethod
    def of(cls, at: RatingFactors, values: Any = None) -> Chain:
        """Start a chain at the means of a variational fit, which is left as it is, or at values with ``rows``,
        ``gains``, tau and ``bins``."""
        sides, outcomes = [], None if at.outcomes is None else at.outcomes.copy()
        ratings = at.ratings.copy() if outcomes is None else outcomes.ratings
        for side, rated in ((at.user, ratings.users), (at.item, ratings.items)):
            rows, gain = side.mean, side.gain
            if values is not None:
                rows, gain = values.rows[len(sides)], values.gains[len(sides)]
            sides.append(side.of_draws(rated, rows, gain))
        tau, drift = at.tau, at.drift
        if values is not None:
            tau = values.tau
        if drift is not None:
            here = {site: one.value for site, one in drift.bins.items()}
            drift = drift.copy(here if values is None else values.bins)
            drift.write(ratings)
        return cls(ratings, sides[0], sides[1], tau, at.settings, outcomes, drift)

    @property
    def scale(self) -> float:
        return self.tau**-0.5 if self.outcomes is None else self.outcomes.scale


def sweep(chain: Chain, pool: Pool, generator: np.random.Generator) -> None:
    """Update all of the chain once, in place."""
    settings = chain.settings
    if chain.drift is not None:
        chain.drift.update(chain, generator)
    for side, other in ((chain.user, chain.item), (chain.item, chain.user)):
        side.set_prior(draw_prior(side.prior_given_rows(generator=generator), side.design, side.settings, generator))
        if chain.outcomes is not None:
            chain.outcomes.refresh(chain, generator)
        side.draw(other, chain.tau, settings.unit_shape, pool, generator)
        rescale(side, chain.tau, generator)
    if chain.outcomes is None:
        shape = settings.noise_shape + 0.5 * chain.ratings.num_ratings
        chain.tau = float(generator.gamma(shape) / (settings.noise_rate + 0.5 * squared_error(chain)))
    else:
        chain.outcomes.learn_scale(chain, generator)
    exchange(chain, generator)
    if chain.drift is not None:
        chain.drift.exchange(chain, generator)


def squared_error(chain: Chain) -> float:
    """Compute sum_m g h (y - prediction)^2 from what the items' half sweep left: exchanges do not move predictions."""
    each = np.append(np.ones(chain.item.mean.shape[1]), -1.0)
    return max(float(each @ chain.item.products @ each), 0.0)


def log_likelihood(chain: Chain) -> float:
    """Compute log p(ratings | state), after a sweep."""
    if chain.outcomes is not None:
        return chain.outcomes.log_likelihood(chain)
    gains = sum(float(side.ratings.counts @ np.log(side.gain)) for side in (chain.user, chain.item))
    size = chain.ratings.num_ratings
    return 0.5 * (size * np.log(chain.tau / (2 * np.pi)) + gains - chain.tau * squared_error(chain))


def log_joint(chain: Chain) -> float:
    """Compute log p(ratings, rows, gains, priors, tau), after a sweep: of the state's precisions, with every
    constant."""
    settings = chain.settings
    found = log_likelihood(chain) + (0.0 if chain.drift is None else chain.drift.log_prior())
    if settings.centre is not None:
        found += log_density_of_rows(np.array([[chain.ratings.centre - settings.centre[0]]]),
                                     np.array([[settings.centre[1]]])) if settings.centre[1] > 0 else 0.0  # fmt: skip
    if chain.outcomes is None:
        found += _log_gamma(chain.tau, settings.noise_shape, settings.noise_rate)
    for side in (chain.user, chain.item):
        assert side.prior is not None
        found += log_density(side.prior, side.design, side.settings)
        found += log_density_of_rows(side.mean - side.prior_mean, side.precision)
        if settings.unit_shape:
            found += float(_log_gamma(side.gain, settings.unit_shape, settings.unit_shape).sum())
    return float(found)


def _log_gamma(x: Any, shape: float, rate: float) -> Any:
    return shape * np.log(rate) - gammaln(shape) + (shape - 1) * np.log(x) - rate * x


def summaries(chain: Chain) -> dict[str, float]:
    """Return what no rotation, shift or scale of factors changes: sigma, and mean and root mean square of the
    predictions of all pairs less the mean rating."""
    one, two = chain.user.mean, chain.item.mean
    ones = np.ones_like(one[:, :1]), np.ones_like(two[:, :1])
    left = np.concatenate([one[:, :1], ones[0], one[:, 1:]], 1)
    right = np.concatenate([ones[1], two], 1)
    square = ((left.T @ left) * (right.T @ right)).sum() / (len(one) * len(two))
    found = {"scale": chain.scale, "mean prediction": chain.ratings.centre + float(left.mean(0) @ right.mean(0))}
    return found | {"size of predictions": float(np.sqrt(square))}


def gibbs(
    at: RatingFactors, *, sweeps: int = 200, burn_in: int = 20, room: int = ROOM, threads: int = 1, seed: int = 0
) -> RatingDraws:
    """Return draws after ``burn_in`` sweeps from a variational fit; thinned where all took more than ``room`` bytes."""
    if not 0 <= burn_in < sweeps:
        raise MethodError(f"burn_in must be 0 to sweeps - 1, found {burn_in} of {sweeps}")
    chain, generator = Chain.of(at), np.random.default_rng(seed)
    sizes = [(len(side.mean), side.mean.shape[1]) for side in (at.user, at.item)]
    every = max(1, -(-(sweeps - burn_in) * 4 * sum(n * (d + 1) for n, d in sizes) // room))
    kept = range(sweeps - 1, burn_in - 1, -every)[::-1]
    rows = [np.empty((len(kept), n, d), np.float32) for n, d in sizes]
    gains = [np.empty((len(kept), n), np.float32) for n, _ in sizes]
    priors: tuple[list[RowPrior], list[RowPrior]] = ([], [])
    tau = []
    with Pool(threads) as pool:
        for number in range(sweeps):
            sweep(chain, pool, generator)
            if number not in kept:
                continue
            for side, row, gain, prior in zip((chain.user, chain.item), rows, gains, priors, strict=True):
                row[len(tau)], gain[len(tau)] = side.mean, side.gain
                assert side.prior is not None
                prior.append(side.prior)
            tau.append(chain.tau)
    user, item = (
        SideDraws(rows[n], gains[n], priors[n], side.design) for n, side in enumerate((chain.user, chain.item))
    )
    return RatingDraws(user, item, np.array(tau), at.ratings.centre, at.settings)


def join_draws(chains: Sequence[RatingDraws]) -> RatingDraws:
    """Join the draws of several chains of one problem, one chain after the other."""
    sides = []
    for axis in ("user", "item"):
        parts = [getattr(one, axis) for one in chains]
        row, gain = (np.concatenate([getattr(part, name) for part in parts]) for name in ("row", "gain"))
        sides.append(SideDraws(row, gain, [prior for part in parts for prior in part.prior], parts[0].design))
    return replace(chains[0], user=sides[0], item=sides[1], tau=np.concatenate([one.tau for one in chains]))


def predict(draws: RatingDraws, user, item) -> tuple[Array, Array, Array]:
    """Return the mean, the standard deviation of the mean's uncertainty, and of a rating (with noise), of pairs
    (M,)."""
    from custom_inference.families.ratings.kernels import add_draw

    user, item = np.asarray(user), np.asarray(item)
    total, squares, noise = np.zeros((3, len(user)))
    add: Any = add_draw
    for s in range(len(draws)):
        one, two = draws.user, draws.item
        add(user, item, one.row[s], two.row[s], one.gain[s], two.gain[s], draws.tau[s], total, squares, noise)
    mean = total / len(draws)
    variance = np.maximum(squares / len(draws) - mean**2, 0.0)
    return draws.centre + mean, np.sqrt(variance), np.sqrt(variance + noise / len(draws))


def log_likelihoods(draws: RatingDraws, ratings: Incidence) -> list[float]:
    """Compute log p(ratings | draw) of each draw."""
    from custom_inference.families.ratings.kernels import add_draw

    add: Any = add_draw
    users, one, two, found = ratings.users, draws.user, draws.item, []
    row = np.repeat(np.arange(len(users.counts)), users.counts)
    for s in range(len(draws)):
        total, squares, noise = np.zeros((3, ratings.num_ratings))
        add(row, users.index, one.row[s], two.row[s], one.gain[s], two.gain[s], draws.tau[s], total, squares, noise)
        found.append(-0.5 * float(((users.value - total) ** 2 / noise + np.log(2 * np.pi * noise)).sum()))
    return found


def fold_in(
    draws: RatingDraws, ratings: ByRow, axis: str = "user", columns: Array | None = None, seed: int = 0
) -> RatingDraws:
    """Draws of further users (or items) in place of those of training: one conditional draw each, twice for g.

    ratings: theirs, less ``centre``, of known rows of the other side. columns: ``Design.of_new`` of their features.
    """
    own, other = (draws.user, draws.item) if axis == "user" else (draws.item, draws.user)
    size, (count, _, d) = len(ratings.counts), own.row.shape
    generator, pool = np.random.default_rng(seed), Pool(1)
    row, gain = np.empty((count, size, d), np.float32), np.empty((count, size), np.float32)
    nobody = ByRow(np.zeros(1, np.int64), np.zeros(0, np.int32), np.zeros(0))
    side, empty = FactorSide.empty(ratings, d), FactorSide.empty(nobody, d)
    for s in range(count):
        lender = empty.of_draws(nobody, other.row[s], other.gain[s])
        side.precision, side.prior_mean = own.prior[s].precision, own.prior[s].means(columns, size)
        for _ in range(2):
            side.draw(lender, float(draws.tau[s]), draws.settings.unit_shape, pool, generator)
        row[s], gain[s] = side.mean, side.gain
    replaced = replace(own, row=row, gain=gain)
    return replace(draws, **{axis: replaced})
