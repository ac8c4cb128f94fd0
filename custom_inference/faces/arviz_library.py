"""ArviZ itself, whichever is installed: all that the suite calls of it is called here, and nowhere else.

ArviZ 1.0 replaced InferenceData by xarray's DataTree and changed the names in what ``loo`` and ``compare`` return. It
needs Python 3.12. The tests run with either (``make matrix``), and with 0.23 also against stand-ins that have the
signatures of 1.x.
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
#: Logarithms of weights that differ by less are equal but for rounding.
EQUAL = 1e-9


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

    #: What the result of ``loo`` calls elpd, pointwise and p_loo.
    elpd_names: ClassVar[tuple[str, str, str]]

    def container(self, groups: Mapping[str, xr.Dataset], attributes: Mapping[str, Any]) -> Any:
        """Combine all groups into one object: InferenceData, or a DataTree.

        Neither a tree nor a netCDF file can have names with "/": ``layer/weight`` becomes ``layer.weight``.
        """
        return self._combine(rename_paths(groups), attributes)

    @abc.abstractmethod
    def _combine(self, groups: Mapping[str, xr.Dataset], attributes: Mapping[str, Any]) -> Any: ...

    def call(self, name: str, *arguments: Any, **settings: Any) -> Any:
        """Call a function of the library, without what it logs."""
        library = self.library
        with _without_logging(library):
            return getattr(library, name)(*arguments, **settings)

    def loo(self, log_likelihood: xr.Dataset, efficiency: float = 1.0, log_ratio: Array | None = None) -> Elpd:
        """Compute PSIS-LOO from one variable (chain, draw, n).

        efficiency: effective draws per draw. log_ratio (draws,): log p - log q of draws of an approximation q, whose
        own weights count in log p(x_n | x), too; None of draws of the posterior.
        """
        (log_likelihood,) = rename_paths({"log_likelihood": log_likelihood}).values()
        (values,) = log_likelihood.data_vars.values()
        values = values.transpose(..., "chain", "draw")
        each = values.values.reshape(len(values), -1)
        ratio = np.zeros(each.shape[1]) if log_ratio is None else log_ratio
        own, _ = self.smooth(ratio[None])
        weights, pareto_k = self.smooth(ratio - each, efficiency)
        data = self._elpd(log_likelihood, values.copy(data=weights.reshape(values.shape)), pareto_k)
        elpd, pointwise = (np.asarray(getattr(data, name)) for name in self.elpd_names[:2])
        p_loo = float(np.asarray(logsumexp(own + each, axis=1)).sum() - elpd)
        setattr(data, self.elpd_names[2], p_loo)
        return Elpd(float(elpd), float(data.se), p_loo, pointwise, pareto_k, float(data.good_k), each.shape[1], data)

    def smooth(self, log_weight: Array, efficiency: float = 1.0) -> tuple[Array, Array]:
        """Smooth the largest weights of each line (n, draws) by a Pareto distribution; their normalised logarithms, and
        Pareto k (n,).

        Where the largest are equal, as of observations whose likelihood is the same at every draw (a row all of which
        is missing), there is no tail to fit: weights stay as they are, and k is -inf.
        """
        log_weight = log_weight - np.asarray(logsumexp(log_weight, axis=1, keepdims=True))
        k, number = np.full(len(log_weight), -np.inf), log_weight.shape[1]
        length = max(5, int(min(number / 5, 3 * np.sqrt(number / efficiency))))
        largest = np.sort(log_weight, axis=1)[:, -length:]
        fitted = largest[:, -1] - largest[:, 0] > EQUAL
        if fitted.any():
            log_weight[fitted], k[fitted] = self._psis(log_weight[fitted], efficiency)
        return log_weight, np.where(np.isnan(k), np.inf, k)

    @abc.abstractmethod
    def _psis(self, log_weight: Array, efficiency: float) -> tuple[Array, Array]: ...

    @abc.abstractmethod
    def _elpd(self, log_likelihood: xr.Dataset, log_weights: xr.DataArray, pareto_k: Array) -> Any:
        """Make the object of ArviZ's from smoothed weights (n, chain, draw) and their k (n,)."""

    @abc.abstractmethod
    def mean_size(self, draws: xr.Dataset) -> Array:
        """Effective sample size of the mean of draws (chain, draw, n), (n,)."""

    @abc.abstractmethod
    def compare(self, found: Mapping[str, Any]) -> pd.DataFrame:
        """``arviz.compare`` of what ``loo`` found, with the columns and signs of ArviZ 0.23."""


