"""Layout of the picture of a model.

Places are found by Sugiyama's method. Sites are put into columns, from left to right, so that every edge goes to the
right and everything outside a plate that does not depend on it stands left of it: plates are in columns of their own.
Edges over several columns get a bend in each. The order within a column is that of the mean place of the neighbours;
then places move towards their neighbours as far as the distances between them allow (a regression with monotone
values). Edges that would pass through the box of a plate of others go around it. Sugiyama, Tagawa & Toda, *Methods for
visual understanding of hierarchical system structures*, IEEE Trans. SMC 11 (1981).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import networkx as nx
import numpy as np
from sklearn.isotonic import isotonic_regression

from custom_inference.faces.pictures.structure import Structure

#: Vertical distances, in inches: between sites, between a site and a bend, between bends; and from a site to a bend
#: below the border of its plate, and of each plate around that.
SITE, BEND, BENDS, BELOW, AROUND = 1.05, 0.7, 0.3, 0.98, 0.3
#: Horizontal gap between the sites of two columns.
GAP = 0.85
_SWEEPS = 24


class Key(NamedTuple):
    """A site, whose one end is its name, or the bend of an edge in a column."""

    ends: tuple[str, ...]
    column: int = -1

    @property
    def is_bend(self) -> bool:
        return len(self.ends) > 1


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
    layers = _order_columns(layers, links)
    y = _heights(structure, layers, links)
    width = [max(widths[name] for name in structure.sites if column[name] == c) for c in range(len(layers))]
    # Wide enough for their sites, with room for the borders of plates.
    x = np.cumsum([width[0] / 2, *(before / 2 + GAP + own / 2 for before, own in pairwise(width))]).tolist()
    bends = {
        (source, target): [
            (x[c] + side * width[c] / 2, y[Key((source, target), c)])
            for c in range(column[source] + 1, column[target])
            for side in (-1, 1)
        ]
        for source, target in structure.edges
    }
    return Layout({name: (x[column[name]], y[Key((name,))]) for name in structure.sites}, bends)


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
        layers[column[name]].append(Key((name,)))
    links: list[tuple[Key, Key]] = []
    for source, target in structure.edges:
        bends = [Key((source, target), c) for c in range(column[source] + 1, column[target])]
        for bend in bends:
            layers[bend.column].append(bend)
        links += pairwise([Key((source,)), *bends, Key((target,))])
    return links, layers


def _mean_place(key: Key, near: nx.Graph, place: dict[Key, float]) -> float:
    """Return the mean place of a key's neighbours; its own if it has none."""
    return float(np.mean([place[other] for other in near.adj.get(key, [key])]))


def crossings(layers: list[list[Key]], links: list[tuple[Key, Key]]) -> int:
    """How many pairs of links cross."""
    rank = {key: (c, i) for c, layer in enumerate(layers) for i, key in enumerate(layer)}
    ends = [(rank[one], rank[other]) for one, other in links]
    return sum(a[0] == c[0] and (a[1] - c[1]) * (b[1] - d[1]) < 0 for i, (a, b) in enumerate(ends) for c, d in ends[:i])


def _order_columns(layers: list[list[Key]], links: list[tuple[Key, Key]]) -> list[list[Key]]:
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
    for plate in structure.plates.values():
        y |= _around(set(plate.members), layers, y)
    return y


def _around(members: set[str], layers: list[list[Key]], y: dict[Key, float]) -> dict[Key, float]:
    """Bends of the edges of others, out of the box of a plate: above it or below, in their order."""
    columns = [c for c, layer in enumerate(layers) if any(not key.is_bend and key.ends[0] in members for key in layer)]
    within = [key for layer in layers[columns[0] : columns[-1] + 1] for key in layer]
    own = [key for key in within if members & set(key.ends)]
    low, high = min(y[key] for key in own) - BELOW, max(y[key] for key in own) + BEND
    edges: dict[tuple[str, ...], list[Key]] = {}
    for key in within:
        if key.is_bend and key not in own:
            edges.setdefault(key.ends, []).append(key)
    level = {edge: float(np.mean([y[bend] for bend in bends])) for edge, bends in edges.items()}
    if not any(low < y[bend] < high for bends in edges.values() for bend in bends):
        return {}
    found: dict[Key, float] = {}
    middle = (low + high) / 2
    for edge in sorted(edges, key=lambda edge: abs(level[edge] - middle)):
        if level[edge] > middle:
            found |= dict.fromkeys(edges[edge], at := max(level[edge], high))
            high = at + BENDS
        else:
            found |= dict.fromkeys(edges[edge], at := min(level[edge], low))
            low = at - BENDS
    return found


def _distance(structure: Structure, above: Key, below: Key) -> float:
    """Texts stand below their sites, and so do the labels of plates: edges of others keep clear of them."""
    if above.is_bend == below.is_bend:
        return BENDS if above.is_bend else SITE
    if above.is_bend:
        return BEND
    plates = structure.plates_of(above.ends[0])
    borders = [name for name in plates if not set(below.ends) & set(structure.plates[name].members)]
    return BELOW + AROUND * (len(borders) - 1) if borders else BEND
