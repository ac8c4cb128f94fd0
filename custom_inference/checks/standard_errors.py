"""How well the data determine the globals: standard errors and intervals, whatever they were found by."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from scipy.stats import norm
from torch import Tensor

from custom_inference.core.fit import Fit
from ppl_models import MethodError
from ppl_models.data.lazy import pandas as pd
from ppl_models.data.lazy import xarray as xr

_STATISTICS = ("estimate", "standard_error", "low", "high")


@dataclass(frozen=True, kw_only=True)
class StandardErrors:
    """Standard errors of the globals of a fit, as ``bootstrap`` and ``observed_information`` give them.

    fit: what they are of. how: "rows", "parametric" or "information". standard_error: global site -> a tensor of its
    shape. draws: of a bootstrap, site -> (draws, ...), with the components in the fit's order; of the information none.
    said: what is to be known of how they came about.
    """

    fit: Fit
    how: str
    standard_error: dict[str, Tensor]
    draws: dict[str, Tensor] = field(default_factory=dict)
    said: str = ""

    def __repr__(self) -> str:
        return f"{type(self).__name__} of {type(self.fit.model).__name__} by {self.how}: {self.said}"

    def _repr_html_(self) -> str:
        return self.table().to_html()

    def interval(self, level: float = 0.95) -> dict[str, tuple[Tensor, Tensor]]:
        """Site -> lower and upper ends: percentiles of the draws, or estimate -/+ z standard errors.

        Raises MethodError for a level outside (0, 1).
        """
        if not 0 < level < 1:
            raise MethodError(f"level = {level}, expected a number between 0 and 1, such as .95")
        if self.draws:
            share = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64)
            ends = {site: torch.quantile(draws.double(), share, 0) for site, draws in self.draws.items()}
            return {site: (low, high) for site, (low, high) in ends.items()}
        away = float(norm.ppf((1 + level) / 2))
        known = ((site, self.fit.params[site], error) for site, error in self.standard_error.items())
        return {site: (value - away * error, value + away * error) for site, value, error in known}

    def table(self, level: float = 0.95) -> pd.DataFrame:
        """One line for every number: estimate, standard_error, low and high, by the site and its place's labels."""
        lines, places = [], []
        for site, parts in self._numbers(level).items():
            places += [(site, ", ".join(map(str, label))) for label in itertools.product(*self._labels(site))]
            lines += parts.reshape(len(_STATISTICS), -1).T.tolist()
        index = pd.MultiIndex.from_tuples(places, names=["site", "place"])
        return pd.DataFrame(lines, index=index, columns=list(_STATISTICS))

    def to_xarray(self, level: float = 0.95) -> Any:
        """An xarray Dataset with a variable for each site, dimension "statistic" (estimate, standard_error, low, high)
        in front of the site's axes, whose labels are the data's."""
        found, coords = {}, {"statistic": list(_STATISTICS)}
        for site, parts in self._numbers(level).items():
            axes = self.fit.model.dims[site]
            found[site] = (("statistic", *axes), parts)
            coords |= dict(zip(axes, self._labels(site), strict=True))
        return xr.Dataset(found, coords)

    def _numbers(self, level: float) -> dict[str, np.ndarray]:
        """Site -> (4, ...), the statistics in their order."""
        ends = self.interval(level)
        every = {site: (self.fit.params[site], error, *ends[site]) for site, error in self.standard_error.items()}
        return {s: np.stack([part.detach().cpu().double().numpy() for part in v]) for s, v in every.items()}

    def _labels(self, site: str) -> list[list[Any]]:
        coords, shape = self.fit.coords, self.fit.params[site].shape
        axes = zip(self.fit.model.dims[site], shape, strict=True)
        return [list(coords.get(axis, range(size))) for axis, size in axes]
