"""What users will pick of the items that they are shown: ``Fit.predict`` of choices."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from custom_inference.core.result import Result
from custom_inference.families.ratings.observations import covariates_of
from ppl_models import ChoicePMF, DataError
from ppl_models.data.labels import places_of

#: Draws of what users like, over which probabilities are averaged.
_DRAWS = 400


def predict_choices(fit: Result, query: Any = None, *, positions: Any = None) -> Tensor:
    """p(u picks v of S) of M users u with sets of items S: (M, L), at the place of each item, 0 at empty places.

    query: (users, shown): labels of users (M,), their numbers where they have none, and of each the numbers of the
        items shown, sequences of at least two, or (M, L) with -1 in empty places. Averaged over the posterior of the
        users' factors.
    positions: the same with the users by their numbers in the data, whatever their labels.

    Raises DataError for unknown users and items, and for as many users as sets.
    """
    model = fit.model
    assert isinstance(model, ChoicePMF)
    asked = query if positions is None else positions
    both = query is not None and positions is not None
    if both or not isinstance(asked, tuple | list) or len(asked) != 2 or len(asked[0]) != len(asked[1]):
        expected = "(users, shown), M of each, or positions=(users, shown)"
        raise DataError("no users with as many sets of items", axis="impression", expected=expected)
    labels = fit.data.coords.get("row") if positions is None else None
    user = torch.as_tensor(places_of(asked[0], labels, len(fit.data), "user")).to(fit.data.x.device)
    item = _shown(model, asked[1])
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


def _shown(model: ChoicePMF, given: Any) -> Tensor:
    sets = [[int(one) for one in items] for items in (given.tolist() if hasattr(given, "tolist") else given)]
    for n, items in enumerate(sets):
        real = [one for one in items if one != -1]
        if len(set(real)) < max(2, len(real)) or min(real) < 0 or max(real) >= model.num_items:
            expected = f"at least two different ones of 0 to {model.num_items - 1}"
            raise DataError(f"impression {n} of the items {items}", site="shown", axis="impression", expected=expected)
    width = max((len(items) for items in sets), default=0)
    return torch.tensor([items + [-1] * (width - len(items)) for items in sets], dtype=torch.long)
