"""Ratings and covariates as arrays, and what arrays say of the sites of a PMF.

The posterior does not tell rotations of factors apart: draws are turned so that the items are closest to a target.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from custom_inference.families.ratings import variational as _variational
from custom_inference.families.ratings.drift import Bins, Drift
from custom_inference.families.ratings.features import Design
from custom_inference.families.ratings.hyper import RowPrior, draw_prior
from custom_inference.families.ratings.implicit import SIDES, blocks_of, incidence, triplets
from custom_inference.families.ratings.incidence import Array, Incidence
from custom_inference.families.ratings.outcomes import Outcomes
from custom_inference.families.ratings.priors import block_sizes, drift_prior, settings_of, units_of_rows
from custom_inference.families.ratings.sides import Factorisation, unpack_symmetric
from custom_inference.families.ratings.times import require_times
from ppl_models import PMF, Data, Ratings

#: Signs of the noise of (users, items) in draws of which the mean prediction is that of the means.
_SIGNS = ((1, 1), (-1, -1), (1, -1), (-1, 1))


@dataclass(frozen=True)
class RatingsProblem:
    """A model and its data as arrays, of ratings (r - centre) / unit. features: by argument of ``variational``, blocks
    of covariates, the last of each side that of implicit feedback, or what came of them in an earlier fit."""

    model: PMF
    data: Data
    ratings: Incidence
    features: dict[str, Any]
    rank: int

    @classmethod
    def of(cls, model: PMF, data: Data, rank: int, implicit: bool) -> RatingsProblem:
        ratings, (centre, unit) = incidence(data, *model.units), model.units
        if "mean" in model.known:
            known = (float(model.known["mean"]) - centre) / unit
            sides = [replace(one, value=one.value + (ratings.centre - known)) for one in (ratings.users, ratings.items)]
            ratings = Incidence(sides[0], sides[1], known)
        elif model.likelihood == "logistic":  # about the log-odds of their share, which is drawn a little to 1/2
            share = (ratings.centre * ratings.num_ratings + 0.5) / (ratings.num_ratings + 1)
            ratings = replace(ratings, centre=float(np.log(share / (1 - share))))
        feedback, found = blocks_of(ratings) if implicit else (None, None), {}
        for side, block in zip(SIDES, feedback, strict=True):
            given, sizes = _covariates_of(data, side), block_sizes(model, side)
            blocks: list[Any] = [] if given is None else np.split(given, np.cumsum(sizes)[:-1], axis=1)
            found[f"{side}_features"] = blocks if block is None else [*blocks, block]
        return cls(model, data, ratings, {name: blocks for name, blocks in found.items() if blocks}, rank)

    def outcomes(self) -> Outcomes | None:
        """The ratings, where they are not Gaussian."""
        model = self.model
        if model.likelihood == "gaussian":
            return None
        given = replace(self.ratings.users, value=triplets(self.data)[2].astype(np.float64))
        ratings, first = replace(self.ratings, users=given), 1.0
        if model.likelihood == "logistic":
            return Outcomes.of(ratings, None, None, first)
        prior, known, unit = model.priors["scale"], model.known.get("scale"), model.units[1]
        if known is not None:
            return Outcomes.of(ratings, model.levels, None, float(known) / unit, model.units)
        first = max(0.4 * float(given.value.std()), 0.05) / unit

        def log_prior(scale: float) -> Tensor:
            return prior.log_prob(torch.tensor(unit * scale))

        return Outcomes.of(ratings, model.levels, log_prior, first, model.units)

    def drift(self) -> Drift | None:
        """Offsets by the bins of the ratings' times, where biases change in time."""
        model, users = self.model, self.ratings.users
        if not model.timed:
            return None
        time, mask = require_times(self.data), None if isinstance(self.data, Ratings) else self.data.mask
        bins = model.bins(time.flatten() if mask is None else time[mask])
        (place, own), item = (one.cpu().numpy() for one in bins), users.index
        user = np.repeat(np.arange(len(users.counts)), users.counts)
        groups = {"bin_bias": place, "item_bin_bias": item * np.int64(model.sizes["bin"]) + place}
        groups["user_bin_bias"] = user * model.sizes["user_bin"] + own
        shapes = model.shapes
        bins = {site: Bins.of(group, shapes[site], *drift_prior(model, site)) for site, group in groups.items()
                if site in shapes}  # fmt: skip
        return Drift.of(self.ratings, bins)

    def start(self, values: Mapping[str, Tensor] | None) -> _variational.Start | None:
        """The starting values of fits that are given values of the globals. What these say of covariates is part of the
        rows, and their overall mean, where it is not that of the ratings, of the items' biases."""
        if values is None:
            return None
        at = {site: value.double().cpu().numpy() for site, value in values.items()}
        (centre, unit), units = self.model.units, {s: one.numpy() for s, one in units_of_rows(self.model).items()}
        rows = np.concatenate([at["item_bias"][:, None], at["item"]], 1)
        mean = np.tile(at["user_mean"], (len(self.data), 1))
        of_item, of_user = _covariates_of(self.data, "item"), _covariates_of(self.data, "user")
        rows = rows if of_item is None else rows + of_item @ at["item_weight"]
        mean = mean if of_user is None else mean + of_user @ at["user_weight"]
        rows[:, 0] += float(at["mean"]) - centre - unit * self.ratings.centre
        rows, mean, covariance = rows / units["item"], mean / units["user"], at["user_covariance"]
        covariance = covariance / np.outer(units["user"], units["user"])
        gain, scale = at.get("item_precision", np.ones(len(rows))), float(at.get("scale", unit)) / unit
        bins = {site: at[site] / unit for site in ("bin_bias", "item_bin_bias", "user_bin_bias") if site in at}
        return _variational.Start(rows, gain, mean, np.linalg.inv(covariance), scale, bins)

    def fits(
        self, seeds: Sequence[int], *, sweeps: int, noise_after: Sequence[int] = (0,), **settings: Any
    ) -> list[_variational.RatingFactors]:
        """Variational fits from starts of these seeds, which share the columns of their features; after Ctrl-C those
        that there are, the last one marked. From each start there is one for every ``noise_after``, of twice the sweeps
        where it is not 0, and that of the greatest bound is kept."""
        found, features, told = [], self.features, settings_of(self.model, self.rank)
        for place, (seed, held) in enumerate(itertools.product(seeds, noise_after)):
            try:
                at = _variational.variational(
                    self.ratings, self.model.num_components, settings=replace(told, noise_after=held), seed=seed,
                    outcomes=self.outcomes(), drift=self.drift(), single=self.data.x.dtype == torch.float32,
                    sweeps=2 * sweeps if held else sweeps, **features, **settings,
                )  # fmt: skip
            except KeyboardInterrupt:
                if not found:
                    raise
                found[-1].interrupted = True
                break
            features = {f"{side}_features": getattr(at, side).design or () for side in SIDES}
            if place % len(noise_after) == 0:
                found.append(at)
            elif at.bounds[-1] > found[-1].bounds[-1]:
                found[-1] = at
            if at.interrupted:
                found[-1].interrupted = True
                break
        return found


