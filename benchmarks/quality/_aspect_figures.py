"""The drawings of the aspect Bernoulli experiments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from benchmarks.quality._aspect_methods import Aspects
from benchmarks.quality._real_figures import save

__all__ = ["attribution", "bases", "removal", "save"]

#: Fixed colours and markers, so that a method looks the same in every figure.
STYLE = {
    "AB, phantom removed": ("#00336f", "o", "-"),
    "AB": ("#4d8ad1", "o", "--"),
    "mixture of Bernoullis": ("#c25a00", "s", "-"),
    "logistic PCA": ("#2a7f3f", "^", "-"),
    "NMF": ("#8a4fb0", "D", "-"),
    "PLSA": ("#7a7a7a", "v", "-"),
}


def removal(results: Mapping[str, np.ndarray], sizes: Sequence[int]) -> Figure:
    """Removal rate against K with standard errors, and its two parts."""
    figure = Figure(figsize=(11, 4), dpi=110, layout="constrained")
    panels = figure.subplots(1, 3, width_ratios=[1.5, 1, 1])
    titles = ("noise removal, 1 − (fp + fn)/2", "fp: true zeros turned to 1", "fn: false zeros left at 0")
    for part, (axes, title) in enumerate(zip(panels, titles, strict=True)):
        for name, values in results.items():
            colour, marker, line = STYLE[name]
            mean, error = values[..., part].mean(1), values[..., part].std(1, ddof=1) / values.shape[1] ** 0.5
            drawn = {"color": colour, "marker": marker, "ls": line, "ms": 4, "lw": 1.4, "capsize": 2}
            axes.errorbar(sizes, mean, yerr=error, label=name, **drawn)
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("number of components K", fontsize=9)
        axes.set_xticks(sizes)
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(
        *panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=6, fontsize=9, frameon=False
    )
    figure.suptitle("Digits with added zeros (mean ± standard error, 3 subsets of 400 images)", fontsize=11)
    return figure


def attribution(of: Aspects, x: np.ndarray, rows: Sequence[int], order: Sequence[int], title: str) -> Figure:
    """Aspects along the top, images down the left, and between them the probability that the aspect made the pixel."""
    figure = Figure(figsize=(0.72 * (len(order) + 1) + 0.3, 0.82 * (len(rows) + 1) + 0.5), dpi=110)
    figure.subplots_adjust(left=0.005, right=0.995, top=0.92, bottom=0.01, wspace=0.08, hspace=0.08)
    panels = figure.subplots(len(rows) + 1, len(order) + 1)
    posterior = of.attribution(list(rows))
    for position, k in enumerate(order):
        _picture(panels[0, position + 1], of.aspect[k])
        panels[0, position + 1].set_title("phantom" if position == 0 else str(position), fontsize=8, pad=2)
        for line in range(len(rows)):
            _picture(panels[line + 1, position + 1], posterior[line, k])
    for line, n in enumerate(rows):
        _picture(panels[line + 1, 0], x[n], frame="#c25a00")
    panels[0, 0].set_axis_off()
    panels[0, 0].text(0.5, 0.5, "aspect\n→", ha="center", va="center", fontsize=8, transform=panels[0, 0].transAxes)
    figure.suptitle(title, fontsize=11, y=0.985)
    return figure


def bases(of: Mapping[str, np.ndarray]) -> Figure:
    """One row a method; signed bases on a diverging scale, the others from white (0) to their largest value."""
    columns = len(next(iter(of.values())))
    figure = Figure(figsize=(0.72 * columns + 1.3, 0.82 * len(of) + 0.5), dpi=110)
    figure.subplots_adjust(left=0.11, right=0.995, top=0.92, bottom=0.01, wspace=0.08, hspace=0.08)
    panels = figure.subplots(len(of), columns)
    for line, (name, values) in enumerate(of.items()):
        for k in range(columns):
            _picture(panels[line, k], values[k], signed=values.min() < 0)
        panels[line, 0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=9)
    figure.suptitle("The baselines' bases on digits with added zeros: none is blank", fontsize=11, y=0.98)
    return figure


def _picture(axes, values: np.ndarray, *, signed: bool = False, frame: str = "#bbbbbb") -> None:
    image = values.reshape(16, 15)
    top = float(np.abs(image).max())
    limits = {"vmin": -top, "vmax": top, "cmap": "RdBu_r"} if signed else {"vmin": 0, "vmax": max(1.0, top)}
    if not signed and top < 0.5 and values.sum() <= 1.01:  # a distribution over pixels
        limits["vmax"] = top
    axes.imshow(image, **{"cmap": "gray_r", **limits}, interpolation="nearest")
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_edgecolor(frame)
        spine.set_linewidth(0.7)
