"""The picture of a model as a matplotlib figure: observed sites shaded, plates as boxes, priors beside their sites."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Ellipse, FancyArrowPatch, FancyBboxPatch
from matplotlib.path import Path
from matplotlib.transforms import Bbox

from custom_inference.faces.drawing import INK, MUTED, Sheet, extent, root
from custom_inference.faces.pictures.layout import Layout, layout
from custom_inference.faces.pictures.structure import Node, Structure

#: Sizes in inches.
HEIGHT, MARGIN, LINE, INSET, PASSING = 0.44, 0.18, 0.155, 0.13, 0.02
#: Width of a character in the three sizes of text, and their points.
_NAME, _NOTE = (0.083, 10.0), (0.066, 8.0)
_SHADE, _NOTES = "#d3dbe6", "#555555"


def draw(structure: Structure, *, distributions: bool = True, ax: Axes | None = None) -> Any:
    """A figure with the picture, in which a unit of the axes is an inch; or the axes given, with all in proportion."""
    notes: dict[str, list[str]] = {}
    for name, site in structure.sites.items():
        notes[name] = [site.distribution] * distributions + [" × ".join(site.axes)] * bool(site.axes)
    ovals = {name: 0.34 + _NAME[0] * len(name) for name in structure.sites}
    widths = {name: max(ovals[name], *(_NOTE[0] * len(line) for line in notes[name]), 0.0) for name in ovals}
    places = layout(structure, widths)
    boxes: dict[str, Bbox] = {}
    for name, (x, y) in places.place.items():
        aside, below = widths[name] / 2, 0.05 + LINE * len(notes[name]) if notes[name] else 0.0
        boxes[name] = Bbox.from_extents(x - aside, y - HEIGHT / 2 - below, x + aside, y + HEIGHT / 2)
    plates = plate_boxes(structure, boxes, places)
    points = [Bbox([point, point]) for bends in places.bends.values() for point in bends]
    page = Bbox.union([*boxes.values(), *plates.values(), *points]).padded(MARGIN)
    page.p1 = max(page.x1, page.x0 + 0.3 + 0.1 * len(structure.title)), page.y1 + 0.3
    sheet, axes = Sheet.single(ax, page.width, page.height)
    if ax is None:
        root(axes).set_layout_engine("none")
        axes.set_position((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set(xlim=page.intervalx, ylim=page.intervaly)
    before = set(axes.texts), set(axes.patches)
    axes.text(page.x0 + MARGIN, page.y1 - 0.12, structure.title, fontsize=11, weight="bold", va="top", color=INK)
    style: Any = {"boxstyle": "round,pad=0,rounding_size=0.08", "edgecolor": MUTED, "linewidth": 1.1}
    label: Any = {"fontsize": _NOTE[1], "ha": "right", "va": "bottom", "color": _NOTES}
    for name, box in plates.items():
        axes.add_patch(FancyBboxPatch((box.x0, box.y0), box.width, box.height, fill=False, **style))
        axes.text(box.x1 - 0.08, box.y0 + 0.05, structure.plates[name].label, **label)
    _draw_edges(axes, structure, places, ovals)
    for name, site in structure.sites.items():
        _draw_site(axes, site, places.place[name], ovals[name], notes[name])
    if ax is not None:
        axes.set_aspect("equal")
        width, height = extent(axes)
        # Sizes in points of what was drawn, in proportion to those in units of the axes.
        factor = min(width / page.width, height / page.height)
        for text in set(axes.texts) - before[0]:
            text.set_fontsize(factor * float(text.get_fontsize()))
        for patch in set(axes.patches) - before[1]:
            patch.set_linewidth(factor * patch.get_linewidth())
            if isinstance(patch, FancyArrowPatch):
                patch.set_mutation_scale(factor * patch.get_mutation_scale())
    return sheet.result


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
