"""Differences of ECDFs of all cases, one panel each, on one scale."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks.quality._calibration_cases import APPROXIMATE, EXACT, SPOILED
from custom_inference import Calibration
from custom_inference.checks.calibration.bands import grid_counts, simultaneous_band

COLOURS = {EXACT: "#00336f", APPROXIMATE: "#b8860b", SPOILED: "#b5341f"}
#: Panels are cut here, in standard errors of the middle of the ECDF: all that is further out is far out.
_LIMIT = 6.0


def draw(found: list[tuple[Any, Calibration]], path: Path, columns: int = 6) -> None:
    """A panel a case: sqrt(M) (ECDF - uniform) of every quantity, those of log p dashed."""
    rows = -(-len(found) // columns)
    figure = Figure(figsize=(2.15 * columns, 0.6 + 1.5 * rows), dpi=110, layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    for axes in panels.flat[len(found) :]:
        axes.set_axis_off()
    for axes, (case, calibration) in zip(panels.flat, found, strict=False):
        lines = calibration.lines()
        size = min(len(values) for values in lines.values())
        band = simultaneous_band(size, 0.95)
        z = np.concatenate([[0.0], band.z, [1.0]])
        low, high = (2 * size**0.5 * np.concatenate([[0.0], s - band.z, [0.0]]) for s in (band.low, band.high))
        axes.fill_between(z, low, high, color="#9a9a9a", alpha=0.35, linewidth=0)
        for name, values in lines.items():
            difference = 2 * len(values) ** 0.5 * (grid_counts(values) / len(values) - band.z)
            clipped = np.concatenate([[0.0], difference, [0.0]]).clip(-_LIMIT, _LIMIT)
            style = "--" if name.startswith("log_") else "-"
            axes.plot(z, clipped, style, color=COLOURS[case.known], linewidth=0.9, alpha=0.85)
        axes.set_title(f"{case.title}\n{calibration.ranks.attrs['method']}", fontsize=6.5)
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
