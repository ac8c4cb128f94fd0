"""Edges as a source gives them, and what a graph makes of them: direction, duplicates, self loops, hidden dyads."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from ppl_models.core.errors import DataError, digits, warn_of_data
from ppl_models.data.containers import ROUNDING

Array = NDArray[Any]

#: What the values of edges may be: 0/1, whole numbers, any numbers, or (None) those of at least 0.
KINDS = ("binary", "counts", "real", None)
#: Edges of a list of which none has its reverse: so many in an order of the nodes by chance at least once in 2^5 lists,
#: so many in any order are suspect, and fewer where among so few nodes more than e^-3 of random lists have a reverse.
FEW, _MANY, _CHANCE = 6, 20, 6
_LISTED = "directed=False (--undirected) reads them as undirected, and directed=True says that they are directed"
_TRIANGLE = "take x + x.T if the graph is undirected, and directed=True (--directed) if it is not"


@dataclass(frozen=True)
class EdgeList:
    """Edges by the numbers of their nodes.

    row, column, value: (E,) where each edge goes from and to, and its value. names: of the nodes, or None.
    listed: whether an undirected edge is there once (a list) rather than in both directions (a matrix).
    directed: what the source itself says, or None. multiple: parallel edges are meant, as in a MultiGraph.
    hidden, hidden_pairs: (2, M) unobserved dyads, from a matrix (both directions) and from a list (either).
    """

    row: Array
    column: Array
    value: Array
    num_nodes: int
    names: list[Any] | None = None
    listed: bool = False
    directed: bool | None = None
    multiple: bool = False
    hidden: Array | None = None
    hidden_pairs: Array | None = None

    @property
    def key(self) -> Array:
        """The number of each dyad, in row order, (E,)."""
        return dyad_key(self.row, self.column, self.num_nodes)

    def only(self, kept: Array) -> EdgeList:
        return replace(self, row=self.row[kept], column=self.column[kept], value=self.value[kept])

    def name(self, node: int) -> Any:
        return int(node) if self.names is None else self.names[int(node)]

    def edge(self, place: int, arrow: str = "->") -> str:
        return f"{self.name(self.row[place])!r} {arrow} {self.name(self.column[place])!r}"

    def first(self, wrong: Array) -> str:
        """The first of the wrong edges with its value."""
        place = int(np.flatnonzero(wrong)[0])
        return f"(the first: {self.edge(place)} has {digits(self.value[place])})"


def dyad_key(row: Array, column: Array, num_nodes: int) -> Array:
    return row.astype(np.int64) * num_nodes + column


def sorted_dyads(dyads: Array, num_nodes: int, directed: bool) -> Array:
    """Dyads (2, M) in lexicographic order, each once, from the smaller number if undirected."""
    low, high = dyads if directed else (dyads.min(0), dyads.max(0))
    key = np.unique(dyad_key(low, high, num_nodes))
    return np.stack([key // num_nodes, key % num_nodes])


def normalise_edges(
    edges: EdgeList,
    directed: bool | None,
    self_loops: bool,
    kind: str | None,
    warn_symmetric: bool,
    keeps: str = "self_loops=True",
) -> EdgeList:
    """The edges of a graph of known direction: each once, from the smaller number if undirected, none at hidden dyads.

    kind: of ``KINDS``, or "presence": every edge counts once, whatever its value. warn_symmetric: say so where directed
    data are symmetric. keeps: what would keep self loops.
    """
    edges = _check_values(edges, kind)
    edges = _without_loops(edges, self_loops, keeps)
    if edges.multiple and edges.directed:
        edges = _merge_parallel(edges, kind)
    edges = replace(edges, directed=_direction(edges, directed, warn_symmetric))
    edges = _without_hidden(edges)
    edges = _merge_parallel(edges, kind)
    return edges if edges.directed else _one_triangle(edges, kind)


#: Which model reads what no model of graphs here does.
_REAL = (
    'real weights are the "gaussian" cells of IRM: relations({"edge": matrix}, {"edge": ("node", "node")}), '
    'or those of a program whose x is real: graph(..., kind="real")'
)


def _check_values(edges: EdgeList, kind: str | None) -> EdgeList:
    wrong = ~np.isfinite(edges.value) | (edges.value < (-np.inf if kind == "real" else 0))
    if wrong.any():
        found = f"{wrong.sum()} of {len(wrong)} edges have weights that are negative or not finite {edges.first(wrong)}"
        raise DataError(found, axis="edge", expected=f"finite numbers of at least 0; mask= hides dyads; {_REAL}")
    edges = edges.only(edges.value != 0)
    if kind == "presence":
        return replace(edges, value=np.ones(len(edges.value)))
    if kind in ("binary", "counts"):  # whole numbers but for rounding are whole ones, as those of rows are
        whole = edges.value.round()
        near = np.abs(edges.value - whole) <= ROUNDING * np.minimum(whole, 1e4)
        edges = replace(edges, value=np.where(near, whole, edges.value))
    wrong = edges.value != {"binary": 1, "counts": edges.value.round()}.get(str(kind), edges.value)
    if wrong.any():
        what = "neither 0 nor 1" if kind == "binary" else "no whole numbers"
        found = f"{wrong.sum()} of {len(wrong)} edges have weights that are {what} {edges.first(wrong)}"
        counts = ", or a model of counts such as PoissonSBM" if kind == "binary" else ""
        real = "" if np.array_equal(edges.value, edges.value.round()) else f"; {_REAL}"
        expected = f"graph(source, weight=False) for edges without weights{counts}{real}"
        raise DataError(found, axis="edge", expected=expected)
    return edges


def _without_loops(edges: EdgeList, self_loops: bool, keeps: str) -> EdgeList:
    if self_loops:
        return edges
    # The diagonal says nothing, whatever stands there to say so.
    hidden, pairs = (None if d is None else d[:, d[0] != d[1]] for d in (edges.hidden, edges.hidden_pairs))
    edges = replace(edges, hidden=hidden, hidden_pairs=pairs)
    loop = edges.row == edges.column
    if not loop.any():
        return edges
    first = edges.name(int(edges.row[np.flatnonzero(loop)[0]]))
    warn_of_data(f"{loop.sum()} self loops were left out (the first: at {first!r}); {keeps} keeps them")
    return edges.only(~loop)


def _direction(edges: EdgeList, directed: bool | None, warn_symmetric: bool) -> bool:
    """Return the direction that was asked for, if the edges allow it; otherwise the one that the source says or
    suggests."""
    if directed is None:
        if edges.directed is not None:
            return edges.directed
        directed = edges.listed or _asymmetry(edges) is not None
        if directed:
            what, cure = ("edges", _LISTED) if edges.listed else ("edges of the adjacency matrix", _TRIANGLE)
            warn_of_one_way(edges, cure, what)
        return directed
    if directed and edges.directed is False:
        found, expected = "an undirected graph where a directed one is needed", "a model with directed=False"
        raise DataError(found, expected=f"{expected}, or a directed graph (networkx: to_directed())")
    looks_undirected = warn_symmetric and not edges.listed and edges.directed is None and len(edges.row) > 0
    if edges.hidden is not None:  # what was seen in one direction alone does not count twice
        row, column = edges.hidden
        looks_undirected &= set(dyad_key(row, column, edges.num_nodes)) == set(dyad_key(column, row, edges.num_nodes))
    if directed and looks_undirected and _asymmetry(edges) is None:
        warn_of_data(
            "the adjacency matrix is symmetric but read as directed, so that every edge counts twice; a model with "
            "directed=False reads it as undirected"
        )
    if not directed and not edges.listed:
        problem = _asymmetry(edges)
        if problem is not None:
            mirrored = ""
            if _is_triangle(edges.row, edges.column) and edges.directed is None:
                mirrored = ", such as x + x.T of this triangle, a list of its edges as pairs of nodes"
            expected = f"a symmetric matrix{mirrored}, or a model with directed=True"
            raise DataError(f"not symmetric: {problem}", axis="edge", expected=expected)
    return directed


def warn_of_one_way(edges: EdgeList, cure: str, what: str) -> None:
    """Warn where edges without a direction of their own were perhaps listed once each, or all of them twice.

    cure: how to say otherwise. what: the edges are called.
    """
    edges = edges.only(edges.row != edges.column)
    size, many = edges.num_nodes, len(np.unique(edges.key))
    mutual = int(np.isin(dyad_key(edges.column, edges.row, size), edges.key).sum())
    if mutual:
        if edges.listed and mutual == len(edges.row) >= FEW and _asymmetry(edges) is None:
            both = f"all {many} {what} are listed in both directions, and read as directed, so that each counts twice"
            warn_of_data(f"{both}; {cure}")
        return
    # Of the nodes that have edges: a file may claim any number of others.
    met, appeared, own = np.unique(np.stack([edges.row, edges.column], 1), return_index=True, return_inverse=True)
    letters = np.argsort(np.argsort([str(edges.name(node)) for node in met]))
    orders = {"of the nodes": met, "in which they appear": appeared, "of their letters": letters}
    row, column = own.reshape(-1, 2).T
    held = [by for by, rank in orders.items() if _is_triangle(rank[row], rank[column])]
    triangle = not edges.listed and "of the nodes" in held
    dense = many > 1 and many**2 > _CHANCE * len(met) * (len(met) - 1)
    if triangle or dense or many >= (FEW if held else _MANY):
        how = f", and each follows the order {held[0]}" if held else ""
        how = ", and all are on one side of its diagonal" if triangle else how
        warn_of_data(f"none of the {many} {what} has its reverse{how}: they are read as directed; {cure}")


def _is_triangle(row: Array, column: Array) -> bool:
    """Whether every edge, of some, goes up in an order of the nodes, or every one down."""
    return len(row) > 0 and bool((row < column).all() or (row > column).all())


def _asymmetry(edges: EdgeList) -> str | None:
    """The first dyad of a matrix that differs from its reverse, both observed, in words; None where there is none."""
    edges = _without_hidden(replace(edges, directed=False))
    if _is_symmetric(edges):
        return None
    order = np.argsort(edges.key, kind="stable")
    key, value, size = edges.key[order], edges.value[order], edges.num_nodes
    back = key % size * size + key // size
    place = np.minimum(np.searchsorted(key, back), max(len(key) - 1, 0))
    differs = (key[place] != back) | (value[place] != value)
    first = int(np.flatnonzero(differs)[0])
    i, j = edges.name(key[first] // size), edges.name(key[first] % size)
    other = value[place[first]] if key[place[first]] == back[first] else 0
    return f"{i!r} -> {j!r} has {value[first]:g}, {j!r} -> {i!r} has {other:g}"


def _is_symmetric(edges: EdgeList) -> bool:
    """Whether the matrix of edges is its transpose: by sorts that cost as much as the entries are many."""
    there = scipy.sparse.csc_array((edges.value, (edges.row, edges.column)), (edges.num_nodes,) * 2)
    back = there.T.tocsc()
    return all(np.array_equal(getattr(there, name), getattr(back, name)) for name in ("indptr", "indices", "data"))


def _without_hidden(edges: EdgeList) -> EdgeList:
    """Edges at observed dyads alone; ``hidden`` becomes the sorted dyads, i < j if undirected.

    An undirected dyad of which a matrix or a mask shows one direction is known: it has the edge that stands there.
    """
    size, hidden = edges.num_nodes, edges.hidden
    if hidden is not None and not edges.directed:
        key, back = dyad_key(hidden[0], hidden[1], size), dyad_key(hidden[1], hidden[0], size)
        if not edges.listed:
            shown = edges.only(~np.isin(edges.key, key))
            known = shown.only(np.isin(shown.key, back[~np.isin(back, key)]))
            ends = np.concatenate([shown.row, known.column]), np.concatenate([shown.column, known.row])
            edges = replace(shown, row=ends[0], column=ends[1], value=np.concatenate([shown.value, known.value]))
        hidden = hidden[:, np.isin(back, key)]
    parts = [part for part in (hidden, edges.hidden_pairs) if part is not None and part.size]
    if not parts:
        return replace(edges, hidden=None, hidden_pairs=None)
    hidden = sorted_dyads(np.concatenate(parts, axis=1), size, bool(edges.directed))
    ends = edges if edges.directed else _from_smaller(edges)
    kept = ~np.isin(ends.key, dyad_key(hidden[0], hidden[1], size))
    return replace(edges.only(kept), hidden=hidden, hidden_pairs=None)


def _merge_parallel(edges: EdgeList, kind: str | None) -> EdgeList:
    """Merge parallel edges, in order of their dyads: add them up, or keep one where they are 0/1."""
    if not edges.directed and edges.multiple:
        edges = _from_smaller(edges)
    if (np.diff(edges.key) > 0).all():
        return edges
    key, place, number = np.unique(edges.key, return_inverse=True, return_counts=True)
    if len(key) == len(edges.row):
        return edges.only(np.argsort(edges.key, kind="stable"))
    if not (kind in ("presence", "counts") or (kind is None and edges.multiple)):
        first = edges.edge(int(np.flatnonzero(number[place] > 1)[0]), "->" if edges.directed else "--")
        extra = len(edges.row) - len(key)
        if edges.multiple:
            expected = "graph(source, weight=False) to keep each once, or a model of counts such as PoissonSBM"
            raise DataError(f"{extra} parallel edges (the first: {first})", axis="edge", expected=expected)
        done = "each is kept once" if kind == "binary" else "they were added up; kind='binary' keeps each once"
        warn_of_data(f"{extra} edges are repeated (the first: {first}); {done}")
    total = np.bincount(place, weights=edges.value, minlength=len(key))
    total = np.ones(len(key)) if kind in ("presence", "binary") else total
    return replace(edges, row=key // edges.num_nodes, column=key % edges.num_nodes, value=total)


def _from_smaller(edges: EdgeList) -> EdgeList:
    low, high = np.minimum(edges.row, edges.column), np.maximum(edges.row, edges.column)
    return replace(edges, row=low, column=high)


def _one_triangle(edges: EdgeList, kind: str | None) -> EdgeList:
    """Undirected edges from the smaller number to the larger.

    A matrix, and a list that has every edge in both directions, hold each twice. In a list that has some edges in
    both directions these are one edge each, with the value that both have: a line that is missing changes its own pair
    alone. Two directions that differ are added up; of counts (``kind``) also those that do not, unless most pairs of
    the list stand in both directions with the same count.
    """
    if not edges.listed or _asymmetry(replace(edges, hidden=None)) is None:
        return edges.only(edges.row <= edges.column)
    folded = _from_smaller(edges)
    key, first, number = np.unique(folded.key, return_index=True, return_counts=True)
    order = np.argsort(folded.key, kind="stable")
    last = order[np.cumsum(number) - 1]
    both = number == 2
    if not both.any():
        return folded.only(first)
    same = both & (folded.value[first] == folded.value[last])
    loops = folded.row[first] == folded.column[first]
    counted = kind == "counts" and 2 * same.sum() <= (~loops).sum()
    added = both & ~same | (both & counted)
    if kind in ("presence", "binary"):
        added = np.zeros_like(both)
    total = np.where(added, folded.value[first] + folded.value[last], folded.value[first])
    _say_both(folded, first, both, added)
    found = replace(folded.only(first), value=total)
    return replace(found, row=key // edges.num_nodes, column=key % edges.num_nodes)


def _say_both(edges: EdgeList, first: Array, both: Array, added: Array) -> None:
    """Warn of pairs that are listed in both directions, beside others that are not, and say how they were read."""
    once, twice = first[~both], first[both]
    example = edges.edge(int(twice[0]), "--")
    found = f"{len(twice)} pairs of nodes are listed in both directions (the first: {example}) and {len(once)} in one"
    if added.any():
        summed = edges.edge(int(first[added][0]), "--")
        what = "its two values were" if added.sum() == 1 else "the two values of each were"
        warn_of_data(
            f"{found}; of {int(added.sum())} (the first: {summed}) {what} added up; list each pair once to be sure"
        )
    else:
        warn_of_data(f"{found}; each is one edge")
