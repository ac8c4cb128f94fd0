"""Figures of graph models: the adjacency matrix by blocks, memberships, pies at the nodes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch, Wedge

from custom_inference.core.evaluate import component_order
from custom_inference.core.registry import presentation_of
from custom_inference.core.result import Result
from custom_inference.faces import drawing
from custom_inference.faces.drawing import INK, MUTED, Array, Sheet
from custom_inference.graphs.blocks import graph_of
from ppl_models import GraphData, MethodError
from ppl_models.data.held import to_numpy

#: Nodes up to this many are named; edges of larger graphs are points.
NAMED = 60


def plot_adjacency(fit: Result, *, order: str = "block", title: str | None = None, ax: Axes | None = None) -> Any:
    """The adjacency matrix with its nodes ordered by their blocks, and lines between blocks (Murphy 2012, Fig. 27.19b).

    Edges are points, so that large graphs cost their edges; hidden dyads are grey crosses where nodes are named.
    order: "block" (in the order of the report; within, the surest nodes first) or "data".
    """
    graph, mean = graph_of(fit), to_numpy(fit.posterior.mean)
    if order not in ("block", "data"):
        raise MethodError(f"order = {order!r}, expected 'block' or 'data'")
    by_size, rank, nodes = _by_block(fit, mean)
    nodes = nodes if order == "block" else np.arange(len(graph))
    place = np.argsort(nodes)
    size, named = len(graph), len(graph) <= NAMED
    default = f"{type(fit.model).__name__}: adjacency of {size} nodes" + (" by block" if order == "block" else "")
    side = float(np.clip(0.17 * size + 2.4, 4.4, 8.4))
    sheet, axes = Sheet.single(ax, side, side + 0.3, title or default)
    sheet.title(title, default)
    _points(axes, graph, place, side if ax is None else min(drawing.extent(axes)) + 1.6, named)
    if order == "block":
        for edge in np.flatnonzero(np.diff(rank[nodes])) + 0.5:
            axes.axhline(edge, color=MUTED, linewidth=0.8)
            axes.axvline(edge, color=MUTED, linewidth=0.8)
    axes.set(xlim=(-0.5, size - 0.5), ylim=(size - 0.5, -0.5), aspect="equal")
    axes.set_xlabel("to node" if graph.directed else "node")
    axes.set_ylabel("from node" if graph.directed else "node")
    if named:
        names = [drawing.shorten(graph.nodes[n], 14) for n in nodes]
        drawing.name_ticks(axes, "x", names, 7)
        drawing.name_ticks(axes, "y", names, 7)
    elif order == "block":
        found = np.unique(rank)
        middle = [float(np.flatnonzero(rank[nodes] == k).mean()) for k in found]
        names = [fit.component_names[by_size[k]] for k in found]
        for axis in (axes.xaxis, axes.yaxis):  # the name of a block at its middle
            axis.set_ticks(middle, names, fontsize=8)
            axis.set_label_text(axis.get_label_text() + ", by block")
    return sheet.result


def _by_block(fit: Result, mean: Array) -> tuple[Array, Array, Array]:
    """The blocks in the order of reports; of every node the place of its block among them; the nodes in that order."""
    by_size = np.array(component_order(fit))
    rank = np.argsort(by_size)[mean.argmax(1)]
    return by_size, rank, np.lexsort((-mean.max(1), rank))


def _points(axes: Axes, graph: GraphData, place: Array, side: float, named: bool) -> None:
    (row, column), value = graph.edges().cpu().numpy(), graph.edge_values().cpu().numpy()
    hidden = np.empty((2, 0), dtype=int) if graph.hidden is None else graph.hidden.cpu().numpy()
    if not graph.directed:
        row, column = np.concatenate([row, column]), np.concatenate([column, row])
        value, hidden = np.concatenate([value, value]), np.concatenate([hidden, hidden[::-1]], axis=1)
    # A point as wide as its cell, but never so small that it vanishes.
    points = max(72 * (side - 1.6) / len(graph), 1.2 if len(graph) < 3000 else 0.8)
    settings: dict[str, Any] = {"marker": "s", "linewidths": 0, "s": points**2, "rasterized": not named}
    if len(value) and value.max() > value.min():
        image = axes.scatter(place[column], place[row], c=value, cmap=drawing.COLORMAP, vmin=0, **settings)
        drawing.scale(image, axes, "value of the edge")
    else:
        axes.scatter(place[column], place[row], color=INK, **settings)
    if named and hidden.size:
        cross: Any = {"marker": "x", "color": MUTED, "s": (0.5 * points) ** 2, "linewidths": 0.8}
        axes.scatter(place[hidden[1]], place[hidden[0]], **cross)


def plot_memberships(fit: Result, *, max_nodes: int = 400, title: str | None = None, ax: Axes | None = None) -> Any:
    """Posterior means of the nodes' blocks: points in a triangle for three blocks, else stacked bars.

    Bars are ordered by the strongest block, and shown for at most ``max_nodes`` nodes, evenly spaced in that order.
    """
    graph, mean = graph_of(fit), to_numpy(fit.posterior.mean)
    default = f"{type(fit.model).__name__}: {presentation_of(fit.model).local} of {len(graph)} nodes"
    blocks = [f"block {name}" for name in fit.component_names]
    if mean.shape[1] == 3:
        sheet, axes = Sheet.single(ax, 7.0, 6.0, title or default)
        _triangle(axes, mean, graph.nodes if len(graph) <= NAMED else [], blocks)
        return sheet.finish(title, default)
    by_size, _, nodes = _by_block(fit, mean)
    nodes = drawing.thin(nodes, max_nodes)
    named = len(nodes) <= NAMED
    sheet, axes = Sheet.single(ax, max(6.0, 1.6 + 0.2 * len(nodes) if named else 9.0), 3.8, title or default)
    bottom = np.zeros(len(nodes))
    for k, colour in zip(by_size, colours_of(len(by_size))[by_size], strict=True):
        axes.bar(range(len(nodes)), mean[nodes, k], 1.0, bottom, color=colour, label=blocks[k], linewidth=0)
        bottom += mean[nodes, k]
    axes.set(xlim=(-0.5, len(nodes) - 0.5), ylim=(0, 1), ylabel=presentation_of(fit.model).local)
    if named:
        names = [drawing.shorten(graph.nodes[n], 16) for n in nodes]
        drawing.name_ticks(axes, "x", names, 7)
    else:
        axes.set_xticks([])
        axes.set_xlabel(f"{len(nodes)} of {len(graph)} nodes, by their strongest block")
    if mean.shape[1] <= 20:
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=8)
    return sheet.finish(title, default)


def _triangle(axes: Axes, mean: Array, names: list[Any], blocks: list[str]) -> None:
    """Points of the simplex of three blocks in an equilateral triangle."""
    corners = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, math.sqrt(0.75)]])
    at, colours = mean @ corners, colours_of(3)
    axes.plot(*corners[[0, 1, 2, 0]].T, color=MUTED, linewidth=1)
    for share in (0.25, 0.5, 0.75):
        for k in range(3):
            one, other = (share * corners[k] + (1 - share) * corners[(k + step) % 3] for step in (1, 2))
            axes.plot(*np.array([one, other]).T, color=MUTED, linewidth=0.4, alpha=0.6)
    axes.scatter(*at.T, color=mean @ colours, s=26, edgecolors="white", linewidths=0.5, zorder=3)
    for k, (offset, align) in enumerate((((0, -0.05), "right"), ((0, -0.05), "left"), ((0, 0.04), "center"))):
        axes.annotate(
            blocks[k], corners[k] + offset, ha=align, color=0.75 * colours[k], fontsize=10, annotation_clip=False
        )
    for place, n in _apart(at) if names else []:
        arrow: Any = {"arrowstyle": "-", "color": MUTED, "linewidth": 0.5, "shrinkB": 2}
        axes.annotate(
            drawing.shorten(names[n], 14), at[n], place, fontsize=7, va="center",
            ha="left" if place[0] >= at[n][0] else "right", arrowprops=arrow,
        )  # fmt: skip
    axes.set(aspect="equal", xlim=(-0.32, 1.32), ylim=(-0.12, 1.0))
    axes.set_axis_off()


def _apart(at: Array) -> list[tuple[tuple[float, float], int]]:
    """Places of labels beside their points: those that would overlap are stacked outwards of the triangle."""
    right = at[:, 0] >= 0.5
    found = []
    for side in (False, True):
        nodes = np.flatnonzero(right == side)
        nodes = nodes[np.argsort(at[nodes, 1], kind="stable")]
        height = -0.1
        for n in nodes:
            height = max(height + 0.042, float(at[n, 1]))
            # Outwards of the triangle's side at that height.
            reach = 0.06 + max(0.0, 0.5 - height / math.sqrt(3))
            found.append(((0.5 + reach if side else 0.5 - reach, height), int(n)))
    return found


def plot_pie_graph(
    fit: Result, *, max_nodes: int = 150, seed: int = 0, title: str | None = None, ax: Axes | None = None
) -> Any:
    """The graph with a pie of memberships at every node (Murphy 2012, Fig. 27.22; Airoldi et al. 2008, Fig. 3).

    Nodes are placed by forces along the edges. Raises ``MethodError`` for more than ``max_nodes`` nodes.
    """
    import networkx

    graph, mean = graph_of(fit), to_numpy(fit.posterior.mean)
    if len(graph) > max_nodes:
        raise MethodError(f"{len(graph)} pies would hide each other, expected at most {max_nodes}; see 'adjacency'")
    plain = networkx.Graph()
    plain.add_nodes_from(range(len(graph)))
    plain.add_edges_from(graph.edges().T.tolist())
    spread = networkx.spring_layout(plain, seed=seed, k=2.2 / math.sqrt(len(graph)), iterations=200)
    at = np.array([spread[n] for n in range(len(graph))])
    at = (at - at.min(0)) / np.maximum(np.ptp(at, axis=0), 1e-9)
    default = f"{type(fit.model).__name__}: {presentation_of(fit.model).local} of {len(graph)} nodes"
    sheet, axes = Sheet.single(ax, 8.0, 7.4, title or default)
    radius = float(np.clip(0.11 / math.sqrt(len(graph)), 0.008, 0.035))
    shrink = 72 * (6.4 if ax is None else min(drawing.extent(axes))) * radius
    arrow: Any = {"arrowstyle": "-|>" if graph.directed else "-", "mutation_scale": 7, "shrinkA": shrink}
    arrow |= {"shrinkB": shrink, "color": MUTED, "linewidth": 0.5, "alpha": 0.7}
    for i, j in graph.edges().T.tolist():
        axes.add_patch(FancyArrowPatch(tuple(at[i]), tuple(at[j]), **arrow))
    colours = colours_of(mean.shape[1])
    for n, (x, y) in enumerate(at):
        _pie(axes, (x, y), radius, mean[n], colours)
        if len(graph) <= NAMED:
            name = drawing.shorten(graph.nodes[n], 14)
            axes.annotate(name, (x, y - radius), (0, -2), textcoords="offset points", ha="center", va="top", fontsize=7)
    axes.set(xlim=(-0.07, 1.07), ylim=(-0.07, 1.07), aspect="equal")
    axes.set_axis_off()
    order = component_order(fit)
    names = [f"block {fit.component_names[k]}" for k in order]
    if len(names) <= 20:
        marks = [Line2D([], [], marker="o", linestyle="", color=colours[k], markersize=8) for k in order]
        axes.legend(marks, names, frameon=False, fontsize=8, loc="upper right")
    return sheet.finish(title, default)


def _pie(axes: Axes, centre: tuple[float, float], radius: float, shares: Array, colours: Array) -> None:
    start = 90.0
    for share, colour in zip(shares / shares.sum(), colours, strict=True):
        if share > 0.005:
            wedge = Wedge(centre, radius, start, start + 360 * share, facecolor=colour, linewidth=0, zorder=3)
            axes.add_patch(wedge)
        start += 360 * float(share)
    axes.add_patch(Wedge(centre, radius, 0, 360, facecolor="none", edgecolor="white", linewidth=0.6, zorder=4))


def colours_of(count: int) -> Array:
    """(K, 3): colours that differ; for more than twenty blocks, in order of hue."""
    if count <= 20:
        listed: Any = colormaps["Set2" if count <= 8 else "tab20"]
        return np.array(listed.colors)[:count]
    return colormaps["hsv"](np.linspace(0, 1, count, endpoint=False))[:, :3]
