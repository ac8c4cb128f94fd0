"""A graph as the steps read it: neighbours of each node, both ways, and its hidden dyads, as arrays."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import numpy as np
import scipy.sparse
import torch
from numpy.typing import NDArray
from torch import Tensor

from ppl_models import Data, DataError, GraphData, GraphModel, MethodError
from ppl_models.data import sparse as _sparse


class Neighbours(NamedTuple):
    """The neighbours of every node i are ``index[start[i] : start[i + 1]]``; ``value`` holds the entries of x there."""

    start: NDArray[np.int64]
    index: NDArray[np.int64]
    value: NDArray[np.float64]

    @classmethod
    def of(cls, matrix: scipy.sparse.csr_matrix) -> Neighbours:
        matrix.sort_indices()
        start, index = matrix.indptr.astype(np.int64), matrix.indices.astype(np.int64)
        return cls(start, index, matrix.data.astype(np.float64))

    @property
    def matrix(self) -> scipy.sparse.csr_matrix:
        size = len(self.start) - 1
        return scipy.sparse.csr_matrix((self.value, self.index, self.start), shape=(size, size))


@dataclass(frozen=True)
class GraphRows:
    """N nodes. Both ways for every edge: of undirected graphs ``incoming`` is ``outgoing``, symmetric.

    outgoing, incoming: x_ij of the nodes j, and x_ji, that are not 0.
    hidden_out, hidden_in: dyads that were not observed, with value 1; symmetric where undirected. Never the diagonal
        unless the model has self loops.
    like: a tensor with the dtype and device of results.
    """

    outgoing: Neighbours
    incoming: Neighbours
    hidden_out: Neighbours
    hidden_in: Neighbours
    directed: bool
    self_loops: bool
    like: Tensor

    @classmethod
    def of(cls, model: GraphModel, data: Data) -> Self:
        """Read the arrays of a graph; edges are those of positive value."""
        if not isinstance(data, GraphData):
            raise DataError("not a graph", site=model.observed_site, expected="what ppl_models.graph returns")
        edges = scipy.sparse.csr_matrix(_sparse.to_scipy(data.x), dtype=np.float64)
        hidden = _pairs(data.hidden, len(data), symmetric=not model.directed)
        outgoing, hidden_out = Neighbours.of(edges), Neighbours.of(hidden)
        incoming = Neighbours.of(scipy.sparse.csr_matrix(edges.T)) if model.directed else outgoing
        hidden_in = Neighbours.of(scipy.sparse.csr_matrix(hidden.T)) if model.directed else hidden_out
        like = data.x.values().new_zeros(())
        return cls(outgoing, incoming, hidden_out, hidden_in, model.directed, model.self_loops, like)

    def __len__(self) -> int:
        return len(self.outgoing.start) - 1

    def select(self, index: Tensor | slice) -> GraphRows:
        raise MethodError("the nodes of a graph are one observation; steps of a graph take all of them")

    def to(self, dtype: torch.dtype) -> GraphRows:
        return self if self.like.dtype == dtype else replace(self, like=self.like.to(dtype))

    @property
    def num_edges(self) -> float:
        """The sum of x over the dyads."""
        total = float(self.outgoing.value.sum())
        if self.directed:
            return total
        loops = float(self.outgoing.matrix.diagonal().sum())
        return (total - loops) / 2 + loops


def _pairs(hidden: Tensor | None, size: int, *, symmetric: bool) -> scipy.sparse.csr_matrix:
    if hidden is None or hidden.shape[1] == 0:
        return scipy.sparse.csr_matrix((size, size))
    i, j = hidden.cpu().numpy()
    matrix = scipy.sparse.csr_matrix((np.ones(len(i)), (i, j)), shape=(size, size))
    return matrix.maximum(matrix.T).tocsr() if symmetric else matrix
