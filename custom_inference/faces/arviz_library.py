"""ArviZ itself, whichever is installed: all that the suite calls of it is called here, and nowhere else.

ArviZ 1.0 replaced InferenceData by xarray's DataTree and changed the names in what ``loo`` and ``compare`` return. It
needs Python 3.12. What the suite is tested with is ArviZ 0.23; the calls of 1.x are checked against the signatures of
its functions, which are the same from 1.0 to 1.3, not against ArviZ 1.x itself.
"""

from __future__ import annotations

import abc
import contextlib
import importlib
import logging
import warnings
from collections.abc import Iterator, Mapping
from importlib import metadata
from types import ModuleType
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import NDArray
from scipy.special import logsumexp

Array = NDArray[Any]

#: Above this Pareto k an approximate posterior is not to be relied on (Yao, Vehtari, Simpson & Gelman 2018).
POOR = 0.7


class Elpd(NamedTuple):
    """Leave-one-out predictive accuracy as numbers, and ``data``, the object that ArviZ's own functions take."""

    elpd: float
    se: float
    p_loo: float
    pointwise: Array
    pareto_k: Array
    good_k: float
    num_draws: int
    data: Any


class ArviZ(abc.ABC):
    """The calls that differ between the versions."""

    @property
    def library(self) -> Any:
        """The module."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # 0.23 announces 1.0 on import
            return importlib.import_module("arviz")

    #: What the result of ``loo`` calls elpd, p_loo, pointwise and num_draws.
    elpd_names: ClassVar[tuple[str, str, str, str]]

    @abc.abstractmethod
    def container(self, groups: Mapping[str, xr.Dataset], attributes: Mapping[str, Any]) -> Any:
        """Combine all groups into one object: InferenceData, or a DataTree."""

    def call(self, name: str, *arguments: Any, **settings: Any) -> Any:
        """Call a function of the library, without what it logs."""
        library = self.library
        with _without_logging(library):
            return getattr(library, name)(*arguments, **settings)

    def _read(self, found: Any) -> Elpd:
        elpd, p_loo, pointwise, draws = (getattr(found, name) for name in self.elpd_names)
        arrays = np.asarray(pointwise), np.asarray(found.pareto_k)
        return Elpd(float(elpd), float(found.se), float(p_loo), *arrays, float(found.good_k), int(draws), found)

    def summary(self, data: Any, sites: list[str]) -> pd.DataFrame:
        """ArviZ's table of the draws of these sites; of a single chain, which says nothing of it, without R-hat."""
        with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # of values that no draw changes
            found = pd.DataFrame(self.call("summary", data, var_names=sites))
        return found if data["posterior"].sizes["chain"] > 1 else found.drop(columns="r_hat", errors="ignore")

    @abc.abstractmethod
    def loo(self, log_likelihood: xr.Dataset, efficiency: float) -> Elpd:
        """Compute PSIS-LOO from one variable (chain, draw, n); efficiency: effective draws per draw."""

    @abc.abstractmethod
    def loo_of_weighted_draws(self, log_likelihood: xr.Dataset, log_ratio: Array) -> tuple[Elpd, float]:
        """Compute PSIS-LOO from draws (1, draw, n) of an approximation with log ratios log p - log q (draw,), and the
        Pareto k of these ratios."""

    @abc.abstractmethod
    def mean_size(self, draws: xr.Dataset) -> Array:
        """Effective sample size of the mean of draws (chain, draw, n), (n,)."""

    @abc.abstractmethod
    def compare(self, found: Mapping[str, Any]) -> pd.DataFrame:
        """``arviz.compare`` of what ``loo`` found, with the columns and signs of ArviZ 0.23."""


