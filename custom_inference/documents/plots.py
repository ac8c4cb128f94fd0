"""Figures of document models: words of topics, topics of documents, words in their roles, topics that go together."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from custom_inference.core.evaluate import component_order, describe_components
from custom_inference.core.registry import presentation_of
from custom_inference.core.result import Result
from custom_inference.documents.correlations import graph_places, topic_precision
from custom_inference.documents.syntax import ambiguous_words, syntax_tokens
from custom_inference.documents.topics import proportions, shares, topic_table
from custom_inference.faces import drawing
from custom_inference.faces.drawing import INK, MUTED, Array, Panels, Sheet, title_width
from ppl_models import MethodError
from ppl_models.data.held import is_whole, to_numpy


def plot_topics(
    fit: Result,
    *,
    top: int = 8,
    by: str = "probability",
    columns: int | None = None,
    title: str | None = None,
    axes: Panels | None = None,
) -> Any:
    """Bars of the ``top`` words of every topic, the most used topic first; ``by`` as in :func:`topic_table`.

    The bars are the words' probabilities, whatever they are ranked by, on one scale.

    axes: one for each topic.
    """
    vocabulary = fit.model.shapes[fit.model.component_site][-1]
    table = topic_table(fit, min(top, vocabulary), by=by)
    named, known = fit.coords["component"], set(table.index.get_level_values("topic"))
    names = [named[k] for k in component_order(fit) if named[k] in known]
    share = dict(zip(named, _shares_of_report(fit), strict=True))
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
        one.set_yticks(range(len(lines)), [drawing.shorten(word, 18) for word in lines["word"]], fontsize=8)
        one.set(xlim=(0, 1.08 * widest), ylim=(len(lines) - 0.4, -0.6))
        one.set_title(f"{_label(name)}  share {share[name]:.3f}", fontsize=9)
        one.tick_params(axis="x", labelsize=8, labelbottom=axes is not None or place + columns >= len(names))
        one.locator_params(axis="x", nbins=3)
        one.spines[["top", "right"]].set_visible(False)
    sheet.labels(x=presentation_of(fit.model).value, fontsize=9)
    return sheet.finish(title, default)


def plot_documents(
    fit: Result,
    *,
    max_documents: int | None = None,
    sort: bool = True,
    title: str | None = None,
    ax: Axes | None = None,
) -> Any:
    """Topic proportions as a heat map, documents by topics, with labels where there are few documents.

    Topics by their share, the most used first. sort: documents by their strongest topic, and by how strong it is;
    otherwise in the order of the data. max_documents: show only this many, evenly spaced in that order.
    """
    mix, topics = proportions(fit), component_order(fit)
    mix = mix[:, topics]
    order = np.lexsort((-mix.max(1), mix.argmax(1))) if sort else np.arange(len(mix))
    order = drawing.thin(order, max_documents)
    labelled = len(order) <= drawing.LABELLED
    default = f"{type(fit.model).__name__}: topics of {len(order)} documents"
    height = 2.2 + 0.16 * len(order) if labelled else 7.0
    sheet, axes = Sheet.single(ax, max(4.5, 2.9 + 0.34 * len(topics)), height, title or default)
    documents = fit.coords[fit.model.row_axis]
    rows = [documents[n] for n in order] if labelled else None
    names = [_label(fit.coords["component"][k]) for k in topics]
    image = drawing.heat_map(axes, mix[order], rows, names, top=1.0)
    axes.set_xlabel("topic, most used first")
    how = ", ordered by their strongest topic" if sort else ""
    axes.set_ylabel("document" if labelled else f"{len(order)} documents{how}")
    drawing.scale(image, axes, presentation_of(fit.model).local)
    return sheet.finish(title, default)


def _shares_of_report(fit: Result) -> Array:
    """Return the shares of the topics as the report has them; where it has none, their mean proportions."""
    columns = describe_components(fit)[1]
    return to_numpy(columns["share"]) if "share" in columns else shares(fit)


def _label(name: Any) -> str:
    return f"topic s{name}" if is_whole(name) else str(name)


def plot_cross_validation(scores: Any, *, title: str | None = None, ax: Axes | None = None) -> Any:
    """Perplexity against the number of topics: every fold, and the mean with its standard error."""
    (sheet, axes), table = Sheet.single(ax, 6.4, 4.2), scores.table
    axes.scatter(scores.folds["num_topics"], scores.folds["perplexity"], s=14, color=MUTED, label="fold", zorder=2)
    bars = table["error"].fillna(0).to_numpy()
    mean: dict[str, Any] = {"marker": "o", "markersize": 4, "capsize": 3, "label": "mean and its standard error"}
    axes.errorbar(table.index.to_numpy(), table["perplexity"].to_numpy(), bars, color=INK, **mean)
    axes.set_xticks(table.index.to_list())
    axes.set(xlabel="number of topics", ylabel=f"held-out perplexity ({scores.how})")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    return sheet.finish(title, f"{scores.name}: {len(scores.folds['fold'].unique())}-fold cross-validation")


#: Width of a letter of a monospaced font, as a share of its size.
_LETTER = 0.602
#: Letters of a line; the grey of what is surely syntax.
_LINE, _LIGHTEST = 92, 0.78


def plot_roles(
    fit: Result,
    *,
    word: Hashable | None = None,
    sentences: int = 4,
    max_words: int = 24,
    title: str | None = None,
    ax: Axes | None = None,
) -> Any:
    """Sentences with a word in different roles: the darker a token, the more probably it is content (Murphy 2012, Fig.
    27.14).

    The word is boxed: first where it is most surely syntax, then where it is most surely content. word: by default the
    one that is most divided (``ambiguous_words``). sentences: how many; of each so many words on either side of it that
    there are ``max_words`` at most.

    Raises MethodError for models without classes of syntax, and for a word that does not occur.
    """
    tokens = syntax_tokens(fit)
    if word is None:
        word = ambiguous_words(fit, least=2).index[0]
    places = np.flatnonzero(tokens["word"] == word)
    if not len(places):
        raise MethodError(f"word = {word!r} occurs nowhere in the documents of the fit")
    content = tokens["content_probability"].to_numpy()
    order = places[np.argsort(content[places], kind="stable")]
    shown = order if len(order) <= sentences else np.r_[order[: (sentences + 1) // 2], order[-(sentences // 2) :]]
    lines = [_set_in_lines(tokens, place, max_words) for place in shown.tolist()]
    rows = sum(1 + max(line for _, line, _ in one) for one in lines) + 0.6 * (len(lines) - 1)
    sheet, axes = Sheet.single(ax, 0.0753 * (_LINE + 4), max(2.0, 0.17 * rows + 0.6))
    axes.set(xlim=(0, _LINE), ylim=(rows - 0.4, -0.6))
    axes.set_axis_off()
    sheet.title(title, f"“{word}” as syntax and as content: the darker, the more probably content", fontsize=10)
    sheet.figure.draw_without_rendering()  # the size of the letters follows from that of the axes
    size, top = 72 * drawing.extent(axes)[0] / _LINE / _LETTER, 0.0
    for place, one in zip(shown.tolist(), lines, strict=True):
        for column, line, at in one:
            box = {"boxstyle": "square,pad=0.15", "fill": False, "edgecolor": INK, "linewidth": 1.0}
            axes.text(
                column, top + line, str(tokens["word"].iat[at]), family="monospace", fontsize=size, va="center",
                color=str(_LIGHTEST * (1 - float(content[at]))), bbox=box if at == place else None, parse_math=False,
            )  # fmt: skip
        top += 1.6 + max(line for _, line, _ in one)
    return sheet.result


def _set_in_lines(tokens: pd.DataFrame, place: int, most: int) -> list[tuple[int, int, int]]:
    """Column, line and place of the tokens of a sentence around one of them."""
    first = place - int(tokens["position"].iat[place])
    last, position = first + 1, tokens["position"].to_numpy()
    while last < len(position) and position[last] > 0:
        last += 1
    begin = max(first, min(place - most // 2, last - most))
    found, column, line = [], 0, 0
    for at in range(begin, min(last, begin + most)):
        length = len(str(tokens["word"].iat[at]))
        if column and column + length > _LINE:
            column, line = 0, line + 1
        found.append((column, line, at))
        column += length + 1
    return found


#: Links of topics that exclude each other.
_AGAINST = "#b2452f"


def plot_topic_graph(
    fit: Result,
    *,
    penalty: float = 0.1,
    top: int = 5,
    negative: bool = False,
    seed: int = 0,
    title: str | None = None,
    ax: Axes | None = None,
) -> Any:
    """Topics as boxes of their ``top`` words, the more used the larger the letters; lines between those that go
    together given the others, as wide as their partial correlation (:func:`topic_precision`).

    negative: topics that exclude each other given the others too, dashed. seed: of the places.
    """
    table, share = topic_table(fit, top), shares(fit)
    partial = topic_precision(fit, penalty).to_numpy()
    places, size = _space_out(graph_places(partial, seed)), len(partial)
    side = float(np.clip(2.4 * np.sqrt(size) + 1.0, 4.5, 14.0))
    default = f"{type(fit.model).__name__}: topics that go together (penalty {penalty:g})"
    sheet, axes = Sheet.single(ax, 1.25 * side, side, title or default)
    drawn = [(i, j) for i in range(size) for j in range(i) if partial[i, j] > 0 or (negative and partial[i, j] < 0)]
    for i, j in drawn:
        style: Any = {"color": INK, "alpha": 0.75} if partial[i, j] > 0 else {"color": _AGAINST, "linestyle": "--"}
        width = 0.6 + 9 * abs(partial[i, j])
        across, up = places[[i, j]].T
        axes.plot(across, up, linewidth=width, solid_capstyle="round", zorder=1, **style)
    box = {"boxstyle": "round,pad=0.35", "facecolor": "white", "edgecolor": INK, "linewidth": 0.8}
    for k, name in enumerate(fit.coords["component"]):
        words = "\n".join(drawing.shorten(str(word), 16) for word in table.loc[name]["word"])
        letters = 6.5 + 3.5 * np.sqrt(share[k] / max(share.max(), 1e-12))
        style: Any = {"fontsize": letters, "bbox": box, "zorder": 2, "linespacing": 1.05}
        axes.text(places[k][0], places[k][1], words, ha="center", va="center", **style)
    axes.set(xlim=(-0.12, 1.12), ylim=(-0.12, 1.12), xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    handles = [Line2D([], [], color=INK, linewidth=0.6 + 9 * value, label=f"{value:g}") for value in (0.1, 0.3)]
    axes.legend(handles=handles, title="partial correlation", loc="lower left", frameon=False, fontsize=8)
    return sheet.finish(title, default)


def _space_out(places: Array) -> Array:
    """Places in the unit square whose ranks along each axis count as much as their distances: boxes overlap less."""
    found = np.empty_like(places)
    for axis in range(2):
        value = places[:, axis]
        width = max(np.ptp(value), 1e-12)
        rank = np.argsort(np.argsort(value)) / max(len(value) - 1, 1)
        found[:, axis] = 0.4 * (value - value.min()) / width + 0.6 * rank
    return found
