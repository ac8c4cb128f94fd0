"""Presentation of models in figures and reports: labels, colour bars, columns. The models themselves know nothing of
it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ppl_models import Data, Model
from ppl_models.data.answers import ANSWERS

Params = Mapping[str, Tensor]


def _side_by_side(model: Model, params: Params) -> Tensor:
    axis = model.dims[model.component_site].index("component")
    components = params[model.component_site].movedim(axis, 0)
    possible = model.possible(model.component_site)
    if possible is not None:  # places that are always 0 are no entries
        return components[:, possible.to(components.device).expand(components.shape[1:])]
    return components.reshape(len(components), -1)


def _features(model: Model, features: Sequence[Any]) -> list[Any]:
    """The features, or of tables "feature = category"; of components of other axes than x has, places on these."""
    axes = [axis for axis in model.dims[model.component_site] if axis != "component"]
    sizes = [model.sizes[axis] for axis in axes]
    tables = sizes[max(1, len(model.sites[model.observed_site].dims)) :]
    if math.prod(sizes) != len(features) * math.prod(tables):
        places = itertools.product(*(range(size) for size in sizes))
        return [", ".join(f"{axis} {i}" for axis, i in zip(axes, place, strict=True)) for place in places]
    if not tables:
        return list(features)
    cells = [", ".join(map(str, place)) for place in itertools.product(*map(range, tables))]
    labels = [f"{name} = {cell}" for name in features for cell in cells]
    possible = model.possible(model.component_site)
    return labels if possible is None else list(itertools.compress(labels, possible.flatten().tolist()))


@dataclass(frozen=True, kw_only=True)
class Presentation:
    """How the components of a model are shown. The defaults suit any model whose components are rows of features.

    value: what an entry of the component site is. local: what a posterior mean of the main latent is: labels of scales.
    baseline: a (D,) global that is drawn beside the components (a leak, a bias), if there is one.
    prominence: (model, params) -> (K,), how much each component matters: what reports order them by.
    columns: (model, params) -> column name -> (K,), what reports say of each beside its strongest features. By default
        the prominence.
    share: (model, params, data, mean) -> (K,), the share of the data that a fit assigns to each component, from the
        posterior means (N, K) of its locals; it adds up to 1. Where there is one it is the prominence, and the first
        column, "share".
    matrix, labels: the components side by side (K, F), and what their F columns are called, from the features' names.
    shut_off: (params, thresholds) -> (K,) bool, the components that explain nothing; by default none is.
    """

    value: str = "value"
    local: str = "posterior mean"
    baseline: str | None = None
    prominence: Callable[[Any, Params], Tensor] = lambda model, params: _side_by_side(model, params).abs().sum(-1)
    columns: Callable[[Any, Params], dict[str, Tensor]] | None = None
    share: Callable[[Any, Params, Data, Tensor], Tensor] | None = None
    matrix: Callable[[Any, Params], Tensor] = _side_by_side
    labels: Callable[[Any, Sequence[Any]], list[Any]] = _features
    shut_off: Callable[..., Tensor] | None = None

    def labels_of(self, model: Model, features: Sequence[Any], data: Data) -> list[Any]:
        """Return the names of the F columns of ``matrix``: those of ``labels``, with the answers of data that have
        labels of them."""
        given, categories = data.coords.get(ANSWERS), getattr(model, "categories", None)
        if given is None or categories is None or self.labels is not _features:
            return self.labels(model, features)
        most = categories if model.possible(model.component_site) is not None else [max(categories)] * len(categories)
        named = zip(features, given, most, strict=True)
        more = ["(other)", *(f"(other {n})" for n in range(2, max(categories) + 1))]  # answers that no row has
        return [f"{name} = {[*one, *more][c]}" for name, one, size in named for c in range(size)]

    def report_columns(
        self, model: Model, params: Params, data: Data, mean: Callable[[], Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The prominence of each component (K,), and what reports say of it: column name -> (K,).

        mean: gives the posterior means of the locals of the data, (N, K), where they are needed.
        """
        first = "prominence" if self.share is None else "share"
        use = self.prominence(model, params) if self.share is None else self.share(model, params, data, mean())
        if self.columns is None:
            return use, {first: use}
        return use, ({} if self.share is None else {first: use}) | self.columns(model, params)

    def is_shut_off(self, model: Model, params: Params, **thresholds: float) -> Tensor:
        """Components that explain nothing, (K,) bool."""
        if self.shut_off is not None:
            return self.shut_off(params, **thresholds)
        return torch.zeros(model.sizes["component"], dtype=torch.bool)


def mean_membership(model: Model, params: Params, data: Data, mean: Tensor) -> Tensor:
    """Share by memberships: their posterior means, averaged over the rows or nodes."""
    del model, params, data
    return mean.mean(0)


def block_labels(model: Any, features: Sequence[Any]) -> list[Any]:
    """Columns of block matrices: the blocks that a block sends to."""
    del features
    return [f"to s{k}" for k in range(model.num_blocks)]
