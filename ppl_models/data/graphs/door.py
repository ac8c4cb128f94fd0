"""``graph(...)``: a matrix, a networkx graph, edges or a file of them, as data that the graph models take."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import torch

from ppl_models.core.errors import DataError
from ppl_models.data.files.graphs import read_graph_file
from ppl_models.data.files.reading import naming
from ppl_models.data.graphs.data import GraphData
from ppl_models.data.graphs.reading import as_graph, read_graph_data


def graph(
    source: Any = None,
    *,
    edges: Any = None,
    directed: bool | None = None,
    nodes: Sequence[Hashable] | int | None = None,
    mask: Any = None,
    weight: str | bool | None = None,
    self_loops: bool = False,
    kind: str | None = None,
    columns: tuple[str, str] = ("source", "target"),
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> GraphData:
    """A graph from whatever people hold it in: a sparse adjacency matrix, hidden dyads, names of nodes as coords.

    >>> data = graph([("ann", "bob"), ("bob", "cleo")], directed=False)
    >>> data.names, data.edges().tolist()
    (['ann', 'bob', 'cleo'], [[0, 1], [1, 2]])

    Parameters
    ----------
    source: a networkx graph; an adjacency matrix (N, N): array, nested lists, tensor, scipy or torch sparse, DataFrame
        or DataArray with the nodes on both axes; a frame of edges; a list of tuples (from, to) or (from, to, weight);
        an array (E, 2) of whole numbers; or the path of a file: CSV, TSV, Parquet or NPZ of either, a text file with an
        edge a line (also ``.gz``), GML, GraphML.
    edges: the same as a list of edges for certain: an array or a list of lists of shape (2, 2) would be a matrix.
    directed: by default networkx graphs are what they are, matrices are undirected if symmetric, and edge lists are
        directed. A list of undirected edges may have each in both directions.
    nodes: the names of all nodes, in order, or their number. By default those that occur: in order of appearance,
        whole numbers in theirs. Whole numbers 0, ..., N - 1 are positions. For a matrix without labels these name the
        nodes.
    mask: which dyads are observed, (N, N) with True = observed, or a list of the hidden pairs. NaN in a matrix hides
        a dyad too.
    weight: the edge attribute or column with the values of edges, by default "weight" where there is one, else 1.
        False: whether there is an edge is all that counts.
    self_loops: keep self loops; otherwise they are left out with a DataWarning.
    kind: "binary" (0/1), "counts" (whole numbers; parallel edges are added up) or None (any numbers of at least 0).
    columns: of a frame of edges.

    Raises DataError or FileFormatError for what is no such graph, saying where.
    """
    file = Path(source) if isinstance(source, str | Path) else None
    if isinstance(source, str | Path):
        if isinstance(source, str) and ("\n" in source or not Path(source).is_file()):
            found = f"a string, {source[:40]!r}, that names no file"
            raise DataError(found, expected="a graph, a matrix, edges, or the path of a file")
        found = read_graph_file(Path(source), columns=columns, weight=weight if isinstance(weight, str) else None)
        source, edges, columns = found.source, found.edges, ("source", "target")  # as the frame of the file is called
        nodes = found.nodes if nodes is None else nodes
        directed = found.directed if directed is None else directed
        weight = None if isinstance(weight, str) and edges is not None else weight
    with naming(file):
        if isinstance(source, GraphData):
            settings: dict[str, Any] = {"directed": directed, "self_loops": self_loops, "kind": kind}
            return as_graph(source, mask=mask, dtype=dtype, device=device, **settings)
        settings = {"directed": directed, "nodes": nodes, "mask": mask, "weight": weight, "kind": kind}
        data = read_graph_data(source, edges=edges, self_loops=self_loops, columns=columns, dtype=dtype, **settings)
        return data.to(device=device)