class _Old(ArviZ):
    """ArviZ 0.x."""

    elpd_names = ("elpd_loo", "loo_i", "p_loo")

    def _combine(self, groups: Mapping[str, xr.Dataset], attributes: Mapping[str, Any]) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # groups that go with others may stand alone
            return self.library.InferenceData(attrs=dict(attributes), **groups)

    def _psis(self, log_weight: Array, efficiency: float) -> tuple[Array, Array]:
        return self.call("psislw", log_weight, reff=efficiency)

    def _elpd(self, log_likelihood: xr.Dataset, log_weights: xr.DataArray, pareto_k: Array) -> Any:
        (values,) = log_likelihood.data_vars.values()
        unit, number = str(log_weights.dims[0]), values.sizes["chain"] * values.sizes["draw"]
        summed = logsumexp((log_weights + values).transpose(unit, ...).values, axis=(1, 2))
        pointwise, good_k = np.asarray(summed), min(1 - 1 / np.log10(number), POOR)
        content = {
            "elpd_loo": float(pointwise.sum()),
            "se": float(np.sqrt(len(pointwise) * pointwise.var())),
            "p_loo": np.nan,
            "n_samples": number,
            "n_data_points": len(pointwise),
            "warning": bool((pareto_k > good_k).any()),
            "loo_i": xr.DataArray(pointwise, dims=(unit,), name="loo_i"),
            "pareto_k": xr.DataArray(pareto_k, dims=(unit,), name="pareto_shape"),
            "scale": "log",
            "good_k": good_k,
        }
        kind = self.library.stats.stats_utils.ELPDData
        return kind(data=list(content.values()), index=list(content))

    def mean_size(self, draws: xr.Dataset) -> Array:
        (name,) = draws.data_vars
        return np.asarray(self.call("ess", draws, method="mean")[name].values)

    def compare(self, found: Mapping[str, Any]) -> pd.DataFrame:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of what 0.23 uses of pandas
            return self.call("compare", dict(found))


class _New(ArviZ):
    """ArviZ 1.x: ``loo(data, pointwise, ..., log_weights, pareto_k)``, ``compare(compare_dict, ..., round_to)``,
    ``ess(data, ..., method, chain_axis, draw_axis)`` of ``arviz``; ``psislw(ary, r_eff, axis)`` of ``arviz_stats``,
    which smooths the weights exp(-ary)."""

    elpd_names = ("elpd", "elpd_i", "p")

    def _combine(self, groups: Mapping[str, xr.Dataset], attributes: Mapping[str, Any]) -> Any:
        tree = xr.DataTree.from_dict(dict(groups))
        tree.attrs.update(attributes)
        return tree

    def _psis(self, log_weight: Array, efficiency: float) -> tuple[Array, Array]:
        psis = importlib.import_module("arviz_stats.base").array_stats.psislw
        return psis(-log_weight, r_eff=efficiency, axis=-1)

    def _elpd(self, log_likelihood: xr.Dataset, log_weights: xr.DataArray, pareto_k: Array) -> Any:
        data = self._combine({"log_likelihood": log_likelihood}, {})
        by_unit = log_weights[:, 0, 0].copy(data=pareto_k)
        with warnings.catch_warnings(action="ignore", category=UserWarning):  # of large k, which is told by who asked
            # The efficiency was used in the weights; ArviZ would look for the posterior's.
            return self.call("loo", data, pointwise=True, reff=1.0, log_weights=log_weights, pareto_k=by_unit)

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


def rename_paths(groups: Mapping[str, xr.Dataset]) -> dict[str, xr.Dataset]:
    """Write "." for "/" in the names of variables and axes; the attribute ``long_name`` has them as they were."""
    names = {str(name) for group in groups.values() for name in (*group.variables, *group.dims)}
    new: dict[str, str] = {}
    for name in sorted(name for name in names if "/" in name):
        new[name] = name.replace("/", ".")
        while new[name] in names:
            new[name] += "_"
        names.add(new[name])
    found = {}
    for key, group in groups.items():
        found[key] = group.rename({name: to for name, to in new.items() if name in (*group.variables, *group.dims)})
        for name, to in new.items():
            if to in found[key].variables:
                found[key][to].attrs["long_name"] = name
    return found


def arviz() -> ArviZ:
    """The calls of the version that is installed."""
    return _Old() if int(metadata.version("arviz").split(".")[0]) < 1 else _New()