def _covariates_of(data: Data, side: str) -> Array | None:
    value = data.others.get(f"{side}_covariates")
    return None if value is None else value.cpu().double().numpy()


@dataclass(frozen=True)
class Values:
    """Values of everything: of (users, items) rows (N, d), gains (N,), priors; tau, and sigma where it has none; bins:
    of biases that change in time, by site."""

    tau: float
    rows: tuple[Array, Array]
    gains: tuple[Array, Array]
    priors: tuple[RowPrior, RowPrior]
    sigma: float | None = None
    bins: dict[str, Array] = field(default_factory=dict)

    @property
    def scale(self) -> float:
        return self.tau**-0.5 if self.sigma is None else self.sigma

    @classmethod
    def means(cls, at: _variational.RatingFactors) -> Values:
        one, two = at.user, at.item
        assert one.prior is not None and two.prior is not None
        return cls(
            at.tau, (one.mean, two.mean), (one.gain, two.gain), (one.prior, two.prior), at.sigma, bins_of(at.drift)
        )

    def rotate_to(self, target: Array) -> Values:
        """Factors turned so that those of the items are as close to the target (I, K) as a rotation brings them."""
        left, _, right = np.linalg.svd(self.rows[1][:, 1:].T @ target)
        turn = np.eye(len(left) + 1)
        turn[1:, 1:] = left @ right
        priors = [
            replace(p, precision=turn.T @ p.precision @ turn, coefficient=p.coefficient @ turn) for p in self.priors
        ]
        return replace(self, rows=tuple(row @ turn for row in self.rows), priors=tuple(priors))

    @property
    def ridges(self) -> list[float]:
        """The ridge of the last block of features of each side, which is the feedback where there is any."""
        return [float(prior.ridges[-1]) if len(prior.ridges) else 0.0 for prior in self.priors]


def _weights(design: Design | None, prior: RowPrior, given: int) -> tuple[Array, Array]:
    """m and B of m + x B from what the columns of a design are multiplied by; given: blocks of covariates x."""
    if not given:
        return prior.coefficient[0], np.zeros((0, prior.coefficient.shape[1]))
    assert design is not None
    weight = [design.backs[b] @ prior.coefficient[1:][design.block == b] for b in range(given)]
    mean = prior.coefficient[0] - sum(design.centres[b] @ weight[b] for b in range(given))
    return mean, np.concatenate(weight)


