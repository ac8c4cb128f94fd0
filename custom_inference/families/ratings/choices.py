"""What users will pick of the items that they are shown: ``Fit.predict`` of choices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from custom_inference.core.result import Result
from custom_inference.families.ratings.observations import covariates_of
from ppl_models import ChoicePMF, DataError

#: Draws of what users like, over which probabilities are averaged.
_DRAWS = 400


def predict_choices(fit: Result, query: Any) -> Tensor:
    """p(u picks v of S) of M users u with sets of items S: (M, L), at the place of each item, 0 at empty places.

    query: (users, shown): labels or numbers of users (M,), and of each the numbers of the items shown, sequences of at
    least two, or (M, L) with -1 in empty places. Averaged over the posterior of the users' factors.

    Raises DataError for unknown users and items, and for as many users as sets.
    """
    model = fit.model
    assert isinstance(model, ChoicePMF)
    if not isinstance(query, tuple | list) or len(query) != 2 or len(query[0]) != len(query[1]):
        raise DataError("no users with as many sets of items", axis="impression", expected="(users, shown), M of each")
    user, item = _users(fit, query[0]), _shown(model, query[1])
    covariates = covariates_of(model, fit.data)
    factors = model.item_factors(fit.params, covariates["item_covariates"])
    offset = model.user_offsets(fit.params, covariates["user_covariates"], len(fit.data))[user]
    draws: Any = fit.posterior.sample(_DRAWS, seed=fit.seed)
    empty, total = item < 0, torch.zeros(item.shape, dtype=factors.dtype, device=factors.device)
    chosen = factors[item.clamp_min(0)]
    for local in draws:
        logits = (chosen @ (local[user] + offset).unsqueeze(-1)).squeeze(-1)
        total += logits.masked_fill(empty, -torch.inf).softmax(-1)
    return total / len(draws)


def _users(fit: Result, given: Any) -> Tensor:
    labels: Sequence[Any] = fit.data.coords.get("row", range(len(fit.data)))
    place = {label: n for n, label in enumerate(labels)}
    values = given.tolist() if hasattr(given, "tolist") else list(given)
    unknown = [value for value in values if value not in place]
    if unknown:
        raise DataError(f"{unknown[0]!r} is unknown", axis="user", expected="users of the fit's data")
    return torch.tensor([place[value] for value in values], dtype=torch.long, device=fit.data.x.device)


def _shown(model: ChoicePMF, given: Any) -> Tensor:
    sets = [[int(one) for one in items] for items in (given.tolist() if hasattr(given, "tolist") else given)]
    for n, items in enumerate(sets):
        real = [one for one in items if one != -1]
        if len(set(real)) < max(2, len(real)) or min(real) < 0 or max(real) >= model.num_items:
            expected = f"at least two different ones of 0 to {model.num_items - 1}"
            raise DataError(f"impression {n} of the items {items}", site="shown", axis="impression", expected=expected)
    width = max((len(items) for items in sets), default=0)
    return torch.tensor([items + [-1] * (width - len(items)) for items in sets], dtype=torch.long)
