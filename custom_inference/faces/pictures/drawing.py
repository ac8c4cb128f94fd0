"""The picture of a model as a matplotlib figure: observed sites shaded, plates as boxes, priors beside their sites.

Places are found by Sugiyama's method. Sites are put into columns, from left to right, so that every edge goes to the
right and everything outside a plate that does not depend on it stands left of it: plates are in columns of their own.
Edges over several columns get a bend in each. The order within a column is that of the mean place of the neighbours;
then places move towards their neighbours as far as the distances between them allow (a regression with monotone
values). Sugiyama, Tagawa & Toda, *Methods for visual understanding of hierarchical system structures*, IEEE Trans. SMC
11 (1981).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import networkx as nx
import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Ellipse, FancyArrowPatch, FancyBboxPatch
from matplotlib.path import Path
from matplotlib.transforms import Bbox
from sklearn.isotonic import isotonic_regression

from custom_inference.faces.drawing import INK, MUTED, Sheet, extent, root
from custom_inference.faces.pictures.structure import Node, Structure

#: Vertical distances, in inches: between sites, between a site and a bend, between bends; and from a site to a bend
#: below the border of its plate, and of each plate around that.
SITE, BEND, BENDS, BELOW, AROUND = 1.05, 0.7, 0.3, 0.98, 0.3
#: Horizontal gap between the sites of two columns.
GAP = 0.85
_SWEEPS = 24
#: Sizes in inches.
HEIGHT, MARGIN, LINE, INSET, PASSING = 0.44, 0.18, 0.155, 0.13, 0.02
#: Width of a character in the three sizes of text, and their points.
_NAME, _NOTE = (0.083, 10.0), (0.066, 8.0)
_SHADE, _NOTES = "#d3dbe6", "#555555"

#: A site by its name, or the bend of an edge in a column.
Key = str | tuple[str, str, int]


@dataclass(frozen=True)
class Layout:
    """place: site -> (x, y) of its centre, y upwards; bends: edge -> the places it goes through in between.

    Edges are level across the columns that they pass.
    """

    place: dict[str, tuple[float, float]]
    bends: dict[tuple[str, str], list[tuple[float, float]]]


def layout(structure: Structure, widths: dict[str, float]) -> Layout:
    """Places in inches. widths: of the sites, texts included."""
    column = columns(structure)
    links, layers = _with_bends(structure, column)
    layers = _ordered(layers, links)
    y = _heights(structure, layers, links)
    width = [max(widths[name] for name in structure.sites if column[name] == c) for c in range(len(layers))]
    # Wide enough for their sites, with room for the borders of plates.
    x = np.cumsum([width[0] / 2, *(before / 2 + GAP + own / 2 for before, own in pairwise(width))]).tolist()
    bends = {
        (source, target): [
            (x[c] + side * width[c] / 2, y[source, target, c])
            for c in range(column[source] + 1, column[target])
            for side in (-1, 1)
        ]
        for source, target in structure.edges
    }
    return Layout({name: (x[column[name]], y[name]) for name in structure.sites}, bends)


def columns(structure: Structure) -> dict[str, int]:
    """The column of every site: right of what it depends on, and of what stands before its plates."""
    graph = nx.DiGraph(structure.edges)
    graph.add_nodes_from(structure.sites)
    before = {name: set(graph.predecessors(name)) for name in structure.sites}
    free = [name for name in structure.sites if not structure.plates_of(name)]
    for plate in structure.plates.values():
        members = set(plate.members)
        after = {name for member in members for name in nx.descendants(graph, member)} - members
        outside = {name for member in members for name in graph.predecessors(member)} - members
        for name in members:
            before[name] |= (outside | set(free)) - after
        for name in after & set(free):
            before[name] |= members
    found = dict.fromkeys(structure.sites, 0)
    for _ in range(len(found)):  # enough where nothing stands before itself
        found = {name: max((found[other] + 1 for other in before[name]), default=0) for name in found}
    used = sorted(set(found.values()))
    return {name: used.index(value) for name, value in found.items()}


def _with_bends(structure: Structure, column: dict[str, int]) -> tuple[list[tuple[Key, Key]], list[list[Key]]]:
    """Edges between neighbouring columns, and what stands in each column, in the program's order."""
    layers: list[list[Key]] = [[] for _ in range(max(column.values()) + 1)]
    for name in structure.sites:
        layers[column[name]].append(name)
    links: list[tuple[Key, Key]] = []
    for source, target in structure.edges:
        bends = [(source, target, c) for c in range(column[source] + 1, column[target])]
        for bend in bends:
            layers[bend[2]].append(bend)
        links += pairwise([source, *bends, target])
    return links, layers


def _mean_place(key: Key, near: nx.Graph, place: dict[Key, float]) -> float:
    """That of its neighbours; its own where it has none."""
    return float(np.mean([place[other] for other in near.adj.get(key, [key])]))


