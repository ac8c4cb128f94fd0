"""Factors of users and items of clicks and choices as a fit has them: a_u = W'x_u + user_u and b_v = V'z_v + item_v.

Where a fit has draws of the globals, there is one state a draw, with points for the users that were drawn with them;
else the posteriors that the method has, of the weights too where these are no points. Products of factors do not tell
their signs or rotations apart, so that means over draws are taken of predictions, never of factors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from custom_inference.core.local_inference import solve_local
from custom_inference.core.posteriors import LocalPosterior
from custom_inference.core.result import Result
from custom_inference.families.ratings.fold_in import ProfileRows
from custom_inference.families.ratings.observations import covariates_of
from custom_inference.families.ratings.prediction import states_of
from ppl_models import Data
from ppl_models.bilinear_pmf import constant_feature

#: Draws of the globals at which users in place of those of the fit are inferred, at most.
_MOST_SOLVED = 50

#: The precision (U, K, K) of users' factors about their means: of a model, values of the globals, data and means.
Precision = Callable[[Any, dict[str, Tensor], Data, Tensor], Tensor]


class Factors(NamedTuple):
    """The factors of users (U + 1, K) and of items (I + 1, K); the last are those of somebody new."""

    users: ProfileRows
    items: ProfileRows


def factor_states(
    fit: Result, users: Data | None = None, features: Tensor | None = None, precision: Precision | None = None
) -> Iterator[Factors]:
    """Yield the factors at each state of the fit.

    users: in place of those of the fit, with what they did. features (U, P): of users of whom nothing else is known.
    precision: of users about their means, in place of what the method's posterior has.
    """
    model: Any = fit.model
    data, drawn = users or fit.data, users is None and "user" in (fit.draws or {})
    states = states_of(fit, None if drawn or features is not None else _MOST_SOLVED)
    items = covariates_of(model, fit.data)["item_covariates"]
    own = covariates_of(model, data)["user_covariates"] if features is None else features
    for at in states:
        if features is not None:
            rows = _prior(fit, "user", at, len(features))
        elif drawn:
            rows = ProfileRows(at["user"])
        else:
            rows = _gaussian(fit.posterior_of(data) if fit.draws is None else solve_local(model, at, data).posterior)
            if precision is not None and rows.covariance is not None:
                rows = rows._replace(covariance=torch.linalg.inv(precision(model, at, data, rows.mean)))
        yield Factors(
            _with_features(fit, "user", at, rows, own), _with_features(fit, "item", at, _items(fit, at), items)
        )


def _items(fit: Result, at: dict[str, Tensor]) -> ProfileRows:
    known = fit.global_posterior.get("item")
    return ProfileRows(at["item"]) if known is None else _gaussian(known)


def _gaussian(posterior: LocalPosterior) -> ProfileRows:
    """Return the rows of a posterior, points where it has no covariances."""
    return ProfileRows(posterior.mean, getattr(posterior, "covariance", None))


def _prior(fit: Result, side: str, at: dict[str, Tensor], size: int) -> ProfileRows:
    """Return rows of which the prior alone is known; of several priors of rows their mean."""
    prior: Any = fit.model.prior(side, like=at["item"], values=at)
    width = at["item"].shape[1]
    mean, variance = (part.reshape(-1, width).mean(0).to(at["item"]) for part in (prior.mean, prior.variance))
    return ProfileRows(mean.expand(size, -1), torch.diag(variance).expand(size, -1, -1))


def _with_features(fit: Result, side: str, at: dict[str, Tensor], rows: ProfileRows, features: Tensor) -> ProfileRows:
    """Add what features say, and append somebody new, who has the constant one where none were given, else none."""
    weight, new = f"{side}_weight", _prior(fit, side, at, 1)
    if weight not in at:
        return rows.append(new)
    constant = constant_feature(features, 1, features.shape[1]) * (f"{side}_covariates" not in fit.data.others)
    rows, new = (one._replace(mean=one.mean + x @ at[weight]) for one, x in ((rows, features), (new, constant)))
    spread = fit.global_posterior.get(weight)
    if spread is not None and rows.covariance is not None:
        variance = spread.variance
        rows = rows._replace(covariance=rows.covariance + torch.diag_embed(features.square() @ variance))
    return rows.append(new)
