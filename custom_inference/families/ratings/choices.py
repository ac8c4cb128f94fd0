"""What users will pick of the items that they are shown: ``Fit.predict`` of choices."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from custom_inference.core.isolation import seed_of
from custom_inference.core.result import Result
from custom_inference.families.ratings.asked import NEW, RequestSide
from custom_inference.families.ratings.observations import covariates_of
from custom_inference.families.ratings.predict import NEW_IS_PRIOR
from ppl_models import ChoicePMF, Data, DataError, MethodError
from ppl_models.data.containers import as_tensor, unpack
from ppl_models.data.held import to_list
from ppl_models.data.labels import places_of

#: Draws of what users like, over which probabilities are averaged.
_DRAWS = 400


def predict_choices(
    fit: Result, query: Any = None, *, positions: Any = None, new: str | None = None, user_covariates: Any = None
) -> Tensor:
    """Compute p(u picks v of S) of M users u with sets of items S: (M, L), at the place of each item, 0 at empty
    places.

    query: (users, shown): labels of users (M,), their numbers where they have none, and of each the labels or numbers
        of the items shown, sequences of at least two, or (M, L) with -1 in empty places. Averaged over the posterior of
        the users' factors.
    positions: the same with users and items by their numbers in the data, whatever their labels.
    new: "prior": unknown users are new ones and have their prior, without features. By default they are an error.
    user_covariates: (U, P), of users in place of those of the fit, of whom nothing else is known: numbered by the rows,
        or called by the index of a DataFrame.

    Raises DataError for unknown users and items, and for as many users as sets.
    """
    model: Any = fit.model
    asked = query if positions is None else positions
    both = query is not None and positions is not None
    if both or not isinstance(asked, tuple | list) or len(asked) != 2 or len(asked[0]) != len(asked[1]):
        expected = "(users, shown), M of each, or positions=(users, shown)"
        raise DataError("no users with as many sets of items", axis="impression", expected=expected)
    if new not in NEW:
        raise MethodError(f"new = {new!r}, expected None or 'prior'")
    features = None if user_covariates is None else _features(model, user_covariates, fit.data)
    size = len(fit.data) if features is None else len(features)
    names = fit.data.coords.get("row") if features is None else getattr(user_covariates, "index", None)
    labels = None if names is None or positions is not None else list(names)
    side = RequestSide("user", labels, size, features is not None)
    place = places_of(asked[0], labels, size, "user", **side.new(new, NEW_IS_PRIOR))
    items = fit.data.coords.get("item") if positions is None else None
    user, item = torch.as_tensor(place).to(fit.data.x.device), _read_choice_sets(model, asked[1], items)
    covariates = covariates_of(model, fit.data)
    factors = model.item_factors(fit.params, covariates["item_covariates"])
    given = covariates["user_covariates"] if features is None else features
    # Of somebody new nothing is known: no features, where users have some.
    constant = model.user_offsets(fit.params, None, 1) * ("user_covariates" not in fit.data.others)
    offset = torch.cat([model.user_offsets(fit.params, given, size), constant])[user]
    draws: Any = _with_somebody_new(fit, size, features is None)
    empty, total = item < 0, torch.zeros(item.shape, dtype=factors.dtype, device=factors.device)
    chosen = factors[item.clamp_min(0)]
    for local in draws:
        logits = (chosen @ (local[user] + offset).unsqueeze(-1)).squeeze(-1)
        total += logits.masked_fill(empty, -torch.inf).softmax(-1)
    return total / len(draws)


def _features(model: ChoicePMF, given: Any, data: Data) -> Tensor:
    """Return covariates of users in place of those of the fit, (U, P)."""
    found = as_tensor(unpack(given)[0], data.x.dtype).to(data.x.device)
    if found.ndim != 2 or not found.shape[1] == model.num_user_covariates > 0:
        expected = f"(U, {model.num_user_covariates}), a row for each user, in a model with num_user_covariates"
        raise DataError(f"user_covariates of shape {tuple(found.shape)}", axis="user", expected=expected)
    return found


def _with_somebody_new(fit: Result, size: int, known: bool) -> Tensor:
    """Append to draws of the users' own factors (S, U + 1, K) one from the prior, which stands for all users that the
    fit does not know."""
    own: Any = fit.posterior.sample(_DRAWS, seed=fit.seed) if known else fit.posterior.sample(1)[:, :0]
    generator = torch.Generator().manual_seed(seed_of(fit.seed, "somebody new", size))
    prior: Any = fit.model.prior("user", like=own, values=fit.globals)
    number = 1 if known else size + 1
    noise = torch.randn((_DRAWS, number, own.shape[-1]), generator=generator, dtype=torch.float64).to(own)
    drawn = prior.mean + prior.variance.sqrt() * noise
    return torch.cat([own.expand(_DRAWS, *own.shape[1:]), drawn], 1)


def _read_choice_sets(model: ChoicePMF, given: Any, labels: list[Any] | None) -> Tensor:
    """Places of items (M, L), by their labels where they have some, -1 where nothing is shown."""
    sets = [to_list(items) for items in given]
    width = max((len(items) for items in sets), default=0)
    found = torch.full((len(sets), width), -1, dtype=torch.long)
    for n, items in enumerate(sets):
        real = [at for at, one in enumerate(items) if one != -1]
        named = [items[at] for at in real]
        if len(set(named)) < max(2, len(named)):
            expected = f"at least two different ones of {model.num_items}"
            raise DataError(f"impression {n} of the items {items}", site="shown", axis="impression", expected=expected)
        found[n, real] = torch.as_tensor(places_of(named, labels, model.num_items, "item"))
    return found
