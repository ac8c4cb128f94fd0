"""Biases that change in time: offsets of ratings by bins of time, beside the rows of ``variational`` and ``gibbs``.

    y_m ~ N(centre + a_u + c_i + v_u'v_i + b_t + g_it + f_ut', 1 / (tau g_u h_i)),   b, g, f ~ N(mean, 1 / precision)

Each offset is one Gaussian given all else: with the precisions w_m = tau g_u h_i of its ratings and what is left of
them, r_m, it has precision p + sum w_m and mean (p mean + sum w_m r_m) / (p + sum w_m). Variational Bayes holds q of
each, whose variances are part of the expected squared errors of users and items; Gibbs sampling draws. Rows see ratings
less the offsets.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from custom_inference.families.ratings.incidence import Array, Incidence
from custom_inference.families.ratings.sides import Factorisation


@dataclass
class Bins:
    """Offsets of one site, flat (G,). group (M,): that of each rating; prior_mean, precision: of the prior; mean,
    variance: of q, or a draw and zeros. shape: of the site, the last axis bins."""

    group: np.ndarray
    shape: tuple[int, ...]
    prior_mean: Array
    precision: Array
    mean: Array
    variance: Array

    @classmethod
    def of(cls, group: np.ndarray, shape: tuple[int, ...], mean: Array, precision: Array) -> Self:
        """Start the offsets at their prior."""
        mean, precision = np.ravel(mean).astype(np.float64), np.ravel(precision).astype(np.float64)
        return cls(group, shape, mean, precision, mean.copy(), 1 / precision)

    @property
    def value(self) -> Array:
        return self.mean.reshape(self.shape)

    def divergence(self) -> float:
        """Compute KL(q || prior)."""
        ratio = self.precision * self.variance
        return 0.5 * float((ratio + self.precision * (self.mean - self.prior_mean) ** 2 - 1 - np.log(ratio)).sum())

    def log_prior(self) -> float:
        square = self.precision * (self.mean - self.prior_mean) ** 2
        return 0.5 * float((np.log(self.precision / (2 * np.pi)) - square).sum())

    def draw_shift(
        self, precision: Array | float, pull: Array | float, axis: int, generator: np.random.Generator
    ) -> Array:
        """Draw delta, which is taken from the offsets along an axis: what it is added to has this precision, and this
        slope at 0."""
        along = self.precision.reshape(self.shape)
        precision = precision + along.sum(axis)
        slope = pull + (along * (self.value - self.prior_mean.reshape(self.shape))).sum(axis)
        delta = slope / precision + generator.standard_normal(np.shape(slope)) / np.sqrt(precision)
        self.mean = (self.value - np.expand_dims(delta, axis)).ravel()
        return delta


@dataclass
class Drift:
    """user, item, value (M,): of ratings by user, as they were given; place: of each rating by item, its place by user.
    bins: by name of the site, of which there may be bin_bias, item_bin_bias and user_bin_bias."""

    user: np.ndarray
    item: np.ndarray
    value: Array
    place: np.ndarray
    bins: dict[str, Bins]

    @classmethod
    def of(cls, ratings: Incidence, bins: dict[str, Bins]) -> Self:
        users = ratings.users
        user, place = np.repeat(np.arange(len(users.counts)), users.counts), np.argsort(users.index, kind="stable")
        return cls(user, users.index, users.value + ratings.centre, place, bins)

    def copy(self, values: dict[str, Array] | None = None) -> Self:
        """Return a copy with offsets of its own; values: draws, by site."""
        if values is None:
            return replace(self, bins={site: replace(one) for site, one in self.bins.items()})
        drawn = {site: replace(one, mean=values[site].ravel(), variance=np.zeros_like(one.variance))
                 for site, one in self.bins.items()}  # fmt: skip
        return replace(self, bins=drawn)

    @property
    def offset(self) -> Array:
        """The offset of each rating, (M,)."""
        return np.sum([one.mean[one.group] for one in self.bins.values()], axis=0)

    def write(self, ratings: Incidence) -> None:
        """Write the ratings less their offsets and the centre into both lists."""
        rest = self.value - ratings.centre - self.offset
        ratings.users.value[...], ratings.items.value[...] = rest, rest[self.place]

    def update(self, at: Factorisation, generator: np.random.Generator | None = None) -> None:
        """Set every site in turn to its best given all else, or draw it; and update the ratings less the offsets."""
        weight, w, z = at.tau * at.user.gain[self.user] * at.item.gain[self.item], at.user.mean, at.item.mean
        rows = np.einsum("mk,mk->m", w[self.user][:, 1:], z[self.item][:, 1:])
        rest = self.value - at.ratings.centre - (w[self.user, 0] + z[self.item, 0] + rows) - self.offset
        for one in self.bins.values():
            rest += one.mean[one.group]
            precision = one.precision + np.bincount(one.group, weight, len(one.precision))
            pull = one.precision * one.prior_mean + np.bincount(one.group, weight * rest, len(precision))
            if generator is None:
                one.mean, one.variance = pull / precision, 1 / precision
            else:
                one.mean = pull / precision + generator.standard_normal(len(pull)) / np.sqrt(precision)
                one.variance = np.zeros_like(one.mean)
            rest -= one.mean[one.group]
        self.write(at.ratings)

    def beside(self, axis: str, gain: Array, rows: int) -> Array:
        """Return what the offsets' variances add to the expected squared error of each user (or item), given the other
        side's gains."""
        own, other = (self.user, self.item) if axis == "user" else (self.item, self.user)
        variance = np.sum([one.variance[one.group] for one in self.bins.values()], axis=0)
        return np.bincount(own, gain[other] * variance, rows)

    def exchange(self, chain: Factorisation, generator: np.random.Generator) -> None:
        """Draw along the directions that the ratings do not tell apart: delta is added to a_u, c_i, b_t or the overall
        mean and taken from all f_ut, g_it or b_t beside it."""
        for name, side in (("user_bin_bias", chain.user), ("item_bin_bias", chain.item)):
            if name in self.bins:
                pull = -((side.mean - side.prior_mean) @ side.precision[0])
                side.mean[:, 0] += self.bins[name].draw_shift(side.precision[0, 0], pull, 1, generator)
        if "bin_bias" in self.bins:
            bins, items = self.bins["bin_bias"], self.bins["item_bin_bias"]
            pull = -bins.precision * (bins.mean - bins.prior_mean)
            bins.mean = bins.mean + items.draw_shift(bins.precision, pull, 0, generator)
            if chain.settings.centre is not None:
                (mean, precision), here = chain.settings.centre, chain.ratings.centre
                delta = bins.draw_shift(precision, -precision * (here - mean), 0, generator)
                chain.ratings = replace(chain.ratings, centre=here + float(delta))
        self.write(chain.ratings)
