"""``graph(...)``: a matrix, a networkx graph, edges or a file of them, as data that the graph models take; and what the
models make of their data, or an error that says what does not fit."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import scipy.sparse
import torch

from ppl_models.core.errors import DataError, about, unknown_name, warn_of_data
from ppl_models.data import sparse
from ppl_models.data.containers import plausible_size, refuse_blocks, type_for
from ppl_models.data.files.graphs import read_graph_file
from ppl_models.data.files.headers import Header
from ppl_models.data.files.reading import file_named, naming
from ppl_models.data.files.tables import require_file
from ppl_models.data.graphs.data import GraphData, name_coords
from ppl_models.data.graphs.edges import KINDS, EdgeList, normalise_edges
from ppl_models.data.graphs.lists import Reading, hide_dyads, read_edges
from ppl_models.data.graphs.sources import read_source
from ppl_models.data.held import Source, holds_several, is_name, is_string, is_whole, plain
from ppl_models.data.labels import places_of

_MODEL_KEEPS = "a model with self_loops=True"


def graph(
    source: Source | None = None,
    *,
    edges: Source | None = None,
    directed: bool | None = None,
    nodes: Sequence[Hashable] | int | None = None,
    mask: Source | None = None,
    weight: str | bool | None = None,
    self_loops: bool = False,
    kind: str | None = None,
    columns: tuple[Any, Any] = ("source", "target"),
    header: Header = "auto",
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> GraphData:
    """A graph from whatever people hold it in: a sparse adjacency matrix, hidden dyads, names of nodes as coords.

    >>> data = graph([("ann", "bob"), ("bob", "cleo")], directed=False)
    >>> data.nodes, data.edges().tolist()
    (['ann', 'bob', 'cleo'], [[0, 1], [1, 2]])

    Parameters
    ----------
    source: a networkx graph; an adjacency matrix (N, N): array, nested lists, tensor, scipy or torch sparse, DataFrame
        or DataArray with the nodes on both axes; a frame of edges, or one with their two ends as the levels of its
        index; a list of tuples (from, to) or (from, to, weight); an array (E, 2) of whole numbers; or the path of a
        file: CSV, TSV, Parquet or NPZ of either, a text file with an edge a line (also ``.gz``), GML, GraphML.
    edges: the same as a list of edges for certain: an array or a list of lists of shape (2, 2) would be a matrix.
    directed: by default networkx graphs are what they are, matrices are undirected if symmetric, and edge lists are
        directed, with a DataWarning where no edge has its reverse. Undirected edges may be listed in both directions.
    nodes: the names of all nodes, in order, or their number. By default those that occur: in order of appearance,
        whole numbers in theirs. Whole numbers 0, ..., N - 1 are positions. For a matrix without labels these name the
        nodes.
    mask: which dyads are observed, (N, N) with True = observed, or a list of the hidden pairs. NaN in a matrix hides
        a dyad too; an undirected one is known where one of its two entries is.
    weight: the edge attribute or column with the values of edges, by default "weight" where there is one, else 1.
        False: whether there is an edge is all that counts.
    self_loops: keep self loops; otherwise they are left out with a DataWarning.
    kind: "binary" (0/1), "counts" (whole numbers; parallel edges add up), "real" (any) or None (numbers of at least 0).
    columns: of a frame of edges; of a file without a header their numbers, from 0.
    header: of CSV and text files: whether the first line names the columns. "auto" looks at it (text above numbers, the
        names that columns of edges have, nodes that occur below), and says so where it is not what is usual.

    Raises DataError or FileFormatError for what is no such graph, saying where.
    """
    file = file_named(source, "a graph, a matrix, edges, or the path of a file")
    require_file(file, header)
    if file is not None:
        named = weight if is_string(weight) else None
        found = read_graph_file(file, columns=columns, header=header, weight=named)
        source, edges, columns = found.source, found.edges, ("source", "target")  # as the frame of the file is called
        nodes = found.nodes if nodes is None else nodes
        directed = found.directed if directed is None else directed
        weight = weight if named is None or edges is None else None
    settings: Any = {"directed": directed, "self_loops": self_loops, "kind": kind, "mask": mask, "dtype": dtype}
    with naming(file):
        if isinstance(source, GraphData):
            return as_graph(source, device=device, **settings)
        data = read_graph_data(source, edges=edges, nodes=nodes, weight=weight, columns=columns, **settings)
        return data.to(device=device)


def _as_graph_data(edges: EdgeList, self_loops: bool, dtype: torch.dtype | None) -> GraphData:
    """The data of edges that are settled."""
    row, column, value = edges.row, edges.column, edges.value
    size = plausible_size(edges.num_nodes, len(value), "node")
    if not edges.directed:
        off = row != column
        row, column = np.concatenate([row, column[off]]), np.concatenate([column, row[off]])
        value = np.concatenate([value, value[off]])
    matrix = scipy.sparse.csr_matrix((value, (row, column)), shape=(size, size))
    dtype = dtype or type_for(torch.as_tensor(matrix.data))
    data = GraphData(
        x=sparse.from_scipy(matrix, dtype=dtype), coords=name_coords(edges.names),
        hidden=None if edges.hidden is None or not edges.hidden.size else torch.as_tensor(edges.hidden),
        directed=bool(edges.directed), self_loops=self_loops,
    )  # fmt: skip
    if not data.num_dyads:
        problem = "no observed dyad" if data.num_hidden else "a single node, so that there is no dyad"
        raise DataError(problem, axis="dyad", expected="at least one pair of nodes that was observed")
    return data


def read_graph_data(
    source: Source | None,
    *,
    edges: Source | None = None,
    directed: bool | None = None,
    nodes: Sequence[Hashable] | int | None = None,
    num_nodes: int | None = None,
    mask: Source | None = None,
    weight: str | bool | None = None,
    self_loops: bool = False,
    kind: str | None = None,
    columns: tuple[Any, Any] = ("source", "target"),
    dtype: torch.dtype | None = None,
    warn_symmetric: bool = False,
    keeps: str = "self_loops=True",
) -> GraphData:
    """Read a graph from any container but a file, for :func:`graph` and :func:`as_graph`."""
    refuse_blocks(source)
    if kind not in KINDS:
        raise DataError(unknown_name("kind of graph", kind, ("binary", "counts", "real", "None")))
    if (source is None) == (edges is None):
        raise DataError("neither a source nor edges, or both", expected="one of them")
    name = weight if is_string(weight) else None
    names, size = _check_nodes(nodes)
    how = Reading(names, size, num_nodes, weight=name, columns=columns)
    found = hide_dyads(read_source(source, how) if edges is None else read_edges(edges, how), mask)
    found = normalise_edges(found, directed, self_loops, "presence" if weight is False else kind, warn_symmetric, keeps)
    return _as_graph_data(found, self_loops, dtype)


def _check_nodes(nodes: Any) -> tuple[list[Any] | None, int | None]:
    """The names of the nodes, or their number."""
    expected = "the names of the nodes, or their number"
    if nodes is None:
        return None, None
    number = is_whole(nodes)
    if not number and not holds_several(nodes):
        raise DataError(f"nodes = {nodes!r}", axis="node", expected=expected)
    names = [] if number else plain(nodes)
    if (nodes if number else len(names)) < 1:
        raise DataError(f"nodes = {nodes}", axis="node", expected="N >= 1")
    wrong = [node for node in names if not is_name(node)]
    if wrong:
        raise DataError(f"a node called {wrong[0]!r}", axis="node", expected=expected)
    return (None, int(nodes)) if number else (names, None)


def as_graph(
    data: Source,
    *,
    mask: Source | None = None,
    num_nodes: int | None = None,
    nodes: list[Any] | None = None,
    directed: bool | None = None,
    self_loops: bool = False,
    kind: str | None = "binary",
    site: str | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> GraphData:
    """Convert data to a :class:`GraphData` that fits a graph model, or raise DataError.

    data: what :func:`ppl_models.graph` takes, but for files; a GraphData is checked and passed through.
    num_nodes, directed, self_loops: of the model. kind: as of :func:`graph`. nodes: the names
        of all nodes, in the order that is wanted.
    """
    with about(site):
        if isinstance(data, GraphData):
            if mask is not None:
                raise DataError("a mask was given beside data that already carry theirs")
            checked = _fitting(data, directed, self_loops, kind)
            names = data.coords.get("row")
            if nodes is not None and names is not None and names != nodes and len(names) == len(nodes):
                checked = checked.subgraph(torch.as_tensor(places_of(nodes, names, len(names), "node")))
        else:
            checked = read_graph_data(
                data, mask=mask, num_nodes=num_nodes, nodes=nodes, directed=directed, self_loops=self_loops, kind=kind,
                dtype=dtype, warn_symmetric=directed is True, keeps=_MODEL_KEEPS,
            )  # fmt: skip
        if num_nodes is not None and len(checked) != num_nodes:
            problem = f"{len(checked)} nodes where the model has num_nodes = {num_nodes}"
            expected = f"{num_nodes} nodes; graph(edges, nodes=...) adds those without edges"
            raise DataError(problem, axis="node", expected=expected)
        return checked.to(dtype=dtype, device=device)


def _fitting(data: GraphData, directed: bool | None, self_loops: bool, kind: str | None) -> GraphData:
    """Graph data checked against what a model wants; self loops that it does not model are left out."""
    if directed is not None and directed != data.directed:
        words = {True: "directed", False: "undirected"}
        expected = f"a model with directed={data.directed}, or graph(source, directed={directed})"
        raise DataError(f"{words[data.directed]} data for a model with directed={directed}", expected=expected)
    if self_loops and not data.self_loops:
        expected = "graph(source, self_loops=True), or a model with self_loops=False"
        raise DataError("data without self loops for a model with self_loops=True", expected=expected)
    row, column, value = (part.cpu().numpy() for part in sparse.triplets(data.x))
    hidden = None if data.hidden is None else data.hidden.cpu().numpy()
    names = data.coords.get("row")
    edges = EdgeList(row, column, value, len(data), names, directed=data.directed, hidden_pairs=hidden)
    edges = normalise_edges(edges, data.directed, self_loops, kind, warn_symmetric=False, keeps=_MODEL_KEEPS)
    if data.self_loops == self_loops:
        return data
    return _as_graph_data(edges, self_loops, data.x.dtype).to(device=data.x.device)


def check_graph_for_fitting(data: GraphData) -> None:
    """Check that a graph can be learned from: raise on no edges or on all; warn of nodes without any."""
    edges = data.num_edges
    if not edges:
        raise DataError("no edges", axis="edge", expected="at least one edge to learn from")
    values = data.x.values()
    if edges == data.num_dyads and bool((values == values[0]).all()):
        problem = f"every one of the {edges} observed dyads has the same edge"
        raise DataError(problem, axis="edge", expected="some dyad that differs, to learn from")
    isolated = (data.degrees() == 0).nonzero().flatten().tolist()
    if isolated:
        found = f"{len(isolated)} of {len(data)} nodes have no edge (the first: {data.nodes[isolated[0]]!r})"
        warn_of_data(f"{found}; largest_component(graph) leaves them out")


def largest_component(data: GraphData) -> GraphData:
    """The largest set of nodes that are joined by edges, whatever their direction, with the dyads among them."""
    _, label = scipy.sparse.csgraph.connected_components(sparse.to_scipy(data.x), directed=True, connection="weak")
    return data.subgraph(torch.as_tensor(np.flatnonzero(label == np.bincount(label).argmax())))
