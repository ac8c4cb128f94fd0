"""Pictures of the citation analysis: NOCA's loadings by community, and the similarity curves (paper, Figs. 12, 14)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from benchmarks.quality._citations import COMMUNITIES, Components

COLOURS = {"logistic PCA": "#999999", "mixture": "#e69f00", "PLSA": "#009e73", "LDA": "#0072b2", "NOCA": "#d55e00"}


def save(figure: Figure, folder: Path, name: str) -> str:
    """Writes ``name``.png and returns the file name."""
    figure.savefig(folder / f"{name}.png")
    return f"{name}.png"


def loadings(found: Mapping[int, Components], names: Sequence[str]) -> Figure:
    """Loadings, each component's over its largest entry, under its prior: white is 1 (Fig. 12)."""
    rows: list[int] = []
    edges, seen = [], set()
    for members in COMMUNITIES.values():
        fresh = [names.index(name) for name in members if name in names and name not in seen]
        seen.update(members)
        rows += fresh
        edges.append(len(rows))
    figure = Figure(figsize=(0.42 * sum(found) + 3.6, 0.135 * len(rows) + 1.2), dpi=110, layout="constrained")
    panels = figure.subplots(1, len(found), squeeze=False, width_ratios=list(found))[0]
    for axes, (size, components) in zip(panels, found.items(), strict=True):
        order = np.argsort(-components.weight)
        scaled = components.vectors[order] / components.vectors[order].max(1, keepdims=True)
        colours = {"cmap": "gray", "vmin": 0, "vmax": 1}
        image = axes.imshow(scaled[:, rows].T, aspect="auto", interpolation="nearest", **colours)
        axes.set_xticks(range(size), [f"{w:.2f}" for w in components.weight[order]], fontsize=7)
        axes.set_yticks(range(len(rows)), [names[j] for j in rows], fontsize=6)
        for edge in edges[:-1]:
            axes.axhline(edge - 0.5, color="#d55e00", lw=0.8)
        axes.set_title(f"K = {size}", fontsize=10)
        axes.set_xlabel("components, by share of the priors")
    starts = [0, *edges[:-1]]
    right = panels[-1].secondary_yaxis("right")
    right.set_yticks([(a + b - 1) / 2 for a, b in zip(starts, edges, strict=True)], list(COMMUNITIES), fontsize=8)
    right.tick_params(length=0)
    figure.colorbar(image, ax=panels, shrink=0.5, label="loading over the component's largest")
    figure.suptitle("NOCA: who each component cites", fontsize=11)
    return figure


def similarity(curves: Mapping[int, Mapping[str, np.ndarray]]) -> Figure:
    """Fig. 14: the sum of the L best weighted cosines, one panel for each K."""
    figure = Figure(figsize=(4.4 * len(curves), 3.6), dpi=110, layout="constrained")
    panels = figure.subplots(1, len(curves), squeeze=False, sharey=True)[0]
    for axes, (size, lines) in zip(panels, curves.items(), strict=True):
        for name, curve in lines.items():
            axes.plot(range(1, len(curve) + 1), curve, marker="o", ms=3.5, lw=1.5, color=COLOURS[name], label=name)
        axes.set_xticks(range(1, max(len(c) for c in lines.values()) + 1))
        axes.set_xlabel("L, components matched")
        axes.set_title(f"K = {size}", fontsize=10)
        axes.set_ylim(0, None)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=8)
    figure.axes[0].set_ylabel("weighted cosine similarity")
    figure.suptitle("Components and the communities, matched one to one", fontsize=11)
    return figure
