"""The result of a posterior predictive check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import NDArray
from scipy.special import ndtri

from custom_inference.core.diagnostics import effective_size
from custom_inference.faces.arviz_library import arviz
from ppl_models import MethodError
from ppl_models.core.errors import unknown_name

Array = NDArray[Any]

#: A verdict calls statistics extreme at this level, shared among all that were looked at (Bonferroni).
LEVEL = 0.05


@dataclass(frozen=True)
class PredictiveCheck:
    """Statistics of the data beside those of copies; see :func:`custom_inference.posterior_predictive_check`.

    table: one line a statistic: ``observed`` (of a realised discrepancy its mean over the draws; of an array the
        largest deviation from the copies, in standard deviations), ``mean`` and ``sd`` over the copies, ``p_value``,
        ``error`` (its Monte Carlo standard error), ``tail`` ("two-sided"; "upper" of largest deviations) and ``worst``
        (of an array the entry that deviates most).
    source: where globals and locals came from, in words.
    observed: statistic -> its value in the data, (...); of realised discrepancies at every draw, (S,).
    predicted: statistic -> its values in the copies, (S, ...).
    entries: statistic -> labels of the entries of an array, or None.
    data, copies: the data as statistics read them, and the copies that were kept.

    The p-values are no test of a stated level: the data were used twice, so that where the model holds they lie closer
    to 1 than uniform ones, the more so the more directly a statistic was fitted (the means of the columns nearly always
    agree). An extreme one says that the model misses something; others say little (Robins, van der Vaart & Ventura,
    *Asymptotic distribution of p values in composite null models*, JASA 95, 2000).
    """

    table: pd.DataFrame
    source: str
    model: str
    observed: dict[str, Array]
    predicted: dict[str, Array]
    entries: dict[str, list[str] | None]
    data: Any
    copies: list[Any]

    def __repr__(self) -> str:
        lines = self.table.to_string(float_format=lambda value: f"{value:.4g}", na_rep="")
        return f"{lines}\n{self.source}\n{self.verdict}"

    def _repr_html_(self) -> str:
        from custom_inference.faces import displays

        title = f"Posterior predictive check of {self.model}"
        return displays.report(title, self.verdict, self.source, table=self.table, plot=self.plot)

    @property
    def num_samples(self) -> int:
        return len(next(iter(self.predicted.values())))

    @property
    def extreme(self) -> list[str]:
        """The statistics in which the data are unlike the copies, the worst first.

        Those with p below .05 / (number of statistics); where S copies cannot tell so small a p from 0, they have to
        be further from the mean of the copies than a normal variable is with that probability too.
        """
        level = LEVEL / len(self.table)
        resolved, found = level > 2 / self.num_samples, []
        for name in self.observed:
            line: Any = self.table.loc[name]
            off = abs(line["observed"] - line["mean"])
            # Of a statistic that is the same in all copies any other value is infinitely far away.
            distance = off / line["sd"] if line["sd"] > 0 else np.inf if off > 0 else 0.0
            limit = -ndtri(level / 2 if line["tail"] == "two-sided" else level)
            if line["p_value"] < level and (resolved or distance > limit):
                found.append((-distance, name))
        return [name for _, name in sorted(found)]

    @property
    def verdict(self) -> str:
        """A sentence."""
        total, found = len(self.table), self.extreme
        plural = "statistic" if total == 1 else "statistics"
        if not found:
            least = str(self.table["p_value"].idxmin())
            told = f"None of {total} {plural} tells the data from copies by {self.model}"
            return f"{told} at the level {LEVEL} / {total} (smallest p-value: {self.p_value(least)}, of {least})."
        parts = [self._unlike(name) for name in found]
        told = f"The data are unlike copies by {self.model} in {len(found)} of {total} {plural}: {'; '.join(parts)}."
        beyond = [str(name) for name in self.observed if self.table.loc[name, "p_value"] == 0 and name not in found]
        if not beyond:
            return told
        several = "no copy is as far out as the data in " + ", ".join(beyond)
        return f"{told} Beyond these {several}; {self.num_samples} copies cannot tell how rare that is."

    def p_value(self, name: str) -> str:
        """The p-value in print: not 0, but below what so many copies can tell from it."""
        value, finest = self.table.loc[name, "p_value"], 2 / self.num_samples
        return f"< {finest:.2g}" if value < finest else f"{value:.2g}"

    def _unlike(self, name: str) -> str:
        line = self.table.loc[name]
        value, mean, sd, of = line["observed"], line["mean"], line["sd"], ""
        if line["tail"] == "upper":  # an array: its entry that deviates most
            value, mean, sd = self.deviations(name).iloc[0][["observed", "mean", "sd"]]
            of = f" of {line['worst']}"
        return f"{name}{of} ({value:.4g}, copies {mean:.4g} ± {sd:.2g})"

    def _summary(self, name: str) -> tuple[float, Array]:
        """The number that stands for a statistic that is none: its largest deviation, in the data and the copies."""
        observed, predicted = self.observed[name], self.predicted[name]
        if predicted.ndim == 1:
            return float(observed.mean()), predicted
        return _largest(observed, predicted)[1:]

    def deviations(self, name: str) -> pd.DataFrame:
        """Tabulate every entry of an array statistic: observed, mean and sd of the copies, z; largest |z| first.

        Raises MethodError where the statistic is a number, or unknown.
        """
        if name not in self.observed:
            raise MethodError(unknown_name("statistic of this check", name, self.observed))
        if self.table.loc[name, "tail"] != "upper":
            raise MethodError(f"statistic '{name}' is a number; its line of the table is all there is")
        made = self.predicted[name].reshape(self.num_samples, -1)
        z, _ = _standardise(self.observed[name], self.predicted[name])
        frame = pd.DataFrame(
            {"observed": self.observed[name].ravel(), "mean": made.mean(0), "sd": made.std(0, ddof=1), "z": z},
            index=pd.Index(self.entries[name] or range(made.shape[1]), name="entry"),
        )
        return frame.iloc[np.argsort(-np.abs(z), kind="stable")]

    def plot(self, kind: str = "histograms", **settings: Any) -> Any:
        """A figure. kind: "histograms" (the copies' statistics with a line at the data's; of realised discrepancies
        points, copy against data, above the diagonal where the copy's is larger), or of counts "rootogram".

        settings: ``title``, and what to draw on: ``axes``, one for each statistic, or ``ax`` of the rootogram; returns
        these, or a new Figure.
        """
        from custom_inference.checks import plots

        kinds = {"histograms": plots.plot_histograms, "rootogram": plots.plot_rootogram}
        if kind not in kinds:
            raise MethodError(unknown_name("kind of plot", kind, kinds))
        return kinds[kind](self, **settings)

    def to_arviz(self) -> Any:
        """InferenceData (ArviZ 0.x) or DataTree (1.x).

        posterior_predictive: the statistics of the copies (chain, draw, ...), one chain; ``x`` of the copies kept.
        observed_data: those of the data, and ``x``; of realised discrepancies the mean over the draws.
        posterior: realised discrepancies of the data at every draw.
        """
        made = {name: _variable(value[None], 2) for name, value in self.predicted.items()}
        drawn = {name: value for name, value in self.observed.items() if self._is_realised(name)}
        real = self.observed | {name: np.asarray(value.mean()) for name, value in drawn.items()}
        observed = xr.Dataset({name: _variable(value, 0) for name, value in real.items()})
        groups = {"posterior_predictive": xr.Dataset(made), "observed_data": observed}
        if drawn:
            groups["posterior"] = xr.Dataset({name: _variable(value[None], 2) for name, value in drawn.items()})
        if self.copies:
            kept = np.stack([_dense(copy) for copy in self.copies])[None]
            groups["posterior_predictive"]["x"] = (("chain", "copy", "row", "feature"), _as_whole(kept))
            groups["observed_data"]["x"] = (("row", "feature"), _as_whole(_dense(self.data)))
        attributes = {"model": self.model, "source": self.source, "inference_library": "ppl-models"}
        return arviz().container(groups, attributes)

    def _is_realised(self, name: str) -> bool:
        return self.observed[name].shape == (self.num_samples,) and self.predicted[name].ndim == 1


def line_of(observed: Array, predicted: Array, labels: list[str] | None, markov: bool) -> dict[str, Any]:
    """The line of a statistic in ``PredictiveCheck.table``."""
    worst, vector = "", predicted.ndim > 1
    if vector:
        place, largest, predicted = _largest(observed, predicted)
        observed, worst = np.asarray(largest), labels[place] if labels else str(place)
    difference = np.sign(predicted - observed)
    upper = float((difference > 0).mean() + 0.5 * (difference == 0).mean())
    number = float(len(difference))
    if markov and np.ptp(difference) > 0:  # how many independent draws those of the chain are worth
        number = float(np.fmin(effective_size(difference[None]), number))
    # Off 0 and 1, where the plain standard error would be 0 whatever the number of copies.
    inside = (number * upper + 0.5) / (number + 1)
    error = float(np.sqrt(inside * (1 - inside) / number))
    return {
        "observed": float(observed.mean()),
        "mean": float(predicted.mean()),
        "sd": float(predicted.std(ddof=1)),
        "p_value": upper if vector else 2 * min(upper, 1 - upper),
        "error": error if vector else 2 * error,
        "tail": "upper" if vector else "two-sided",
        "worst": worst,
    }


def _standardise(observed: Array, predicted: Array) -> tuple[Array, Array]:
    """Deviations (E,) of the data and (S, E) of the copies from the mean m of all of them, in standard deviations:

        (T_e - m_e) / sqrt(s_e^2 + mean_e(s_e^2) / 100).

    The data are among what m and s are of: where they are one more copy, they are exchangeable with the others. Without
    the small addition an entry that but one of them has at all (a rare value) would outweigh everything.
    """
    every = np.concatenate([observed.reshape(1, -1), predicted.reshape(len(predicted), -1)])
    spread = every.var(0)
    # What is constant but for rounding does not deviate.
    spread[spread <= (1e-12 * np.abs(every).max(0)) ** 2] = 0.0
    scale = np.sqrt(spread + spread.mean() / 100)
    z = np.where(spread > 0, (every - every.mean(0)) / np.where(scale > 0, scale, 1.0), 0.0)
    return z[0], z[1:]


def _largest(observed: Array, predicted: Array) -> tuple[int, float, Array]:
    """The entry of the data's largest deviation, that deviation, and the largest of each copy, (S,)."""
    z, copies = (np.abs(side) for side in _standardise(observed, predicted))
    return int(z.argmax()), float(z.max()), copies.max(1)


def _variable(array: Array, leading: int) -> tuple[tuple[str, ...], Array]:
    names = ("chain", "draw")[:leading]
    if array.ndim <= leading:
        return (names, array)
    return ((*names, "entry_" + str(array[(0,) * leading].size)), array.reshape(*array.shape[:leading], -1))


def _dense(x: Any) -> Array:
    return x.toarray() if hasattr(x, "toarray") else np.ma.filled(np.ma.asarray(x, dtype=float), np.nan)


def _as_whole(x: Array) -> Array:
    """Whole numbers in a type of these, as ArviZ smooths all others where it draws them."""
    return x.astype(np.int64) if bool((np.isfinite(x) & (x == np.round(x))).all()) else x
