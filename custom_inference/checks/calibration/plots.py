"""Figures of ranks with simultaneous bands."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.stats import binom

from custom_inference.checks.calibration.bands import Array, grid_counts, simultaneous_band
from custom_inference.faces.drawing import COLORMAP, INK, MUTED, num_columns, panels
from ppl_models import MethodError
from ppl_models.core.errors import unknown_name

#: Probability that a calibrated method's line stays inside the band of one quantity.
LEVEL = 0.95
_FAILED = "#b5341f"


def plot_calibration(calibration: Any, kind: str) -> Figure:
    """See ``Calibration.plot``."""
    if kind not in KINDS:
        raise MethodError(unknown_name("kind of plot", kind, KINDS))
    draw, labels = KINDS[kind]
    lines, table = calibration.lines(), calibration.table
    groups: dict[str, dict[str, Array]] = {}
    for name, values in lines.items():
        # Lines of one site share a panel, histograms would hide each other.
        key = name if kind == "ranks" else name.split("[")[0]
        groups.setdefault(key, {})[name] = values
    columns = num_columns(len(groups))
    rows = -(-len(groups) // columns)
    figure, places = panels(len(groups), columns, max(3.1 * columns, 5.0), 0.9 + 2.4 * rows)
    for axes, (name, group) in zip(places, groups.items(), strict=True):
        wrong = {one for one in group if table.loc[one, "finding"] != "calibrated"}
        draw(axes, group, wrong)
        findings = ", ".join(sorted({str(table.loc[one, "finding"]) for one in wrong}))
        axes.set_title(f"{name}: {findings}" if wrong else name, fontsize=9)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)
    figure.supxlabel(labels[0], fontsize=9)
    figure.supylabel(labels[1], fontsize=9)
    about = calibration.ranks.attrs
    number = f"{len(calibration)} simulations"
    figure.suptitle(f"{about['model']} by {about['method']}, {about['of']}: {number}, 95 % bands", fontsize=10)
    return figure


def _colours(group: Mapping[str, Array], wrong: set[str]) -> dict[str, Any]:
    """One line alone is dark; several are told apart by a scale; what deviates is red."""
    import matplotlib as mpl

    shades = mpl.colormaps[COLORMAP](np.linspace(0.05, 0.8, max(2, len(group))))
    return {name: _FAILED if name in wrong else INK if len(group) == 1 else shades[i] for i, name in enumerate(group)}


def draw_ecdf(axes: Axes, group: Mapping[str, Array], wrong: set[str]) -> None:
    """F(z) - z and its band."""
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
KINDS: dict[str, tuple[Callable[[Axes, Mapping[str, Array], set[str]], None], tuple[str, str]]] = {
    "ecdf": (draw_ecdf, ("rank of the truth among the draws", "ECDF - uniform")),
    "ranks": (draw_ranks, ("rank of the truth among the draws", "simulated data sets or rows")),
    "coverage": (draw_coverage, ("probability of a central interval", "share that hold the truth - nominal")),
}
