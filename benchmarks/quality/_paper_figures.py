"""The drawings of ``noca_paper``: one function a figure of the paper, each from plain numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullFormatter, ScalarFormatter

INK, SECOND, THIRD, MUTED = "#00336f", "#b34700", "#2a7f3f", "#777777"
#: x -> one value a trial.
Trials = Mapping[int, Sequence[float]]


def new_figure(width: float, height: float) -> Figure:
    return Figure(figsize=(width, height), dpi=110, layout="constrained")


def error_bars(axes: Axes, trials: Trials, *, color: str = INK, label: str | None = None, marker: str = "o") -> None:
    """Mean and one standard deviation of the trials at every x."""
    x = np.array(list(trials))
    mean = np.array([np.mean(trials[k]) for k in trials])
    deviation = np.array([np.std(trials[k]) for k in trials])
    axes.errorbar(x, mean, deviation, color=color, marker=marker, markersize=4, capsize=3, lw=1.3, label=label)


def tidy(axes: Axes, **labels: str) -> None:
    axes.set(**labels)  # pyright: ignore[reportArgumentType]
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#e4e4e4", lw=0.6)
    axes.set_axisbelow(True)


def number_ticks(axes: Axes, values: Sequence[int], *, which: str = "x") -> None:
    """Ticks at these values, as plain numbers, on a logarithmic axis."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_locator(FixedLocator(list(values)))
    axis.set_major_formatter(ScalarFormatter())
    axis.set_minor_formatter(NullFormatter())


def pictures(lines: Sequence[tuple[str, np.ndarray, Sequence[str]]], names: Sequence[str], title: str) -> Figure:
    """Fig. 5: a line of 8x8 pictures per model, (label, pictures (M, 64), a caption for each)."""
    columns = len(names)
    figure = new_figure(1.15 * columns + 1.6, 1.45 * len(lines) + 0.6)
    panels = figure.subplots(len(lines), columns, squeeze=False)
    image: Any = None
    for line, (label, values, captions) in zip(panels, lines, strict=True):
        for axes, value, caption in zip(line, values, captions, strict=True):
            image = axes.imshow(value.reshape(8, 8), cmap="cividis", vmin=0, vmax=1)
            axes.set(xticks=[], yticks=[])
            axes.set_xlabel(caption, fontsize=8)
        line[0].set_ylabel(label, fontsize=10)
    for axes, name in zip(panels[0], names, strict=True):
        axes.set_title(name, fontsize=9)
    figure.colorbar(image, ax=panels, shrink=0.6, pad=0.015, label="P(pixel on | source present)")
    figure.suptitle(title, fontsize=11)
    return figure


def test_log_likelihood(test: Trials, weak: Trials, train: Trials, truth: float, num_trials: int) -> Figure:
    """Fig. 6."""
    figure = new_figure(6.4, 4.2)
    axes = figure.subplots()
    axes.axhline(truth, color=MUTED, lw=1, ls="--", label="true parameters, test rows")
    error_bars(axes, test, label="maximum likelihood, test rows")
    error_bars(axes, weak, color=THIRD, marker="^", label="with weak priors, test rows")
    error_bars(axes, train, color=SECOND, marker="s", label="maximum likelihood, its training rows")
    axes.set_xscale("log")
    number_ticks(axes, list(test))
    tidy(axes, xlabel="training rows n", ylabel="exact log-likelihood per row")
    axes.legend(frameon=False)
    axes.set_title(f"NOCA, K = 8: mean and sd of {num_trials} trials (Singliar & Hauskrecht 2006, Fig. 6)", fontsize=10)
    return figure


def model_selection(bic: Trials, likelihood: Trials, truth: float, num_trials: int) -> Figure:
    """Fig. 7."""
    figure = new_figure(9.6, 4.0)
    left, right = figure.subplots(1, 2)
    best = min(bic, key=lambda k: float(np.mean(bic[k])))
    for axes in (left, right):
        axes.axvline(8, color=MUTED, lw=1, ls="--", label="true number of sources")
        axes.set_xticks(list(bic))
    error_bars(left, bic, label="BIC")
    left.plot([best], [np.mean(bic[best])], "o", ms=11, mfc="none", mec=SECOND, label=f"minimum, k = {best}")
    tidy(left, xlabel="number of sources k", ylabel="BIC (smaller is better)")
    error_bars(right, likelihood, label="fit")
    right.axhline(truth, color=SECOND, lw=1, ls=":", label="true parameters")
    tidy(right, xlabel="number of sources k", ylabel="exact log-likelihood per training row")
    left.legend(frameon=False)
    right.legend(frameon=False, loc="lower right")
    figure.suptitle(f"NOCA on 2000 rows from 8 sources: mean and sd of {num_trials} trials (Fig. 7)", fontsize=10)
    return figure


def slope_of(points: Mapping[int, float], *, above: int = 0) -> float:
    """The exponent of a power law through the points, on logarithmic axes."""
    x, y = zip(*((k, v) for k, v in points.items() if k >= above), strict=True)
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def running_time(by_rows: Mapping[str, Mapping[int, float]], by_sources: Mapping[str, Mapping[int, float]]) -> Figure:
    """Fig. 8: seconds per iteration."""
    figure = new_figure(9.6, 4.2)
    left, right = figure.subplots(1, 2, sharey=True)
    for axes, curves, label in ((left, by_rows, "rows N, at K = 8"), (right, by_sources, "sources K, at N = 2000")):
        for (name, points), color, marker in zip(curves.items(), (INK, SECOND), "os", strict=False):
            power = f"slope {slope_of(points):.2f}" if name != "exact EM" or axes is left else "doubles with each K"
            axes.plot(list(points), list(points.values()), color=color, marker=marker, lw=1.3, label=f"{name}: {power}")
        axes.set_xscale("log")
        axes.set_yscale("log")
        number_ticks(axes, sorted({x for points in curves.values() for x in points}))
        axes.tick_params(axis="x", labelsize=8)
        tidy(axes, xlabel=label)
        axes.legend(frameon=False, fontsize=8)
    left.set_ylabel("CPU seconds per iteration")
    figure.suptitle("NOCA, one E and one M step: median of timed iterations, one thread (Fig. 8)", fontsize=10)
    return figure


def reconstruction(
    by_rows: tuple[Trials, Trials], by_sources: tuple[Trials, Trials], floor: float, num_trials: Sequence[int]
) -> Figure:
    """Fig. 9: train and test, against n and against k."""
    figure = new_figure(9.6, 4.0)
    left, right = figure.subplots(1, 2, sharey=False)
    for axes, (train, test) in ((left, by_rows), (right, by_sources)):
        error_bars(axes, test, label="test rows")
        error_bars(axes, train, color=SECOND, marker="s", label="training rows")
        axes.axhline(floor, color=MUTED, lw=1, ls="--", label="true parameters, test rows")
        axes.legend(frameon=False, fontsize=9)
    left.set_xscale("log")
    number_ticks(left, list(by_rows[0]))
    tidy(left, xlabel="training rows n, at k = 8", ylabel="proportion of pixels that differ")
    right.set_xticks(list(by_sources[0]))
    tidy(right, xlabel="number of sources k, at n = 2000")
    figure.suptitle(
        f"NOCA, reconstruction from the most probable code: mean and sd of {num_trials[0]} (left) and "
        f"{num_trials[1]} (right) trials (Singliar & Hauskrecht 2006, Fig. 9)",
        fontsize=10,
    )
    return figure
