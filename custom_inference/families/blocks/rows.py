"""Block models' sums over the dyads of a graph, at a cost linear in edges and hidden dyads: never all N^2 of them.

With shares phi (N, K) of the blocks and weights w (N,) of the nodes (1, or propensities), a dyad's two ends being
independent, the edges and the exposures between blocks are

    m_ab = sum over dyads i != j of x_ij phi_ia phi_jb          + [a = b] sum_i x_ii phi_ia
    n_ab = sum over observed dyads i != j of w_i w'_j phi_ia phi_jb  + [a = b] sum_i w_i w'_i phi_ia

(the second parts with self loops only: both ends are one node). The sum over all pairs is (sum_i w_i phi_ia)
(sum_j w'_j phi_jb) less the diagonal and the hidden dyads. Undirected graphs count every dyad once: entries a < b hold
both orders, those below the diagonal repeat them, and only a <= b are to be summed over.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
from numpy.typing import NDArray
from scipy.special import gammaln

from custom_inference.families.common.graph_rows import GraphRows, Neighbours
from ppl_models import Data, GraphModel

Floats = NDArray[np.float64]


class Counts(NamedTuple):
    """m (K, K) edges and n (K, K) exposures between blocks, and the nodes of each (K,); see the module."""

    edges: Floats
    exposure: Floats
    size: Floats


class Weights(NamedTuple):
    """How much a node takes part in dyads, as the first and as the second of them, (N,) each.

    own: their product's expectation in the node's self loop.
    """

    out: Floats
    into: Floats
    own: Floats

    @classmethod
    def ones(cls, size: int) -> Weights:
        one = np.ones(size)
        return cls(one, one, one)


@dataclass(frozen=True)
class SbmRows(GraphRows):
    """The nodes of a graph with what block models sum over them."""

    @classmethod
    def of(cls, model: GraphModel, data: Data) -> SbmRows:
        """On the CPU, wherever the graph is: the sweeps go node by node, each from what the ones before have become."""
        rows = super().of(model, data.to(device="cpu"))
        assert isinstance(rows, SbmRows)
        return rows

    @cached_property
    def loops(self) -> Floats:
        """x_ii, (N,); 0 where the model has no self loops."""
        diagonal = np.asarray(self.outgoing.matrix.diagonal(), dtype=np.float64)
        return diagonal if self.self_loops else np.zeros_like(diagonal)

    @cached_property
    def loop_seen(self) -> Floats:
        """1 where the model has self loops and the node's was observed, (N,)."""
        hidden = self.hidden_out.matrix.diagonal() != 0
        return np.where(hidden, 0.0, float(self.self_loops))

    @cached_property
    def edges(self) -> Any:
        """x without its diagonal, CSR."""
        return _off_diagonal(self.outgoing)

    @cached_property
    def hidden(self) -> tuple[Any, Any]:
        """1 at the hidden dyads i != j, CSR, and its transpose."""
        first = _off_diagonal(self.hidden_out)
        return first, first.T.tocsr() if self.directed else first

    @cached_property
    def degrees(self) -> tuple[Floats, Floats]:
        """Edges in which a node is the first, and the second, (N,) each; of undirected graphs all, a loop counting as
        two: the powers of its propensity in the likelihood."""
        out = np.asarray(self.edges.sum(1)).ravel()
        into = np.asarray(self.edges.sum(0)).ravel() if self.directed else out
        loops = self.loops if self.directed else 2 * self.loops
        return out + loops, into + loops

    @cached_property
    def dense(self) -> tuple[Floats, Floats]:
        """x, and 1 at the observed dyads, (N, N), of small graphs; every dyad once, 0 elsewhere."""
        x = self.edges.toarray() + np.diag(self.loops)
        seen = 1.0 - np.eye(len(self)) - self.hidden[0].toarray() + np.diag(self.loop_seen)
        return (x, seen) if self.directed else (np.triu(x), np.triu(seen))

    @cached_property
    def log_factorials(self) -> float:
        """sum over dyads of log x_ij!."""
        each = float(gammaln(self.edges.data + 1).sum())
        return (each if self.directed else each / 2) + float(gammaln(self.loops + 1).sum())

    def others(self, share: Floats, weight: Floats, *, outgoing: bool = True) -> Floats:
        """sum over the j != i with an observed dyad (i, j) of w_j phi_jb, (N, K); of (j, i) if not outgoing."""
        weighted = weight[:, None] * share
        hidden = self.hidden[0 if outgoing else 1]
        rest = weighted.sum(0) - weighted
        return rest - hidden @ weighted if hidden.nnz else rest

    def counts(self, share: Floats, weights: Weights) -> Counts:
        """m and n of shares (N, K)."""
        edges = share.T @ (self.edges @ share)
        exposure = (weights.out[:, None] * share).T @ self.others(share, weights.into)
        own = np.diag(self.loops @ share), np.diag((self.loop_seen * weights.own) @ share)
        if self.directed:
            return Counts(edges + own[0], exposure + own[1], share.sum(0))
        once = 1 - 0.5 * np.eye(share.shape[1])  # an edge within a block is met from both its ends
        edges, exposure = (0.5 * (value + value.T) * once for value in (edges, exposure))
        return Counts(edges + own[0], exposure + own[1], share.sum(0))

    def partners(self, share: Floats, matrix: Floats, weight: Floats, *, outgoing: bool = True) -> Floats:
        """sum over the observed j != i of w_j sum_ab phi_ia M_ab phi_jb, (N,); phi_ja M_ab phi_ib if not outgoing."""
        ahead = share @ (matrix if outgoing else matrix.T)
        return (ahead * self.others(share, weight, outgoing=outgoing)).sum(1)


def _off_diagonal(lists: Neighbours) -> Any:
    matrix = lists.matrix.tocoo()
    keep = matrix.row != matrix.col
    pairs = (matrix.data[keep], (matrix.row[keep], matrix.col[keep]))
    return scipy.sparse.csr_matrix(pairs, shape=matrix.shape)