class _Old(ArviZ):
    """ArviZ 0.x."""

    elpd_names = ("elpd_loo", "p_loo", "loo_i", "n_samples")

    def container(self, groups: Mapping[str, xr.Dataset], attributes: Mapping[str, Any]) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # groups that go with others may stand alone
            return self.library.InferenceData(attrs=dict(attributes), **groups)

    def loo(self, log_likelihood: xr.Dataset, efficiency: float) -> Elpd:
        data = self.container({"log_likelihood": log_likelihood}, {})
        return self._read(self.call("loo", data, pointwise=True, reff=efficiency, scale="log"))

    def loo_of_weighted_draws(self, log_likelihood: xr.Dataset, log_ratio: Array) -> tuple[Elpd, float]:
        (name,) = log_likelihood.data_vars
        unit, each = str(log_likelihood[name].dims[-1]), log_likelihood[name].values[0].T
        weight, own_k = self.call("psislw", log_ratio.copy())
        left_out, pareto_k = self.call("psislw", log_ratio - each)
        pointwise = np.asarray(logsumexp(left_out + each, axis=1))
        good_k = float(min(1 - 1 / np.log10(len(log_ratio)), POOR))
        content = {
            "elpd_loo": float(pointwise.sum()),
            "se": float(np.sqrt(len(pointwise) * pointwise.var())),
            "p_loo": _log_scores(weight, each) - float(pointwise.sum()),
            "n_samples": len(log_ratio),
            "n_data_points": len(pointwise),
            "warning": bool((pareto_k > good_k).any()),
            "loo_i": xr.DataArray(pointwise, dims=(unit,), name="loo_i"),
            "pareto_k": xr.DataArray(pareto_k, dims=(unit,), name="pareto_shape"),
            "scale": "log",
            "good_k": good_k,
        }
        kind = self.library.stats.stats_utils.ELPDData
        return self._read(kind(data=list(content.values()), index=list(content))), float(own_k)

    def mean_size(self, draws: xr.Dataset) -> Array:
        (name,) = draws.data_vars
        return np.asarray(self.call("ess", draws, method="mean")[name].values)

    def compare(self, found: Mapping[str, Any]) -> pd.DataFrame:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of what 0.23 uses of pandas
            return self.call("compare", dict(found))


class _New(ArviZ):
    """ArviZ 1.x: ``loo(data, pointwise, ..., reff, log_weights, pareto_k)``, ``compare(compare_dict, ..., round_to)``,
    ``ess(data, ..., method, chain_axis, draw_axis)`` of ``arviz``; ``psislw(ary, r_eff, axis)`` of ``arviz_stats``,
    which smooths the weights exp(-ary)."""

    elpd_names = ("elpd", "p", "elpd_i", "n_samples")

    def container(self, groups: Mapping[str, xr.Dataset], attributes: Mapping[str, Any]) -> Any:
        tree = xr.DataTree.from_dict(dict(groups))
        tree.attrs.update(attributes)
        return tree

    def loo(self, log_likelihood: xr.Dataset, efficiency: float, **weights: Any) -> Elpd:
        data = self.container({"log_likelihood": log_likelihood}, {})
        return self._read(self.call("loo", data, pointwise=True, reff=efficiency, **weights))

    def loo_of_weighted_draws(self, log_likelihood: xr.Dataset, log_ratio: Array) -> tuple[Elpd, float]:
        (name,) = log_likelihood.data_vars
        values = log_likelihood[name].transpose(..., "chain", "draw")
        each, psis = values.values[:, 0], importlib.import_module("arviz_stats.base").array_stats.psislw
        weight, own_k = psis(-log_ratio, r_eff=1.0, axis=-1)
        left_out, pareto_k = psis(each - log_ratio, r_eff=1.0, axis=-1)
        settings = {"log_weights": values.copy(data=left_out[:, None]), "pareto_k": values[:, 0, 0].copy(data=pareto_k)}
        found = self.loo(log_likelihood, 1.0, **settings)
        # ArviZ takes the draws to be the posterior's; their own weights count in log p(x_n | x), too.
        found.data.p = _log_scores(weight, each) - found.elpd
        return found._replace(p_loo=found.data.p), float(own_k)

    def mean_size(self, draws: xr.Dataset) -> Array:
        (name,) = draws.data_vars
        values = draws[name].transpose("chain", "draw", ...).values
        return np.asarray(self.call("ess", values, method="mean", chain_axis=0, draw_axis=1))

    def compare(self, found: Mapping[str, Any]) -> pd.DataFrame:
        table = self.call("compare", dict(found), round_to="none").rename(columns={"elpd": "elpd_loo", "p": "p_loo"})
        return table.assign(elpd_diff=0.0 - table["elpd_diff"].astype(float))


@contextlib.contextmanager
def _without_logging(library: ModuleType) -> Iterator[None]:
    """Silence the library's loggers.

    Most of what 0.x says goes by a logger that it makes apart from those of ``logging``: that one keeps in mind what it
    is enabled for whatever its level becomes, and is therefore switched off.
    """
    named = [logging.getLogger(name) for name in ("arviz", "arviz_stats")]
    levels = [one.level for one in named]
    own = getattr(library, "_log", None) or logging.Logger("none")
    was, own.disabled = own.disabled, True
    for one in named:
        one.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        own.disabled = was
        for one, level in zip(named, levels, strict=True):
            one.setLevel(level)


def _log_scores(log_weight: Array, each: Array) -> float:
    """sum_n log sum_s w_s p(x_n | draw s), with weights (draw,) that add up to 1 and scores (n, draw)."""
    return float(np.asarray(logsumexp(log_weight - logsumexp(log_weight) + each, axis=1)).sum())


def arviz() -> ArviZ:
    """The calls of the version that is installed."""
    return _Old() if int(metadata.version("arviz").split(".")[0]) < 1 else _New()