def crossings(layers: list[list[Key]], links: list[tuple[Key, Key]]) -> int:
    """How many pairs of links cross."""
    rank = {key: (c, i) for c, layer in enumerate(layers) for i, key in enumerate(layer)}
    ends = [(rank[one], rank[other]) for one, other in links]
    return sum(a[0] == c[0] and (a[1] - c[1]) * (b[1] - d[1]) < 0 for i, (a, b) in enumerate(ends) for c, d in ends[:i])


def _ordered(layers: list[list[Key]], links: list[tuple[Key, Key]]) -> list[list[Key]]:
    """The columns ordered by the mean place of their neighbours, to and fro; the order with the fewest crossings."""
    near: nx.Graph = nx.Graph(links)
    best, layers = list(layers), list(layers)
    for sweep in range(_SWEEPS):
        for c in range(len(layers))[:: 1 if sweep % 2 == 0 else -1]:
            # Relative places, so that columns of different lengths compare.
            place = {key: (i + 0.5) / len(layer) for layer in layers for i, key in enumerate(layer)}
            mean = {key: _mean_place(key, near, place) for key in layers[c]}
            layers[c] = sorted(layers[c], key=mean.__getitem__)
        if crossings(layers, links) < crossings(best, links):
            best = list(layers)
    return best


def _heights(structure: Structure, layers: list[list[Key]], links: list[tuple[Key, Key]]) -> dict[Key, float]:
    """y of everything, from top to bottom in the order of its column, as near to its neighbours as it may be."""
    near: nx.Graph = nx.Graph(links)
    y: dict[Key, float] = {}
    spreads: list[tuple[list[Key], Any]] = []
    for layer in layers:
        apart = [_distance(structure, above, below) for above, below in pairwise(layer)]
        spread = np.concatenate([[0.0], np.cumsum(apart)])
        spreads.append((layer, spread))
        y |= dict(zip(layer, (spread.mean() - spread).tolist(), strict=True))
    for sweep in range(_SWEEPS):
        for layer, spread in spreads[:: 1 if sweep % 2 == 0 else -1]:
            wanted = np.array([_mean_place(key, near, y) for key in layer])
            moved = isotonic_regression(wanted + spread, increasing=False) - spread
            y |= dict(zip(layer, moved.tolist(), strict=True))
    return y


def _distance(structure: Structure, above: Key, below: Key) -> float:
    """Texts stand below their sites, and so do the labels of plates: edges of others keep clear of them."""
    if isinstance(above, str) and isinstance(below, str):
        return SITE
    if isinstance(above, tuple) and isinstance(below, tuple):
        return BENDS
    if isinstance(below, str):
        return BEND
    ends = {below[0], below[1]}
    borders = [name for name in structure.plates_of(str(above)) if not ends & set(structure.plates[name].members)]
    return BELOW + AROUND * (len(borders) - 1) if borders else BEND


