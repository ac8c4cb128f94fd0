"""The names of what a fit is about: of rows, columns, components and the entries of latents."""

from __future__ import annotations

import itertools
import math
from typing import Any

from torch import Tensor

from ppl_models import Data, Model
from ppl_models.data.adapt import adapt
from ppl_models.data.answers import ANSWERS, labels_in_common
from ppl_models.data.held import Source
from ppl_models.data.lazy import is_pandas, is_xarray
from ppl_models.data.lazy import pandas as pd
from ppl_models.data.lazy import xarray as xr


class Labelled:
    """What has a model and data, whose axes have labels."""

    model: Model
    data: Data

    @property
    def coords(self) -> dict[str, list[Any]]:
        """Labels of the axes: the data's, and numbers for the components."""
        model, data = self.model, self.data
        labels, of_data = {model.row_axis: "row"}, {**model.sizes, model.row_axis: len(data)}
        if data.x.ndim == 2:
            labels[model.feature_axis], of_data[model.feature_axis] = "feature", data.num_features
        sizes: dict[str, int] = {}
        for site, axes in model.dims.items():
            known = dict(zip(axes, model.shapes[site], strict=True)) if site in model.shapes else of_data
            sizes |= {axis: known[axis] for axis in axes if axis in known}
        found = {axis: data.coords.get(labels.get(axis, axis), list(range(size))) for axis, size in sizes.items()}
        shared = labels_in_common(data.coords.get(ANSWERS), sizes.get("category"))
        return found if shared is None else {**found, "category": shared}

    @property
    def column_names(self) -> list[Any]:
        """The labels of the entries of a row of x: the site's name for one number, combined labels for an array."""
        site, coords = self.model.observed_site, self.coords
        if self.data.x.ndim == 2:
            return coords[self.model.feature_axis]
        labels = itertools.product(*(coords[axis] for axis in self.model.sites[site].dims))
        return [", ".join(map(str, place)) or site for place in labels]

    @property
    def component_names(self) -> list[str]:
        """The labels of the components, or of the last axis of the main latent if no axis has that name; without labels
        s0, s1, ..."""
        coords, site = self.coords, self.model.sites[self.model.local_site]
        axis = "component" if "component" in coords else site.choice or (site.dims or ("",))[-1]
        labels = coords.get(axis, range(math.prod(self.model.local_shape[-1:])))
        return [f"s{label}" if isinstance(label, int) else str(label) for label in labels]

    @property
    def local_names(self) -> list[str]:
        """The names of the entries of a row's main latent: the components, after entries that the model adds."""
        return [*self.model.before_components, *self.component_names]

    def label_entries(self, x: Source | None, mean: Tensor, data: Data) -> Any:
        """Label expected entries (N, D) of the rows as :meth:`label_rows` does, in the columns of the fit."""
        names = list(self.column_names)
        plain = mean.ndim != 2 or mean.shape[1] != len(names)
        return mean if plain else self.label_rows(x, mean, data, names, self.model.feature_axis)

    def label_rows(self, x: Any, mean: Tensor, data: Data, names: list[Any] | None = None, axis: str = "") -> Any:
        """Label values of the rows by the labels of x, if it is a container that has some. names: of the values of a
        row, along an axis; by default those of its locals."""
        x, values, names = adapt(x), mean.detach().cpu().numpy(), names or self.local_names
        if values.ndim > 2:  # of a latent with several axes: its entries side by side
            values = values.reshape(len(values), -1)
        if values.shape[1] != len(names):
            names = [f"{self.model.local_site}_{i}" for i in range(values.shape[1])]
        if is_pandas(x, "DataFrame", "Series"):
            own = len(x) == len(mean) and self.model.rows_are_independent  # a graph may be a list of edges
            index = x.index if own else data.coords.get("row", list(range(len(mean))))
            return pd.DataFrame(values, index=index, columns=names)
        if is_xarray(x, "DataArray"):
            rows, axis = x.dims[0], (x.dims[1] if axis and x.ndim == 2 else axis or "component")
            label = {axis: names} | ({rows: x.coords[rows].values} if rows in x.coords else {})
            return xr.DataArray(values, dims=(rows, axis), coords=label)
        return mean
