"""The drawings of the aspect Bernoulli experiments on documents and fossils."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from benchmarks.quality._aspect_explain import Division
from benchmarks.quality._aspect_figures import STYLE
from benchmarks.quality._aspect_methods import Aspects
from benchmarks.quality._real_figures import save

__all__ = ["ages", "divisions", "filled", "richness", "save"]

BLUE, ORANGE = "#00336f", "#c25a00"


def richness(
    of: Aspects,
    order: Sequence[int],
    ones: np.ndarray,
    what: str,
    title: str,
    marked: Sequence[int] = (),
    names: Sequence[str] = (),
) -> Figure:
    """Membership of every aspect, the phantom first, against the number of ones of a row (Figs. 6 and 7)."""
    names = names or ["phantom", *(f"aspect {i}" for i in range(1, len(order)))]
    figure = Figure(figsize=(2.5 * len(order), 2.9), dpi=110, layout="constrained")
    for position, (axes, k) in enumerate(zip(figure.subplots(1, len(order), sharey=True), order, strict=True)):
        share = of.membership[:, k]
        axes.scatter(ones, share, s=7, color=BLUE, alpha=0.4, lw=0)
        for n, marker in zip(marked, "^sD", strict=False):
            axes.scatter(ones[n], share[n], s=38, marker=marker, color=ORANGE, zorder=3, edgecolor="white", lw=0.6)
        axes.set_title(f"{names[position]}: r = {np.corrcoef(ones, share)[0, 1]:.2f}", fontsize=9)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)
        if position == 0:
            axes.set_ylabel("membership", fontsize=9)
    figure.supxlabel(what, fontsize=9)
    orange = "; orange: the documents of the table" if len(marked) else ""
    figure.suptitle(f"{title}: membership against richness (r: correlation{orange})", fontsize=11)
    return figure


def ages(of: Aspects, order: Sequence[int], age: np.ndarray) -> Figure:
    """P(genus | aspect), genera by age, and the ages weighted by these probabilities (Fig. 5)."""
    figure = Figure(figsize=(10, 3.6), dpi=110, layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[1.5, 1])
    by_age = np.argsort(-age)
    names = ["phantom", *(f"aspect {i}" for i in range(1, len(order)))]
    picture = left.imshow(
        of.aspect[order][:, by_age], aspect="auto", cmap="gray_r", vmin=0, vmax=1, interpolation="nearest"
    )
    left.set_yticks(range(len(order)), names, fontsize=9)
    left.set_xlabel("genera, oldest to youngest", fontsize=9)
    left.set_title("P(present | aspect)", fontsize=10)
    figure.colorbar(picture, ax=left, shrink=0.9, pad=0.01)
    boxes = [_weighted_box(age, of.aspect[k], name) for k, name in zip(order[1:], names[1:], strict=True)]
    drawn = right.bxp(boxes, showfliers=False, patch_artist=True, widths=0.5, orientation="horizontal")
    for box, line in zip(drawn["boxes"], drawn["medians"], strict=True):
        box.set_facecolor("#b9cfe8")
        line.set_color(ORANGE)
    right.invert_xaxis()
    right.invert_yaxis()
    right.set_xlabel("age, million years", fontsize=9)
    right.set_title("ages of the genera, weighted by it", fontsize=10)
    right.spines[["top", "right"]].set_visible(False)
    figure.suptitle("Miocene mammals: aspects are stages of time, and a blank (ages not seen by the fit)", fontsize=11)
    return figure


def _weighted_box(values: np.ndarray, weight: np.ndarray, label: str) -> dict[str, object]:
    """Quartiles, and the 5 and 95 per cent points, of values under weights."""
    order = np.argsort(values)
    cumulated = np.cumsum(weight[order]) / weight.sum()
    low, first, middle, third, high = np.interp([0.05, 0.25, 0.5, 0.75, 0.95], cumulated, values[order])
    return {"label": label, "whislo": low, "q1": first, "med": middle, "q3": third, "whishi": high}


def filled(rows: Mapping[str, Sequence[float]], sizes: Sequence[int]) -> Figure:
    """The decrease of false absences against K."""
    figure = Figure(figsize=(7, 3.8), dpi=110, layout="constrained")
    axes = figure.subplots()
    for name, values in rows.items():
        colour, marker, line = STYLE[name]
        axes.plot(sizes, values, color=colour, marker=marker, ls=line, ms=4, lw=1.4, label=name)
    axes.axhline(0, color="#999999", lw=0.8)
    axes.set_xticks(sizes)
    axes.set_xlabel("number of components K", fontsize=9)
    axes.set_ylabel("decrease of false absences", fontsize=9)
    axes.set_title("Miocene mammals: range-through absences filled, less those made", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, frameon=False)
    return figure


def divisions(of: Sequence[Division], title: str) -> Figure:
    """Figs. 8 and 12: one column a method; how its components divide true ones, added ones and zeros."""
    shown = [one for one in of if not one.told]
    kinds = ("true ones", "added ones", "zeros")
    figure = Figure(figsize=(3.5 * len(shown), 4.4), dpi=110, layout="constrained")
    panels = figure.subplots(3, len(shown), squeeze=False, sharey=True, sharex="col")
    for column, one in enumerate(shown):
        number = one.share.shape[1]
        for line, kind in enumerate(kinds):
            axes = panels[line, column]
            axes.bar(range(1, number + 1), one.share[line], color=[BLUE] * (number - 1) + [ORANGE])
            axes.set_ylim(0, 1)
            axes.spines[["top", "right"]].set_visible(False)
            axes.tick_params(labelsize=8)
            if column == 0:
                axes.set_ylabel(kind, fontsize=9)
        panels[0, column].set_title(one.method, fontsize=10)
        panels[2, column].set_xticks(range(1, number + 1, 1 if number <= 8 else 3))
        panels[2, column].set_xlabel("component", fontsize=9)
    figure.suptitle(f"{title}: who explains what (orange: favours added ones most)", fontsize=11)
    return figure


def held_out(curves: Mapping[str, Mapping[str, Sequence[tuple[int, float, float]]]]) -> Figure:
    """Held-out log-likelihood against K, one panel a data set (Fig. 3); PLSA's, which skips zeros, apart below."""
    figure = Figure(figsize=(3.9 * len(curves), 4.6), dpi=110, layout="constrained")
    panels = figure.subplots(2, len(curves), squeeze=False, height_ratios=[2.2, 1], sharex="col")
    for column, (name, methods) in enumerate(curves.items()):
        for method, points in methods.items():
            sizes, mean, error = zip(*points, strict=True)
            colour, marker, line = STYLE[method]
            line = "-" if method == "AB" else line
            axes = panels[int(method == "PLSA"), column]
            drawn = {"color": colour, "marker": marker, "ls": line, "ms": 4, "lw": 1.4, "capsize": 2}
            axes.errorbar(sizes, mean, yerr=error, label=method, **drawn)
            axes.spines[["top", "right"]].set_visible(False)
            axes.tick_params(labelsize=8)
        panels[0, column].set_title(name, fontsize=10)
        panels[1, column].set_xlabel("number of components K", fontsize=9)
        panels[1, column].xaxis.set_major_locator(MaxNLocator(integer=True))
    panels[0, 0].set_ylabel("log-likelihood of a row", fontsize=9)
    panels[1, 0].set_ylabel("PLSA (ones only)", fontsize=9)
    handles = [pair for row in panels[:, :1] for pair in zip(*row[0].get_legend_handles_labels(), strict=True)]
    figure.legend(*zip(*handles, strict=True), loc="outside lower center", ncols=4, fontsize=9, frameon=False)
    figure.suptitle("Cross-validated likelihood (mean ± standard error over folds)", fontsize=11)
    return figure
