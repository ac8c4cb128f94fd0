"""Predictions of ratings with their uncertainty, of users and items old and new: ``Fit.predict`` of models of ratings.

Where a fit has draws of the globals, means and spreads are averages over these; otherwise profiles are Gaussian at the
values of the globals. A user (or item) that the fit does not know has the prior given each draw, or with ratings of its
own the posterior given these and the draw (``fold_in``), as if they had not been drawn: of rows (f, u) ~ Normal(m, V)
and (g, v) ~ Normal(d, S), with a = (1, E v) and b = (1, E u),

    E[eta] = mu + E f + E g + E u'E v,    Var[eta] = a'V a + b'S b + tr(V_uu S_vv),

so that means of Gaussian ratings are exact, and do not depend on a seed. Means of others are taken by quadrature over
eta as a Normal, which it is where a user or an item is a point. Where noise varies, that of a rating is
E[sigma^2 / (a_n h_j)] with the gains of its user and item: a_n, which the model integrates out, has a Gamma
distribution given the user's ratings and what a draw says of these.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from custom_inference.core.posteriors import PointPosterior
from custom_inference.core.result import Result
from custom_inference.families.ratings.asked import RequestSide, resolve_pairs, times_beside
from custom_inference.families.ratings.fold_in import ProfileRows, conditional, prior_covariance, profiles_given
from custom_inference.families.ratings.gains import Gains, UserGains, gains_given
from custom_inference.families.ratings.implicit import Feedback
from custom_inference.families.ratings.prediction import RatingPrediction, Scale, read_scale, states_of
from custom_inference.families.ratings.priors import settings_of, units_of_rows
from custom_inference.families.ratings.rows import RatingRows
from custom_inference.families.ratings.times import TimedPairs, biases_of_pairs, times_of_pairs, without_time
from ppl_models import PMF, Data, DataError, Ratings
from ppl_models.core.likelihood import hermite
from ppl_models.data.lazy import is_pandas
from ppl_models.data.ratings.door import ratings as read_ratings
from ppl_models.data.ratings.door import relabel

#: Nodes by which means of ratings that are not Gaussian are taken.
_NODES = 15
#: What is said beside an error of unknown users and items.
NEW_IS_PRIOR = "; new='prior' takes unknown ones for somebody new"


def predict_ratings(
    fit: Result, pairs: Any = None, *, positions: Any = None, new: str | None = None, time: Any = None,
    ratings: Any = None, item_ratings: Any = None, user_covariates: Any = None, uncertainty: bool = False,
    clip: Scale = False,
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
    clip: means and intervals lie within the ratings of the fit, or between two numbers (low, high); False: as they
        come, as Gaussian ratings have no scale that they end at.

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
    query = _Query(fit, model, new_users, new_items, user if uncertainty else None, _feedback(fit))
    moments = [_moments(query, at, user, item, when) for at in query.states()]
    first, second, noise = (torch.stack(part).mean(0) for part in zip(*moments, strict=True))
    variance = (second - first.square()).clamp(min=0)
    ends = {"logistic": (0.0, 1.0), "ordinal": model.levels}.get(model.likelihood, ())
    found = RatingPrediction(first, variance.sqrt(), (variance + noise).sqrt(), *ends)
    if clip is not False:
        found = found.clip(*read_scale(fit.data, clip))
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
            rows = ProfileRows(torch.cat([at["item_bias"].unsqueeze(1), at["item"]], 1))
        return self.feedback.prior(side, self._columns[side], rows.mean, rows.covariance, at["number"])

    def states(self) -> Iterator[dict[str, Any]]:
        """Yield values of the globals with the rows of users, of every draw or the means."""
        for number, values in enumerate(states_of(self.fit)):
            yield {**values, "number": number, "rows": self._rows_at(values)}

    def _rows_at(self, values: dict[str, Tensor]) -> ProfileRows:
        """Return users that were drawn or estimated as points as these, others as Gaussians given the globals."""
        fit, site = self.fit, self.model.local_site
        if fit.draws is not None and site in values:
            return ProfileRows(values[site])
        own: Any = fit.posterior if fit.draws is None else None
        if own is None or not (isinstance(own, PointPosterior) or hasattr(own, "covariance")):
            own = profiles_given(self.model, values, fit.data, "").posterior
        return ProfileRows(own.mean, getattr(own, "covariance", None))

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
    model = query.model
    users, (items, shift, gains) = _users(query, model, at), _items(query, model, at)
    biases = int(model.biases)
    profile, factors = users.mean[user], items.mean[item, biases:]
    one = torch.ones_like(profile[:, :biases])
    # eta is linear in (f, u), with (1, v), and in (g, v), with (1, u).
    of_user, of_item = torch.cat([one, factors], 1), torch.cat([one, profile[:, biases:]], 1)
    eta = (profile * of_user).sum(-1) + items.mean[item, :biases].sum(-1) + shift[item]
    bias, variance = biases_of_pairs(model, at, when, eta)
    variance = variance + users.vary_along(user, of_user) + items.vary_along(item, of_item)

    def both(part: Tensor, own: Tensor) -> Tensor:
        return items.vary_with(
            item[part], lambda at, other: (own[at][:, biases:, biases:] * other[:, biases:, biases:]).sum((1, 2))
        )

    variance = variance + users.vary_with(user, both)
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


def _users(query: _Query, model: PMF, at: dict[str, Any]) -> ProfileRows:
    """Return the users' rows with what covariates add, and one more: of a user that is not known."""
    data, rows = query.new_users or query.fit.data, at["rows"]
    prior: Any = model.prior(model.local_site, like=_like(query.fit), values=at)
    mean, covariance = prior.mean.expand(model.local_shape), prior_covariance(prior)
    if query.new_users is not None:
        loading, offset = model.coefficients(at, query.fit.data.others.get("item_covariates"))
        first, spread = query.prior_of_new("user", at, mean, covariance)
        first = _with_covariates(model, at, ProfileRows(first.expand(len(data), -1)), data).mean
        given = without_time(model, at, query.new_users, new="user")
        rated = RatingRows.of(given, model.units[0])
        rows = conditional(model, at, rated, loading, offset, first, spread, at.get("item_precision")).rows
    else:
        rows = _with_covariates(model, at, rows, data)
    return rows.append(ProfileRows(mean[None], covariance[None]))


