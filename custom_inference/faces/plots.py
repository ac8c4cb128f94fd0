"""Figures of fits and comparisons.

Every function takes axes to draw on: one as ``ax``, or ``axes`` where the plot has several panels (any array or
sequence of at least as many; what is left over is switched off). It returns what it was given, so that plots can share
a figure. Without them it makes a Figure of a size that suits what it shows, and returns that: a notebook shows it,
``savefig`` writes it, and there is nothing to close.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from numpy.typing import ArrayLike

from custom_inference.checks.comparison_plots import plot_comparison as plot_comparison
from custom_inference.core.evaluate import component_order, describe_components
from custom_inference.core.registry import presentation_of
from custom_inference.core.result import Result
from custom_inference.documents.plots import plot_documents, plot_roles, plot_topic_graph, plot_topics
from custom_inference.documents.time_plots import plot_shares_over_time, plot_topic_over_time, plot_words_over_time
from custom_inference.faces import drawing
from custom_inference.faces.drawing import INK, MUTED, Array, Panels, Sheet, title_width
from custom_inference.graphs.block_graph import plot_block_graph
from custom_inference.graphs.plots import plot_adjacency, plot_memberships, plot_pie_graph
from ppl_models import MethodError
from ppl_models.core.errors import unknown_name

__all__ = [
    "plot",
    "plot_adjacency",
    "plot_block_graph",
    "plot_comparison",
    "plot_components",
    "plot_documents",
    "plot_elbo",
    "plot_loading",
    "plot_memberships",
    "plot_pictures",
    "plot_pie_graph",
    "plot_roles",
    "plot_shares_over_time",
    "plot_source",
    "plot_topic_graph",
    "plot_topic_over_time",
    "plot_topics",
    "plot_words_over_time",
]


def plot(fit: Result, kind: str = "components", **settings: Any) -> Any:
    """A figure of a fit, or the ``ax`` or ``axes`` among the settings, on which it is drawn.

    kind: "components" (what each component does to the features), "loading" (the same as a labelled matrix), "elbo"
    (the objective by iteration), "source" (posterior means of the local latents, rows by components); of document
    models also "topics" (their top words), "documents" (documents by topics), where topics are correlated "topic_graph"
    (those that go together), with classes of syntax "roles" (sentences with a word as syntax and as content); of graph
    models "adjacency" (ordered by blocks), "memberships" (of the nodes), "pies" (the graph with a pie at each node) and
    "blocks" (the graph between blocks). "components" and "topics" have several panels and take ``axes``, the others
    ``ax``.

    Raises ``MethodError`` for an unknown kind, and where the fit has nothing to show of that kind.
    """
    if kind not in KINDS:
        raise MethodError(unknown_name("kind of plot", kind, KINDS))
    valid = [*signature(KINDS[kind]).parameters][1:]  # the first is the fit
    for name in settings:
        if name not in valid:
            raise MethodError(unknown_name(f"setting of the plot {kind!r}", name, valid))
    return KINDS[kind](fit, **settings)


def plot_components(
    fit: Result,
    *,
    image_shape: tuple[int, int] | None = None,
    top: int = 6,
    title: str | None = None,
    axes: Panels | None = None,
) -> Any:
    """What each component does to the features, how much it is used, and whether it is shut off (Singliar & Hauskrecht
    2006, Fig. 4).

    Components in the order of reports; a leak or bias comes last. Pictures where ``image_shape`` = (height, width) is
    given or the features are labelled r0c0, r0c1, ...; otherwise how much each is used, and below it a heat map of the
    ``top`` strongest features of each.

    axes: one for each component and the leak or bias, or two for the heat map.
    """
    parts = _Components.of(fit)
    count = len(parts.labels)
    beside = "".join(f" and the {name}" for name in parts.baseline)
    titles = title, f"{type(fit.model).__name__}: {count} component{'s' * (count > 1)}{beside}"
    place = pixels_of(parts.features, image_shape)
    if place is None:
        return _strongest_features(parts, top, titles, axes)
    captions = [
        f"{label}\n{use}{', shut off' if shut else ''}"
        for label, use, shut in zip(parts.labels, parts.uses, parts.off, strict=True)
    ]
    pictures = np.full((len(parts.matrix), *(place.max(1) + 1)), np.nan)  # NaN where there is no feature
    pictures[:, place[0], place[1]] = parts.matrix
    bar, muted = parts.meaning.replace("feature", "pixel"), np.flatnonzero(parts.off).tolist()
    return drawing.gallery(list(pictures), [*captions, *parts.baseline], titles, bar, muted=muted, axes=axes)


def plot_pictures(
    pictures: ArrayLike,
    image_shape: tuple[int, int],
    captions: Sequence[str],
    *,
    title: str | None = None,
    bar: str = "probability",
    columns: int | None = None,
    axes: Panels | None = None,
) -> Any:
    """Rows of ``pictures`` (M, height * width) as captioned images: true patterns, reconstructions.

    columns: pictures side by side; by default as many as make the grid wider than high with few places left empty.
    axes: one for each picture.
    """
    values = np.asarray(pictures, dtype=float)
    wanted = (len(captions), image_shape[0] * image_shape[1])
    if values.shape != wanted:
        raise MethodError(f"pictures of shape {values.shape}, expected {wanted} for these captions and image_shape")
    images = [row.reshape(image_shape) for row in values]
    texts = [str(caption) for caption in captions]
    return drawing.gallery(images, texts, (title, ""), bar, columns=columns, axes=axes)


def _strongest_features(parts: _Components, top: int, titles: tuple[str | None, str], axes: Panels | None) -> Any:
    chosen = drawing.strongest(parts.values, max(1, min(top, 90 // len(parts.labels))))
    values = parts.matrix[:, chosen].T
    width = max(2.8 + 0.42 * values.shape[1], title_width(titles[0] or titles[1]))
    tall = [1, max(2.5, 0.24 * len(chosen))]
    sheet = Sheet.grid(axes, 2, 1, width, 2.6 + 0.2 * len(chosen), sharex=True, height_ratios=tall)
    above, below = sheet.panels
    above.bar(range(len(parts.use)), parts.use, color=[MUTED if shut else INK for shut in parts.off], width=0.7)
    above.set_ylabel(parts.use_name)
    above.spines[["top", "right"]].set_visible(False)
    names = [*parts.mark_off(parts.labels), *parts.baseline]
    image = drawing.heat_map(below, values, [parts.features[j] for j in chosen], names)
    below.set(xlabel="component", ylabel=f"feature (strongest {len(chosen)} of {len(parts.features)})")
    if axes is not None:  # those of a figure of its own share their x axis
        above.set(xlim=below.get_xlim(), xticks=[])
    drawing.scale(image, below if axes is None else sheet.panels, parts.meaning)
    return sheet.finish(*titles)


def plot_loading(fit: Result, *, max_features: int = 60, title: str | None = None, ax: Axes | None = None) -> Any:
    """The component site as a matrix, components by features, with labels.

    Where there are more than ``max_features``, the strongest ones, grouped by the component they fit best.
    """
    parts = _Components.of(fit)
    chosen, shown = np.arange(parts.matrix.shape[1]), "feature"
    if len(chosen) > max_features:
        shown = f"feature (strongest {max_features} of {len(chosen)})"
        chosen = drawing.strongest(parts.values, 1, total=max_features)
    values = parts.matrix[:, chosen]
    sheet, axes = Sheet.single(ax, 3.5 + 0.2 * len(chosen), 3.2 + 0.26 * len(values))
    names = [f"{label}  {use}" for label, use in zip(parts.labels, parts.uses, strict=True)]
    rows = [*parts.mark_off(names), *parts.baseline]
    image = drawing.heat_map(axes, values, rows, [parts.features[j] for j in chosen])
    axes.set(xlabel=shown, ylabel="component")
    drawing.scale(image, axes, parts.meaning)
    return sheet.finish(title, f"{type(fit.model).__name__}: {fit.model.component_site.replace('_', ' ')}")


def plot_elbo(fit: Result, *, title: str | None = None, ax: Axes | None = None) -> Any:
    """The objective per row by iteration; beside it, without ``ax``, the later half alone where the start hides it."""
    trace = fit.elbo.detach().cpu().numpy() / len(fit.data)
    if not len(trace):
        raise MethodError(f"this fit ({fit.method_name}) has no objective trace to plot")
    late = trace[len(trace) // 2 :]
    hidden = ax is None and len(trace) >= 10 and np.ptp(trace) > 10 * np.ptp(late)
    ended = f"objective, last {trace[-1]:.4f} nats a row"
    if fit.prior_term:
        ended += f", of which the priors {fit.prior_term / len(fit.data):.4f}"
    default = f"{type(fit.model).__name__} by {fit.method_name}: {ended}"
    width = title_width(title or default)
    sheet = Sheet.grid(None, 2, 2, max(9.5, width), 3.8) if hidden else Sheet.single(ax, 6.0, 3.8, title or default)[0]
    for axes, first, part in zip(sheet.panels, (0, len(trace) // 2), ("all iterations", "later half"), strict=False):
        drawing.trace(axes, np.arange(first, len(trace)) + 1, trace[first:])
        axes.set(xlabel="iteration", ylabel=f"objective per row, nats\n({fit.described_objective.partition(' = ')[0]})")
        axes.set_title(part if hidden else "", fontsize=10)
    return sheet.finish(title, default)


def plot_source(fit: Result, *, max_rows: int | None = None, title: str | None = None, ax: Axes | None = None) -> Any:
    """Posterior means of the local latents (sources, memberships, scores), rows by components.

    Rows with the same code lie together: they are ordered by the code, sources in the order of reports.
    max_rows: show only this many, evenly spaced in that order.
    """
    mean = fit.posterior.mean.detach().cpu().numpy()
    first = len(fit.model.before_components)
    by_use = np.array([*range(first), *(first + k for k in component_order(fit))])
    by_use = by_use if len(by_use) == mean.shape[1] else np.argsort(-np.abs(mean).sum(0))
    bits = mean[:, by_use] > (0.5 if mean.min() >= 0 else 0.0)
    # lexsort takes its most significant key last; within a code, rows of similar certainty lie together.
    order = drawing.thin(np.lexsort((-mean.sum(1), *(~bits).T[::-1])), max_rows)
    labelled, row = len(order) <= drawing.LABELLED, fit.model.row_axis
    default = f"{type(fit.model).__name__}: {fit.model.local_site}s of the {row}s"
    height = 2.4 + 0.16 * len(order) if labelled else 7.0
    sheet, axes = Sheet.single(ax, max(4.5, 2.6 + 0.34 * mean.shape[1]), height, title or default)
    rows = [fit.coords[row][n] for n in order] if labelled else None
    labels = fit.local_names
    image = drawing.heat_map(axes, mean[order][:, by_use], rows, [labels[i] for i in by_use], top=1.0)
    axes.set_xlabel("component, in the order of the report")
    axes.set_ylabel(row if labelled else f"{len(order)} {row}s, ordered by their {fit.model.local_site}s")
    drawing.scale(image, axes, presentation_of(fit.model).local)
    return sheet.finish(title, default)


@dataclass(frozen=True)
class _Components:
    """What the figures of components draw: a matrix (K, D), whose last row is the baseline's where there is one.

    baseline: its name, or none. use: how much each component is used, (K,). off: whether it is shut off, (K,).
    """

    matrix: Array
    baseline: list[str]
    use: Array
    use_name: str
    off: Array
    labels: list[str]
    features: list[Any]
    meaning: str

    @classmethod
    def of(cls, fit: Result) -> _Components:
        model, params = fit.model, {s: v.detach().cpu() for s, v in fit.params.items()}
        shown = presentation_of(model)
        baseline = [] if shown.baseline is None else [shown.baseline]
        missing = [site for site in (model.component_site, *baseline) if site not in params]
        if missing:
            raise MethodError(f"{type(model).__name__} has no {missing[0]}: this plot is for component models")
        name, use = next(iter(describe_components(fit)[1].items()))
        order = component_order(fit)
        matrix = shown.matrix(model, params)[order]
        return cls(
            matrix=torch.cat([matrix, *(params[site][None] for site in baseline)]).numpy(),
            baseline=baseline,
            use=use.detach().cpu().numpy()[order],
            use_name=name,
            off=shown.is_shut_off(model, params).numpy()[order],
            labels=[fit.component_names[k] for k in order],
            features=shown.labels_of(model, fit.column_names, fit.data),
            meaning=shown.value,
        )

    @property
    def values(self) -> Array:
        """The components alone."""
        return self.matrix[: len(self.labels)]

    @property
    def uses(self) -> list[str]:
        return [f"{self.use_name} = {value:.3f}" for value in self.use]

    def mark_off(self, names: list[str]) -> list[str]:
        return [f"{name} (off)" if shut else name for name, shut in zip(names, self.off, strict=True)]


def pixels_of(features: Sequence[Any], image_shape: tuple[int, int] | None = None) -> Array | None:
    """Row and column (2, D) of every feature in a picture, or None where the features are not pixels."""
    if image_shape is not None:
        height, width = image_shape
        if height * width != len(features):
            raise MethodError(f"image_shape {height} x {width} does not hold {len(features)} features")
        return np.array(np.unravel_index(np.arange(len(features)), (height, width)))
    found = [re.fullmatch(r"r(\d+)c(\d+)", str(name)) for name in features]
    if not all(found):
        return None
    return np.array([[int(m[1]), int(m[2])] for m in found if m]).T


KINDS = {
    "components": plot_components,
    "loading": plot_loading,
    "elbo": plot_elbo,
    "source": plot_source,
    "topics": plot_topics,
    "documents": plot_documents,
    "topic_graph": plot_topic_graph,
    "roles": plot_roles,
    "topic_over_time": plot_topic_over_time,
    "words_over_time": plot_words_over_time,
    "shares_over_time": plot_shares_over_time,
    "adjacency": plot_adjacency,
    "memberships": plot_memberships,
    "pies": plot_pie_graph,
    "blocks": plot_block_graph,
}
