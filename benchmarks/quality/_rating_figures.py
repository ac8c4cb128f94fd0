"""Figures of factors of ratings: curves of held-out error, and titles in the plane of two factors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

COLOURS = ("#4c4c4c", "#d55e00", "#e69f00", "#0072b2", "#009e73", "#cc79a7")
Curve = tuple[Sequence[float], Sequence[float]]


def curves(panels: Sequence[tuple[str, str, Mapping[str, Curve]]], path: Path, *, logarithmic: bool) -> None:
    """Panels (title, label of the axis, name -> (x, root mean square errors))."""
    figure = Figure(figsize=(6.2 * len(panels), 4.4), layout="constrained")
    for axes, (title, label, lines) in zip(np.atleast_1d(figure.subplots(1, len(panels))), panels, strict=True):
        for (name, (x, y)), colour in zip(lines.items(), COLOURS, strict=False):
            marker = {"marker": "o", "markersize": 4} if logarithmic else {}
            axes.plot(x, y, label=name, color=colour, linewidth=1.8, **marker)
        every = np.concatenate([np.asarray(y) for _, y in lines.values()])
        low = every.min()
        axes.set_ylim(low - 0.01, every.max() + 0.01 if logarithmic else min(every.max() + 0.01, low + 0.2))
        if logarithmic:
            axes.set_xscale("log")
            axes.set_xticks([3, 10, 30, 100], ["3", "10", "30", "100"])
            axes.minorticks_off()
        axes.set_title(title, fontsize=11)
        axes.set_xlabel(label)
        axes.set_ylabel("RMSE of held-out ratings, stars")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8.5, frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)


def titles(place: Any, names: Sequence[str], weight: Any, path: Path) -> None:
    """Items at two factors (I, 2), named by weight, the greatest first, where there is room for the name."""
    figure = Figure(figsize=(11.0, 8.0), dpi=130)  # placed at the resolution that is written
    renderer = FigureCanvasAgg(figure).get_renderer()
    axes = figure.subplots(gridspec_kw={"left": 0.07, "right": 0.985, "bottom": 0.07, "top": 0.985})
    axes.scatter(*place.T, s=7, color="#b0b0b0", linewidths=0)
    axes.axhline(0, color="#dddddd", zorder=0)
    axes.axvline(0, color="#dddddd", zorder=0)
    axes.set_xlabel("first factor of the item")
    axes.set_ylabel("second factor of the item")
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(0.09, 0.05)
    figure.draw(renderer)
    taken, page = [], axes.get_window_extent(renderer)
    for j in np.argsort(-weight):
        text = axes.annotate(names[j], place[j], (3, 3), textcoords="offset points", fontsize=7.5)
        box = text.get_window_extent(renderer)
        inside = page.x0 <= box.x0 and box.x1 <= page.x1 and page.y0 <= box.y0 and box.y1 <= page.y1
        if not inside or any(box.overlaps(other) for other in taken):
            text.remove()
            continue
        taken.append(box.padded(4.0))
        axes.plot(*place[j], "o", markersize=3.5, color="#0072b2")
    figure.savefig(path, dpi=130)