def sites_of(model: PMF, data: Data, values: Values, at: Factorisation) -> dict[str, Tensor]:
    """Return the values of all sites in the units of the ratings as they are. at: the fit or chain they belong to."""
    (shift, unit), units = model.units, units_of_rows(model)
    found: dict[str, Any] = {"mean": shift + unit * at.ratings.centre, "scale": unit * values.scale}
    found |= {site: unit * value for site, value in values.bins.items()}
    designs = at.user.design, at.item.design
    for name, design, row, gain, prior in zip(SIDES, designs, values.rows, values.gains, values.priors, strict=True):
        given, blocks = _covariates_of(data, name), len(block_sizes(model, name))
        mean, weight = _weights(design, prior, blocks if given is not None else 0)
        rest = np.asarray(row, np.float64) - (0 if given is None else given @ weight)
        covariance = np.linalg.inv(prior.precision)
        if design is not None and len(design.backs) > (blocks if given is not None else 0):
            # B'Z'Z B / N: the covariance of what the last block of features, the feedback, adds to the rows.
            last = design.block == len(design.backs) - 1
            weight_of_last = prior.coefficient[1:][last]
            products = weight_of_last.T @ design.gram[np.ix_(last, last)] @ weight_of_last
            covariance = covariance + products / len(design.columns)
        each = units[name].numpy()
        covariance = 0.5 * (covariance + covariance.T) * np.outer(each, each)
        mean, weight, rest = mean * each, weight * each, rest * each
        found |= {f"{name}_mean": mean, f"{name}_covariance": covariance, f"{name}_weight": weight}
        found |= {"user_profile": rest} if name == "user" else {"item": rest[:, 1:], "item_bias": rest[:, 0]}
        found |= {"item_precision": np.asarray(gain)} if name == "item" else {}
    like = data.stored
    wanted = (*model.global_sites, model.local_site)
    return {site: torch.as_tensor(np.array(found[site])).to(like) for site in wanted}


def bins_of(drift: Drift | None) -> dict[str, Array]:
    """Return the offsets of biases that change in time, by site."""
    return {} if drift is None else {site: one.value for site, one in drift.bins.items()}


def variational_draws(at: _variational.RatingFactors, count: int, generator: np.random.Generator) -> list[Values]:
    """Draws from the variational posterior, in which its factors are independent.

    Rows and what they are regressed on come in fours, of the same noise with the signs of ``_SIGNS``: over each four
    the mean of a_u + c_i + v_u'v_i is that of the posterior, without Monte Carlo error, of new users and items too, and
    each draw alone has the posterior's distribution.
    """
    sides, shape = (at.user, at.item), at.settings.unit_shape
    roots = [np.linalg.cholesky(unpack_symmetric(side.covariance, side.mean.shape[1])) for side in sides]
    found, noise, spread, drawn = [], [np.zeros(0)] * 2, dict[str, Array](), list[RowPrior]()
    own = [side.prior for side in sides if side.prior is not None]
    for number in range(count):
        if number % 4 == 0:
            normals = [generator.standard_normal(side.mean.shape) for side in sides]
            noise = [np.einsum("nij,nj->ni", root, one) for root, one in zip(roots, normals, strict=True)]
            drawn = [draw_prior(prior, side.design, side.settings, generator)
                     for prior, side in zip(own, sides, strict=True)]  # fmt: skip
            offsets = {} if at.drift is None else at.drift.bins
            deviations = {site: np.sqrt(one.variance).reshape(one.shape) for site, one in offsets.items()}
            spread = {site: one * generator.standard_normal(one.shape) for site, one in deviations.items()}
        signs = _SIGNS[number % 4]
        rows = [side.mean + sign * one for side, sign, one in zip(sides, signs, noise, strict=True)]
        gains = [side.gain for side in sides]
        if shape:
            shapes = [shape + 0.5 * side.ratings.counts for side in sides]
            gains = [gain * generator.standard_gamma(a) / a for gain, a in zip(gains, shapes, strict=True)]
        priors = [replace(one, coefficient=prior.coefficient + sign * (one.coefficient - prior.coefficient))
                  for one, prior, sign in zip(drawn, own, signs, strict=True)]  # fmt: skip
        tau = float(generator.gamma(at.tau_shape) / at.tau_rate) if at.outcomes is None else 1.0
        bins = {site: mean + signs[0] * spread[site] for site, mean in bins_of(at.drift).items()}
        each = (rows[0], rows[1]), (gains[0], gains[1]), (priors[0], priors[1])
        found.append(Values(tau, *each, at.sigma, bins))
    return found


def log_volume(model: PMF, data: Data) -> float:
    """What the log density of ratings as they are is more than that of (r - centre) / unit; that of other ratings is a
    probability, which has no unit."""
    if model.likelihood != "gaussian":
        return 0.0
    return -len(triplets(data)[2]) * math.log(model.units[1])
