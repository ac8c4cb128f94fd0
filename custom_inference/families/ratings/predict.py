"""Predictions of ratings with their uncertainty, of users and items old and new: ``Fit.predict`` of models of ratings.

Where a fit has draws of all sites, means and spreads are averages over these; otherwise profiles are Gaussian at the
values of the globals. A user (or item) that the fit does not know has the prior, or with ratings of its own the
posterior given these: with loadings a_j, offsets o_j and a prior Normal(m, P^-1) of the rows (with implicit feedback
m is that of a row which rated what it did),

    V^-1 = P + sum_j h_j a_j a_j' / sigma^2,    V^-1 m' = P m + sum_j h_j (r_j - o_j) a_j / sigma^2.

Where noise varies, that of a rating is E[sigma^2 / (a_n h_j)] with the gains of its user and item: a_n, which the model
integrates out, has a Gamma distribution given the user's ratings and what a draw says of these.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from custom_inference.core.result import Result
from custom_inference.families.ratings.asked import RequestSide, resolve_pairs, times_beside
from custom_inference.families.ratings.fold_in import ProfileRows, conditional, prior_covariance
from custom_inference.families.ratings.gains import Gains, UserGains, gains_given
from custom_inference.families.ratings.implicit import Feedback
from custom_inference.families.ratings.priors import settings_of, units_of_rows
from custom_inference.families.ratings.rows import RatingRows
from custom_inference.families.ratings.times import TimedPairs, biases_of_pairs, times_of_pairs, without_time
from ppl_models import PMF, Data, DataError, MethodError, Ratings
from ppl_models.core.likelihood import hermite
from ppl_models.data.lazy import is_pandas
from ppl_models.data.ratings.door import ratings as read_ratings
from ppl_models.data.ratings.door import relabel

#: Nodes by which means of ratings that are not Gaussian are taken.
_NODES = 15
#: What is said beside an error of unknown users and items.
NEW_IS_PRIOR = "; new='prior' takes unknown ones for somebody new"


class RatingPrediction(NamedTuple):
    """mean (M,) of each rating; sd: of what is not known of its mean; spread: of the rating, with its noise."""

    mean: Tensor
    sd: Tensor
    spread: Tensor

    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """Return the central interval of a rating, as if it were Gaussian."""
        if not 0 < level < 1:
            raise MethodError(f"level = {level}, expected between 0 and 1")
        half = torch.special.ndtri(torch.tensor((1 + level) / 2, dtype=torch.float64)).to(self.mean) * self.spread
        return self.mean - half, self.mean + half


def predict_ratings(
    fit: Result, pairs: Any = None, *, positions: Any = None, new: str | None = None, time: Any = None,
    ratings: Any = None, item_ratings: Any = None, user_covariates: Any = None, uncertainty: bool = False,
) -> Any:  # fmt: skip
    """Predict E[r] of M pairs of a user and an item, (M,).

    pairs: a tuple (users, items), (M,) labels each: the numbers 0, 1, ... where the data have no labels; a list of
        pairs (user, item), or an array (M, 2) or a frame of them. Or ``Ratings``, such as were held out: their users
        and items, by their labels. Of these and of a frame the times too, where biases change in time.
    positions: pairs by their numbers in the data, whatever their labels; in place of pairs.
    new: "prior": unknown users and items are new ones and have their prior. By default they are an error, as unknown
        users always are beside such as are given.
    ratings: of users that are in place of those of the fit, of its items; their labels or positions are then meant.
    user_covariates: of these users (U, P), in models that have such; without ratings= of users of whom nothing else is
        known, who are numbered by the rows, or called by the index of a DataFrame.
    time: of the pairs (M,), where biases change in time; None: without these biases. In bins in which there are no
        ratings of a user or an item, and of new ones, they have their prior.
    item_ratings: of items in place of those of the fit, by its users.
    uncertainty: give a :class:`RatingPrediction` instead of the means.

    Raises DataError for unknown users and items, pairs of different lengths, and times where there are no such biases.
    """
    model: Any = fit.model
    new_users = of_new_users(fit, ratings, user_covariates)
    new_items = None if item_ratings is None else _of_new_items(fit, item_ratings)
    sides = (
        RequestSide.users(new_users or fit.data, given=new_users is not None),
        RequestSide.items(fit.data if new_items is None else new_items),
    )
    user, item = (
        place.to(_like(fit).device) for place in resolve_pairs(pairs, positions, sides, new=new, hint=NEW_IS_PRIOR)
    )
    if time is not None or model.timed:
        time = times_beside(pairs, time)
    when = None
    if time is not None:
        places = item if new_items is None else torch.full_like(item, model.num_items)
        numbers = user if new_users is None else torch.full_like(user, model.num_users)
        when = TimedPairs(times_of_pairs(model, time, len(user), _like(fit)), places, numbers)
    generator = torch.Generator().manual_seed(fit.seed)
    query = _Query(fit, model, new_users, new_items, generator, user if uncertainty else None, _feedback(fit))
    moments = [_moments(query, at, user, item, when) for at in query.states()]
    first, second, noise = (torch.stack(part).mean(0) for part in zip(*moments, strict=True))
    variance = (second - first.square()).clamp(min=0)
    found = RatingPrediction(first, variance.sqrt(), (variance + noise).sqrt())
    return found if uncertainty else found.mean


def _like(fit: Result) -> Tensor:
    return fit.params["item"]


def _feedback(fit: Result) -> Feedback | None:
    """Return what implicit feedback adds to new users and items; None for fits without it."""
    model: Any = fit.model
    said = fit.details.get("implicit")
    if said is None:
        return None
    settings = settings_of(model, said["rank"])
    both = {"user": settings.user, "item": settings.item}
    return Feedback(fit.data, said["rank"], said["ridges"], both, units_of_rows(model))


def of_new_users(fit: Result, ratings: Any, user_covariates: Any) -> Data | None:
    """Read users by their ratings, their covariates, or both. Raises DataError for covariates that the model has
    not."""
    model: Any = fit.model
    if user_covariates is None:
        return None if ratings is None else model.prepare_new(ratings, fit.data, dtype=_like(fit).dtype)
    if "user_covariates" not in model.sites_of("given"):
        problem = f"user_covariates of {type(model).__name__} without covariates of users"
        raise DataError(problem, axis="user", expected="a model with num_user_covariates")
    if ratings is None:  # a row without a rating for each
        if np.ndim(user_covariates) != 2:
            problem = f"user_covariates of {np.ndim(user_covariates)} dimensions"
            raise DataError(problem, axis="user", expected=f"(U, {model.num_user_covariates}), a row for each user")
        names = list(user_covariates.index) if is_pandas(user_covariates, "DataFrame") else None
        labels = {} if names is None else {"row": names}
        labels |= {"feature": fit.data.coords["feature"]} if "feature" in fit.data.coords else {}
        empty = torch.zeros(len(user_covariates), model.num_items, dtype=torch.float64)
        ratings = Data(x=empty, mask=torch.zeros_like(empty, dtype=torch.bool), coords=labels)
    return model.prepare_new(ratings, fit.data, dtype=_like(fit).dtype, user_covariates=user_covariates)


def _of_new_items(fit: Result, item_ratings: Any) -> Ratings:
    users: Any = fit.data.coords.get("row")
    if isinstance(item_ratings, Ratings):
        data = item_ratings
        if data.coords.get("row") != users:
            data = relabel(data, users=range(len(fit.data)) if users is None else users)
    else:
        given: dict[str, Any] = {"users": users} if users is not None else {"num_users": len(fit.data)}
        columns = isinstance(item_ratings, tuple) and len(item_ratings) == 3
        data = read_ratings(*item_ratings, **given) if columns else read_ratings(item_ratings, **given)
    if data.num_users != len(fit.data):
        raise DataError(f"{data.num_users} users", axis="user", expected=f"the {len(fit.data)} of the fit")
    return data.to(dtype=_like(fit).dtype, device=_like(fit).device)


@dataclass
class _Query:
    """The users and items that predictions are for. asked (M,): users of the pairs, where their noise is asked for."""

    fit: Result
    model: PMF
    new_users: Data | None
    new_items: Ratings | None
    generator: torch.Generator
    asked: Tensor | None
    feedback: Feedback | None = None

    @cached_property
    def _columns(self) -> dict[str, Any]:
        new = {"user": self.new_users, "item": self.new_items}
        assert self.feedback is not None
        return {side: self.feedback.columns(side, data) for side, data in new.items() if data is not None}

    def prior_of_new(self, side: str, at: dict[str, Any], mean: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean (C,), or (N, C) where there is feedback, and covariance of new users or items before their
        ratings."""
        if self.feedback is None:
            return mean, covariance
        rows = at["rows"]
        if side == "item":
            rows = ProfileRows(torch.cat([at["item_bias"].unsqueeze(1), at["item"]], 1), None)
        generator = np.random.default_rng([self.fit.seed, at["number"]]) if self.fit.draws is not None else None
        return self.feedback.prior(side, self._columns[side], rows.mean, rows.covariance, at["number"], generator)

    def states(self) -> Iterator[dict[str, Any]]:
        """Yield values of the globals with the rows of users, those of every draw or the means with covariances."""
        fit, site = self.fit, self.fit.model.local_site
        if fit.draws is None or site not in fit.draws or not set(fit.model.unknown_sites) <= set(fit.draws):
            posterior = fit.posterior
            yield {
                **fit.globals,
                "number": 0,
                "rows": ProfileRows(posterior.mean, getattr(posterior, "covariance", None)),
            }
            return
        flat = {name: value.flatten(0, 1) for name, value in fit.draws.items()}
        for s in range(len(flat[site])):
            params = {**fit.globals, **{name: value[s] for name, value in flat.items()}}
            yield {**params, "number": s, "rows": ProfileRows(params[site], None)}

    @cached_property
    def _gains(self) -> UserGains:
        return UserGains.of(self.model, self.fit.data, self.new_users, self.asked)

    @cached_property
    def gains_of_known(self) -> UserGains:
        """The gains of all users of the fit."""
        return UserGains.of(self.model, self.fit.data, None, None)

    def noise(self, at: dict[str, Any], users: ProfileRows, items: Gains | None, user: Tensor, item: Tensor) -> Tensor:
        """Return E[sigma^2 / (a_n h_j)] (M,) of pairs at a state. items: gains of new items, and of an unknown one."""
        found = at["scale"].square().expand(user.shape)
        if self.model.noise_shape is None or self.asked is None:
            return found
        known = at["item_precision"]
        unknown = Gains.prior(self.model.noise_shape, known[:1]).inverse
        inverse = torch.cat([1 / known, unknown]) if items is None else items.inverse
        return found * self._gains.find(at, users).inverse[user] * inverse[item]


