"""Differences of ECDFs of all cases, one panel each, on one scale."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from benchmarks.quality._calibration_cases import APPROXIMATE, EXACT, SPOILED
from custom_inference import Calibration
from custom_inference.checks.calibration.bands import grid_counts, simultaneous_band

COLOURS = {EXACT: "#00336f", APPROXIMATE: "#b8860b", SPOILED: "#b5341f"}
#: Panels are cut here, in standard errors of the middle of the ECDF: all that is further out is far out.
_LIMIT = 6.0
#: Every so many points of the grid are kept.
_EVERY = 2


class Curves(NamedTuple):
    """Of every quantity of a case sqrt(M) (ECDF - uniform) on the grid of M = ``size`` ranks."""

    title: str
    method: str
    known: str
    size: int
    lines: dict[str, list[float]]

    @classmethod
    def of(cls, case: Any, found: Calibration) -> Curves:
        lines = found.lines()
        size = min(len(values) for values in lines.values())
        z, curves = simultaneous_band(size, 0.95).z, {}
        for name, values in lines.items():
            difference = 2 * len(values) ** 0.5 * (grid_counts(values) / len(values) - z)
            curves[name] = difference[::_EVERY].clip(-_LIMIT, _LIMIT).tolist()
        return cls(*case.key, case.known, size, curves)


def draw(found: Sequence[Curves], path: Path, columns: int = 6) -> None:
    """A panel a case: sqrt(M) (ECDF - uniform) of every quantity, those of log p dashed."""
    rows = -(-len(found) // columns)
    figure = Figure(figsize=(2.15 * columns, 0.6 + 1.5 * rows), dpi=110, layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    for axes in panels.flat[len(found) :]:
        axes.set_axis_off()
    for axes, (title, method, known, size, lines) in zip(panels.flat, found, strict=False):
        band = simultaneous_band(size, 0.95)
        z = np.concatenate([[0.0], band.z, [1.0]])
        low, high = (2 * size**0.5 * np.concatenate([[0.0], s - band.z, [0.0]]) for s in (band.low, band.high))
        axes.fill_between(z, low, high, color="#9a9a9a", alpha=0.35, linewidth=0)
        for name, values in lines.items():
            style = "--" if name.startswith("log_") else "-"
            at = np.concatenate([[0.0], band.z[::_EVERY], [1.0]])
            axes.plot(at, [0.0, *values, 0.0], style, color=COLOURS[known], linewidth=0.9, alpha=0.85)
        axes.set_title(f"{title}\n{method}", fontsize=6.5)
        axes.set(xlim=(0, 1), ylim=(-_LIMIT, _LIMIT))
        axes.tick_params(labelsize=6)
        axes.spines[["top", "right"]].set_visible(False)
    figure.supxlabel("rank of the truth among the draws", fontsize=8)
    figure.supylabel("ECDF - uniform, in standard errors of its middle", fontsize=8)
    figure.suptitle(
        "Blue: exact posteriors; yellow: approximations; red: spoiled on purpose. Dashed: log p. Grey: 95 % bands",
        fontsize=8,
    )
    figure.savefig(path)
