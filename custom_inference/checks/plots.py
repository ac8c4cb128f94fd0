"""Figures of comparisons, of posterior predictive checks, and of leave-one-out cross-validation."""

from __future__ import annotations

import textwrap
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from custom_inference.faces.drawing import INK, MUTED, Array, new_figure, panels
from ppl_models import MethodError
from ppl_models.core.errors import unknown_name

#: The data's, beside copies in grey and blue.
DATA = "#c8510c"


def plot_check(check: Any, kind: str = "histograms", **settings: Any) -> Figure:
    """See :meth:`PredictiveCheck.plot`."""
    kinds = {"histograms": plot_histograms, "rootogram": plot_rootogram}
    if kind not in kinds:
        raise MethodError(unknown_name("kind of plot", kind, kinds))
    return kinds[kind](check, **settings)


def plot_histograms(check: Any, *, title: str | None = None) -> Figure:
    """A panel for every statistic: its values in the copies, and the data's as a line.

    Realised discrepancies, whose value in the data depends on the draw, are points (data, copy); the share above the
    diagonal is P(T(copy) > T(data)) (Gelman, Meng & Stern 1996, figure 2).
    """
    names, extreme = list(check.table.index), check.extreme
    columns = min(4, len(names))
    rows = -(-len(names) // columns)
    figure, places = panels(len(names), columns, 2.6 * columns + 0.3, 2.0 * rows + 0.7)
    for axes, name in zip(places, names, strict=True):
        (_realised if check._is_realised(name) else _histogram)(axes, check, name)
        p_value = check.p_value(name)
        p_value = p_value if p_value.startswith("<") else f"= {p_value}"
        axes.set_title(f"{name}, p {p_value}", fontsize=8, color=DATA if name in extreme else "black")
        axes.tick_params(labelsize=7)
        axes.spines[["top", "right"]].set_visible(False)
    width = max(40, int(11 * figure.get_figwidth()))
    figure.suptitle(title or "\n".join(textwrap.wrap(check.verdict, width)), fontsize=9)
    return figure


def _histogram(axes: Axes, check: Any, name: str) -> None:
    observed, copies = check._summary(name)
    both = np.append(copies, observed)
    whole = bool((both == both.round()).all())
    span = float(np.ptp(both))
    if whole and span <= 30:
        edges = np.arange(both.min() - 0.5, both.max() + 1)
    else:
        edges = np.histogram_bin_edges(copies, 20) if np.ptp(copies) > 1e-12 else np.array([-0.5, 0.5]) + copies[0]
    axes.hist(copies, bins=edges.tolist(), color=MUTED)
    axes.axvline(observed, color=DATA, linewidth=2)
    if span > 0:
        # The line, too, keeps off the edge.
        low, high = min(both.min(), edges[0]), max(both.max(), edges[-1])
        axes.set_xlim(low - 0.05 * (high - low), high + 0.05 * (high - low))
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.xaxis.set_major_locator(MaxNLocator(4))
    if check.table.loc[name, "tail"] == "upper":
        axes.set_xlabel("largest deviation, sd", fontsize=7)


def _realised(axes: Axes, check: Any, name: str) -> None:
    data, copies = check.observed[name], check.predicted[name]
    both = np.concatenate([data, copies])
    # A few copies may be far out (chi-squares of improbable entries): the diagonal must stay readable.
    low, high = np.quantile(both, [0.0, 0.98])
    margin = 0.05 * (high - low) + 1e-9
    axes.plot([low - margin, high + margin], [low - margin, high + margin], color=DATA, linewidth=1)
    axes.plot(data.clip(low, high), copies.clip(low, high), ".", color=INK, markersize=3, alpha=0.5)
    axes.set(xlim=(low - margin, high + margin), ylim=(low - margin, high + margin))
    axes.set_xlabel("data", fontsize=7)
    axes.set_ylabel("copy", fontsize=7)
    axes.xaxis.set_major_locator(MaxNLocator(3))
    axes.yaxis.set_major_locator(MaxNLocator(3))


def plot_rootogram(check: Any, *, title: str | None = None) -> Figure:
    """A hanging rootogram of counts: square roots of how often each value occurs, hung from those of the copies' means.

    Bars that end above 0 are values that the data have too rarely, below 0 too often; the band is the middle 95% of the
    copies (Tukey, *Exploratory data analysis*, 1977; Kleiber & Zeileis, *Visualizing count data regressions using
    rootograms*, The American Statistician 70, 2016).

    Raises MethodError where the check has no statistic "value_frequency".
    """
    name = "value_frequency"
    if name not in check.observed:
        known = ", ".join(check.observed)
        raise MethodError(f"a rootogram needs the statistic '{name}', of counts; this check has: {known}")
    observed, copies = check.observed[name], check.predicted[name]
    last = int(np.nonzero(observed + copies.max(0))[0].max())
    value = np.arange(last + 1)
    expected = np.sqrt(copies.mean(0))[: last + 1]
    bars = np.sqrt(observed)[: last + 1]
    low, high = (expected - np.sqrt(np.quantile(copies, q, 0))[: last + 1] for q in (0.975, 0.025))
    figure = new_figure(max(4.5, 0.28 * (last + 1) + 1.5), 3.4)
    axes = figure.subplots()
    axes.fill_between(value, low, high, color=DATA, alpha=0.25, step="mid", linewidth=0, label="95% of copies")
    axes.bar(value, bars, bottom=expected - bars, color=MUTED, width=0.8, label="data")
    axes.plot(value, expected, ".-", color=DATA, label="mean of copies")
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set_ylim(min(low.min(), (expected - bars).min()) - 0.5, expected.max() * 1.08)
    labels = check.entries[name]
    if labels is not None and last == len(labels) - 1:
        axes.set_xticks([*range(0, last, 5), last], [*labels[0:last:5], labels[last]])
    axes.set(xlabel="value of an entry", ylabel="square root of frequency", title=title or f"Counts and {check.model}")
    axes.legend(fontsize=8, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def plot_khat(found: Any, *, title: str | None = None) -> Figure:
    """Pareto k of every row: above the line the estimate of that row is not to be relied on."""
    khat, limit = found.pareto_k, found.good_k
    figure = new_figure(6.5, 3.2)
    axes = figure.subplots()
    bad = khat > limit
    axes.plot(np.nonzero(~bad)[0], khat[~bad], ".", color=INK, markersize=4)
    axes.plot(np.nonzero(bad)[0], khat[bad], "x", color=DATA, markersize=6)
    axes.axhline(limit, color=DATA, linewidth=1)
    for place in np.argsort(-khat)[:5].tolist():
        if bad[place]:
            axes.annotate(str(found.labels[place]), (place, khat[place]), fontsize=7, xytext=(4, 2),
                          textcoords="offset points")  # fmt: skip
    beside = "" if found.approximation_k is None else f"; of the approximation {found.approximation_k:.2f}"
    axes.set(
        xlabel=found.unit,
        ylabel="Pareto k",
        title=title or f"{int(bad.sum())} of {len(khat)} above {limit:.2f}{beside}",
    )
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def plot_comparison(table: Any, *, title: str = "Approximate against exact posterior") -> Figure:
    """Bars of the gap to the evidence and of the worst marginal error, from ``compare().table``."""
    columns = {
        "gap_per_row": ("gap to the log evidence", "nats per row"),
        "worst_marginal_error": ("worst error of a marginal", "max |E_q[s] - E[s | x]|"),
    }
    missing = [column for column in columns if column not in table]
    if missing or not len(table):
        raise MethodError(f"a comparison table needs a row and the columns {', '.join(columns)}")
    names = [str(name) for name in table.index]
    longest = max(map(len, names))
    figure = new_figure(7.0 + 0.08 * longest, 1.6 + 0.36 * len(names))
    both = figure.subplots(1, 2, sharey=True)
    for axes, (column, (heading, unit)) in zip(both, columns.items(), strict=True):
        _bars(axes, names, table[column].to_numpy(dtype=float))
        axes.set_title(heading, fontsize=10)
        axes.set_xlabel(unit)
    figure.suptitle(title)
    return figure


def _bars(axes: Axes, names: list[str], values: Array) -> None:
    # A bound above the evidence by rounding is no gap.
    shown = np.where(np.abs(values) < 1e-9, 0.0, values)
    widest = np.nanmax(np.abs(shown)) if np.isfinite(shown).any() else 0.0
    axes.barh(range(len(names)), np.nan_to_num(shown), color=INK, height=0.6)
    for position, value in enumerate(shown):
        text = "not available" if np.isnan(value) else f"{value:.3g}"
        right = max(0.0, np.nan_to_num(value))
        where = {"xytext": (4, 0), "textcoords": "offset points", "va": "center"}
        axes.annotate(text, (right, position), fontsize=9, **where)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlim(min(0.0, float(np.nan_to_num(shown).min()) * 1.3), 1.3 * widest or 1.0)
    axes.locator_params(axis="x", nbins=4)  # small gaps have long numbers, which must not run into each other
    axes.spines[["top", "right"]].set_visible(False)
