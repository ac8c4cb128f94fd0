"""What users will pick of the items that they are shown: ``Fit.predict`` of choices."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from custom_inference.core.posteriors.nodes import standard_nodes
from custom_inference.core.result import Result
from custom_inference.families.ratings.asked import NEW, RequestSide
from custom_inference.families.ratings.bilinear import Factors, factor_states
from custom_inference.families.ratings.predict import NEW_IS_PRIOR
from custom_inference.families.ratings.prediction import ChancePrediction
from custom_inference.families.ratings.quadratic import precision_of_choosers
from ppl_models import ChoicePMF, Data, DataError, MethodError
from ppl_models.data.containers import as_tensor, unpack
from ppl_models.data.held import to_list
from ppl_models.data.labels import places_of

#: Quasi-random nodes of what users like, of more than three dimensions, and where many states are averaged over.
_DRAWS, _FEW = 512, 64


def predict_choices(
    fit: Result, query: Any = None, *, positions: Any = None, new: str | None = None, user_covariates: Any = None,
    uncertainty: bool = False,
) -> Any:  # fmt: skip
    """Compute p(u picks v of S) of M users u with sets of items S: (M, L), at the place of each item, 0 at empty
    places.

    query: (users, shown): labels of users (M,), their numbers where they have none, and of each the labels or numbers
        of the items shown, sequences of at least two, or (M, L) with -1 in empty places. Averaged over the posterior of
        the users' factors.
    positions: the same with users and items by their numbers in the data, whatever their labels.
    new: "prior": unknown users are new ones and have their prior, without features. By default they are an error.
    user_covariates: (U, P), of users in place of those of the fit, of whom nothing else is known: numbered by the rows,
        or called by the index of a DataFrame.
    uncertainty: give a :class:`ChancePrediction` instead of the means, with intervals of the probabilities.

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
    several = fit.draws is not None
    moments = [
        _probabilities(at, user, item, several) for at in factor_states(fit, None, features, precision_of_choosers)
    ]
    first, second = (torch.stack(part).mean(0) for part in zip(*moments, strict=True))
    found = ChancePrediction(first, (second - first.square()).clamp(min=0).sqrt())
    return found if uncertainty else found.mean


def _probabilities(at: Factors, user: Tensor, item: Tensor, several: bool) -> tuple[Tensor, Tensor]:
    """Return E p and E p^2 (M, L) of the probabilities of the items shown; several: whether there are other states."""
    empty, shown = item < 0, at.items.mean[item.clamp_min(0)]
    logits = (shown @ at.users.mean[user].unsqueeze(-1)).squeeze(-1)

    def choose(moved: Tensor) -> Tensor:
        return moved.masked_fill(empty, -torch.inf).softmax(-1)

    if at.users.covariance is None or bool((user < at.users.first).all()):
        chance = choose(logits)
        return chance, chance.square()
    # Of the logits only differences matter, which have L - 1 dimensions, and no more than there are factors.
    apart = (shown - shown[:, :1]) * ~empty.unsqueeze(-1)
    values, vectors = torch.linalg.eigh(apart @ at.users.dense(user)[1] @ apart.mT)
    size = min(shown.shape[-1], item.shape[1] - 1)
    root = vectors[..., -size:] * values[..., -size:].clamp(min=0).sqrt().unsqueeze(-2)
    nodes = standard_nodes(size, (_FEW if several else _DRAWS) if size > (1 if several else 3) else None).to(logits)
    first, second = torch.zeros_like(logits), torch.zeros_like(logits)
    for place, weight in zip(nodes.place, nodes.log_weight.exp(), strict=True):
        chance = choose(logits + root @ place)
        first, second = first + weight * chance, second + weight * chance.square()
    return first, second


def _features(model: ChoicePMF, given: Any, data: Data) -> Tensor:
    """Return covariates of users in place of those of the fit, less their centre, (U, P)."""
    found = as_tensor(unpack(given)[0], data.x.dtype).to(data.x.device)
    if found.ndim != 2 or not found.shape[1] == model.num_user_covariates > 0:
        expected = f"(U, {model.num_user_covariates}), a row for each user, in a model with num_user_covariates"
        raise DataError(f"user_covariates of shape {tuple(found.shape)}", axis="user", expected=expected)
    return found - model.scale("user", found)[0]


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