def _with_covariates(model: PMF, at: dict[str, Any], rows: ProfileRows, data: Data) -> ProfileRows:
    """Add what the covariates of the users contribute to their profiles."""
    return rows._replace(mean=model.profiles(at, rows.mean, data.others.get("user_covariates")))


def _items(query: _Query, model: PMF, at: dict[str, Any]) -> tuple[ProfileRows, Tensor, Gains | None]:
    """Return rows (bias, factors) of the items, and of one that is not known; what is added to each (J + 1,); and,
    where noise varies, gains of new items."""
    mean, covariance = _item_prior(model, at)
    if query.new_items is None:
        loading, offset = model.coefficients(at, query.fit.data.others.get("item_covariates"))
        known = torch.cat([torch.zeros_like(offset)[:, None], loading[:, 1:]], 1) if model.biases else loading
        rows = ProfileRows(known).append(ProfileRows(mean[None], covariance[None]))
        return rows, torch.cat([offset, at["mean"].reshape(1)]), None
    own = at["rows"].mean
    design = torch.cat([torch.ones_like(own[:, :1]), own[:, 1:]], 1) if model.biases else own
    beside = at["mean"] + (own[:, 0] if model.biases else torch.zeros_like(own[:, 0]))
    one = without_time(model, at, query.new_items, new="item")
    turned = read_ratings(one.item, one.user, one.value, num_users=one.num_items, num_items=one.num_users)
    turned = turned.to(dtype=one.value.dtype, device=one.x.device)
    before = query.prior_of_new("item", at, mean, covariance)
    rated, of_users, gains = RatingRows.of(turned, model.units[0]), None, None
    if (shape := model.noise_shape) is not None:
        of_users = query.gains_of_known.find(at, _with_covariates(model, at, at["rows"], query.fit.data)).mean[:-1]
    rows = conditional(model, at, rated, design, beside, *before, of_users).rows
    if shape is not None and of_users is not None:
        gains = gains_given(shape, at, rated, rows, (design, beside), of_users)
        gains = gains.append(Gains.prior(shape, of_users[:1]))
    rows = rows.append(ProfileRows(mean[None], covariance[None]))
    return rows, at["mean"].expand(len(rows.mean)), gains


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
