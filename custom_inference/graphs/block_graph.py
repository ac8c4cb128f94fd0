"""The figure of the graph between blocks: discs, arrows as wide as edges are probable, names outside of both."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, Wedge

from custom_inference.core.evaluate import component_order
from custom_inference.core.registry import presentation_of
from custom_inference.core.result import Result
from custom_inference.faces import drawing
from custom_inference.faces.drawing import INK, MUTED, Array, Sheet
from custom_inference.graphs.blocks import graph_of, matrix_of, pair_counts
from custom_inference.graphs.plots import colours_of
from ppl_models.data.held import to_numpy

#: Half of the width and of the height of the axes, in radii of the circle that the discs stand on.
_WIDE, _HIGH = 1.75, 1.5
#: Inches of a figure of its own.
_SIZE = (8.0, 7.2)


class _Arrow(NamedTuple):
    """An arrow from disc to disc. small: of the size that axes of a figure of their own have."""

    ends: tuple[Array, Array]
    radii: tuple[float, float]
    value: float
    widest: float
    directed: bool
    small: float


def plot_block_graph(
    fit: Result, *, above: float | None = None, title: str | None = None, ax: Axes | None = None
) -> Any:
    """The abstract graph between blocks (Murphy 2012, Fig. 27.20): arrows as wide as the probability of an
    edge is high.

    Blocks stand clockwise in the order of reports, from the top. Discs are as large as the blocks, and their border is
    as wide as an arrow to themselves would be. above: pairs of blocks are joined where the probability (or rate)
    exceeds this many times that of the whole graph; by default 1, or less where fewer pairs than there are blocks
    would be joined.
    """
    graph, mean = graph_of(fit), to_numpy(fit.posterior.mean)
    eta = to_numpy(matrix_of(fit))
    edges, dyads, _ = pair_counts(fit.model, graph, fit.posterior.mean).once(graph.directed)
    used = np.array([k for k in component_order(fit) if mean[:, k].sum() >= 0.5], dtype=int)
    level = _choose_level(eta[np.ix_(used, used)], float(edges.sum() / dyads.sum()), above)
    angle = math.pi / 2 - 2 * math.pi * np.arange(len(used)) / max(len(used), 1)
    at = np.zeros((len(eta), 2))
    at[used] = np.stack([np.cos(angle), np.sin(angle)], axis=1) * (len(used) > 1)
    radius = 0.08 + 0.16 * np.sqrt(mean.sum(0) / mean.sum(0).max())
    default = f"{type(fit.model).__name__}: edges between {len(used)} blocks"
    (sheet, axes), colours = Sheet.single(ax, *_SIZE, title or default), colours_of(len(eta))
    small = 1.0 if ax is None else min(1.0, min(drawing.extent(axes)) / 6.5)
    shown = eta > level
    widest = eta[shown].max() if shown.any() else 1.0
    for a in used:
        for b in used:
            if a != b and shown[a, b] and (graph.directed or a < b):
                ends, radii = (at[a], at[b]), (radius[a], radius[b])
                _draw_arrow(axes, _Arrow(ends, radii, float(eta[a, b]), float(widest), graph.directed, small))
    for k in used:
        line = small * (1.0 + 5 * eta[k, k] / widest) if shown[k, k] else 0.6
        disc = Wedge(tuple(at[k]), radius[k], 0, 360, facecolor=colours[k], edgecolor="black", linewidth=line, zorder=3)
        axes.add_patch(disc)
        label = f"block {fit.component_names[k]}\n{mean[:, k].sum():.0f} nodes\nwithin {eta[k, k]:.2g}"
        _name_disc(axes, at[k], radius[k], label, small)
    axes.set(xlim=(-_WIDE, _WIDE), ylim=(-_HIGH, _HIGH), aspect="equal")
    axes.set_axis_off()
    what, way = presentation_of(fit.model).value, " from the block at the tail to the one at the head" * graph.directed
    line = f"{'arrows' if graph.directed else 'lines'}: {what}{way}, where above {level:.2g}; borders: within the block"
    note: Any = {"xycoords": "axes fraction", "ha": "center", "va": "bottom", "fontsize": 8 * small}
    axes.annotate(line, (0.5, 0.0), color=MUTED, **note)
    return sheet.finish(title, default)


def _choose_level(eta: Array, overall: float, above: float | None) -> float:
    """Return what the values of pairs of blocks that are joined exceed."""
    level = (1.0 if above is None else above) * overall
    between = np.sort(eta[~np.eye(len(eta), dtype=bool)])[::-1]
    if above is None and len(between) > 0 and (between > level).sum() < len(eta):
        level = min(level, float(between[min(len(eta), len(between)) - 1]) * (1 - 1e-6))
    return level


def _name_disc(axes: Axes, at: Array, radius: float, label: str, small: float) -> None:
    """Write what a disc is beside it, outwards of the circle, where no arrow goes."""
    length = max(float(np.hypot(*at)), 1e-9)
    out = at / length if length > 1e-6 else np.array([1.0, 0.0])
    place = at + out * (radius + 0.06)
    across = "left" if out[0] > 0.3 else "right" if out[0] < -0.3 else "center"
    upward = "bottom" if out[1] > 0.5 else "top" if out[1] < -0.5 else "center"
    axes.annotate(label, (place[0], place[1]), ha=across, va=upward, fontsize=8 * small, zorder=4)


def _draw_arrow(axes: Axes, arrow: _Arrow) -> None:
    """Draw an arrow, bent so that the one back does not cover it, and its value beside it."""
    (one, other), (near, far), small = arrow.ends, arrow.radii, arrow.small
    bend = 0.14 if arrow.directed else 0.0
    points = 72 * 6.2 * small / (2 * _HIGH)  # of a unit of the axes
    style: Any = {"arrowstyle": "-|>" if arrow.directed else "-", "color": INK, "alpha": 0.85}
    curve = FancyArrowPatch(
        tuple(one), tuple(other), connectionstyle=f"arc3,rad={bend}", shrinkA=near * points, shrinkB=far * points,
        mutation_scale=16 * small, linewidth=small * (0.8 + 4 * arrow.value / arrow.widest), **style,
    )  # fmt: skip
    axes.add_patch(curve)
    along = other - one
    # The middle of the curve lies half of the bend beside the line; the text a little further out.
    side = np.array([along[1], -along[0]])
    length = max(float(np.hypot(*along)), 1e-9)
    middle = one + 0.42 * along + side * bend / 2 + side / length * 0.07
    white: Any = {"facecolor": "white", "edgecolor": "none", "pad": 0.6, "alpha": 0.8}
    settings: Any = {"ha": "center", "va": "center", "fontsize": 8 * small, "color": INK, "bbox": white, "zorder": 4}
    axes.annotate(f"{arrow.value:.2g}", (middle[0], middle[1]), **settings)
