"""Differences of ECDFs of all cases, one panel each, on one scale."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks.quality._calibration_cases import APPROXIMATE, EXACT, SPOILED
from custom_inference import Calibration
from custom_inference.checks.calibration.bands import grid_counts, simultaneous_band
from ppl_models.data.atomic import write_text

COLOURS = {EXACT: "#00336f", APPROXIMATE: "#b8860b", SPOILED: "#b5341f"}
#: Panels are cut here, in standard errors of the middle of the ECDF: all that is further out is far out.
_LIMIT = 6.0
#: Beside the reports, not one of them.
FILE = "curves/calibration.json"


#: Every so many points of the grid are kept.
_EVERY = 2


def save_curves(part: str, case: Any, found: Calibration, folder: Path) -> None:
    """Of every quantity sqrt(M) (ECDF - uniform) on the grid, so that figures can be drawn of cases run in portions."""
    lines = found.lines()
    size = min(len(values) for values in lines.values())
    z, curves = simultaneous_band(size, 0.95).z, {}
    for name, values in lines.items():
        difference = 2 * len(values) ** 0.5 * (grid_counts(values) / len(values) - z)
        curves[name] = difference[::_EVERY].clip(-_LIMIT, _LIMIT).round(2).tolist()
    kept = _read(folder)
    kept.setdefault(part, {})[_named((*case.key, case.known))] = {"size": size, "lines": curves}
    (folder / FILE).parent.mkdir(parents=True, exist_ok=True)
    write_text(folder / FILE, json.dumps(kept) + "\n")


def _read(folder: Path) -> dict[str, Any]:
    path = folder / FILE
    return json.loads(path.read_text()) if path.is_file() else {}


def _named(key: Sequence[str]) -> str:
    return " | ".join(key)


def draw(part: str, order: Sequence[tuple[str, str, str]], folder: Path, path: Path, columns: int = 6) -> None:
    """A panel a case whose curves are known: sqrt(M) (ECDF - uniform) of every quantity, those of log p dashed."""
    curves = _read(folder).get(part, {})
    found = [(key, curves[_named(key)]) for key in order if _named(key) in curves]
    rows = -(-len(found) // columns)
    figure = Figure(figsize=(2.15 * columns, 0.6 + 1.5 * rows), dpi=110, layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    for axes in panels.flat[len(found) :]:
        axes.set_axis_off()
    for axes, ((title, method, known), case) in zip(panels.flat, found, strict=False):
        band = simultaneous_band(case["size"], 0.95)
        z = np.concatenate([[0.0], band.z, [1.0]])
        low, high = (
            2 * case["size"] ** 0.5 * np.concatenate([[0.0], s - band.z, [0.0]]) for s in (band.low, band.high)
        )
        axes.fill_between(z, low, high, color="#9a9a9a", alpha=0.35, linewidth=0)
        for name, values in case["lines"].items():
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
