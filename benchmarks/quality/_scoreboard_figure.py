"""The scoreboard as a picture: models down, methods across, one panel a figure of merit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from custom_inference.methods import every_method
from ppl_models import MODELS

#: Column -> title and limits of the colours (logarithmic); below the first everything is as good as exact.
PANELS = {
    "KL a row": ("KL(method || exact posterior) a row, nats", (1e-4, 10.0)),
    "worst marginal error": ("largest error of a posterior mean", (1e-4, 1.0)),
    "fit CPU s": ("CPU seconds of a whole fit", (1e-2, 100.0)),
}


def draw(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write the picture."""
    models = [name for name in MODELS if any(row["model"] == name for row in rows)]
    methods = [name for name in every_method() if any(row["method"] == name for row in rows)]
    at = {(row["model"], row["method"]): row for row in rows}
    figure = Figure(figsize=(3.5 + 0.5 * len(methods), 3 * (1.2 + 0.25 * len(models))), layout="constrained")
    axes = figure.subplots(3, 1)
    for panel, (column, (title, limits)) in zip(axes.flat, PANELS.items(), strict=True):
        _numbers(figure, panel, [[_value(at.get((m, k)), column) for k in methods] for m in models], title, limits)
    for panel in axes.flat:
        panel.set_xticks(range(len(methods)), methods, rotation=60, ha="right", fontsize=8)
        panel.set_yticks(range(len(models)), models, fontsize=8)
        panel.set_xticks(np.arange(len(methods)) + 0.5, minor=True)
        panel.set_yticks(np.arange(len(models)) + 0.5, minor=True)
        panel.grid(which="minor", color="white", linewidth=1)
        panel.tick_params(which="both", length=0)
    figure.savefig(path, dpi=110)


def _value(row: Mapping[str, Any] | None, column: str) -> float:
    """NaN: does not apply, or not to be had. Infinity: a point."""
    if row is None or row[column] is None:
        return float("nan")
    return float("inf") if row[column] == "infinite" else float(row[column])


def _numbers(figure: Figure, axes: Any, values: Any, title: str, limits: tuple[float, float]) -> None:
    table = np.array(values)
    colours = mpl.colormaps["viridis_r" if "seconds" not in title else "cividis_r"].copy()
    colours.set_bad("0.93")
    norm = LogNorm(*limits, clip=True)
    shown = np.where(np.isnan(table), np.nan, np.clip(table, *limits))
    image = axes.imshow(np.ma.masked_invalid(shown), cmap=colours, norm=norm, aspect="auto")
    for (i, j), value in np.ndenumerate(table):
        if not np.isnan(value):
            dark = norm(min(max(value, limits[0]), limits[1])) > 0.55
            axes.text(j, i, _short(value), ha="center", va="center", fontsize=6.5, color="white" if dark else "black")
    axes.set_title(title, fontsize=10)
    figure.colorbar(image, ax=axes, shrink=0.8)


def _short(value: float) -> str:
    if np.isinf(value):
        return "point"
    return "0" if abs(value) < 1e-9 else f"{value:.1g}" if abs(value) < 1 else f"{value:.2g}"
