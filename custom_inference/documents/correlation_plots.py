"""The figure of correlated topics: a graph of topics that go together (002, Fig. 27.10)."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.lines import Line2D

from custom_inference.core.result import Result
from custom_inference.documents.correlations import graph_places, topic_precision
from custom_inference.documents.topics import shares, topic_table
from custom_inference.faces import drawing
from custom_inference.faces.drawing import INK, Sheet, title_width

#: Links of topics that exclude each other.
_AGAINST = "#b2452f"


def plot_topic_graph(
    fit: Result,
    *,
    penalty: float = 0.1,
    top: int = 5,
    negative: bool = False,
    seed: int = 0,
    title: str | None = None,
    ax: Any = None,
) -> Any:
    """Topics as boxes of their ``top`` words, the more used the larger the letters; lines between those that go
    together given the others, as wide as their partial correlation (:func:`topic_precision`).

    negative: topics that exclude each other given the others too, dashed. seed: of the places.
    """
    table, share = topic_table(fit, top), shares(fit)
    partial = topic_precision(fit, penalty).to_numpy()
    places, size = _apart(graph_places(partial, seed)), len(partial)
    side = float(np.clip(2.4 * np.sqrt(size) + 1.0, 4.5, 14.0))
    default = f"{type(fit.model).__name__}: topics that go together (penalty {penalty:g})"
    sheet = Sheet.single(ax, max(1.25 * side, title_width(title or default)), side)
    (axes,) = sheet.panels
    drawn = [(i, j) for i in range(size) for j in range(i) if partial[i, j] > 0 or (negative and partial[i, j] < 0)]
    for i, j in drawn:
        style: Any = {"color": INK, "alpha": 0.75} if partial[i, j] > 0 else {"color": _AGAINST, "linestyle": "--"}
        width = 0.6 + 9 * abs(partial[i, j])
        across, up = places[[i, j]].T
        axes.plot(across, up, linewidth=width, solid_capstyle="round", zorder=1, **style)
    box = {"boxstyle": "round,pad=0.35", "facecolor": "white", "edgecolor": INK, "linewidth": 0.8}
    for k, name in enumerate(fit.coords["component"]):
        words = "\n".join(drawing.shorten(str(word), 16) for word in table.loc[name]["word"])
        letters = 6.5 + 3.5 * np.sqrt(share[k] / max(share.max(), 1e-12))
        style: Any = {"fontsize": letters, "bbox": box, "zorder": 2, "linespacing": 1.05}
        axes.text(places[k][0], places[k][1], words, ha="center", va="center", **style)
    axes.set(xlim=(-0.12, 1.12), ylim=(-0.12, 1.12), xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    handles = [Line2D([], [], color=INK, linewidth=0.6 + 9 * value, label=f"{value:g}") for value in (0.1, 0.3)]
    axes.legend(handles=handles, title="partial correlation", loc="lower left", frameon=False, fontsize=8)
    sheet.title(title, default)
    return sheet.result


def _apart(places: Any) -> Any:
    """Places in the unit square whose ranks along each axis count as much as their distances: boxes overlap less."""
    found = np.empty_like(places)
    for axis in range(2):
        value = places[:, axis]
        width = max(np.ptp(value), 1e-12)
        rank = np.argsort(np.argsort(value)) / max(len(value) - 1, 1)
        found[:, axis] = 0.4 * (value - value.min()) / width + 0.6 * rank
    return found
