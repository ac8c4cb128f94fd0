"""Base class of the models of two-mode graphs: readers and books, whose dyads are the pairs of one of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import scipy.sparse
import torch
from numpy.typing import NDArray
from torch import Tensor

from ppl_models.core.errors import DataError, ModelError
from ppl_models.core.graph_model import GraphModel
from ppl_models.data.graphs.data import GraphData
from ppl_models.data.held import Source


@dataclass(frozen=True, kw_only=True, eq=False)
class TwoModeModel(GraphModel):
    """A model of a graph of two kinds of nodes: the first ``num_first`` of all N are those of the first mode.

    A dyad is a pair (i, j) of a node of the first mode and one of the second, in that order; labels of nodes mean for
    each mode what the program says. Data are tables (num_first, N - num_first), dense or sparse, in which NaN hides
    a dyad, or graphs of all N nodes whose edges go from the first mode to the second. Raises ModelError where a mode
    has no nodes, for undirected graphs, and for self loops.
    """

    num_first: int

    def __post_init__(self) -> None:
        if not self.directed or self.self_loops:
            raise ModelError("a two-mode graph that is undirected or has self loops; its dyads are pairs of both modes")
        if not 0 < self.num_first < self.num_nodes:
            raise ModelError(f"num_first = {self.num_first} of {self.num_nodes} nodes, expected some of each mode")
        super().__post_init__()

    @property
    def first_nodes(self) -> int:
        return self.num_first

    def num_dyads(self, num_nodes: int | None = None) -> int:
        return self.num_first * ((self.num_nodes if num_nodes is None else num_nodes) - self.num_first)

    def dyads(self, index: Tensor, num_nodes: int | None = None) -> tuple[Tensor, Tensor]:
        width = (self.num_nodes if num_nodes is None else num_nodes) - self.num_first
        return index // width, self.num_first + index % width

    def as_data(self, value: Tensor) -> Tensor:
        table = value.unflatten(-1, (self.num_first, -1))
        size = self.num_first + table.shape[-1]
        matrix = value.new_zeros(*value.shape[:-1], size, size)
        matrix[..., : self.num_first, self.num_first :] = table
        return matrix

    def _as_graph(self, data: Source, num_nodes: int | None, **settings: Any) -> GraphData:
        table = type(data) is list and data and type(data[0]) is not tuple  # of tuples it lists edges
        shape = getattr(data, "shape", np.shape(np.asarray(data, dtype=object)) if table else ())
        if len(shape) == 2 and shape[0] == self.num_first and num_nodes in (None, shape[0] + shape[1]):
            data = self._as_square(cast(Any, data))
        found = super()._as_graph(data, num_nodes, **settings)
        ends = found.edges()
        wrong = (ends[0] >= self.num_first) | (ends[1] < self.num_first)
        if bool(wrong.any()):
            i, j = (found.nodes[int(end[wrong][0])] for end in ends)
            expected = f"edges from the first {self.num_first} nodes to the others"
            raise DataError(f"an edge from {i!r} to {j!r}", site=self.observed_site, axis="edge", expected=expected)
        return found

    def _as_square(self, table: scipy.sparse.spmatrix | NDArray[np.float64] | Tensor) -> Any:
        """Return the matrix (N, N) of all nodes that a table (first, second) of dyads is a part of."""
        kept: Any = scipy.sparse.coo_matrix(table.numpy() if torch.is_tensor(table) else table, dtype=np.float64)
        size = sum(kept.shape)
        place = kept.row, kept.col + self.num_first
        found = scipy.sparse.csr_matrix((kept.data, place), shape=(size, size))
        return found if scipy.sparse.issparse(table) else found.toarray()
