"""Posterior predictive checks: is what was observed like what the fitted model makes?"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from torch import Tensor

from custom_inference.checks.copies import Source, source_of
from custom_inference.checks.predictive_result import Array, PredictiveCheck, line_of
from custom_inference.checks.statistics import Given, Statistic, select_statistics
from custom_inference.core.draws import PosteriorDraws, require_fit
from custom_inference.core.fit import Fit
from custom_inference.core.isolation import default_dtype, isolated
from custom_inference.core.predictive import require_copies
from custom_inference.core.progress import Progress
from custom_inference.core.settings import require_whole
from ppl_models import MethodError

#: Statistics with an entry for every feature, or pair of features, look at no more features than these.
_MOST = {"feature": 500, "answer": 500, "pair": 100}


def posterior_predictive_check(
    fit: Fit, statistics: Given = None, *, num_samples: int = 200, keep: int = 0, seed: int = 0, progress: bool = True
) -> PredictiveCheck:
    """Compare statistics of the training data with those of copies that the fitted model makes of them.

    For draws s = 1..S of globals theta_s and locals z_s from the posterior, and a copy x_s ~ p(x | z_s, theta_s) for
    each, the two-sided posterior predictive p-value of a statistic T is

        p = 2 min(u, 1 - u),    u = P(T(x_s) > T(x)) + P(T(x_s) = T(x)) / 2                            (mid-p)

    and of a realised discrepancy the same with T(x_s, z_s, theta_s) and T(x, z_s, theta_s) (Gelman, Meng & Stern,
    *Posterior predictive assessment of model fitness via realized discrepancies*, Statistica Sinica 6, 1996). Copies
    have what the model takes as given: the rows' own locals (the same nodes, documents of the same lengths), and the
    same entries, or dyads, missing.

    Parameters
    ----------
    statistics: names out of ``STATISTICS[fit.model.data_kind]`` (by default all), a mapping of names to functions, or
        a list of both. A function takes x, an ndarray (N, D) (a numpy masked array where entries are missing; of
        documents and graphs a scipy sparse array); or, as a realised discrepancy, x, a draw of the locals and a mapping
        of draws of the globals. It returns a number; functions of x alone may return an array, of which the largest
        deviation is tested: max_e |T_e - m_e| / s_e, m and s the mean and standard deviation over the data and all
        copies alike (s of entries that hardly vary a little enlarged).
    num_samples: S.
    keep: copies to keep, for ``PredictiveCheck.copies`` and ``to_arviz``.

    The globals are drawn from ``fit.draws`` or ``fit.global_posterior`` where the fit has them, jointly with the locals
    where these were drawn with them; otherwise they are plugged in. ``PredictiveCheck.source`` says which.

    Raises MethodError for unknown names, functions that do not give finite numbers, and fewer than 2 samples;
    CapacityError where a copy does not fit into memory; ModelError for programs with factors of what is observed.
    """
    require_fit(fit)
    require_whole("keep", keep, 0)
    draws = PosteriorDraws(fit, num_samples, seed)
    if num_samples < 2:
        raise MethodError(f"num_samples = {num_samples}, expected at least 2 copies")
    require_copies(fit.model, fit.globals, fit.posterior.mode, fit.data)
    record = _Record(fit, _select(fit, statistics), source_of(fit.model, fit.data))
    bar = Progress(num_samples, "posterior predictive check", enabled=progress)
    with bar, isolated(seed), default_dtype(next(iter(fit.globals.values())).dtype):
        for number, (params, local) in enumerate(draws):
            copy = record.add(params, local, seed=draws.seed_of(fit.model.observed_site, number))
            record.copies += [copy] if number < keep else []
            bar.advance()
    observed, predicted = (
        {name: np.asarray(values) for name, values in one.items()} for one in (record.observed, record.predicted)
    )
    entries = {name: record.labels(statistic) for name, statistic in record.statistics.items()}
    lines = {name: line_of(observed[name], predicted[name], entries[name], draws.markov) for name in observed}
    return PredictiveCheck(
        table=pd.DataFrame.from_dict(lines, orient="index").rename_axis("statistic"),
        observed=observed,
        predicted=predicted,
        entries=entries,
        model=type(fit.model).__name__,
        source=draws.source,
        data=record.source.x,
        copies=record.copies,
    )


def _select(fit: Fit, given: Given) -> dict[str, Statistic]:
    """The statistics that were asked for; by default those that the fit has anything to say of."""
    found = select_statistics(fit.model.data_kind, given)
    if not hasattr(fit.model, "proportions") or "topic" not in fit.params:  # words without topics that stay
        topical = [name for name, one in found.items() if one.needs == "proportions"]
        if topical and given is not None:
            raise MethodError(f"{type(fit.model).__name__} has no topics, which {', '.join(topical)} is about")
        found = {name: one for name, one in found.items() if name not in topical}
    if given is None and fit.data.num_features < 2:  # one column has no pairs
        found = {name: one for name, one in found.items() if one.entries != "pair"}
    return found


class _Record:
    """What is known of every statistic so far: of the data (of a realised one at every draw), and of the copies."""

    def __init__(self, fit: Fit, statistics: Mapping[str, Statistic], source: Source):
        self.fit, self.statistics, self.source = fit, statistics, source
        self.copies: list[Any] = []
        self.predicted: dict[str, list[Array]] = {name: [] for name in statistics}
        self.observed: dict[str, Any] = {}
        self.columns = {entries: _columns(source.x, most) for entries, most in _MOST.items()}
        self.sums = {name: one.function for name, one in statistics.items() if one.needs == "law"}
        for name, one in statistics.items():
            self.observed[name] = self._of_data(name, one, source.x) if one.needs == "x" else []

    def add(self, params: Mapping[str, Tensor], local: Tensor, *, seed: int) -> Any:
        """Draw one copy at a draw of the posterior, record its statistics, and return it."""
        copy, sums = self.source.replicate(params, local, self.sums, seed)
        globals_ = {site: value.cpu().numpy() for site, value in params.items()}
        for name, one in self.statistics.items():
            if one.needs == "x":
                self.predicted[name].append(self._of_data(name, one, copy))
                continue
            pair: Any = sums.get(name)
            if pair is None:
                model: Any = self.fit.model
                drawn = (model.proportions(local) if one.needs == "proportions" else local).cpu().numpy()
                pair = (one.function(x, drawn, globals_) for x in (self.source.x, copy))
            real, made = (_finite(name, value, number=True) for value in pair)
            self.observed[name].append(real)
            self.predicted[name].append(made)
        return copy

    def _of_data(self, name: str, statistic: Statistic, x: Any) -> Array:
        columns = self.columns.get(statistic.entries)
        value = _finite(name, statistic.function(x if columns is None else x[:, columns]))
        if name in self.observed and value.shape != self.observed[name].shape:
            raise MethodError(
                f"statistic '{name}' has shape {value.shape} in a copy and {self.observed[name].shape} in the data; "
                "expected one shape"
            )
        return value

    def labels(self, statistic: Statistic) -> list[str] | None:
        """The names of an array's entries; None where they have only numbers."""
        if statistic.entries == "value":
            return [*map(str, range(30)), "30 or more"]
        if statistic.entries not in _MOST:
            return None
        columns, names = self.columns[statistic.entries], self.fit.column_names
        chosen_names = [str(name) for name in (names if columns is None else [names[j] for j in columns])]
        if statistic.entries == "answer":
            return [f"{name} = {answer}" for name in chosen_names for answer in range(10)]
        if statistic.entries == "pair":
            return [", ".join(pair) for pair in combinations(chosen_names, 2)]
        return chosen_names


def _finite(name: str, value: ArrayLike, *, number: bool = False) -> Array:
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise MethodError(f"statistic '{name}' gave a {type(value).__name__}, expected numbers") from None
    if number and array.ndim:
        raise MethodError(f"realised discrepancy '{name}' has shape {array.shape}, expected a number")
    if not np.isfinite(array).all() or not array.size:
        found = "nothing" if not array.size else str(array[~np.isfinite(array)].flat[0])
        raise MethodError(f"statistic '{name}' gave {found}, expected finite numbers")
    return array


def _columns(x: Any, most: int) -> list[int] | None:
    """The features with the largest total (sparse) or variance (dense), in their order; None for all of them."""
    if x.shape[1] <= most:
        return None
    weight = np.asarray(x.sum(0)).ravel() if hasattr(x, "tocsr") else np.ma.filled(x.var(0), 0.0)
    return sorted(np.argsort(-weight, kind="stable")[:most].tolist())
