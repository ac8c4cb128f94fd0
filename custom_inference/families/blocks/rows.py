"""Block models' sums over the dyads of a graph, at a cost linear in edges and hidden dyads: never all N^2 of them.

With responsibilities phi (N, K) and weights w (N,) of the nodes (1, or propensities), a dyad's two ends being
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
Whole = NDArray[np.int64]


class Counts(NamedTuple):
    """m (K, K) edges and n (K, K) exposures between blocks, and the nodes of each (K,); see the module."""

    edges: Floats
    exposure: Floats
    size: Floats

    def once(self, directed: bool) -> Counts:
        """Each pair of blocks once: of undirected graphs 0 below the diagonal."""
        return self if directed else Counts(np.triu(self.edges), np.triu(self.exposure), self.size)


class Weights(NamedTuple):
    """How much a node takes part in dyads. ends (S, N): as the first and as the second of them, alike if undirected.

    own (N,): their product's expectation in the node's self loop. log_power: sum over the nodes of their degrees times
    the expected logarithms of their weights.
    """

    ends: Floats
    own: Floats
    log_power: float = 0.0


class Links(NamedTuple):
    """A graph as compiled code reads it, its self loops apart. Directed graphs have S = 2 sides (to whom a node has
    edges, and from whom), undirected ones 1.

    start (S, N + 1), node, count (S, E): neighbours of the nodes in CSR, and the edges to or from them. hidden_start
    (S, N + 1), hidden_node (S, M): their unobserved dyads. own (N,): x_ii. own_exposure (N,): 1 where a node may have a
    self loop that was observed. degree (S, N): edges of a node, an undirected self loop counting twice.
    """

    start: Whole
    node: Whole
    count: Floats
    hidden_start: Whole
    hidden_node: Whole
    own: Floats
    own_exposure: Floats
    degree: Floats


@dataclass(frozen=True)
class SbmRows(GraphRows):
    """The nodes of a graph with what block models sum over them."""

    @classmethod
    def of(cls, model: GraphModel, data: Data) -> SbmRows:
        """On the CPU, wherever the graph is: the sweeps go node by node, each from what the ones before have become."""
        rows = super().of(model, data.to(device="cpu"))
        assert isinstance(rows, SbmRows)
        return rows

    @classmethod
    def of_rows(cls, rows: GraphRows) -> SbmRows:
        """The same graph."""
        return rows if isinstance(rows, SbmRows) else cls(**vars(rows))

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
    def degrees(self) -> Floats:
        """Edges in which a node is the first, and the second, (S, N); of undirected graphs all, a loop counting as two:
        the powers of its propensity in the likelihood."""
        loops = self.loops if self.directed else 2 * self.loops
        return np.stack([np.asarray(self.edges.sum(axis)).ravel() + loops for axis in (1, 0)[: 1 + self.directed]])

    @cached_property
    def links(self) -> Links:
        """For compiled code."""
        edges, hidden = ([one, one.T.tocsr()] if self.directed else [one] for one in (self.edges, self.hidden[0]))

        def stacked(matrices: list[Any], part: str, dtype: Any) -> Any:
            return np.stack([getattr(matrix, part) for matrix in matrices]).astype(dtype)

        return Links(
            stacked(edges, "indptr", np.int64), stacked(edges, "indices", np.int64), stacked(edges, "data", np.float64),
            stacked(hidden, "indptr", np.int64), stacked(hidden, "indices", np.int64),
            self.loops, self.loop_seen, self.degrees,
        )  # fmt: skip

    @cached_property
    def unweighted(self) -> Weights:
        """1 of every node."""
        return Weights(np.ones((1 + self.directed, len(self))), np.ones(len(self)))

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

    def others(self, phi: Floats, weight: Floats, *, outgoing: bool = True) -> Floats:
        """sum over the j != i with an observed dyad (i, j) of w_j phi_jb, (N, K); of (j, i) if not outgoing."""
        weighted = weight[:, None] * phi
        hidden = self.hidden[0 if outgoing else 1]
        rest = weighted.sum(0) - weighted
        return rest - hidden @ weighted if hidden.nnz else rest

    def counts(self, phi: Floats, weights: Weights) -> Counts:
        """m and n at responsibilities (N, K)."""
        edges = phi.T @ (self.edges @ phi)
        exposure = (weights.ends[0, :, None] * phi).T @ self.others(phi, weights.ends[-1])
        own = np.diag(self.loops @ phi), np.diag((self.loop_seen * weights.own) @ phi)
        if self.directed:
            return Counts(edges + own[0], exposure + own[1], phi.sum(0))
        once = 1 - 0.5 * np.eye(phi.shape[1])  # an edge within a block is met from both its ends
        edges, exposure = (0.5 * (value + value.T) * once for value in (edges, exposure))
        return Counts(edges + own[0], exposure + own[1], phi.sum(0))

    def partners(self, phi: Floats, matrix: Floats, weight: Floats, *, outgoing: bool = True) -> Floats:
        """sum over the observed j != i of w_j sum_ab phi_ia M_ab phi_jb, (N,); phi_ja M_ab phi_ib if not outgoing."""
        ahead = phi @ (matrix if outgoing else matrix.T)
        return (ahead * self.others(phi, weight, outgoing=outgoing)).sum(1)


def _off_diagonal(lists: Neighbours) -> Any:
    matrix = lists.matrix.tocoo()
    keep = matrix.row != matrix.col
    pairs = (matrix.data[keep], (matrix.row[keep], matrix.col[keep]))
    return scipy.sparse.csr_matrix(pairs, shape=matrix.shape)
