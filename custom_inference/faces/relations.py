"""Figures of fits of relational models, as the source's: matrices in the order of the clusters, graphs of clusters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from custom_inference.faces import drawing
from ppl_models import MethodError
from ppl_models.core.errors import unknown_name

#: Slices of a relation of three axes, and entities with labels, that are shown at most.
_SLICES, _NAMED = 12, 60


def _relation(fit: Any, relation: str | None) -> str:
    known = fit.model.relations
    name: Any = next((one for one in known if len(known[one]) > 1), None) if relation is None else relation
    if name not in known:
        raise MethodError(unknown_name("relation", relation, known))
    if len(known[name]) not in (2, 3):
        raise MethodError(f"a figure of '{name}', of {len(known[name])} axes; expected a relation of 2 or 3")
    return name


def _sliced(fit: Any, name: str) -> tuple[int | None, list[int]]:
    """The axis that panels run along, of three the one whose type is there once, and the two of a panel."""
    types = fit.model.relations[name]
    if len(types) == 2:
        return None, [0, 1]
    along = next((a for a, t in enumerate(types) if types.count(t) == 1), 0)
    return along, [a for a in range(3) if a != along]


def plot_relations(fit: Any, *, relation: str | None = None, title: str | None = None, axes: Any = None) -> Any:
    """A relation as a matrix, rows and columns in the order of their clusters, with lines between these (002, Fig.
    27.26).

    Of a relation of three axes a panel for each of the largest clusters of one of them, the mean over its members.
    Missing cells are grey.
    """
    name = _relation(fit, relation)
    types, array = fit.model.relations[name], fit.data.array(name)
    along, axis = _sliced(fit, name)
    labels = {t: fit.params[f"cluster_{t}"].cpu().numpy() for t in types}
    panels, captions = [array], [name]
    if along is not None:
        label, names = labels[types[along]], fit.coords[types[along]]
        largest = [k for k in np.argsort(-np.bincount(label), kind="stable") if (label == k).any()][:_SLICES]
        members = [np.flatnonzero(label == k) for k in largest]
        with np.errstate(invalid="ignore"):
            panels = [_mean(np.take(array, m, along), along) for m in members]
        captions = [
            ", ".join(str(names[i]) for i in m[:2]) + (f" + {len(m) - 2}" if len(m) > 2 else "") for m in members
        ]
    figure, places, own = _places(len(panels), axes)
    for place, panel, caption in zip(places, panels, captions, strict=False):
        _matrix(fit, place, panel, [types[a] for a in axis], labels, caption, named=len(panels) == 1)
    if title or figure is not None:
        places[0].figure.suptitle(
            title or f"'{name}' in the order of the clusters of {' and '.join(dict.fromkeys(types))}"
        )
    return own if axes is None else axes


def _mean(values: np.ndarray, axis: int) -> np.ndarray:
    seen = ~np.isnan(values)
    number = seen.sum(axis)
    return np.where(number > 0, np.where(seen, values, 0.0).sum(axis) / np.maximum(number, 1), np.nan)


def _places(count: int, axes: Any) -> tuple[Any, list[Any], Any]:
    """The axes to draw on: the given ones, or of a new figure."""
    if axes is not None:
        given = [*np.ravel(np.asarray(axes, dtype=object))]
        if len(given) < count:
            raise MethodError(f"{len(given)} axes, expected {count}")
        return None, given, axes
    wide = min(4, count)
    figure = drawing.new_figure(3.6 * wide + 1.4, 3.6 * -(-count // wide) + 0.4)
    made: Any = figure.subplots(-(-count // wide), wide, squeeze=False)
    for place in made.ravel()[count:]:
        place.set_axis_off()
    return figure, [*made.ravel()], made.ravel()[:count] if count > 1 else made.ravel()[0]


def _matrix(
    fit: Any, place: Any, panel: np.ndarray, types: list[str], labels: dict[str, np.ndarray], caption: str, named: bool
) -> None:
    order = [np.argsort(labels[t], kind="stable") for t in types]
    shown = np.ma.masked_invalid(panel[np.ix_(*order)])
    colours = place.imshow(shown, cmap=_colours(), aspect="auto", interpolation="nearest")
    place.set_title(caption, fontsize=9)
    for which, t, at in (("y", types[0], order[0]), ("x", types[1], order[1])):
        lines = np.flatnonzero(np.diff(labels[t][at])) + 0.5
        for line in lines:
            (place.axhline if which == "y" else place.axvline)(line, color="tab:red", linewidth=0.8)
        small = named and len(at) <= _NAMED
        names = [str(fit.coords[t][i]) for i in at] if small else []
        getattr(place, f"set_{which}ticks")(range(len(names)))
        getattr(place, f"set_{which}ticklabels")(names, fontsize=6, rotation=90 if which == "x" else 0)
        getattr(place, f"set_{which}label")(f"{t} ({len(lines) + 1} clusters)", fontsize=8)
    if named:
        place.figure.colorbar(colours, ax=place, label="cell")


def _colours() -> Any:
    from matplotlib import colormaps

    return colormaps["Greys"].with_extremes(bad="#cfe3f3")


def plot_clusters(
    fit: Any, *, relation: str | None = None, above: float = 0.8, top: int = 3, title: str | None = None, ax: Any = None
) -> Any:
    """The graph of the clusters of a relation of entities with others of the same type: an edge for every block whose
    mean is above ``above``, named by the clusters of the third type that it is of, if there is one (002, Fig. 27.25).

    top: members of a cluster that are named.
    """
    import networkx as nx

    name = _relation(fit, relation)
    types, table = fit.model.relations[name], fit.table(name).cpu().numpy()
    along, (row, column) = _sliced(fit, name)
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
    ax = drawing.new_figure(11.0, 8.0).subplots() if ax is None else ax
    spots = nx.circular_layout(graph)
    boxes = {"boxstyle": "round", "facecolor": "white", "edgecolor": "tab:blue"}
    for node, spot in spots.items():
        ax.text(
            *spot,
            _members(fit, node[0], node[1], top).replace(", ", "\n"),
            ha="center",
            va="center",
            fontsize=8,
            bbox=boxes,
        )
    nx.draw_networkx_edges(graph, spots, ax=ax, node_size=4000, connectionstyle="arc3,rad=0.12", edge_color="0.4")
    for (one, other), called in edges.items():
        middle = 0.58 * spots[one] + 0.42 * spots[other] + (np.array([0.0, 0.14]) if one == other else 0)
        ax.text(*middle, "\n".join(c for c in called if c), fontsize=6, color="tab:red", ha="center", va="center")
    ax.set(xlim=(-1.4, 1.4), ylim=(-1.35, 1.35))
    ax.set_axis_off()
    ax.set_title(title or f"'{name}': blocks with a mean above {above:g}")
    return ax


def _members(fit: Any, kind: str, cluster: int, top: int) -> str:
    members = np.flatnonzero(fit.params[f"cluster_{kind}"].cpu().numpy() == cluster)
    more = f", ... ({len(members)})" if len(members) > top else ""
    return ", ".join(str(fit.coords[kind][i]) for i in members[:top]) + more


def plot_co_assignment(fit: Any, *, kind: str | None = None, title: str | None = None, ax: Any = None) -> Any:
    """P(two entities share a cluster), in the order of the best clusters. kind: the type, by default the first."""
    kind = kind or next(iter(fit.model.types))
    together = fit.co_assignment(kind).to_numpy()
    label = fit.params[f"cluster_{kind}"].cpu().numpy()
    place = _places(1, ax)[1][0]
    _matrix(fit, place, together, [kind, kind], {kind: label}, title or f"{kind}: P(same cluster)", named=True)
    return place


def plot_elbo(fit: Any, *, title: str | None = None, ax: Any = None) -> Any:
    """log p(x, clusters) of the search."""
    place = _places(1, ax)[1][0]
    place.plot(fit.elbo.cpu().numpy())
    place.set(xlabel="starts and rounds", ylabel=fit.bound_name, title=title or "search for clusters")
    return place


KINDS: dict[str, Callable[..., Any]] = {
    "relations": plot_relations,
    "clusters": plot_clusters,
    "co_assignment": plot_co_assignment,
    "elbo": plot_elbo,
}
