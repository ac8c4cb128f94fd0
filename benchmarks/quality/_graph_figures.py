"""Pictures of the graph models' benchmarks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch
from matplotlib.ticker import NullFormatter

from benchmarks.quality._graph_data import Array, KnownGraph, Labels
from benchmarks.quality._topic_figures import COLOURS, save

__all__ = ["block_graphs", "monks", "save", "slopes"]


def _layout(adjacency: Any) -> Array:
    """Positions (N, 2) by the lengths of paths, within the unit square."""
    import networkx

    graph = networkx.from_scipy_sparse_array(adjacency + adjacency.T)
    place = networkx.kamada_kawai_layout(graph, weight=None)
    xy = np.array([place[n] for n in range(len(place))])
    return (xy - xy.min(0)) / np.ptp(xy, axis=0)


def _pie(axes: Axes, centre: Any, shares: Any, radius: float) -> None:
    start = 90.0
    for share, colour in zip(shares, COLOURS, strict=False):
        if share > 0.005:
            wedge = {"radius": radius, "center": tuple(centre), "startangle": start, "counterclock": False}
            axes.pie([share], colors=[colour], normalize=False, wedgeprops={"lw": 0.4, "ec": "white"}, **wedge)
            start -= 360 * share


def _arrow(axes: Axes, a: Any, b: Any, *, radius: float, colour: str, width: float, bend: float = 0.06) -> None:
    style = {"arrowstyle": "-|>", "mutation_scale": 7 + 3 * width, "connectionstyle": f"arc3,rad={bend}"}
    gap = {"shrinkA": radius, "shrinkB": radius}
    axes.add_patch(FancyArrowPatch(tuple(a), tuple(b), color=colour, lw=width, zorder=1, **style, **gap))


def monks(known: KnownGraph, membership: Array, groups: Sequence[str]) -> Figure:
    """Fig. 27.22: (a) who likes whom, each novice a pie of memberships (N, 3); (b) memberships in the simplex."""
    figure = Figure(figsize=(13.5, 6.6), dpi=110, layout="constrained")
    left, right = figure.subplots(1, 2)
    place = _layout(known.adjacency)
    for i, j in known.edges:
        _arrow(left, place[i], place[j], radius=9, colour="#b0b0b0", width=0.8)
    waverer = known.groups["group4"] == "Waverers"
    for n, at in enumerate(place):
        _pie(left, at, membership[n], 0.03)
        weight = {"weight": "bold" if waverer[n] else "normal"}
        left.annotate(known.names[n], at, (0, -17), textcoords="offset points", ha="center", fontsize=8, **weight)
    left.set(xlim=(-0.08, 1.08), ylim=(-0.1, 1.06), aspect="equal", title="(a) who likes whom; pies: memberships")
    left.set_axis_off()
    _simplex(right, membership, known, groups, waverer)
    right.set_title("(b) memberships in the simplex; bold: whom Sampson called waverers")
    return figure


def _simplex(axes: Axes, membership: Array, known: KnownGraph, groups: Sequence[str], waverer: Any) -> None:
    corner = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, 3**0.5 / 2]])
    axes.plot(*corner[[0, 1, 2, 0]].T, color="black", lw=0.8)
    at = membership @ corner
    group = known.groups["group3"]
    for k, (name, colour) in enumerate(zip(groups, COLOURS, strict=False)):
        member = group == name
        axes.scatter(*at[member].T, s=34, color=colour, zorder=3, edgecolors="white", lw=0.6)
        below = corner[k, 1] == 0
        axes.annotate(name, corner[k], (0, -46 if below else 14), textcoords="offset points", ha="center", fontsize=11)
    for n, (x, y) in enumerate(_apart(at)):
        side = -1 if x < at[n, 0] else 1
        style = {"ha": "right" if side < 0 else "left", "va": "center", "fontsize": 8}
        line = {"arrowprops": {"arrowstyle": "-", "lw": 0.4, "color": "#999999"}}
        weight = {"weight": "bold" if waverer[n] else "normal"}
        axes.annotate(known.names[n], at[n], (x, y), **style, **weight, **line)
    axes.set(xlim=(-0.3, 1.3), ylim=(-0.24, 1.0), aspect="equal")
    axes.set_axis_off()


def _apart(at: Array, step: float = 0.047) -> Array:
    """Where to write the names: left or right of the points, one line each."""
    place = np.empty_like(at)
    for side, chosen in ((-1, at[:, 0] < 0.5), (1, at[:, 0] >= 0.5)):
        index = np.flatnonzero(chosen)
        order = index[np.argsort(at[index, 1], kind="stable")]
        low = -0.08 - step  # nothing is written where the corners' names are
        wanted = at[order, 1] - step * _below(at[order, 1], step)
        for n, y in zip(order, wanted, strict=True):
            low = max(low + step, y)
            place[n] = at[n, 0] + side * 0.06, low
    return place


def _below(y: Array, step: float) -> Array:
    """Half of how many names crowd at the same height: they are spread about it."""
    return np.array([0.5 * (np.abs(y - value) < 1.5 * step).sum() - 0.5 for value in y])


# ----- blocks ---------------------------------------------------------------------------------------------------------


def block_graphs(panels: Mapping[str, tuple[Array, Array, Labels]]) -> Figure:
    """Fig. 27.20: name -> (edge probabilities of the true blocks (K, K), adjacency (N, N), found blocks (N,)).

    Above: the abstract graph between the blocks; middle: the matrix as it was drawn; below: ordered by the blocks.
    """
    figure = Figure(figsize=(3.1 * len(panels), 8.6), dpi=110, layout="constrained")
    axes = figure.subplots(3, len(panels), squeeze=False)
    for column, (name, (eta, x, block)) in zip(axes.T, panels.items(), strict=True):
        _abstract(column[0], eta)
        column[0].set_title(name, fontsize=11)
        order = np.argsort(block, kind="stable")
        for place, shown in zip(column[1:], (x, x[np.ix_(order, order)]), strict=True):
            place.imshow(shown, cmap="Greys", vmin=0, vmax=1, interpolation="nearest")
            place.set(xticks=[], yticks=[])
        for edge in np.cumsum(np.bincount(block))[:-1] - 0.5:
            column[2].axhline(edge, color=COLOURS[1], lw=1)
            column[2].axvline(edge, color=COLOURS[1], lw=1)
    for place, text in zip(axes[:, 0], ("blocks", "as drawn", "ordered by the blocks found"), strict=True):
        place.set_ylabel(text)
    return figure


def _abstract(axes: Axes, eta: Array) -> None:
    """Blocks as dots on a circle, an arrow where edges are likelier than elsewhere, wider where they are likelier."""
    angle = np.pi / 2 - 2 * np.pi * np.arange(len(eta)) / len(eta)
    place = np.stack([np.cos(angle), np.sin(angle)], 1)
    for a, b in np.argwhere(eta > 2 * eta.min()):
        if a != b:
            _arrow(axes, place[a], place[b], radius=13, colour="black", width=0.5 + 2.5 * eta[a, b])
    axes.scatter(*place.T, s=330, color=COLOURS[0], zorder=3)
    for k, at in enumerate(place):
        axes.annotate(str(k + 1), at, ha="center", va="center", color="white", fontsize=10, zorder=4)
    axes.set(xlim=(-1.45, 1.45), ylim=(-1.45, 1.45), aspect="equal", xticks=[], yticks=[])
    axes.spines[:].set_visible(False)


# ----- cost -----------------------------------------------------------------------------------------------------------


def slopes(panels: Mapping[str, Mapping[str, tuple[Sequence[float], Sequence[float], float]]], ylabel: str) -> Figure:
    """Panel (x label) -> line -> (x, y, slope), log against log."""
    figure = Figure(figsize=(4.7 * len(panels), 4.4), dpi=110, layout="constrained")
    names = list(dict.fromkeys(name for found in panels.values() for name in found))
    for axes, (label, found) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
        for name, (x, y, slope) in found.items():
            colour = COLOURS[names.index(name) % len(COLOURS)]
            axes.loglog(x, y, color=colour, marker="o", ms=4, lw=1.4, label=f"{name}: slope {slope:.2f}")
        axes.set_xlabel(label)
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.16))
    figure.axes[0].set_ylabel(ylabel)
    return figure
