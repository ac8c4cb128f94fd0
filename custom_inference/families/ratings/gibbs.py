"""Gibbs sampling of the model of ``variational`` (Bayesian PMF, Salakhutdinov & Mnih 2008, with biases and features).

A sweep draws, of users and then of items, (m, beta, L) and ridges given their rows, and every row with its g or h given
the other side, and then tau. What the ratings do not tell apart moves by itself (``exchange``). Predictions are
averages over draws.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import gammaln

from custom_inference.families.ratings.drift import Drift
from custom_inference.families.ratings.exchange import exchange, rescale
from custom_inference.families.ratings.hyper import draw_prior, log_density, log_density_of_rows
from custom_inference.families.ratings.incidence import Array, Incidence
from custom_inference.families.ratings.outcomes import Outcomes
from custom_inference.families.ratings.sides import FactorSide, Pool, Settings
from custom_inference.families.ratings.translate import Values
from custom_inference.families.ratings.variational import RatingFactors


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
    def of(cls, at: RatingFactors, values: Values | None = None) -> Chain:
        """Start a chain at the means of a variational fit, which is left as it is, or at other values."""
        values, outcomes = values or Values.means(at), None if at.outcomes is None else at.outcomes.copy()
        ratings = at.ratings.copy() if outcomes is None else outcomes.ratings
        places = zip((at.user, at.item), (ratings.users, ratings.items), values.rows, values.gains, strict=True)
        user, item = (side.of_draws(rated, rows, gain) for side, rated, rows, gain in places)
        drift = None if at.drift is None else at.drift.copy(values.bins)
        if drift is not None:
            drift.write(ratings)
        return cls(ratings, user, item, values.tau, at.settings, outcomes, drift)

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
    found = log_likelihood(chain)
    found += 0.0 if chain.drift is None else sum(one.log_prior() for one in chain.drift.bins.values())
    if settings.centre is not None:
        found += log_density_of_rows(np.array([[chain.ratings.centre - settings.centre[0]]]),
                                     np.array([[settings.centre[1]]])) if settings.centre[1] > 0 else 0.0  # fmt: skip

    def log_gamma(x: Array | float, shape: float, rate: float) -> Array | float:
        return shape * np.log(rate) - gammaln(shape) + (shape - 1) * np.log(x) - rate * x

    if chain.outcomes is None:
        found += log_gamma(chain.tau, settings.noise_shape, settings.noise_rate)
    for side in (chain.user, chain.item):
        assert side.prior is not None
        found += log_density(side.prior, side.design, side.settings)
        found += log_density_of_rows(side.mean - side.prior_mean, side.precision)
        if settings.unit_shape:
            found += float(np.sum(log_gamma(side.gain, settings.unit_shape, settings.unit_shape)))
    return float(found)


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
