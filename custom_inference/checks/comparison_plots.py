"""Figures of how far approximations are from the truth: gaps and errors of methods, and brackets of rows."""

from __future__ import annotations

import math
import textwrap
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from custom_inference.faces.drawing import INK, MUTED, Array, Panels, Sheet
from ppl_models import MethodError

#: Of error bars and estimates, beside what is known without error.
_ESTIMATED = "#c8510c"
#: Why a line has no bound, by what its posterior is.
_BOUNDLESS = {"point": "a point: no bound, infinite divergence", "draws": "draws: no bound"}


def plot_comparison(table: pd.DataFrame, *, title: str | None = None, axes: Panels | None = None) -> Any:
    """Bars of the gap to the evidence and of the worst marginal error, from ``compare().table``.

    Without a reference the first are the distances from the highest bound. Where the bounds or the reference are Monte
    Carlo estimates, lines are two standard errors to either side. The title says what was compared with, and how far an
    estimated reference may be off; lines without a bound say why.
    """
    missing = [column for column in ("gap_per_row", "worst_marginal_error") if column not in table]
    if missing or not len(table):
        raise MethodError("a comparison table needs a row and the columns gap_per_row, worst_marginal_error")
    names = [str(name) for name in table.index]
    longest = max(map(len, names))
    wide = 7.6 + 0.08 * longest
    sheet = Sheet.grid(axes, 2, 2, wide, 1.6 + 0.36 * len(names), sharey=True)
    gap, error = sheet.panels
    known = "evidence" not in table or bool(table["evidence"].notna().any())
    heading, unit = _draw_gaps(gap, table, names, known)
    gap.set_title(heading, fontsize=10)
    gap.set_xlabel(unit)
    worst = table["worst_marginal_error"].to_numpy(dtype=float)
    errors = 2 * _column(table, "marginal_error")
    _draw_bars(error, names, worst, errors, ["not available"] * len(names))
    error.set_title("worst error of a marginal", fontsize=10)
    error.set_xlabel("max |E_q[s] - E[s | x]|" + _bars_of(errors))
    return sheet.finish(title, textwrap.fill(_describe_reference(table, known), max(40, int(11 * wide))), fontsize=11)


def _describe_reference(table: pd.DataFrame, known: bool) -> str:
    """Say what was compared with, and how far it may be off."""
    if not known:
        return "Bounds on the evidence"
    if table.attrs.get("reference") != "ais":
        return "Approximate against exact posterior"
    off, spread = (float(table.attrs.get(name, math.nan)) for name in ("reference_error", "reference_spread"))
    sides = f"its upper less its lower side {off:.2g} \u00b1 {2 * spread:.1g} nats a row, on rows drawn from the model"
    checked = "unchecked" if math.isnan(off) else sides
    return f"Approximate against estimated posterior: annealed importance sampling, {checked}"


def _draw_gaps(axes: Axes, table: pd.DataFrame, names: list[str], known: bool) -> tuple[str, str]:
    """Bars of how far the bounds are from the evidence or, without it, from the highest of them: heading and unit."""
    rows = table.attrs.get("num_rows")
    heading, unit = ("gap to the log evidence" if known else "below the highest bound"), "nats per row"
    gaps, errors = table["gap_per_row"].to_numpy(dtype=float), 2 * _column(table, "gap_error")
    if not known:
        bound = table["bound"].to_numpy(dtype=float)
        gaps = (np.nanmax(bound, initial=-np.inf) - bound) / (rows or 1)
        unit = unit if rows else "nats"
    if rows or not known:  # the error of a bound is a part of that of its gap to an estimate
        errors = np.maximum(errors, 2 * _column(table, "standard_error") / (rows or 1))
    what = [str(one) for one in table["what"]] if "what" in table else [""] * len(names)
    _draw_bars(axes, names, gaps, errors, [_BOUNDLESS.get(one.partition(",")[0], "not available") for one in what])
    return heading, unit + _bars_of(errors)


def _column(table: pd.DataFrame, name: str) -> Array:
    """A column of errors; 0 where there are none."""
    return np.nan_to_num(table[name].to_numpy(dtype=float)) if name in table else np.zeros(len(table))


def _bars_of(errors: Array) -> str:
    return ", \u00b1 2 standard errors" if errors.any() else ""


def _draw_bars(axes: Axes, names: list[str], values: Array, errors: Array, absent: list[str]) -> None:
    """absent: what stands in the place of the bar of a value that is not there."""
    # A bound above the evidence by rounding is no gap.
    shown = np.where(np.abs(values) < 1e-9, 0.0, values)
    finite = np.isfinite(shown)
    length, spread = np.where(finite, shown, 0.0), np.where(finite, errors, 0.0)
    low, high = length - spread, length + spread
    axes.barh(range(len(names)), length, color=INK, height=0.6)
    there = spread > 0
    axes.errorbar(length[there], np.nonzero(there)[0], xerr=spread[there], fmt="none", ecolor=_ESTIMATED, capsize=3)
    for place, value in enumerate(shown):
        text = absent[place] if np.isnan(value) else "infinite" if np.isinf(value) else f"{value:.3g}"
        text += f" \u00b1 {spread[place]:.1g}" if there[place] else ""
        where = {"xytext": (4, 0), "textcoords": "offset points", "va": "center"}
        axes.annotate(text, (max(0.0, high[place]), place), fontsize=9, **where)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    room = 1.6 if there.any() else 1.3  # to the right of the longest bar, for what it says
    axes.set_xlim(min(0.0, float(low.min()) * 1.3), room * max(0.0, float(high.max())) or 1.0)
    axes.locator_params(axis="x", nbins=4)  # small gaps have long numbers, which must not run into each other
    axes.spines[["top", "right"]].set_visible(False)


def plot_bracket(
    lower: Array, upper: Array, estimate: Array | None, error: Array | None, *, title: str | None, ax: Axes | None
) -> Any:
    """Every row's bracket above its lower bound, from the narrowest to the widest, with estimates as points; see
    ``Bracket.plot``.

    All are (N,); error: standard errors of the estimates.
    """
    order = np.argsort(upper - lower, kind="stable")
    width, place = (upper - lower)[order], np.arange(len(order))
    sheet, axes = Sheet.single(ax, 7.0, 3.4)
    edges = np.arange(len(order) + 1) - 0.5
    axes.stairs(width, edges, fill=True, color=MUTED, alpha=0.4, label="between the bounds")
    axes.stairs(width, edges, color=INK, linewidth=1.0, label="upper bound")
    axes.axhline(0, color=INK, linewidth=1.0, linestyle="--", label="lower bound")
    if estimate is not None:
        above = (estimate - lower)[order]
        bars = None if error is None else 2 * error[order]
        label = "estimate" if bars is None else "estimate, \u00b1 2 standard errors"
        axes.errorbar(place, above, bars, fmt=".", color=_ESTIMATED, markersize=4, elinewidth=0.8, label=label)
    axes.set_xlim(-0.5, max(len(order), 1) - 0.5)
    points = int((width <= 0).sum())
    exact = f", {points} of them exact" if points else ""
    axes.set(xlabel=f"{len(order)} rows, by the width of their brackets{exact}", ylabel="nats above the lower bound")
    axes.legend(fontsize=8, frameon=False, loc="upper left")
    axes.spines[["top", "right"]].set_visible(False)
    mean = float(width.mean()) if len(width) else 0.0
    most = float(width.max(initial=0.0))
    default = f"log p(x) of each row between two bounds: {mean:.3g} nats apart on average, {most:.3g} at most"
    axes.set_title(title or default, fontsize=10)
    return sheet.result
