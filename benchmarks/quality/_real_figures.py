"""The drawings of ``noca_real``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from custom_inference import Fit


def save(figure: Figure, folder: Path, name: str) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / f"{name}.png")
    return f"{name}.png"


def loadings(of: Fit, order: Sequence[int], top: int, title: str) -> Figure:
    """One small bar chart a source: its strongest features."""
    columns = 5 if len(order) > 6 else 3
    lines = -(-len(order) // columns)
    figure = Figure(figsize=(2.6 * columns, (0.24 * top + 0.75) * lines + 0.5), dpi=110, layout="constrained")
    panels = figure.subplots(lines, columns, squeeze=False, sharex=True).flat
    names = of.data.coords["feature"]
    for position, (axes, i) in enumerate(zip(panels, order, strict=False)):
        best = of.params["loading"][i].argsort(descending=True)[:top].tolist()
        values = [float(of.params["loading"][i, j]) for j in best]
        axes.barh(range(top), values, color="#00336f", height=0.7)
        axes.set_yticks(range(top), [str(names[j]) for j in best], fontsize=8)
        axes.invert_yaxis()
        axes.set_xlim(0, 1)
        axes.set_title(f"source {position}, π = {float(of.params['source_prior'][i]):.2f}", fontsize=9)
        axes.spines[["top", "right"]].set_visible(False)
    for axes in list(panels)[len(order) :]:
        axes.set_visible(False)
    figure.supxlabel("P(on | source present)", fontsize=9)
    figure.suptitle(title, fontsize=11)
    return figure


def by_year(active: np.ndarray, year: np.ndarray, captions: Sequence[str], title: str) -> Figure:
    """Mean posterior of every source by year, one panel each."""
    columns = 5
    lines = -(-len(captions) // columns)
    figure = Figure(figsize=(2.5 * columns, 1.7 * lines + 0.6), dpi=110, layout="constrained")
    years = np.unique(year)
    share = np.array([active[year == y].mean(0) for y in years])
    for position, axes in enumerate(figure.subplots(lines, columns, squeeze=False, sharex=True, sharey=True).flat):
        if position >= len(captions):
            axes.set_visible(False)
            continue
        axes.plot(years, share[:, position], color="#00336f", lw=1.4)
        axes.fill_between(years, share[:, position], color="#00336f", alpha=0.15, lw=0)
        axes.set_title(f"{position}: {captions[position]}", fontsize=8)
        axes.set_ylim(0, None)
        axes.set_xticks([1988, 1993, 1998])
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title, fontsize=11)
    figure.supylabel("share of papers", fontsize=9)
    return figure


def sites(active: np.ndarray, age: np.ndarray, lon: np.ndarray, lat: np.ndarray, captions: Sequence[str]) -> Figure:
    """For every source the sites on a map, the darker the more probably present, and the share by age."""
    count = active.shape[1]
    figure = Figure(figsize=(2.45 * count, 4.6), dpi=110, layout="constrained")
    panels = figure.subplots(2, count, squeeze=False, sharey="row", sharex="row")
    edges = np.linspace(age.min(), age.max(), 9)
    middle, part = (edges[1:] + edges[:-1]) / 2, np.clip(np.digitize(age, edges) - 1, 0, 7)
    dots: Any = None
    for i, caption in enumerate(captions):
        order = np.argsort(active[:, i])
        above, below = panels[0][i], panels[1][i]
        dots = above.scatter(lon[order], lat[order], c=active[order, i], cmap="cividis_r", s=11, vmin=0, vmax=1, lw=0)
        above.set_title(f"{i}: {caption}", fontsize=8)
        above.set_xlabel("longitude, degrees east", fontsize=8)
        share = [active[part == k, i].mean() if (part == k).any() else np.nan for k in range(8)]
        below.plot(middle, share, color="#00336f", marker="o", ms=3, lw=1.3)
        below.set_xlabel("age, million years", fontsize=8)
        for axes in (above, below):
            axes.spines[["top", "right"]].set_visible(False)
            axes.tick_params(labelsize=8)
    panels[0][0].set_ylabel("latitude", fontsize=8)
    panels[1][0].set_ylabel("share of sites with the source", fontsize=8)
    panels[1][0].invert_xaxis()
    figure.colorbar(dots, ax=panels[0], shrink=0.8, pad=0.01, label="P(source | site)")
    figure.suptitle("Miocene mammals: where and when each source is present (neither seen by the fit)", fontsize=11)
    return figure
