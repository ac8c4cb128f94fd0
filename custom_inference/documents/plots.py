"""Figures of document models: the words of the topics, and the topics of the documents."""

from __future__ import annotations

from typing import Any

import numpy as np

from custom_inference.core.registry import presentation_of
from custom_inference.core.result import Result
from custom_inference.documents.topics import proportions, shares, topic_table
from custom_inference.faces import drawing
from custom_inference.faces.drawing import INK, MUTED, Sheet, title_width


def plot_topics(
    fit: Result,
    *,
    top: int = 8,
    by: str = "probability",
    columns: int | None = None,
    title: str | None = None,
    axes: Any = None,
) -> Any:
    """Bars of the ``top`` words of every topic, the most used topic first; ``by`` as in :func:`topic_table`.

    The bars are the words' probabilities, whatever they are ranked by, on one scale.

    axes: one for each topic.
    """
    vocabulary = fit.model.shapes[fit.model.component_site][-1]
    table = topic_table(fit, min(top, vocabulary), by=by)
    names = list(dict.fromkeys(table.index.get_level_values("topic")))
    share = dict(zip(fit.coords["component"], shares(fit), strict=True))
    columns = columns or min(5, drawing.num_columns(len(names)))
    rows = -(-len(names) // columns)
    default = f"{type(fit.model).__name__}: top words of {len(names)} topic{'s' * (len(names) > 1)}"
    tall = 0.55 + 0.19 * len(table.loc[names[0]])
    width = max(0.6 + 2.3 * columns, title_width(title or default))
    sheet = Sheet.grid(axes, len(names), columns, width, 0.7 + rows * tall, sharex=True)
    widest = table["probability"].to_numpy().max()
    for place, (one, name) in enumerate(zip(sheet.panels, names, strict=True)):
        lines = table.loc[name]
        one.barh(range(len(lines)), lines["probability"], color=INK, height=0.7)
        one.set_yticks(range(len(lines)), [drawing.shortened(word, 18) for word in lines["word"]], fontsize=8)
        one.set(xlim=(0, 1.08 * widest), ylim=(len(lines) - 0.4, -0.6))
        one.set_title(f"{_label(name)}  share {share[name]:.3f}", fontsize=9)
        one.tick_params(axis="x", labelsize=8, labelbottom=axes is not None or place + columns >= len(names))
        one.locator_params(axis="x", nbins=3)
        one.spines[["top", "right"]].set_visible(False)
    sheet.labels(x=presentation_of(fit.model).value, fontsize=9)
    sheet.title(title, default)
    return sheet.result


def plot_documents(
    fit: Result, *, max_documents: int | None = None, sort: bool = True, title: str | None = None, ax: Any = None
) -> Any:
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
    labelled = len(order) <= drawing.LABELLED
    default = f"{type(fit.model).__name__}: topics of {len(order)} documents"
    width = max(4.5, 2.9 + 0.34 * len(topics), title_width(title or default))
    sheet = Sheet.single(ax, width, 2.2 + 0.16 * len(order) if labelled else 7.0)
    (axes,) = sheet.panels
    documents = fit.coords[fit.model.row_axis]
    rows = [documents[n] for n in order] if labelled else None
    names = [_label(fit.coords["component"][k]) for k in topics]
    image = drawing.heat_map(axes, mix[order], rows, names, top=1.0)
    axes.set_xlabel("topic, most used first")
    how = ", ordered by their strongest topic" if sort else ""
    axes.set_ylabel("document" if labelled else f"{len(order)} documents{how}")
    drawing.scale(image, axes, presentation_of(fit.model).local)
    sheet.title(title, default)
    return sheet.result


def _label(name: Any) -> str:
    return f"topic {name}" if isinstance(name, int) else str(name)


def plot_cross_validation(scores: Any, *, title: str | None = None, ax: Any = None) -> Any:
    """Perplexity against the number of topics: every fold, and the mean with its standard error."""
    sheet, table = Sheet.single(ax, 6.4, 4.2), scores.table
    (axes,) = sheet.panels
    axes.scatter(scores.folds["num_topics"], scores.folds["perplexity"], s=14, color=MUTED, label="fold", zorder=2)
    bars = table["error"].fillna(0).to_numpy()
    mean: dict[str, Any] = {"marker": "o", "markersize": 4, "capsize": 3, "label": "mean and its standard error"}
    axes.errorbar(table.index.to_numpy(), table["perplexity"].to_numpy(), bars, color=INK, **mean)
    axes.set_xticks(table.index.to_list())
    axes.set(xlabel="number of topics", ylabel=f"held-out perplexity ({scores.how})")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    sheet.title(title, f"{scores.name}: {len(scores.folds['fold'].unique())}-fold cross-validation")
    return sheet.result
