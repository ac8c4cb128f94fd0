"""Whatever people hold their graphs in, as edges between numbered nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse
import torch

from ppl_models.core.errors import DataError
from ppl_models.data import sparse
from ppl_models.data.containers import sparse_matrix, unpack
from ppl_models.data.covariates import read_before
from ppl_models.data.files.edge_frames import as_labelled_matrix
from ppl_models.data.graphs.edges import Array, EdgeList
from ppl_models.data.graphs.lists import Reading, as_values, ends_of, frame_edges, level_edges, name_nodes, read_edges
from ppl_models.data.held import has_text, holds_several, is_listed, is_path, is_text, labels_of, objects, to_numpy
from ppl_models.data.labels import index_of
from ppl_models.data.lazy import is_networkx, is_pandas
from ppl_models.data.matrix import Data, as_matrix


def read_source(source: Any, how: Reading) -> EdgeList:
    """Edges from a matrix, a networkx graph, an edge frame or a list of pairs."""
    if is_networkx(source, "Graph"):
        return _from_networkx(source, how)
    own = read_before(source)
    if own is not None:
        return _from_data(own, how)
    if sparse.is_matrix(source):
        return _from_sparse(source, None, how)
    has_levels = is_pandas(source, "DataFrame", "Series") and is_pandas(source.index, "MultiIndex")
    if has_levels and (source.ndim == 1 or source.shape[1] <= 1):
        return level_edges(source, how)
    if is_pandas(source, "DataFrame"):
        matrix = as_labelled_matrix(source)
        source = source if matrix is None else matrix
        if set(ends_of(source, how)) <= set(source.columns) and list(source.index) != list(source.columns):
            return frame_edges(source, how)
        if source.shape[0] != source.shape[1]:
            first, second = how.columns
            found = f"a frame of shape {source.shape} without the columns {first!r} and {second!r}"
            expected = "a square frame with the nodes on both axes, or columns=(from, to) for a frame of edges"
            raise DataError(found, axis="node", expected=expected)
    elif is_text(source) or is_path(source):
        raise DataError(f"a string, {str(source)[:40]!r}", expected="a graph; graph(...) reads files")
    elif getattr(source, "ndim", 1) == 1:
        if not holds_several(source):
            raise DataError(f"a {type(source).__name__}", expected="a graph, a matrix, or edges")
        source = list(source)
        if is_pairs(source):
            return read_edges(source, how)
    elif _are_ends(source, "OUS"):
        return read_edges(source, how)
    values, labels = unpack(source, axis="node")
    if torch.is_tensor(values):
        values = to_numpy(values.double() if values.dtype in (torch.bfloat16, torch.float16) else values)
    if not labels and not is_pandas(source, "DataFrame") and _are_ends(values, "iu"):
        return read_edges(values, how)
    return _from_dense(values, labels.get("row"), labels.get("feature"), how)


def _are_ends(values: Any, kinds: str) -> bool:
    """Whether an array can only be one of edges (E, 2)."""
    kind = getattr(getattr(values, "dtype", None), "kind", "")
    return values.ndim == 2 and values.shape[1] == 2 and len(values) != 2 and kind != "" and kind in kinds


def is_pairs(source: Sequence[Any]) -> bool:
    """Whether a list can only be one of edges: tuples, or pairs of what are no numbers; an empty one too."""
    if not source or isinstance(source[0], tuple):
        return True
    first = source[0]
    return is_listed(first) and len(first) in (2, 3) and has_text(first)


def _check_square(shape: tuple[int, ...]) -> None:
    if len(shape) != 2 or shape[0] != shape[1]:
        expected = "an adjacency matrix (N, N); pairs of nodes as graph(edges=...) with shape (E, 2)"
        raise DataError(f"a matrix of shape {tuple(shape)}, which is not square", axis="node", expected=expected)
    if not shape[0]:
        raise DataError("no nodes", axis="node", expected="N >= 1")


def _from_dense(values: Array, rows: list[Any] | None, columns: list[Any] | None, how: Reading) -> EdgeList:
    """A matrix whose axes may have labels: the same nodes on both, the columns in any order; NaN hides a dyad."""
    _check_square(values.shape)
    if (rows is None) != (columns is None) and set(rows or columns or ()) == set(range(len(values))):
        places = list(range(len(values)))  # which say no more, unless the other axis is in another order
        rows, columns = rows or places, columns or places
    if rows is not None and columns is not None and rows != columns:
        place = index_of(rows, "node").get_indexer(objects(columns))
        if (place < 0).any() or len(set(place.tolist())) < len(place):
            odd = [c for c, p in zip(columns, place, strict=True) if p < 0] or columns
            found = f"rows and columns name different nodes (column {odd[0]!r} is no row)"
            raise DataError(found, axis="node", expected="the same labels on both axes")
        values = values[:, np.argsort(place)]
    missing = np.isnan(values) if values.dtype.kind == "f" else np.zeros(values.shape, dtype=bool)
    row, column = np.nonzero((values != 0) & ~missing)
    hidden = np.stack(np.nonzero(missing)) if missing.any() else None
    edges = EdgeList(row, column, values[row, column].astype(np.float64), len(values), hidden=hidden)
    return name_nodes(edges, columns if rows is None else rows, how)


def _from_sparse(matrix: Any, names: list[Any] | None, how: Reading) -> EdgeList:
    _check_square(tuple(matrix.shape))
    matrix = scipy.sparse.csr_matrix(sparse_matrix(matrix), copy=True)
    matrix.sum_duplicates()  # in place
    entries = scipy.sparse.coo_array(matrix)
    row, column = (np.asarray(axis, dtype=np.int64) for axis in entries.coords)
    value = entries.data.astype(np.float64)
    missing = np.isnan(value)
    hidden = np.stack([row[missing], column[missing]]) if missing.any() else None
    edges = EdgeList(row, column, value, matrix.shape[0], hidden=hidden)
    return name_nodes(edges.only(~missing & (value != 0)), names, how)


def _from_data(data: Data, how: Reading) -> EdgeList:
    data = as_matrix(data, keep_sparse=True)
    rows, columns = data.coords.get("row"), data.coords.get("feature")
    if data.is_sparse:
        return _from_sparse(sparse.to_scipy(data.x), rows or columns, how)
    return _from_dense(data.x_with_nan.detach().cpu().numpy().astype(np.float64), rows, columns, how)


def _from_networkx(source: Any, how: Reading) -> EdgeList:
    nodes = list(source.nodes)
    if how.nodes is None and set(nodes) == set(range(len(nodes))):
        nodes = list(range(len(nodes)))  # numbers are positions, in whatever order they were added
    number = {node: place for place, node in enumerate(nodes)}
    if not nodes:
        raise DataError("no nodes", axis="node", expected="N >= 1")
    found = list(source.edges(data=how.weight or "weight", default=1))
    row, column = (np.fromiter((number[e[k]] for e in found), np.int64, len(found)) for k in (0, 1))
    value = as_values([e[2] for e in found])
    undirected = not source.is_directed()
    edges = EdgeList(
        row, column, value, len(nodes), listed=undirected, directed=not undirected,
        multiple=source.is_multigraph(),
    )  # fmt: skip
    return name_nodes(edges, labels_of(nodes), how, have_identity=True)
