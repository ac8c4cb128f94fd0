"""Figures of document models: the words of the topics, and the topics of the documents."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from custom_inference.core.registry import presentation_of
from custom_inference.core.result import Result
from custom_inference.documents.topics import proportions, shares, topic_table
from custom_inference.faces import drawing
from custom_inference.faces.drawing import INK, MUTED, new_figure

#: Documents up to this many are labelled.
_LABELLED = 60


def plot_topics(
    fit: Result, *, top: int = 8, by: str = "probability", columns: int | None = None, title: str | None = None
) -> Figure:
    """Bars of the ``top`` words of every topic, the most used topic first; ``by`` as in :func:`topic_table`.

    The bars are the words' probabilities, whatever they are ranked by, on one scale.
    """
    vocabulary = fit.model.shapes[fit.model.component_site][1]
    table = topic_table(fit, min(top, vocabulary), by=by)
    names = list(dict.fromkeys(table.index.get_level_values("topic")))
    share = dict(zip(fit.coords["component"], shares(fit), strict=True))
    columns = columns or min(5, drawing.num_columns(len(names)))
    rows = -(-len(names) // columns)
    title = title or f"{type(fit.model).__name__}: top words of {len(names)} topic{'s' * (len(names) > 1)}"
    tall = 0.55 + 0.19 * len(table.loc[names[0]])
    figure = new_figure(max(0.6 + 2.3 * columns, 0.095 * len(title)), 0.7 + rows * tall)
    widest = table["probability"].to_numpy().max()
    panels = figure.subplots(rows, columns, squeeze=False, sharex=True)
    for axes in panels.flat[len(names) :]:
        axes.set_axis_off()
    for place, (axes, name) in enumerate(zip(panels.flat, names, strict=False)):
        lines = table.loc[name]
        axes.barh(range(len(lines)), lines["probability"], color=INK, height=0.7)
        axes.set_yticks(range(len(lines)), [drawing.shortened(word, 18) for word in lines["word"]], fontsize=8)
        axes.set(xlim=(0, 1.08 * widest), ylim=(len(lines) - 0.4, -0.6))
        axes.set_title(f"{_label(name)}  share {share[name]:.3f}", fontsize=9)
        axes.tick_params(axis="x", labelsize=8, labelbottom=place + columns >= len(names))
        axes.locator_params(axis="x", nbins=3)
        axes.spines[["top", "right"]].set_visible(False)
    figure.supxlabel(presentation_of(fit.model).value, fontsize=9)
    figure.suptitle(title)
    return figure


def plot_documents(
    fit: Result, *, max_documents: int | None = None, sort: bool = True, title: str | None = None
) -> Figure:
    """Topic proportions as a heat map, documents by topics, with labels where there are few documents.

    Topics by their share, the most used first. sort: documents by their strongest topic, and by how strong it is;
    otherwise in the order of the data. max_documents: show only this many, evenly spaced in that order.
    """
    mix, share = proportions(fit), shares(fit)
    topics = np.argsort(-share, kind="stable")
    mix = mix[:, topics]
    order = np.lexsort((-mix.max(1), mix.argmax(1))) if sort else np.arange(len(mix))
    if max_documents is not None and max_documents < len(order):
        order = order[np.linspace(0, len(order) - 1, max_documents).round().astype(int)]
    labelled = len(order) <= _LABELLED
    title = title or f"{type(fit.model).__name__}: topics of {len(order)} documents"
    width = max(2.9 + 0.34 * len(topics), 0.095 * len(title))
    figure = new_figure(width, 2.2 + 0.19 * len(order) if labelled else 7.0)
    axes = figure.subplots()
    documents = fit.coords[fit.model.row_axis]
    rows = [documents[n] for n in order] if labelled else None
    names = [_label(fit.coords["component"][k]) for k in topics]
    image = drawing.heat_map(axes, mix[order], rows, names, top=1.0)
    axes.set_xlabel("topic, most used first")
    how = ", ordered by their strongest topic" if sort else ""
    axes.set_ylabel("document" if labelled else f"{len(order)} documents{how}")
    drawing.scale(figure, image, axes, presentation_of(fit.model).local)
    figure.suptitle(title)
    return figure


def _label(name: Any) -> str:
    return f"topic {name}" if isinstance(name, int) else str(name)


def plot_cross_validation(scores: Any, *, title: str | None = None) -> Figure:
    """Perplexity against the number of topics: every fold, and the mean with its standard error."""
    figure, table = new_figure(6.4, 4.2), scores.table
    axes = figure.subplots()
    axes.scatter(scores.folds["num_topics"], scores.folds["perplexity"], s=14, color=MUTED, label="fold", zorder=2)
    bars = table["error"].fillna(0).to_numpy()
    mean: dict[str, Any] = {"marker": "o", "markersize": 4, "capsize": 3, "label": "mean and its standard error"}
    axes.errorbar(table.index.to_numpy(), table["perplexity"].to_numpy(), bars, color=INK, **mean)
    axes.set_xticks(table.index.to_list())
    axes.set(xlabel="number of topics", ylabel=f"held-out perplexity ({scores.how})")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    figure.suptitle(title or f"{scores.name}: {len(scores.folds['fold'].unique())}-fold cross-validation")
    return figure
