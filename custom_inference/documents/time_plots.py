"""Figures of topics over time (Murphy 2012, figure 27.12): their words slice by slice, chosen words, shares,
documents."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes

from custom_inference.core.result import Result
from custom_inference.documents import over_time
from custom_inference.faces import drawing
from custom_inference.faces.drawing import Panels, Sheet

#: Slices that a table of words has room for.
_COLUMNS = 9


def plot_topic_over_time(
    fit: Result,
    topic: Hashable,
    words: Sequence[Any] | None = None,
    *,
    top: int = 10,
    documents: int = 6,
    ahead: int = 0,
    title: str | None = None,
) -> Any:
    """One topic as in figure 27.12: its ``top`` words in up to nine slices, the probabilities of some words in every
    slice with their 90 % intervals, and ``documents`` that are about it, in the order of time.

    words: by default three of the most probable of all slices that changed the most. ahead: as in
        ``over_time.word_probabilities``.
    """
    figure = drawing.new_figure(11.0, 2.6 + 0.17 * top + 2.4)
    parts: Any = figure.subfigures(2, 1, height_ratios=(0.5 + 0.17 * top, 2.6))
    above, (left, right) = parts[0].subplots(), parts[1].subplots(1, 2)
    plot_words_by_slice(fit, topic, top=top, ax=above, title=" ")
    plot_words_over_time(fit, topic, words, ahead=ahead, ax=left, title="probability of words in the topic")
    found = over_time.documents_of_topic(fit, topic, documents)
    right.set_axis_off()
    right.set_title("documents about the topic", fontsize=10)
    for place, (name, line) in enumerate(found.iterrows()):
        text = f"{line['slice']}   {drawing.shorten(name, 48)}   ({line['proportion']:.2f})"
        right.text(0.0, 0.95 - 0.9 * place / max(1, documents), text, fontsize=9, va="top", transform=right.transAxes)
    figure.suptitle(title or f"Topic {topic} over time")
    return figure


def plot_words_by_slice(
    fit: Result, topic: Hashable, *, top: int = 10, title: str | None = None, ax: Axes | None = None
) -> Any:
    """The ``top`` words of a topic, a column for each of up to nine slices, evenly spaced; words that were not among
    the top of the column before are darker."""
    labels = over_time.slices(fit)
    every = over_time.words_over_time(fit, topic, top)
    shown = drawing.thin(np.arange(len(labels)), _COLUMNS)
    default = f"Topic {topic}: top {len(every)} words by slice"
    sheet, axes = Sheet.single(ax, 1.3 * len(shown) + 0.4, 0.8 + 0.19 * len(every), title or default)
    axes.set(xlim=(-0.5, len(shown) - 0.5), ylim=(len(every) + 0.2, -0.9))
    axes.set_axis_off()
    before: set[Any] | None = None
    for place, t in enumerate(shown):
        axes.text(place, -0.45, str(labels[t]), ha="center", va="center", fontsize=9, weight="bold")
        column = every.iloc[:, t].tolist()
        for rank, word in enumerate(column):
            new = before is not None and word not in before
            style: dict[str, Any] = {"color": drawing.INK, "weight": "bold"} if new else {"color": "#404040"}
            axes.text(place, rank + 0.5, drawing.shorten(word, 14), ha="center", va="center", fontsize=8.5, **style)
        before = set(column)
    axes.axhline(0.0, color=drawing.MUTED, linewidth=0.8)
    return sheet.finish(title, default)


def plot_words_over_time(
    fit: Result,
    topic: Hashable,
    words: Sequence[Any] | None = None,
    *,
    ahead: int = 0,
    level: float = 0.9,
    title: str | None = None,
    ax: Axes | None = None,
) -> Any:
    """P(word | topic) of chosen words in every slice, with bands; slices after the last are dashed.

    words: by default three; arguments as in ``over_time.word_probabilities``.
    """
    if words is None:  # those whose probability changed the most between two slices
        each = over_time.topics_over_time(fit)[:, over_time.topic_number(fit, topic)]
        order = np.argsort(-(each.max(0) - each.min(0)), kind="stable")
        words = [fit.coords[fit.model.feature_axis][v] for v in order[:3]]
    chosen = list(words)
    found = over_time.word_probabilities(fit, topic, chosen, ahead=ahead, level=level)
    labels, count = found.index.get_level_values("slice").unique().tolist(), len(over_time.slices(fit))
    default = f"Topic {topic}: words over time, {100 * level:g}% intervals"
    sheet, axes = Sheet.single(ax, 6.5, 3.8, title or default)
    for number, word in enumerate(chosen):
        one, place, colour = found.loc[word], np.arange(len(labels)), colormaps["tab10"](number % 10)
        axes.plot(
            place[:count], one["probability"].iloc[:count], color=colour, label=str(word), marker="o", markersize=3
        )
        axes.plot(place[count - 1 :], one["probability"].iloc[count - 1 :], color=colour, linestyle="--")
        axes.fill_between(place, one["low"], one["high"], color=colour, alpha=0.18, linewidth=0)
    _name_slices(axes, labels)
    axes.set(ylim=(0, None))
    axes.set_ylabel("P(word | topic)", fontsize=9)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    return sheet.finish(title, default)


def plot_shares_over_time(fit: Result, *, top: int = 3, title: str | None = None, axes: Panels | None = None) -> Any:
    """The topics' shares of each slice's tokens, a panel a topic with its ``top`` words, on one scale; gaps where a
    slice has no tokens."""
    shares, words = over_time.shares_over_time(fit), over_time.topics_over_time(fit).mean(0)
    vocabulary, names = fit.coords[fit.model.feature_axis], list(shares.columns)
    columns = min(4, len(names))
    rows = -(-len(names) // columns)
    sheet = Sheet.grid(axes, len(names), columns, 0.6 + 2.6 * columns, 0.8 + 1.7 * rows, sharex=True, sharey=True)
    place = np.arange(len(shares))
    for k, (one, name) in enumerate(zip(sheet.panels, names, strict=True)):
        one.fill_between(place, 0, shares[name], color=drawing.INK, alpha=0.35, linewidth=0)
        one.plot(place, shares[name], color=drawing.INK, linewidth=1.2, marker="o", markersize=2)
        best = [str(vocabulary[v]) for v in np.argsort(-words[k], kind="stable")[:top]]
        one.set_title(f"{name}: {', '.join(drawing.shorten(word, 12) for word in best)}", fontsize=8.5)
        _name_slices(one, list(shares.index), 3)
        one.tick_params(axis="x", labelbottom=axes is not None or k + columns >= len(names))
        one.set_ylim(0, 1.05 * float(np.nanmax(shares.to_numpy())))
        one.spines[["top", "right"]].set_visible(False)
    sheet.labels(y="share of tokens", fontsize=9)
    return sheet.finish(title, "Topics' shares over time")


def _name_slices(axes: Axes, labels: Sequence[Any], most: int = 8) -> None:
    shown = range(0, len(labels), -(-len(labels) // most))
    axes.set_xticks(shown, [str(labels[t]) for t in shown], fontsize=8, rotation=30 if most > 4 else 0)
    axes.tick_params(axis="y", labelsize=8)
