"""Held-out scores of every item of data of any kind, by folds that all models share.

An item is what the scores of two models are compared by, and its weight what it counts:

    rows        log p(x_n | globals) of a row, weight 1
    documents   log probability of the words of one half given the other, weight their number
    graph       log P(linked or not) of a pair of nodes, weight 1
    ratings     log density of a normal distribution about the prediction, of the variance that serves best, weight 1
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from custom_inference.core.fit import Fit, require_complete
from custom_inference.core.local_inference import bounds_of, describe_stand_in, log_likelihood, scalable_bound
from custom_inference.documents.scores import held_out, without_observed
from custom_inference.graphs.links import HeldDyads, hold_out_dyads, link_probability
from custom_inference.methods import fit as default_fit
from ppl_models import CapacityError, Data, DataError, DataWarning, GraphData, MethodError, Model, Ratings

Array = NDArray[np.float64]
#: Pairs of nodes that are held out in all folds together, at most, and the share of all.
_MOST_PAIRS, _MOST_SHARE = 200_000, 0.9
#: Topics are raised to this: words of held-out documents need not occur in the others.
_FLOOR = 1e-12


class Scores(NamedTuple):
    """log scores (M,) of the items, summed over what they consist of, and their weights (M,); remark: on how."""

    value: Array
    weight: Array
    unit: str
    remark: str = ""

    @property
    def mean(self) -> float:
        """The score of a unit: a row, a token, a pair of nodes, a rating."""
        return float(self.value.sum() / self.weight.sum())

    @property
    def error(self) -> float:
        """The standard error of the mean, items being independent."""
        return ratio_error(self.value, self.weight)


class HeldEntries(NamedTuple):
    """Entries (M,) of a matrix of ratings: their places and values."""

    user: Tensor
    item: Tensor
    value: Tensor


def ratio_error(value: Array, weight: Array) -> float:
    """Compute the standard error of sum value / sum weight over independent items (the delta method)."""
    size = len(value)
    if size < 2:
        return math.nan
    residual = value - weight * value.sum() / weight.sum()
    return float(math.sqrt(size / (size - 1) * (residual**2).sum()) / weight.sum())


def group_of(model: Model) -> str:
    """Return how the data of a model are held out: "rows", "documents", "graph" or "ratings"; else their kind."""
    if model.is_graph:
        return "graph"
    if model.data_kind in ("documents", "ratings"):
        return model.data_kind
    return "rows" if model.rows_are_independent else model.data_kind


class Folds(NamedTuple):
    """Folds that all models share. part (N,): the fold of every row or rating; pairs: of every fold, of graphs."""

    group: str
    part: NDArray[np.int64]
    pairs: list[HeldDyads]
    number: int


def make_folds(model: Model, data: Data, folds: int, seed: int) -> Folds:
    """Divide rows, ratings or pairs of nodes into folds at random.

    Raises MethodError for fewer items than folds, and for kinds of data of which nothing is held out here.
    """
    group = group_of(model)
    if group == "graph":
        return Folds(group, np.empty(0, np.int64), _divide_pairs(cast(GraphData, data), folds, seed), folds)
    if group not in ("rows", "documents", "ratings"):
        raise MethodError(f"nothing is held out of data of {type(model).__name__} ({group})")
    size = len(data)
    if group == "ratings":
        size = int(data.observed.sum()) if type(data) is Data else cast(Ratings, data).num_ratings
    if size < folds:
        raise MethodError(
            f"folds = {folds} of {size} {'ratings' if group == 'ratings' else 'rows'}; expected fewer folds"
        )
    return Folds(group, np.random.default_rng(seed).permutation(np.arange(size) % folds), [], folds)


def _divide_pairs(graph: GraphData, folds: int, seed: int) -> list[HeldDyads]:
    """Deal pairs of nodes to the folds, linked ones and others apart."""
    share = min(_MOST_SHARE, _MOST_PAIRS / graph.num_dyads)
    _, held = hold_out_dyads(graph, share, seed)
    order = np.random.default_rng(seed).permutation(len(held.value))
    order = order[np.argsort((held.value > 0).cpu().numpy()[order], kind="stable")]
    parts = [torch.as_tensor(np.sort(order[fold::folds])) for fold in range(folds)]
    return [HeldDyads(held.i[part], held.j[part], held.value[part]) for part in parts]


def score_held_out(
    model: Model, data: Data, folds: Folds, *, seed: int, progress: bool, method: str | None = None
) -> Scores:
    """Fit a model to all folds but one, and score that one, for every fold. method: None for the default.

    Raises the errors of fits and scores; DataError where a score is no number.
    """
    score = _SCORES[folds.group]
    found: list[tuple[Array, Array, str]] = []
    for fold in range(folds.number):
        train, test = _split(data, folds, fold)
        with warnings.catch_warnings():  # what is to be said of the data was said of all of them
            warnings.simplefilter("ignore", DataWarning)
            fit = require_complete(default_fit(model, train, seed=seed, method=method, progress=progress))
            found.append(score(fit, test))
    value, weight = (np.concatenate([one[place] for one in found]) for place in (0, 1))
    if folds.group == "ratings":
        value = _normal(value)
    if not np.isfinite(value).all():
        bad = int((~np.isfinite(value)).sum())
        raise DataError(f"{bad} of {len(value)} held-out scores of {type(model).__name__} are not finite", axis="row",
                        expected="positive probabilities: a prior that keeps them off 0")  # fmt: skip
    return Scores(value, weight, _UNITS[folds.group], next((one[2] for one in found if one[2]), ""))


#: Group -> what the mean score is of.
_UNITS = {"rows": "row", "documents": "token", "graph": "pair of nodes", "ratings": "rating"}


def _split(data: Data, folds: Folds, fold: int) -> tuple[Data, Any]:
    if folds.group == "graph":
        held = folds.pairs[fold]
        return cast(GraphData, data).without(torch.stack([held.i, held.j])), held
    inside, outside = (torch.as_tensor(np.flatnonzero(w)) for w in (folds.part == fold, folds.part != fold))
    if folds.group == "ratings" and type(data) is Data:  # a matrix: entries of it are held out
        user, item = data.observed.nonzero().T
        mask = data.observed.clone()
        mask[user[inside], item[inside]] = False
        value = data.dense().x[user[inside], item[inside]]
        return replace(data, mask=mask), HeldEntries(user[inside], item[inside], value)
    if folds.group == "ratings":
        ratings = cast(Ratings, data)
        return ratings.chosen(outside), ratings.chosen(inside)
    return data.rows(outside), data.rows(inside)


def _score_rows(fit: Fit, test: Data) -> tuple[Array, Array, str]:
    """log p(x_n | globals): exact, or the bound or estimate that the remark names."""
    remark = ""
    try:
        each = log_likelihood(fit.model, fit.globals, test, seed=fit.seed)
    except (MethodError, CapacityError):
        if not bounds_of(fit.model):
            raise
        bound = fit.bound_name if fit.bound_name in bounds_of(fit.model) else scalable_bound(fit.model)
        each = log_likelihood(fit.model, fit.globals, test, bound=bound, seed=fit.seed)
        remark = f"held-out scores are not log p(x) itself but {describe_stand_in(fit.model, bound)}"
    return each.detach().double().cpu().numpy(), np.ones(len(each)), remark


def _score_documents(fit: Fit, test: Data) -> tuple[Array, Array, str]:
    found = held_out(fit, without_observed(fit.model, test), how="completion", floor=_FLOOR, seed=fit.seed)
    return found.log_probability.double().cpu().numpy(), found.tokens.double().cpu().numpy(), ""


def _score_pairs(fit: Fit, test: HeldDyads) -> tuple[Array, Array, str]:
    chance = link_probability(fit, test).detach().double().cpu().numpy().clip(1e-12, 1 - 1e-12)
    linked = (test.value > 0).cpu().numpy()
    return np.where(linked, np.log(chance), np.log1p(-chance)), np.ones(len(chance)), ""


def _score_ratings(fit: Fit, test: Ratings | HeldEntries) -> tuple[Array, Array, str]:
    """Return the errors of the predictions."""
    entries = type(test) is HeldEntries
    predicted = fit.predict(positions=(test.user, test.item)) if entries else fit.predict(test)
    error = torch.as_tensor(predicted).to(test.value) - test.value
    return error.double().cpu().numpy(), np.ones(len(error)), ""


def _normal(error: Array) -> Array:
    variance = max(float((error**2).mean()), 1e-12)
    return -0.5 * (math.log(2 * math.pi * variance) + error**2 / variance)


_SCORES: dict[str, Callable[[Fit, Any], tuple[Array, Array, str]]] = {
    "rows": _score_rows,
    "documents": _score_documents,
    "graph": _score_pairs,
    "ratings": _score_ratings,
}
