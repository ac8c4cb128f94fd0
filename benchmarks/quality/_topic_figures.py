"""Pictures of the topic models' benchmarks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

#: Of lines, in the order of the legends.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#e69f00", "#cc79a7", "#56b4e9", "#999999")


def save(figure: Figure, folder: Path, name: str) -> str:
    """Writes ``name``.png and returns the file name."""
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / f"{name}.png")
    return f"{name}.png"


def assignments(
    document: NDArray[np.int64],
    word: NDArray[np.int32],
    states: Sequence[NDArray[np.int32]],
    words: Sequence[str],
    titles: Sequence[str],
) -> Figure:
    """Every token a dot, by document and word, black or white by its topic (Murphy 2012, Fig. 27.8)."""
    figure = Figure(figsize=(4.6 * len(states), 5.2), dpi=110, layout="constrained")
    panels = figure.subplots(1, len(states), squeeze=False, sharey=True)[0]
    for axes, topic, title in zip(panels, states, titles, strict=True):
        order = np.lexsort((topic, word, document))
        cell = document[order] * len(words) + word[order]
        place = np.arange(len(cell)) - np.searchsorted(cell, cell)  # the token's place among those of its cell
        across = word[order] + 0.085 * (place % 10) - 0.38
        down = document[order] + 0.3 * (place // 10) - 0.15 * (np.bincount(cell).max() > 10)
        colour = np.where(topic[order] == 0, "white", "black")
        axes.scatter(across, down, c=colour, s=20, edgecolors="black", linewidths=0.7)
        axes.set_xticks(range(len(words)), words)
        axes.xaxis.tick_top()
        axes.set_title(title, fontsize=10)
        axes.tick_params(length=0)
        axes.set_xlim(-0.5, len(words) - 0.5)
        for v in range(1, len(words)):
            axes.axvline(v - 0.5, color="#dddddd", lw=0.8, zorder=0)
        axes.spines[:].set_visible(False)
    number = int(document.max()) + 1
    panels[0].set_yticks(range(number), [str(i + 1) for i in range(number)], fontsize=8)
    panels[0].invert_yaxis()
    panels[0].set_ylabel("document")
    figure.supxlabel("white: topic 1 (money, loan, bank); black: topic 2 (river, stream, bank)", fontsize=9)
    return figure


def lines(
    panels: Mapping[str, Mapping[str, tuple[Sequence[float], Sequence[float]]]],
    xlabel: str,
    ylabel: str,
    *,
    log_x: bool = True,
    dashed: Sequence[str] = (),
    ticks: Sequence[float] | None = None,
    ceiling: float | None = None,
) -> Figure:
    """Panel -> line -> (x, y), one colour a name in all panels.

    dashed: lines that are references. ticks: the marks of x. ceiling: nothing is shown above so many times the
    panel's smallest value.
    """
    figure = Figure(figsize=(4.9 * len(panels), 3.9), dpi=110, layout="constrained")
    names = list(dict.fromkeys(name for found in panels.values() for name in found))
    for axes, (title, found) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
        for name, (x, y) in found.items():
            colour, style = COLOURS[names.index(name) % len(COLOURS)], "--" if name in dashed else "-"
            axes.plot(x, y, color=colour, ls=style, marker="" if name in dashed else "o", ms=3, lw=1.4, label=name)
        if log_x:
            axes.set_xscale("log")
        if ticks is not None:
            axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
            axes.minorticks_off()
        if ceiling is not None:
            lowest = min(min(y) for _, y in found.values())
            highest = max(max(y) for _, y in found.values())
            axes.set_ylim(0.95 * lowest, min(1.05 * highest, ceiling * lowest))
        axes.set_title(title, fontsize=10)
        axes.set_xlabel(xlabel)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=8)
    figure.axes[0].set_ylabel(ylabel)
    return figure
