"""Whatever people hold their graphs in, as edges between numbered nodes."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from ppl_models.core.errors import DataError
from ppl_models.data import sparse
from ppl_models.data.containers import as_numbers, frame_values, labels_of, refuse_transposed, sparse_matrix
from ppl_models.data.graphs.edges import Array, EdgeList
from ppl_models.data.graphs.lists import Reading, as_values, frame_edges, index_of, named, objects, read_edges
from ppl_models.data.lazy import pandas as pd
from ppl_models.data.lazy import xarray as xr
from ppl_models.data.matrix import Data, as_matrix


def read_source(source: Any, how: Reading) -> EdgeList:
    """Edges from a matrix, a networkx graph, an edge frame or a list of pairs."""
    networkx: Any = sys.modules.get("networkx")  # whoever holds such a graph has imported it
    if networkx is not None and isinstance(source, networkx.Graph):
        return _from_networkx(source, how)
    if isinstance(source, Data):
        edges = _from_data(source, how)
    elif scipy.sparse.issparse(source) or sparse.is_tensor(source):
        edges = _from_sparse(source, None, how)
    elif isinstance(source, pd.DataFrame):
        edges = _from_frame(source, how)
    elif isinstance(source, xr.DataArray):
        refuse_transposed(source, how.site)
        labels = [labels_of(list(source.coords[d].values)) if d in source.coords else None for d in source.dims]
        edges = _from_labelled(_numbers(source.values, how), labels, how)
    else:
        edges = _from_values(source, how)
    return edges


# ----- matrices -------------------------------------------------------------------------------------------


def _from_values(source: Any, how: Reading) -> EdgeList:
    """An array or a list: an adjacency matrix, unless it can only be pairs."""
    if isinstance(source, Tensor):
        source = _numbers(source, how)
    if isinstance(source, str | bytes):
        raise DataError(f"a string, {source[:40]!r}", site=how.site, expected="a graph; graph(...) reads files")
    if not isinstance(source, np.ndarray):
        if not isinstance(source, Iterable):
            raise DataError(f"a {type(source).__name__}", site=how.site, expected="a graph, a matrix, or edges")
        source = list(source)
        if _is_pairs(source):
            return read_edges(source, how)
        source = _numbers(source, how)
    if source.ndim == 2 and source.shape[1] == 2 and source.shape[0] != 2 and source.dtype.kind in "iuOUS":
        return read_edges(source, how)
    return _from_dense(source, None, how)


def _numbers(source: Any, how: Reading) -> Array:
    values = as_numbers(source, how.site, axis="node")
    if isinstance(values, Tensor):
        values = values.cpu()
        values = (values.double() if values.dtype in (torch.bfloat16, torch.float16) else values).numpy()
    return values


def _is_pairs(source: list[Any]) -> bool:
    """Whether a list can only be one of edges: tuples, or pairs of what are no numbers; an empty one too."""
    if not source or isinstance(source[0], tuple):
        return True
    first = source[0]
    return isinstance(first, list) and len(first) in (2, 3) and any(isinstance(end, str) for end in first)


def _from_dense(values: Array, names: list[Any] | None, how: Reading) -> EdgeList:
    values = _numbers(values, how)
    _check_square(values.shape, how)
    return named(_nonzero(values, how), names, how)


def _check_square(shape: tuple[int, ...], how: Reading) -> None:
    if len(shape) != 2 or shape[0] != shape[1]:
        found = f"a matrix of shape {tuple(shape)}, which is not square"
        expected = "an adjacency matrix (N, N); pairs of nodes as graph(edges=...) with shape (E, 2)"
        raise DataError(found, site=how.site, axis="node", expected=expected)
    if not shape[0]:
        raise DataError("no nodes", site=how.site, axis="node", expected="N >= 1")


def _nonzero(values: Array, how: Reading) -> EdgeList:
    """The entries other than 0 of a square matrix; NaN hides a dyad."""
    missing = np.isnan(values) if values.dtype.kind == "f" else None
    row, column = np.nonzero(values) if missing is None else np.nonzero((values != 0) & ~missing)
    hidden = None if missing is None or not missing.any() else np.stack(np.nonzero(missing))
    value = values[row, column].astype(np.float64)
    return EdgeList(row, column, value, len(values), hidden=hidden, site=how.site)


def _from_sparse(matrix: Any, names: list[Any] | None, how: Reading) -> EdgeList:
    _check_square(tuple(matrix.shape), how)
    matrix = scipy.sparse.csr_matrix(sparse_matrix(matrix, how.site), copy=True)
    matrix.sum_duplicates()  # in place
    entries = scipy.sparse.coo_array(matrix)
    row, column = (np.asarray(axis, dtype=np.int64) for axis in entries.coords)
    value = entries.data.astype(np.float64)
    missing = np.isnan(value)
    hidden = np.stack([row[missing], column[missing]]) if missing.any() else None
    edges = EdgeList(row, column, value, matrix.shape[0], hidden=hidden, site=how.site)
    return named(edges.only(~missing & (value != 0)), names, how)


def _from_data(data: Data, how: Reading) -> EdgeList:
    data = as_matrix(data, keep_sparse=True, site=how.site)
    rows, columns = data.coords.get("row"), data.coords.get("feature")
    if data.is_sparse:
        return _from_sparse(sparse.to_scipy(data.x), rows or columns, how)
    values = data.x.detach().cpu().numpy().astype(np.float64)
    if data.mask is not None:
        values = np.where(data.mask.cpu().numpy(), values, np.nan)
    return _from_labelled(values, [rows, columns], how)


def _from_labelled(values: Array, labels: list[Any], how: Reading) -> EdgeList:
    """A matrix whose axes may have labels: the same nodes on both, the columns in any order."""
    _check_square(values.shape, how)
    rows, columns = labels
    if rows is not None and columns is not None and list(rows) != list(columns):
        place = index_of(rows, how).get_indexer(objects(columns))
        if (place < 0).any() or len(set(place.tolist())) < len(place):
            odd = [c for c, p in zip(columns, place, strict=True) if p < 0] or list(columns)
            found = f"rows and columns name different nodes (column {odd[0]!r} is no row)"
            raise DataError(found, site=how.site, axis="node", expected="the same labels on both axes")
        values = values[:, np.argsort(place)]
    names = rows if rows is not None else columns
    return _from_dense(values, None if names is None else list(names), how)


# ----- networkx and frames --------------------------------------------------------------------------------


def _from_networkx(source: Any, how: Reading) -> EdgeList:
    nodes = list(source.nodes)
    if how.nodes is None and set(nodes) == set(range(len(nodes))):
        nodes = list(range(len(nodes)))  # numbers are positions, in whatever order they were added
    number = {node: place for place, node in enumerate(nodes)}
    if not nodes:
        raise DataError("no nodes", site=how.site, axis="node", expected="N >= 1")
    found = list(source.edges(data=how.weight or "weight", default=1))
    row, column = (np.fromiter((number[e[k]] for e in found), np.int64, len(found)) for k in (0, 1))
    value = as_values([e[2] for e in found], how)
    undirected = not source.is_directed()
    edges = EdgeList(
        row, column, value, len(nodes), listed=undirected, directed=not undirected,
        multiple=source.is_multigraph(), site=how.site,
    )  # fmt: skip
    return named(edges, labels_of(nodes), how, have_identity=True)


def _from_frame(frame: pd.DataFrame, how: Reading) -> EdgeList:
    """An edge frame where the two columns are there, else an adjacency matrix with labels."""
    source, target = how.columns
    if source in frame.columns and target in frame.columns and list(frame.index) != list(frame.columns):
        return frame_edges(frame, how)
    if frame.shape[0] != frame.shape[1]:
        found = f"a frame of shape {frame.shape} without the columns {source!r} and {target!r}"
        expected = "a square frame with the nodes on both axes, or columns=(from, to) for a frame of edges"
        raise DataError(found, site=how.site, axis="node", expected=expected)
    labels = [labels_of(list(axis)) for axis in (frame.index, frame.columns)]
    return _from_labelled(frame_values(frame, how.site), labels, how)
