"""Lists of edges between named nodes, how names become numbers, and which dyads are unobserved.

Arrays of edges rather than graphs of networkx, which takes about 350 bytes an edge, joins repeated edges before anybody
could say so, and has no hidden dyads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

from ppl_models.core.errors import DataError
from ppl_models.data import sparse
from ppl_models.data.containers import mask_values
from ppl_models.data.files.headers import end_columns
from ppl_models.data.graphs.edges import Array, EdgeList
from ppl_models.data.held import Source, holds_several, is_listed, is_number, labels_of, objects, to_list, to_numpy
from ppl_models.data.labels import index_of, places_of, warn_of_twins, whole_labels
from ppl_models.data.lazy import is_pandas
from ppl_models.data.lazy import pandas as pd


@dataclass(frozen=True)
class Reading:
    """How a source is to be read.

    nodes: names of all nodes in order. size: their number, where nothing but that was said. num_nodes: how many a model
    needs, which tells whether whole numbers are positions or names. weight: the attribute or column of the edges'
    values. columns: of an edge frame.
    """

    nodes: list[Any] | None = None
    size: int | None = None
    num_nodes: int | None = None
    weight: str | None = None
    columns: tuple[Any, Any] = ("source", "target")


def read_edges(source: Source, how: Reading) -> EdgeList:
    """A list of pairs (from, to) or triples (from, to, weight), or an array (E, 2) of whole numbers."""
    if is_pandas(source, "DataFrame"):
        return frame_edges(source, how)
    if isinstance(source, np.ndarray | Tensor):
        source = to_numpy(source)
        if source.ndim != 2 or source.shape[1] != 2:
            found = f"edges of shape {source.shape}"
            raise DataError(found, axis="edge", expected="(E, 2), a row for each edge; (2, E): edges.T")
        return from_ends([source[:, 0], source[:, 1]], None, how)
    if not holds_several(source):
        expected = "pairs (from, to), or triples (from, to, weight)"
        raise DataError(f"a {type(source).__name__} as edges", axis="edge", expected=expected)
    held: Any = source
    pairs = list(held)
    lengths = [len(pair) if is_listed(pair) or np.ndim(pair) else 0 for pair in pairs]
    if len(set(lengths)) > 1 or not set(lengths) <= {2, 3}:
        odd = next((pair for pair, length in zip(pairs, lengths, strict=True) if length not in (2, 3)), pairs[0])
        expected = "pairs (from, to), or triples (from, to, weight), all of one length"
        raise DataError(f"{odd!r} among the edges", axis="edge", expected=expected)
    ends = list(zip(*pairs, strict=True)) if pairs else [(), ()]
    value = as_values(ends[2]) if len(ends) == 3 else None
    return from_ends([objects(ends[0]), objects(ends[1])], value, how)


def frame_edges(frame: pd.DataFrame, how: Reading) -> EdgeList:
    """The edges of a frame, by its two columns."""
    ends = ends_of(frame, how)
    missing = [name for name in (*ends, *([how.weight] if how.weight else [])) if name not in frame.columns]
    if missing:
        expected = f"one of {list(map(str, frame.columns))}"
        raise DataError(f"no column {missing[0]!r} of edges", axis="edge", expected=expected)
    weight = how.weight or ("weight" if "weight" in frame.columns else None)
    value = None if weight is None else as_values(frame[weight].tolist())
    return from_ends([frame[name].to_numpy() for name in ends], value, how)


def level_edges(source: pd.DataFrame | pd.Series, how: Reading) -> EdgeList:
    """The edges of a frame or a Series whose index has two levels, their ends; the values are its only column, or 1.

    Raises DataError for other numbers of levels.
    """
    frame = source.to_frame() if is_pandas(source, "Series") else source
    if frame.index.nlevels != 2:
        found = f"an index of {frame.index.nlevels} levels beside {frame.shape[1]} columns"
        raise DataError(found, axis="edge", expected="the ends of edges as two levels, beside their weights, or none")
    column = frame.iloc[:, 0] if frame.shape[1] else None
    ends = [frame.index.get_level_values(n).to_numpy() for n in (0, 1)]
    return from_ends(ends, None if column is None else as_values(column.tolist()), how)


def ends_of(frame: pd.DataFrame, how: Reading) -> tuple[Any, Any]:
    """The columns of a frame that hold the ends of its edges: those asked for, or by default others of such names."""
    if set(how.columns) <= set(frame.columns) or how.columns != Reading.columns:
        return how.columns
    return end_columns(list(frame.columns)) or how.columns


def as_values(values: Sequence[Any]) -> Array:
    try:
        return np.asarray(values, dtype=np.float64).reshape(len(values))
    except (TypeError, ValueError):
        wrong = next(v for v in values if not is_number(v))
        found = f"an edge with the weight {wrong!r}"
        raise DataError(found, axis="edge", expected="numbers; weight= names their attribute") from None


def from_ends(ends: list[Array], value: Array | None, how: Reading) -> EdgeList:
    """Edges whose ends are names or numbers of nodes."""
    if {end.dtype.kind for end in ends} == {"i", "u"}:  # together numpy's floats, where large numbers are not exact
        ends = [objects(end.tolist()) for end in ends]
    at, names, size = _number_nodes(np.stack(ends, axis=1).ravel(), how)
    row, column = at[::2], at[1::2]
    if not size:
        raise DataError("no edges and no nodes", axis="node", expected="nodes=, where there are no edges")
    value = np.ones(len(row)) if value is None else value
    return EdgeList(row, column, value, size, names=names, listed=True)


def _number_nodes(ends: Array, how: Reading) -> tuple[Array, list[Any] | None, int]:
    """The place of each end among the nodes, the names of these where they have some, and how many there are."""
    ends = _whole(ends)
    if how.nodes is not None or how.size is not None:
        size = len(how.nodes) if how.nodes is not None else how.size or 0
        return places_of(ends, how.nodes, size, "node"), labels_of(how.nodes) if how.nodes is not None else None, size
    if ends.dtype.kind not in "iu":
        codes, names = pd.factorize(ends)
        warn_of_twins(names, "node")
        return codes, labels_of(names), len(names)
    names, codes = np.unique(ends, return_inverse=True)
    if not len(names):
        return codes, None, how.num_nodes or 0
    size = int(names[-1]) + 1 if how.num_nodes is None else how.num_nodes
    positions = names[0] >= 0 and (names[-1] < size if how.num_nodes is not None else len(names) == size)
    # Numbers without gaps from 0 (or below what the model needs) are positions; any others are names.
    return (ends.astype(np.int64), None, size) if positions else (codes, labels_of(names), len(names))


def _whole(ends: Array) -> Array:
    """Whole numbers as such, where all ends are; otherwise the names as they are, none of them missing."""
    if ends.dtype.kind in "iu":
        return ends
    if ends.dtype.kind == "f":
        if not np.isfinite(ends).all() or (ends != ends.round()).any():
            wrong = ends[~np.isfinite(ends) | (ends != np.round(ends))][0]
            raise DataError(f"a node called {wrong}", axis="node", expected="names, or whole numbers")
        return whole_labels(ends, "node")
    missing = pd.isna(ends)
    if missing.any():
        raise DataError(f"edge {int(np.flatnonzero(missing)[0]) // 2} lacks a node", expected="two nodes an edge")
    if ends.dtype.kind != "O" or not len(ends):
        return ends if len(ends) else ends.astype(np.int64)
    kinds = set(map(type, ends.tolist()))
    if kinds <= {int} and all(abs(end) < 2**62 for end in ends.tolist()):  # larger ones are names
        return ends.astype(np.int64)
    return ends


def name_nodes(edges: EdgeList, names: list[Any] | None, how: Reading, *, have_identity: bool = False) -> EdgeList:
    """Edges of a source that has all its nodes, in the order that was asked for.

    have_identity: the nodes are known by their numbers where they have no names (networkx's); those of a matrix are
    then called what ``nodes`` says.
    """
    if names is not None:
        index_of(names, "node")
        names = labels_of(names)
    anonymous = names is None and not have_identity
    size = edges.num_nodes if how.nodes is None else len(how.nodes)
    said = how.size if how.nodes is None else size if anonymous else None
    if said not in (None, edges.num_nodes):
        found = f"{said} nodes were named for a graph of {edges.num_nodes}"
        raise DataError(found, axis="node", expected="a name for every node")
    if how.nodes is None:
        return replace(edges, names=names)
    if anonymous:
        index_of(how.nodes, "node")
        return replace(edges, names=labels_of(how.nodes))
    target = places_of(range(edges.num_nodes) if names is None else names, how.nodes, size, "node")
    hidden = None if edges.hidden is None else target[edges.hidden]
    moved = replace(edges, row=target[edges.row], column=target[edges.column], hidden=hidden)
    return replace(moved, num_nodes=size, names=labels_of(how.nodes))


def hide_dyads(edges: EdgeList, mask: Source | None) -> EdgeList:
    """The edges with the dyads hidden that the mask hides; see :func:`ppl_models.graph`."""
    if mask is None:
        return edges
    if sparse.is_matrix(mask):
        raise DataError("a sparse mask", expected="a dense one, or a list of the hidden pairs")
    dense = _dense(mask, edges)
    if dense is not None:
        hidden = np.stack(np.nonzero(~dense))
        together = hidden if edges.hidden is None else np.concatenate([edges.hidden, hidden], axis=1)
        return replace(edges, hidden=together)
    return replace(edges, hidden_pairs=_pairs(mask, edges))


def _dense(mask: Any, edges: EdgeList) -> Array | None:
    """(N, N) bool, True = observed; None where the mask is a list of pairs."""
    size = edges.num_nodes
    if is_pandas(mask, "DataFrame"):
        names = list(range(size)) if edges.names is None else edges.names
        if list(mask.index) != list(range(len(mask))) or list(mask.columns) != list(mask.index):
            known = index_of(names, "node")
            order = [index_of(list(axis), "node").get_indexer(known) for axis in (mask.index, mask.columns)]
            if any((place < 0).any() for place in order):
                raise DataError("a mask that lacks some nodes", axis="node", expected="all nodes")
            mask = mask.iloc[order[0], order[1]]
    elif not hasattr(mask, "ndim") and not (is_listed(mask) and mask and not isinstance(mask[0], tuple)):
        return None
    try:
        mask = to_numpy(mask)
    except ValueError:
        return None
    if mask.ndim != 2 or mask.dtype.kind not in "buif" or (mask.shape[1] == 2 and mask.dtype.kind in "iu"):
        return None
    if mask.shape != (size, size):
        expected = "one mask entry per dyad, True = observed, or a list of the hidden pairs"
        raise DataError(f"mask of shape {mask.shape} for {size} nodes", expected=expected)
    return mask_values(mask, mask.shape, {}).numpy()


def _pairs(mask: Source, edges: EdgeList) -> Array:
    """(2, M) places of the hidden pairs."""
    if not holds_several(mask):
        raise DataError(f"a {type(mask).__name__} as mask", expected="(N, N), or the hidden pairs")
    pairs = to_list(mask)
    odd = [pair for pair in pairs if not is_listed(pair) or len(pair) != 2]
    if odd:
        raise DataError(f"{odd[0]!r} among the hidden dyads", expected="pairs of nodes")
    if not pairs:
        return np.empty((2, 0), dtype=np.int64)
    ends = objects([end for pair in pairs for end in pair])
    return places_of(ends, edges.names, edges.num_nodes, "node").reshape(-1, 2).T
