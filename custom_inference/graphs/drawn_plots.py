"""Figures of graphs themselves: pies of memberships at the nodes, arrows between blocks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch, Wedge

from custom_inference.core.registry import presentation_of
from custom_inference.core.result import Result
from custom_inference.faces import drawing
from custom_inference.faces.drawing import INK, MUTED, new_figure
from custom_inference.graphs.blocks import graph_of, matrix_of, pair_counts
from custom_inference.graphs.plots import NAMED, colours_of, family_name, mean_of
from ppl_models import MethodError


def plot_pie_graph(fit: Result, *, max_nodes: int = 150, seed: int = 0, title: str | None = None) -> Figure:
    """The graph with a pie of memberships at every node (002, Fig. 27.22; Airoldi et al. 2008, Fig. 3).

    Nodes are placed by forces along the edges. Raises ``MethodError`` for more than ``max_nodes`` nodes.
    """
    import networkx

    graph, mean = graph_of(fit), mean_of(fit)
    if len(graph) > max_nodes:
        raise MethodError(f"{len(graph)} pies would hide each other, expected at most {max_nodes}; see 'adjacency'")
    plain = networkx.Graph()
    plain.add_nodes_from(range(len(graph)))
    plain.add_edges_from(graph.edges().T.tolist())
    spread = networkx.spring_layout(plain, seed=seed, k=2.2 / math.sqrt(len(graph)), iterations=200)
    at = np.array([spread[n] for n in range(len(graph))])
    at = (at - at.min(0)) / np.maximum(np.ptp(at, axis=0), 1e-9)
    title = title or f"{family_name(fit)}: {presentation_of(fit.model).local} of {len(graph)} nodes"
    figure = new_figure(8.0, 7.4)
    axes, radius = figure.subplots(), float(np.clip(0.11 / math.sqrt(len(graph)), 0.008, 0.035))
    style = "-|>" if graph.directed else "-"
    shrink = 72 * 6.4 * radius
    for i, j in graph.edges().T.tolist():
        arrow: Any = {"arrowstyle": style, "mutation_scale": 7, "color": MUTED, "linewidth": 0.5, "alpha": 0.7}
        axes.add_patch(FancyArrowPatch(tuple(at[i]), tuple(at[j]), shrinkA=shrink, shrinkB=shrink, **arrow))
    colours = colours_of(mean.shape[1])
    for n, (x, y) in enumerate(at):
        _pie(axes, (x, y), radius, mean[n], colours)
        if len(graph) <= NAMED:
            name = drawing.shortened(graph.names[n], 14)
            axes.annotate(name, (x, y - radius), (0, -2), textcoords="offset points", ha="center", va="top", fontsize=7)
    edge = 0.07
    axes.set(xlim=(-edge, 1 + edge), ylim=(-edge, 1 + edge), aspect="equal")
    axes.set_axis_off()
    _legend(axes, fit, colours)
    figure.suptitle(title)
    return figure


def _pie(axes: Axes, centre: tuple[float, float], radius: float, shares: Any, colours: Any) -> None:
    start = 90.0
    for share, colour in zip(shares / shares.sum(), colours, strict=True):
        if share > 0.005:
            wedge = Wedge(centre, radius, start, start + 360 * share, facecolor=colour, linewidth=0, zorder=3)
            axes.add_patch(wedge)
        start += 360 * float(share)
    axes.add_patch(Wedge(centre, radius, 0, 360, facecolor="none", edgecolor="white", linewidth=0.6, zorder=4))


def plot_block_graph(fit: Result, *, above: float = 1.0, title: str | None = None) -> Figure:
    """The abstract graph between blocks (002, Fig. 27.20): arrows as wide as the probability of an edge is high.

    Discs are as large as the blocks, and their border is as wide as an arrow to themselves would be. above: pairs of
    blocks are joined where the probability (or rate) exceeds this many times that of the whole graph.
    """
    graph, mean = graph_of(fit), mean_of(fit)
    eta = matrix_of(fit).detach().cpu().numpy()
    edges, dyads, _ = pair_counts(fit.model, graph, fit.posterior.mean).once(graph.directed)
    overall = float(edges.sum() / dyads.sum())
    size, used = len(eta), np.flatnonzero(mean.sum(0) >= 0.5)
    angle = math.pi / 2 - 2 * math.pi * np.arange(size) / max(len(used), 1)
    at = np.zeros((size, 2))
    at[used] = np.stack([np.cos(angle[: len(used)]), np.sin(angle[: len(used)])], axis=1) * (len(used) > 1)
    radius = 0.08 + 0.16 * np.sqrt(mean.sum(0) / mean.sum(0).max())
    title = title or f"{family_name(fit)}: edges between {len(used)} blocks"
    figure = new_figure(max(6.2, 0.095 * len(title)), 6.0)
    axes, colours = figure.subplots(), colours_of(size)
    shown = eta > above * overall
    widest = eta[shown].max() if shown.any() else 1.0
    for a in used:
        for b in used:
            if a != b and shown[a, b] and (graph.directed or a < b):
                _arrow(axes, at[a], at[b], radius[a], radius[b], eta[a, b], widest, graph.directed)
    for k in used:
        wide = 1.0 + 5 * eta[k, k] / widest if shown[k, k] else 0.6
        disc = Wedge(tuple(at[k]), radius[k], 0, 360, facecolor=colours[k], edgecolor="black", linewidth=wide, zorder=3)
        axes.add_patch(disc)
        within = f"\nwithin {eta[k, k]:.2g}" if shown[k, k] else ""
        label = f"{fit.coords['component'][k]}\n{mean[:, k].sum():.0f} nodes{within}"
        axes.annotate(label, at[k], ha="center", va="center", fontsize=8, zorder=4)
    axes.set(xlim=(-1.45, 1.45), ylim=(-1.4, 1.4), aspect="equal")
    axes.set_axis_off()
    joined = f"joined where {presentation_of(fit.model).value} > {above * overall:.2g}"
    middle: Any = {"xycoords": "axes fraction", "ha": "center", "va": "bottom"}
    axes.annotate(joined, (0.5, 0.0), fontsize=8, color=MUTED, **middle)
    figure.suptitle(title)
    return figure


def _arrow(
    axes: Axes, one: Any, other: Any, near: float, far: float, value: float, widest: float, directed: bool
) -> None:
    """An arrow from disc to disc, bent so that the one back does not cover it; its value beside it."""
    bend = 0.14 if directed else 0.0
    points = 72 * 5.0 / 2.9  # of a unit of the axes
    arrow: Any = {"arrowstyle": "-|>" if directed else "-", "mutation_scale": 14, "color": INK, "alpha": 0.85}
    curve = FancyArrowPatch(
        tuple(one), tuple(other), connectionstyle=f"arc3,rad={bend}", shrinkA=near * points, shrinkB=far * points,
        linewidth=0.8 + 4 * value / widest, **arrow,
    )  # fmt: skip
    axes.add_patch(curve)
    along = other - one
    # The middle of the curve lies half of the bend beside the line; the text a little further out.
    side = np.array([along[1], -along[0]])
    length = max(float(np.hypot(*along)), 1e-9)
    middle = one + 0.42 * along + side * bend / 2 + side / length * 0.07
    axes.annotate(f"{value:.2g}", middle, ha="center", va="center", fontsize=8, color=INK)


def _legend(axes: Axes, fit: Result, colours: Any) -> None:
    names = fit.coords["component"]
    if len(names) > 20:
        return
    marks = [Line2D([], [], marker="o", linestyle="", color=colour, markersize=8) for colour in colours]
    axes.legend(marks, [f"block {name}" for name in names], frameon=False, fontsize=8, loc="upper right")
