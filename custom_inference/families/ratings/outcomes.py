"""Ratings that are not Gaussian: yes or no, or levels of a scale, as terms log sigmoid of one predictor each.

Of a rating with the predictor eta, z = (eta - b) / s and signs t = 1 or -1,

    yes or no         log sigmoid(t eta)                                                   b = 0, s = 1
    level r           log sigmoid((r + 1/2 - eta) / s) + log sigmoid((eta - r + 1/2) / s) + log(1 - e^(-1 / s))

(of the highest level the second, of the lowest the first alone; of ratings in a unit u the last is
log(1 - e^(-1 / u s))), which is quadratic in eta given one number a term:

    log sigmoid(t z) >= t z / 2 - w (z^2 - x^2) / 2 - log 2 cosh(x / 2),   w = tanh(x / 2) / 2 x,   x^2 = E z^2

(Jaakkola & Jordan, *Statistics and Computing* 10, 2000), and with w ~ PG(1, z) exactly (Polson, Scott & Windle, JASA
108, 2013). Either way rows have the conditionals of Gaussian ratings with precisions of their own, sum w / s^2.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self, SupportsFloat

import numpy as np
from scipy.optimize import minimize_scalar

from custom_inference.families.ratings.incidence import Array, ByRow, Incidence
from custom_inference.families.ratings.sides import Factorisation

#: The log prior density of s.
LogPrior = Callable[[float], SupportsFloat]
#: How far the logarithm of s may go in one step.
_REACH = 0.5


def terms(value: Array, levels: tuple[int, int] | None) -> tuple[Array, Array]:
    """Return b and t (M, B) of each term of ratings (M,); t = 0 where there is none."""
    if levels is None:
        return np.zeros((len(value), 1)), np.where(value > 0.5, 1.0, -1.0)[:, None]
    low, high = levels
    sign = np.column_stack([-(value < high).astype(float), (value > low).astype(float)])
    return np.column_stack([value + 0.5, value - 0.5]), sign


def quadratic(
    mean: Array, variance: Array, bound: Array, sign: Array, scale: float, generator: np.random.Generator | None = None
) -> tuple[Array, Array]:
    """Return p and l (M,) of l eta - p eta^2 / 2 in place of the log likelihood of predictors of this mean and
    variance: of the bound, or drawn where there is a generator."""
    precision, linear = np.zeros((2, len(mean)))
    for b, t in zip(bound.T, sign.T, strict=True):
        z = (mean - b) / scale
        if generator is None:
            x = np.sqrt(z**2 + variance / scale**2)
            weight = np.where(x < 1e-4, 0.25, np.tanh(0.5 * x) / (2 * np.maximum(x, 1e-4)))
        else:
            from custom_inference.families.ratings.polya_gamma import polya_gamma

            weight = np.empty(len(z))
            polya_gamma(z, generator, weight)
        weight = weight * (t != 0) / scale**2
        precision += weight
        linear += weight * b + 0.5 * t / scale
    return precision, linear


@dataclass
class Outcomes:
    """What was rated, in the order of the users. bound (M, B), sign (M, B): b and t of each term, sign 0 where there is
    none; inner: ratings with both terms of a level; place: of each rating by item, its place by user. scale: s, learned
    where there is ``log_prior``, the log density of its prior. gap: between two levels.
    """

    ratings: Incidence
    bound: Array
    sign: Array
    inner: int
    user: np.ndarray
    place: np.ndarray
    log_prior: LogPrior | None = None
    scale: float = 1.0
    gap: float = 1.0

    @classmethod
    def of(
        cls, ratings: Incidence, levels: tuple[int, int] | None, log_prior: LogPrior | None, scale: float,
        units: tuple[float, float] = (0.0, 1.0),
    ) -> Self:  # fmt: skip
        """ratings: with values as they are and their centre, a log-odds where there are no levels. scale: the first
        value. units: c and u of ratings (r - c) / u, which the centre and the scale are of."""
        users, items = ratings.users, ratings.items
        user = np.repeat(np.arange(len(users.counts)), users.counts)
        place = np.argsort(users.index, kind="stable")
        bound, sign = terms(users.value, levels)
        inner = int((sign != 0).all(1).sum()) if levels is not None else 0
        own = replace(ratings, users=_open(users), items=_open(items))
        bound = (bound - units[0]) / units[1] if levels is not None else bound
        return cls(own, bound - ratings.centre, sign, inner, user, place, log_prior, scale, 1 / units[1])

    def copy(self) -> Self:
        """Return a copy with weights of its own, for another chain."""
        users, items = _open(self.ratings.users), _open(self.ratings.items)
        return replace(self, ratings=replace(self.ratings, users=users, items=items), bound=self.bound.copy())

    def moments(self, at: Factorisation) -> tuple[Array, Array]:
        """Compute mean and variance (M,) of each predictor, less the centre; variance 0 where the sides hold draws."""
        from custom_inference.families.ratings.kernels import add_draw, pair_moments

        mean, variance = np.zeros((2, len(self.user)))
        one, two, index = at.user, at.item, self.ratings.users.index
        if len(one.covariance):
            pair_moments(self.user, index, one.mean, one.covariance, two.mean, two.covariance, mean, variance)
        else:
            none = np.zeros((2, len(mean)))
            add_draw(self.user, index, one.mean, two.mean, one.gain, two.gain, 1.0, mean, none[0], none[1])
        return mean, variance

    def refresh(self, at: Factorisation, generator: np.random.Generator | None = None) -> None:
        """Update precisions and targets of both copies of the ratings: the bound's, or drawn where there is a
        generator."""
        precision, linear = quadratic(*self.moments(at), self.bound, self.sign, self.scale, generator)
        target = linear / precision
        for side, order in ((self.ratings.users, slice(None)), (self.ratings.items, self.place)):
            side.weight[:], side.value[:] = precision[order], target[order]

    def compute_bound(self, mean: Array, variance: Array, scale: float) -> float:
        """Compute the bound on E[log p(ratings)] at its best, which is exact where nothing varies."""
        found = self.inner * np.log(-np.expm1(-self.gap / scale)) if self.inner else 0.0
        for b, sign in zip(self.bound.T, self.sign.T, strict=True):
            z, on = (mean - b) / scale, sign != 0
            half = 0.5 * np.sqrt(z**2 + variance / scale**2)[on]
            found += float((0.5 * sign * z)[on].sum() - (half + np.log1p(np.exp(-2 * half))).sum())
        return float(found)

    def log_likelihood(self, at: Factorisation) -> float:
        """Compute the bound for a variational posterior, log p(ratings | state) for draws."""
        found = self.compute_bound(*self.moments(at), self.scale)
        return found + (float(self.log_prior(self.scale)) if self.log_prior is not None else 0.0)

    def learn_scale(self, at: Factorisation, generator: np.random.Generator | None = None) -> None:
        """Set s to its best, or draw it by slice sampling of log s."""
        log_prior = self.log_prior
        if log_prior is None:
            return
        mean, variance = self.moments(at)

        def score(log: float) -> float:  # of log s, with its Jacobian where it is drawn
            scale = float(np.exp(log))
            jacobian = log * (generator is not None)
            return self.compute_bound(mean, variance, scale) + float(log_prior(scale)) + jacobian

        here = float(np.log(self.scale))
        if generator is None:
            found: Any = minimize_scalar(lambda x: -score(x), bounds=(here - _REACH, here + _REACH), method="bounded",
                                    options={"xatol": 1e-4})  # fmt: skip
            self.scale = float(np.exp(found.x)) if -found.fun >= score(here) else self.scale
        else:
            self.scale = float(np.exp(slice_sample(score, here, generator)))


def _open(side: ByRow) -> ByRow:
    return replace(side, value=np.zeros(len(side.index)), weight=np.ones(len(side.index)))


def slice_sample(
    score: Callable[[float], float], here: float, generator: np.random.Generator, width: float = 0.1
) -> float:
    """Take one step of slice sampling with stepping out (Neal, *Annals of Statistics* 31, 2003)."""
    level = score(here) - generator.standard_exponential()
    low = here - width * generator.random()
    high = low + width
    while score(low) > level:
        low -= width
    while score(high) > level:
        high += width
    while True:
        there = generator.uniform(low, high)
        if score(there) > level:
            return float(there)
        low, high = (there, high) if there < here else (low, there)
