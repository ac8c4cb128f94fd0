"""Figures of comparisons, posterior predictive checks, leave-one-out cross-validation, and ranks of calibration."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from custom_inference.faces.drawing import COLORMAP, INK, MUTED, Array, Panels, Sheet, num_columns
from ppl_models import MethodError
from ppl_models.core.errors import unknown_name

#: The data's, beside copies in grey and blue.
DATA = "#c8510c"
#: Probability that a calibrated method's line stays inside the band of one quantity.
LEVEL = 0.95
_FAILED = "#b5341f"


def plot_histograms(check: Any, *, title: str | None = None, axes: Panels | None = None) -> Any:
    """A panel for every statistic: its values in the copies, and the data's as a line.

    Realised discrepancies, whose value in the data depends on the draw, are points (data, copy); the share above the
    diagonal is P(T(copy) > T(data)) (Gelman, Meng & Stern 1996, figure 2).
    """
    names, extreme = list(check.table.index), check.extreme
    columns = min(4, len(names))
    wide = 2.6 * columns + 0.3
    sheet = Sheet.grid(axes, len(names), columns, wide, 0.7 + 2.0 * -(-len(names) // columns))
    for one, name in zip(sheet.panels, names, strict=True):
        if check._is_realised(name):
            _plot_realised(one, check.observed[name], check.predicted[name])
        else:
            _histogram(one, *check._summary(name))
            if check.table.loc[name, "tail"] == "upper":
                one.set_xlabel("largest deviation, sd", fontsize=7)
        p_value = check.p_value(name)
        p_value = p_value if p_value.startswith("<") else f"= {p_value}"
        one.set_title(f"{name}, p {p_value}", fontsize=8, color=DATA if name in extreme else "black")
        one.tick_params(labelsize=7)
        one.spines[["top", "right"]].set_visible(False)
    return sheet.finish(title, textwrap.fill(check.verdict, max(40, int(11 * wide))), fontsize=9)


def _histogram(axes: Axes, observed: float, copies: Array) -> None:
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


def _plot_realised(axes: Axes, data: Array, copies: Array) -> None:
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


def plot_rootogram(check: Any, *, title: str | None = None, ax: Axes | None = None) -> Any:
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
    sheet, axes = Sheet.single(ax, max(4.5, 0.28 * (last + 1) + 1.5), 3.4)
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
    return sheet.result


def plot_khat(found: Any, *, title: str | None = None, ax: Axes | None = None) -> Any:
    """Pareto k of every row: above the line the estimate of that row is not to be relied on."""
    khat, limit = found.pareto_k, found.good_k
    sheet, axes = Sheet.single(ax, 6.5, 3.2)
    bad = khat > limit
    axes.plot(np.nonzero(~bad)[0], khat[~bad], ".", color=INK, markersize=4)
    axes.plot(np.nonzero(bad)[0], khat[bad], "x", color=DATA, markersize=6)
    axes.axhline(limit, color=DATA, linewidth=1)
    for place in np.argsort(-khat)[:5].tolist():
        if bad[place]:
            label, at = str(found.labels[place]), (place, khat[place])
            axes.annotate(label, at, fontsize=7, xytext=(4, 2), textcoords="offset points")
    beside = "" if found.approximation_k is None else f"; of the approximation {found.approximation_k:.2f}"
    default = f"{int(bad.sum())} of {len(khat)} above {limit:.2f}{beside}"
    axes.set(xlabel=found.unit, ylabel="Pareto k", title=title or default)
    axes.spines[["top", "right"]].set_visible(False)
    return sheet.result


def plot_calibration(
    calibration: Any, kind: str = "ecdf", *, title: str | None = None, axes: Panels | None = None
) -> Any:
    """See ``Calibration.plot``."""
    if kind not in _RANKS:
        raise MethodError(unknown_name("kind of plot", kind, _RANKS))
    draw, labels = _RANKS[kind]
    lines, table = calibration.lines(), calibration.table
    groups: dict[str, dict[str, Array]] = {}
    for name, values in lines.items():
        # Lines of one site share a panel, histograms would hide each other.
        key = name if kind == "ranks" else name.split("[")[0]
        groups.setdefault(key, {})[name] = values
    columns = num_columns(len(groups))
    sheet = Sheet.grid(axes, len(groups), columns, max(3.1 * columns, 5.0), 0.9 + 2.4 * -(-len(groups) // columns))
    for panel, (name, group) in zip(sheet.panels, groups.items(), strict=True):
        wrong = {one for one in group if table.loc[one, "finding"] != "calibrated"}
        draw(panel, group, wrong)
        findings = ", ".join(sorted({str(table.loc[one, "finding"]) for one in wrong}))
        panel.set_title(f"{name}: {findings}" if wrong else name, fontsize=9)
        panel.spines[["top", "right"]].set_visible(False)
        panel.tick_params(labelsize=8)
    sheet.labels(x=labels[0], y=labels[1], fontsize=9)
    about, number = calibration.ranks.attrs, f"{len(calibration)} simulations"
    default = f"{about['model']} by {about['method']}, {about['of']}: {number}, 95 % bands"
    return sheet.finish(title, default, fontsize=10)


def _colours(group: Mapping[str, Array], wrong: set[str]) -> dict[str, Any]:
    """One line alone is dark; several are told apart by a scale; what deviates is red."""
    shades = mpl.colormaps[COLORMAP](np.linspace(0.05, 0.8, max(2, len(group))))
    return {name: _FAILED if name in wrong else INK if len(group) == 1 else shades[i] for i, name in enumerate(group)}


def draw_ecdf(axes: Axes, group: Mapping[str, Array], wrong: set[str]) -> None:
    """F(z) - z and its band."""
    from custom_inference.checks.calibration.bands import grid_counts, simultaneous_band

    size = len(next(iter(group.values())))
    band = simultaneous_band(size, LEVEL)
    z = np.concatenate([[0.0], band.z, [1.0]])
    low, high = (np.concatenate([[0.0], side - band.z, [0.0]]) for side in (band.low, band.high))
    axes.fill_between(z, low, high, color=MUTED, alpha=0.3, linewidth=0)
    axes.axhline(0, color=MUTED, linewidth=0.8)
    for name, colour in _colours(group, wrong).items():
        below = grid_counts(group[name]) / size - band.z
        axes.plot(z, np.concatenate([[0.0], below, [0.0]]), color=colour, linewidth=1.3, label=name)
    axes.set_xlim(0, 1)
    if 1 < len(group) <= 6:
        axes.legend(fontsize=6, frameon=False, loc="best")


def draw_coverage(axes: Axes, group: Mapping[str, Array], wrong: set[str]) -> None:
    """A central interval of probability p holds the truth where |2 rank - 1| < p: again a distribution function."""
    draw_ecdf(axes, {name: np.abs(2 * values - 1) for name, values in group.items()}, wrong)


def draw_ranks(axes: Axes, group: Mapping[str, Array], wrong: set[str]) -> None:
    """A histogram, and the range that all of its bars keep to (Bonferroni)."""
    from scipy.stats import binom  # not at the top: it takes half a second to import

    ((name, values),) = group.items()
    size = len(values)
    bins = 20 if size >= 400 else 10 if size >= 50 else 5
    tail = (1 - LEVEL) / (2 * bins)
    low, high = float(binom.ppf(tail, size, 1 / bins)), float(binom.isf(tail, size, 1 / bins))
    axes.axhspan(low, high, color=MUTED, alpha=0.3, linewidth=0)
    axes.hist(values, np.linspace(0, 1, bins + 1).tolist(), color=_colours(group, wrong)[name], rwidth=0.9)
    axes.axhline(size / bins, color=MUTED, linewidth=0.8)
    axes.set_xlim(0, 1)


#: Kind -> what draws a panel, and the labels of its axes.
_RANKS: dict[str, tuple[Callable[[Axes, Mapping[str, Array], set[str]], None], tuple[str, str]]] = {
    "ecdf": (draw_ecdf, ("rank of the truth among the draws", "ECDF - uniform")),
    "ranks": (draw_ranks, ("rank of the truth among the draws", "simulated data sets or rows")),
    "coverage": (draw_coverage, ("probability of a central interval", "share that hold the truth - nominal")),
}
