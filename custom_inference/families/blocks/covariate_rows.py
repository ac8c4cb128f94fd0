"""The dyads of a graph with features of its nodes, as the steps of ``CovariateSBM`` read them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from custom_inference.core.capacity import allowed_bytes, require
from custom_inference.families.common.graph_rows import GraphRows
from ppl_models import CovariateSBM, Data


@dataclass(frozen=True)
class CovariateRows:
    """The E observed dyads.

    i, j: (E,) their nodes; of undirected graphs i <= j. x: (E,) 0 or 1. combined: (E, F) features f(x_i, x_j), 1 first.
    graph: the graph's neighbours, for partitions. like: a tensor with the dtype and device of results.
    """

    i: Tensor
    j: Tensor
    x: Tensor
    combined: Tensor
    num_nodes: int
    directed: bool
    graph: GraphRows
    like: Tensor

    @classmethod
    def of(cls, model: CovariateSBM, data: Data, *, max_bytes: float | None = None) -> CovariateRows:
        """All in double precision: Newton steps and the table of log-probabilities want it.

        Raises CapacityError where N^2 K^2 numbers do not fit into memory.
        """
        size, blocks, weights = len(data), model.num_blocks, model.num_weights
        require(
            f"CovariateSBM: log-probabilities of {size}^2 dyads at {blocks}^2 pairs of blocks, each with covariates of "
            "its own,",
            8.0 * size**2 * (4 * blocks**2 + 2 * weights),
            allowed=allowed_bytes(max_bytes),
            fits="use SVI(batch_size=...), which takes some dyads a step",
        )
        graph, dense = GraphRows.of(model, data), data.dense()
        i, j = model.dyads(torch.arange(model.num_dyads(size), device=data.x.device), size)
        if dense.mask is not None:
            seen = dense.mask[i, j]
            i, j = i[seen], j[seen]
        combined = model.combined(i, j).double()
        return cls(i, j, dense.x[i, j].double(), combined, size, model.directed, graph, graph.like)

    def __len__(self) -> int:
        return self.num_nodes

    def select(self, index: Tensor | slice) -> Any:
        """Refused: the nodes of a graph are not independent rows."""
        return self.graph.select(index)

    def to(self, dtype: torch.dtype) -> CovariateRows:
        return replace(self, like=self.like.to(dtype))

    def log_probabilities(self, weight: Tensor) -> Tensor:
        """log p(x_ij | q_i = a, q_j = b), (K, K, E), at weights (K, K, F)."""
        logit = weight.double() @ self.combined.T
        return -torch.nn.functional.softplus(torch.where(self.x > 0.5, -logit, logit))

    def exposures(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """What blocks a of i and b of j are worth to each other, (N, K, N, K), and a of a self loop, (N, K).

        Both directions of a pair of nodes together: the table is symmetric, and every pair is in it twice.
        """
        log_p, size, blocks = self.log_probabilities(weight).permute(2, 0, 1), self.num_nodes, weight.shape[0]
        loop = self.i == self.j
        own = log_p.new_zeros(size, blocks).index_add(0, self.i[loop], log_p[loop].diagonal(dim1=1, dim2=2))
        apart = ~loop
        i, j, each = self.i[apart], self.j[apart], log_p[apart]
        place = torch.cat([i * size + j, j * size + i])
        both = torch.cat([each, each.transpose(1, 2)])
        table = log_p.new_zeros(size * size, blocks, blocks).index_add(0, place, both)
        return table.reshape(size, size, blocks, blocks).transpose(1, 2), own