def draw(structure: Structure, *, distributions: bool = True, ax: Any = None) -> Any:
    """A figure with the picture, in which a unit of the axes is an inch; or the axes given, with all in proportion."""
    notes = {name: _notes(site, distributions) for name, site in structure.sites.items()}
    ovals = {name: 0.34 + _NAME[0] * len(name) for name in structure.sites}
    widths = {name: max(ovals[name], *(_NOTE[0] * len(line) for line in notes[name]), 0.0) for name in ovals}
    places = layout(structure, widths)
    boxes = {name: _box(places.place[name], widths[name], len(notes[name])) for name in ovals}
    plates = plate_boxes(structure, boxes, places)
    points = [Bbox([point, point]) for bends in places.bends.values() for point in bends]
    page = Bbox.union([*boxes.values(), *plates.values(), *points]).padded(MARGIN)
    page.p1 = max(page.x1, page.x0 + 0.3 + 0.1 * len(structure.title)), page.y1 + 0.3
    sheet = Sheet.single(ax, page.width, page.height)
    (axes,) = sheet.panels
    if ax is None:
        root(axes).set_layout_engine("none")
        axes.set_position((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set(xlim=page.intervalx, ylim=page.intervaly)
    before = set(axes.texts), set(axes.patches)
    axes.text(page.x0 + MARGIN, page.y1 - 0.12, structure.title, fontsize=11, weight="bold", va="top", color=INK)
    _draw_plates(axes, structure, plates)
    _draw_edges(axes, structure, places, ovals)
    for name, site in structure.sites.items():
        _draw_site(axes, site, places.place[name], ovals[name], notes[name])
    if ax is not None:
        axes.set_aspect("equal")
        width, height = extent(axes)
        _rescale(axes, before, min(width / page.width, height / page.height))
    return sheet.result


def _rescale(axes: Axes, before: tuple[set[Any], set[Any]], factor: float) -> None:
    """Sizes in points of what was drawn, in proportion to those in units of the axes."""
    for text in set(axes.texts) - before[0]:
        text.set_fontsize(factor * float(text.get_fontsize()))
    for patch in set(axes.patches) - before[1]:
        patch.set_linewidth(factor * patch.get_linewidth())
        if isinstance(patch, FancyArrowPatch):
            patch.set_mutation_scale(factor * patch.get_mutation_scale())


def _notes(site: Node, distributions: bool) -> list[str]:
    lines = [site.distribution] if distributions else []
    return [*lines, " × ".join(site.axes)] if site.axes else lines


def _box(centre: tuple[float, float], width: float, lines: int) -> Bbox:
    x, y = centre
    below = 0.05 + LINE * lines if lines else 0.0
    return Bbox.from_extents(x - width / 2, y - HEIGHT / 2 - below, x + width / 2, y + HEIGHT / 2)


def plate_boxes(structure: Structure, boxes: dict[str, Bbox], places: Layout) -> dict[str, Bbox]:
    """The border of every plate: around its sites, the edges to them in their columns, and the plates in it."""
    found: dict[str, Bbox] = {}
    for name in sorted(structure.plates, key=structure.depth, reverse=True):
        members = structure.plates[name].members
        sites = Bbox.union([boxes[site] for site in members])
        inner = [found[p.name] for p in structure.plates.values() if p.parent == name]
        passing = [
            Bbox([point, point]).padded(PASSING)
            for ends, bends in places.bends.items()
            for point in bends
            if set(ends) & set(members) and sites.x0 <= point[0] <= sites.x1
        ]
        box = Bbox.union([sites, *inner, *passing]).padded(INSET)
        label = _NOTE[0] * (len(structure.plates[name].label) + 3)
        found[name] = Bbox.from_extents(box.x0, box.y0 - LINE, max(box.x1, box.x0 + label), box.y1)
    return found


def _draw_plates(axes: Axes, structure: Structure, boxes: dict[str, Bbox]) -> None:
    for name, box in boxes.items():
        style: Any = {"boxstyle": "round,pad=0,rounding_size=0.08", "edgecolor": MUTED, "linewidth": 1.1}
        axes.add_patch(FancyBboxPatch((box.x0, box.y0), box.width, box.height, fill=False, **style))
        axes.text(
            box.x1 - 0.08,
            box.y0 + 0.05,
            structure.plates[name].label,
            fontsize=_NOTE[1],
            ha="right",
            va="bottom",
            color=_NOTES,
        )


def _draw_site(axes: Axes, site: Node, centre: tuple[float, float], width: float, notes: list[str]) -> None:
    face = _SHADE if site.observed else "white"
    axes.add_patch(Ellipse(centre, width, HEIGHT, facecolor=face, edgecolor=INK, linewidth=1.3, zorder=3))
    axes.text(*centre, site.name, fontsize=_NAME[1], ha="center", va="center", zorder=4)
    for i, line in enumerate(notes):
        y = centre[1] - HEIGHT / 2 - 0.05 - LINE * i
        style = "italic" if site.axes and i == len(notes) - 1 else "normal"
        text = axes.text(centre[0], y, line, fontsize=_NOTE[1], ha="center", va="top", style=style, color=_NOTES)
        text.set_zorder(4)
        text.set_bbox({"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.5})


def _draw_edges(axes: Axes, structure: Structure, places: Layout, ovals: dict[str, float]) -> None:
    """Curves that leave to the right and come in from the left, those from above above those from below."""
    for target in structure.sites:
        sources = [source for source, to in structure.edges if to == target]
        before = {s: (places.bends[s, target] or [places.place[s]])[-1][1] for s in sources}
        for i, source in enumerate(sorted(sources, key=before.__getitem__, reverse=True)):
            aside = 0.11 * ((len(sources) - 1) / 2 - i)
            (x0, y0), (x1, y1) = places.place[source], places.place[target]
            start = (x0 + ovals[source] / 2, y0)
            inside = (1 - min(2 * abs(aside) / HEIGHT, 0.9) ** 2) ** 0.5
            end = (x1 - ovals[target] / 2 * inside, y1 + aside)
            path = smooth([start, *places.bends[source, target], end])
            arrow = FancyArrowPatch(path=path, arrowstyle="-|>", mutation_scale=11, color=INK, linewidth=1.1, zorder=2)
            axes.add_patch(arrow)


def smooth(points: list[tuple[float, float]]) -> Path:
    """A curve through the points, horizontal at each."""
    vertices, codes = [points[0]], [Path.MOVETO]
    for (x0, y0), (x1, y1) in pairwise(points):
        middle = (x0 + x1) / 2
        vertices += [(middle, y0), (middle, y1), (x1, y1)]
        codes += [Path.CURVE4] * 3
    return Path(vertices, codes)