def _moments(
    query: _Query, at: dict[str, Any], user: Tensor, item: Tensor, when: TimedPairs | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute E[r mean], E[(r mean)^2], E[noise variance] of pairs at a state."""
    model, data = query.model, query.fit.data
    drawn = at["rows"].covariance is None and query.fit.draws is not None
    known = query.new_users is None and query.new_items is None
    if drawn and known and bool((user < len(data)).all() and (item < data.num_features).all()):
        profile = model.profiles(at, at["rows"].mean, data.others.get("user_covariates"))
        loading, offset = model.coefficients(at, data.others.get("item_covariates"))
        eta = (profile[user] * loading[item]).sum(-1) + offset[item]
        bias, variance = biases_of_pairs(model, at, when, eta)
        noise = query.noise(at, ProfileRows(profile, None), None, user, item)
        return _of_ratings(model, at, eta + bias, variance, noise)
    users = _users(query, model, at, drawn)
    profile = users.mean[user]
    loading, offset, spread, gains = _items(query, model, at, data, drawn)
    a, eta = loading[item], (profile * loading[item]).sum(-1) + offset[item]
    bias, variance = biases_of_pairs(model, at, when, eta)
    if users.covariance is not None:
        variance = variance + torch.einsum("mi,mij,mj->m", a, users.covariance[user], a)
    if spread is not None:
        beside, d = spread[item], profile.clone()  # eta is linear in (g, v) too, with d = (1, u)
        if model.biases:
            d[:, 0] = 1.0
        variance = variance + torch.einsum("mi,mij,mj->m", d, beside, d)
        if users.covariance is not None:
            first = int(model.biases)
            both = users.covariance[user][:, first:, first:] * beside[:, first:, first:]
            variance = variance + both.sum((-1, -2))
    noise = query.noise(at, users, gains, user, item) if model.likelihood == "gaussian" else variance
    return _of_ratings(model, at, eta + bias, variance, noise)


def _of_ratings(
    model: PMF, at: dict[str, Any], eta: Tensor, variance: Tensor, noise: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the moments of ratings by the noise, or, of ratings that are not Gaussian, of their own law."""
    if model.likelihood == "gaussian":
        return eta, eta.square() + variance, noise
    node, weight = (part.to(eta) for part in hermite(_NODES))
    entry = model.entry(at, eta.unsqueeze(-1) + variance.sqrt().unsqueeze(-1) * node)
    mean, noise = entry.mean, entry.variance
    return (mean * weight).sum(-1), (mean.square() * weight).sum(-1), (noise * weight).sum(-1)


def _users(query: _Query, model: PMF, at: dict[str, Any], drawn: bool) -> ProfileRows:
    """Return the users' rows with what covariates add, and one more: of a user that is not known."""
    data, rows = query.new_users or query.fit.data, at["rows"]
    prior: Any = model.prior(model.local_site, like=_like(query.fit), values=at)
    mean, covariance = prior.mean.expand(model.local_shape), prior_covariance(prior)
    if query.new_users is not None:
        loading, offset = model.coefficients(at, query.fit.data.others.get("item_covariates"))
        first, spread = query.prior_of_new("user", at, mean, covariance)
        first = _with_covariates(model, at, ProfileRows(first.expand(len(data), -1), None), data).mean
        given = without_time(model, at, query.new_users, new="user")
        rated = RatingRows.of(given, model.units[0])
        rows = conditional(model, at, rated, loading, offset, first, spread, at.get("item_precision"))
        rows = _draw(rows, query.generator) if drawn else rows
    else:
        rows = _with_covariates(model, at, rows, data)
    unknown = ProfileRows(mean[None], covariance[None])
    unknown = _draw(unknown, query.generator) if drawn else unknown
    covariance = rows.covariance
    if covariance is not None and unknown.covariance is not None:
        covariance = torch.cat([covariance, unknown.covariance])
    return ProfileRows(torch.cat([rows.mean, unknown.mean]), covariance)


def _with_covariates(model: PMF, at: dict[str, Any], rows: ProfileRows, data: Data) -> ProfileRows:
    """Add what the covariates of the users contribute to their profiles."""
    return rows._replace(mean=model.profiles(at, rows.mean, data.others.get("user_covariates")))


def _draw(rows: ProfileRows, generator: torch.Generator) -> ProfileRows:
    assert rows.covariance is not None
    noise = torch.randn(rows.mean.shape, generator=generator, dtype=torch.float64).to(rows.mean)
    return ProfileRows(rows.mean + (torch.linalg.cholesky(rows.covariance) @ noise[..., None])[..., 0], None)


def _items(
    query: _Query, model: PMF, at: dict[str, Any], data: Data, drawn: bool
) -> tuple[Tensor, Tensor, Any, Gains | None]:
    """Return loadings (J + 1, C), offsets (J + 1,), where items are not points covariances of (bias, factors), and,
    where noise varies, gains of new items."""
    loading, offset = model.coefficients(at, data.others.get("item_covariates"))
    mean, covariance = _item_prior(model, at)
    unknown, rows, gains = ProfileRows(mean[None], covariance[None]), None, None
    if query.new_items is not None:
        own = at["rows"].mean
        design = torch.cat([torch.ones_like(own[:, :1]), own[:, 1:]], 1) if model.biases else own
        beside = at["mean"] + (own[:, 0] if model.biases else torch.zeros_like(own[:, 0]))
        one = without_time(model, at, query.new_items, new="item")
        turned = read_ratings(one.item, one.user, one.value, num_users=one.num_items, num_items=one.num_users)
        turned = turned.to(dtype=one.value.dtype, device=one.x.device)
        before = query.prior_of_new("item", at, mean, covariance)
        rated, of_users = RatingRows.of(turned, model.units[0]), None
        if (shape := model.noise_shape) is not None:
            of_users = query.gains_of_known.find(at, _with_covariates(model, at, at["rows"], data)).mean[:-1]
        rows = conditional(model, at, rated, design, beside, *before, of_users)
        if shape is not None and of_users is not None:
            gains = gains_given(shape, at, rated, rows, (design, beside), of_users)
            gains = gains.append(Gains.prior(shape, of_users[:1]))
    parts = [unknown] if rows is None else [rows, unknown]
    parts = [_draw(part, query.generator) for part in parts] if drawn else parts
    found = torch.cat([part.mean for part in parts])
    extra = torch.cat([torch.ones_like(found[:, :1]), found[:, 1:]], 1) if model.biases else found
    shift = at["mean"] + (found[:, 0] if model.biases else torch.zeros_like(found[:, 0]))
    kept = (loading, offset) if rows is None else (loading[:0], offset[:0])
    spread = None
    if not drawn:
        every = [part.covariance for part in parts if part.covariance is not None]
        spread = torch.cat([loading.new_zeros(len(kept[0]), *covariance.shape), *every])
    return torch.cat([kept[0], extra]), torch.cat([kept[1], shift]), spread, gains


def _item_prior(model: PMF, at: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Return mean and covariance of (bias, factors) of an item that nobody has rated."""
    if model.adaptive:
        return at["item_mean"], at["item_covariance"]
    means, variances = [], []
    for site in ("item_bias", "item") if model.biases else ("item",):
        prior: Any = model.prior(site, like=at["item"], values=at)
        means.append(prior.mean.reshape(model.num_items, -1).mean(0))
        variances.append(prior.variance.reshape(model.num_items, -1).mean(0))
    return torch.cat(means), torch.diag(torch.cat(variances))
