"""Figures of fits of relational models, as the source's: matrices in the order of the clusters, graphs of clusters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.image import AxesImage

from custom_inference.core.result import Result
from custom_inference.faces.drawing import Array, Panels, Sheet
from ppl_models import MethodError
from ppl_models.core.errors import unknown_name

#: Slices of a relation of three axes, and entities with labels, that are shown at most.
_SLICES, _NAMED = 12, 60
#: How much edges between clusters are bent.
_BEND = 0.12


def _relation(known: Mapping[str, tuple[str, ...]], relation: str | None) -> str:
    name: Any = next((one for one in known if len(known[one]) > 1), None) if relation is None else relation
    if name not in known:
        raise MethodError(unknown_name("relation", relation, known))
    if len(known[name]) not in (2, 3):
        raise MethodError(f"a figure of '{name}', of {len(known[name])} axes; expected a relation of 2 or 3")
    return name


def _slice_axes(types: Sequence[str]) -> tuple[int | None, list[int]]:
    """The axis that panels run along, of three the one whose type is there once, and the two of a panel."""
    if len(types) == 2:
        return None, [0, 1]
    along = next((a for a, t in enumerate(types) if types.count(t) == 1), 0)
    return along, [a for a in range(3) if a != along]


def plot_relations(
    fit: Any, *, relation: str | None = None, title: str | None = None, axes: Panels | None = None
) -> Any:
    """A relation as a matrix, rows and columns in the order of their clusters, with lines between these (Murphy, Fig.
    27.26).

    Of a relation of three axes a panel for each of the largest clusters of one of them, the mean over its members.
    Missing cells are grey.
    """
    name = _relation(fit.model.relations, relation)
    types, array = fit.model.relations[name], fit.data.array(name)
    along, axis = _slice_axes(types)
    labels = {t: fit.params[f"cluster_{t}"].cpu().numpy() for t in types}
    panels, captions = [array], [name]
    if along is not None:
        label, names = labels[types[along]], fit.coords[types[along]]
        largest = [k for k in np.argsort(-np.bincount(label), kind="stable") if (label == k).any()][:_SLICES]
        members = [np.flatnonzero(label == k) for k in largest]
        seen = np.ma.masked_invalid(array)
        panels = [seen.take(m, along).mean(along).filled(np.nan) for m in members]
        captions = [
            ", ".join(str(names[i]) for i in m[:2]) + (f" + {len(m) - 2}" if len(m) > 2 else "") for m in members
        ]
    wide = min(4, len(panels))
    sheet = Sheet.grid(axes, len(panels), wide, 3.6 * wide + 1.4, 3.6 * -(-len(panels) // wide) + 0.4)
    for place, panel, caption in zip(sheet.panels, panels, captions, strict=True):
        image = _matrix(fit.coords, place, panel, [types[a] for a in axis], labels, caption, named=len(panels) == 1)
        if len(panels) == 1:
            sheet.figure.colorbar(image, ax=place, label="cell")
    return sheet.finish(title, f"'{name}' in the order of the clusters of {' and '.join(dict.fromkeys(types))}")


def _matrix(
    coords: Mapping[str, Sequence[Any]], place: Axes, panel: Array, types: list[str], labels: dict[str, Array],
    caption: str, named: bool, **colour: Any,
) -> AxesImage:  # fmt: skip
    from matplotlib import colormaps

    greys = colormaps["Greys"].with_extremes(bad="#cfe3f3")
    order = [np.argsort(labels[t], kind="stable") for t in types]
    shown = np.ma.masked_invalid(panel[np.ix_(*order)])
    image = place.imshow(shown, cmap=greys, aspect="auto", interpolation="nearest", **colour)
    place.set_title(caption, fontsize=9)
    for which, t, at in (("y", types[0], order[0]), ("x", types[1], order[1])):
        lines = np.flatnonzero(np.diff(labels[t][at])) + 0.5
        for line in lines:
            (place.axhline if which == "y" else place.axvline)(line, color="tab:red", linewidth=0.8)
        small = named and len(at) <= _NAMED
        names = [str(coords[t][i]) for i in at] if small else []
        getattr(place, f"set_{which}ticks")(range(len(names)))
        getattr(place, f"set_{which}ticklabels")(names, fontsize=6, rotation=90 if which == "x" else 0)
        clusters = f"{len(lines) + 1} cluster{'s' * bool(len(lines))}"
        getattr(place, f"set_{which}label")(f"{t} ({clusters})", fontsize=8)
    return image


def plot_clusters(
    fit: Any,
    *,
    relation: str | None = None,
    above: float = 0.8,
    top: int = 3,
    title: str | None = None,
    ax: Axes | None = None,
) -> Any:
    """The graph of the clusters of a relation of entities with others of the same type: an edge for every block whose
    mean is above ``above``, named by the clusters of the third type that it is of, if there is one (Murphy 2012, Fig.
    27.25).

    top: members of a cluster that are named.
    """
    import networkx as nx

    name = _relation(fit.model.relations, relation)
    types, table = fit.model.relations[name], fit.table(name).cpu().numpy()
    along, (row, column) = _slice_axes(types)
    if table.ndim != len(types):
        raise MethodError(f"the graph of '{name}', whose cells are categories")
    table = table[None] if along is None else np.moveaxis(table, along, 0)
    graph = nx.MultiDiGraph()
    sides = [(types[row], k) for k in range(table.shape[1])] + [(types[column], k) for k in range(table.shape[2])]
    graph.add_nodes_from(dict.fromkeys(sides))
    edges: dict[Any, list[str]] = {}
    for p, a, b in zip(*np.nonzero(table > above), strict=True):
        called = "" if along is None else _members(fit, types[along], int(p), 2)
        edges.setdefault(((types[row], int(a)), (types[column], int(b))), []).append(called)
    graph.add_edges_from(edges)
    graph.remove_nodes_from([node for node, degree in dict(graph.degree()).items() if degree == 0])
    sheet, ax = Sheet.single(ax, 9.0, 9.0)
    spots = nx.circular_layout(graph)
    boxes = {"boxstyle": "round", "facecolor": "white", "edgecolor": "tab:blue"}
    settings: Any = {"ha": "center", "va": "center", "fontsize": 8, "bbox": boxes}
    names = {
        (kind, k): ax.text(spot[0], spot[1], _members(fit, kind, k, top).replace(", ", "\n"), **settings)
        for (kind, k), spot in spots.items()
    }
    curve = f"arc3,rad={_BEND}"
    arrows: Any = nx.draw_networkx_edges(graph, spots, ax=ax, node_size=4000, connectionstyle=curve, edge_color="0.4")
    _name_edges(ax, spots, edges)
    ax.set(xlim=(-1.4, 1.4), ylim=(-1.35, 1.45), aspect="equal")
    sheet.figure.draw_without_rendering()  # boxes have their sizes from here on
    for (one, other), arrow in zip(graph.edges(), arrows, strict=True):
        if one != other:  # from box to box, however wide they are
            arrow.set(patchA=names[one].get_bbox_patch(), patchB=names[other].get_bbox_patch())
            arrow.shrinkA = arrow.shrinkB = 2
    ax.set_axis_off()
    return sheet.finish(title, f"'{name}': blocks with a mean above {above:g}")


def _name_edges(ax: Axes, spots: dict[Any, Array], edges: dict[Any, list[str]]) -> None:
    """Text at two fifths of each curve (matplotlib's arc3 is a parabola); of a loop above it."""
    settings: Any = {"fontsize": 6, "color": "tab:red", "ha": "center", "va": "center"}
    white = {"facecolor": "white", "edgecolor": "none", "pad": 0.5, "alpha": 0.8}
    for (one, other), called in edges.items():
        across = spots[other] - spots[one]
        place = spots[one] + 0.4 * across + 0.48 * _BEND * np.array([across[1], -across[0]])
        if one == other:
            place = place + np.array([0, 0.24])
        ax.text(place[0], place[1], "\n".join(c for c in called if c), bbox=white, **settings)


def _members(fit: Any, kind: str, cluster: int, top: int) -> str:
    members = np.flatnonzero(fit.params[f"cluster_{kind}"].cpu().numpy() == cluster)
    more = f", ... ({len(members)})" if len(members) > top else ""
    return ", ".join(str(fit.coords[kind][i]) for i in members[:top]) + more


def plot_co_assignment(fit: Any, *, kind: str | None = None, title: str | None = None, ax: Axes | None = None) -> Any:
    """P(two entities share a cluster), in the order of the best clusters. kind: the type, by default the first."""
    kind = kind or next(iter(fit.model.types))
    together = fit.co_assignment(kind).to_numpy()
    label = fit.params[f"cluster_{kind}"].cpu().numpy()
    sheet, place = Sheet.single(ax, 5.0, 4.0)
    image = _matrix(fit.coords, place, together, [kind, kind], {kind: label}, "", named=True, vmin=0, vmax=1)
    sheet.figure.colorbar(image, ax=place, label="probability")
    return sheet.finish(title, f"{kind}: P(same cluster)")


def plot_elbo(fit: Result, *, title: str | None = None, ax: Axes | None = None) -> Any:
    """log p(x, clusters) of the search."""
    sheet, place = Sheet.single(ax, 5.0, 4.0)
    place.plot(fit.elbo.cpu().numpy())
    place.set(xlabel="starts and rounds", ylabel=fit.bound_name)
    return sheet.finish(title, "search for clusters")


KINDS: dict[str, Callable[..., Any]] = {
    "relations": plot_relations,
    "clusters": plot_clusters,
    "co_assignment": plot_co_assignment,
    "elbo": plot_elbo,
}
