"""Block models' sums over the dyads of a graph, at a cost linear in edges and hidden dyads: never all N^2 of them.

With responsibilities phi (N, K) and weights w (N,) of the nodes (1, or propensities), a dyad's two ends being
independent, the edges and the exposures between blocks are

    m_ab = sum over dyads i != j of x_ij phi_ia phi_jb          + [a = b] sum_i x_ii phi_ia
    n_ab = sum over observed dyads i != j of w_i w'_j phi_ia phi_jb  + [a = b] sum_i w_i w'_i phi_ia

(the second parts with self loops only: both ends are one node). The sum over all pairs is (sum_i w_i phi_ia)
(sum_j w'_j phi_jb) less the diagonal and the hidden dyads. Undirected graphs count every dyad once: entries a < b hold
both orders, those below the diagonal repeat them, and only a <= b are to be summed over.

Compiled sweeps read a ``Graph`` and change a ``PartitionState``. With the block proportions and the block matrix
integrated out, a labelling z has the weight (notation of ``gibbs_kernels``)

    log p(x, z) = log G(A) / G(A + N) + sum_k log G(n_k + alpha_k) / G(alpha_k) + sum_(a, b) f(m_ab, t_ab) + constant

with n_k nodes of block k, m_ab the edges (their counts) from block a to block b, and t_ab the exposure: how many
observed dyads there are, or under degree correction the sum of theta_i theta_j over them. Undirected graphs count every
pair once, on and above the diagonal of m and t, which are kept symmetric.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
import scipy.sparse
import torch
from numpy.typing import NDArray
from scipy.special import gammaln

from custom_inference.families.blocks.pairs import PairSlots, pairs_of
from custom_inference.families.rows.graph import GraphRows, Neighbours
from ppl_models import Data, GraphModel

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]


class BlockCounts(NamedTuple):
    """Edges m (K, K) and exposures n (K, K) between blocks, and the nodes of each (K,); see the module."""

    edges: Floats
    exposure: Floats
    size: Floats

    def once(self, directed: bool) -> BlockCounts:
        """Return each pair of blocks once: in undirected graphs 0 below the diagonal."""
        return self if directed else BlockCounts(np.triu(self.edges), np.triu(self.exposure), self.size)


class NodeWeights(NamedTuple):
    """How much a node takes part in dyads. ends (S, N): as the first and as the second of them, alike if undirected.

    own (N,): their product's expectation in the node's self loop. log_power: sum over the nodes of their degrees times
    the expected logarithms of their weights.
    """

    ends: Floats
    own: Floats
    log_power: float = 0.0


class GraphLinks(NamedTuple):
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
    def of(cls, model: GraphModel, data: Data) -> Self:
        """Read the graph onto the CPU, wherever it is: the sweeps go node by node, each using what the ones before have
        become."""
        return super().of(model, data.to(device="cpu"))

    def to(self, dtype: torch.dtype) -> Self:
        """Return these rows: sums over a graph are in double precision whatever the rest is, and are kept."""
        del dtype
        return self

    @classmethod
    def of_rows(cls, rows: GraphRows) -> SbmRows:
        """Wrap the rows of a graph, without copying it."""
        known = {field.name: getattr(rows, field.name) for field in fields(GraphRows)}
        return rows if isinstance(rows, SbmRows) else cls(**known)

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
    def links(self) -> GraphLinks:
        """The graph as arrays for compiled code."""
        edges, hidden = ([one, one.T.tocsr()] if self.directed else [one] for one in (self.edges, self.hidden[0]))

        def stack(matrices: list[Any], part: str, dtype: Any) -> Any:
            return np.stack([getattr(matrix, part) for matrix in matrices]).astype(dtype)

        return GraphLinks(
            stack(edges, "indptr", np.int64), stack(edges, "indices", np.int64), stack(edges, "data", np.float64),
            stack(hidden, "indptr", np.int64), stack(hidden, "indices", np.int64),
            self.loops, self.loop_seen, self.degrees,
        )  # fmt: skip

    @cached_property
    def pairs(self) -> PairSlots:
        """The pairs with an edge."""
        return pairs_of(self.edges, self.hidden[0], directed=self.directed)

    @cached_property
    def unweighted(self) -> NodeWeights:
        """Weights of 1 for every node."""
        return NodeWeights(np.ones((1 + self.directed, len(self))), np.ones(len(self)))

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
        """Compute the sum over the j != i with an observed dyad (i, j) of w_j phi_jb, (N, K); of (j, i) if not
        outgoing."""
        weighted = weight[:, None] * phi
        hidden = self.hidden[0 if outgoing else 1]
        rest = weighted.sum(0) - weighted
        return rest - hidden @ weighted if hidden.nnz else rest

    def counts(self, phi: Floats, weights: NodeWeights) -> BlockCounts:
        """Compute m and n at responsibilities (N, K)."""
        edges = self._once(phi.T @ (self.edges @ phi))
        return BlockCounts(edges + np.diag(self.loops @ phi), self.exposures(phi, weights), phi.sum(0))

    def exposures(self, phi: Floats, weights: NodeWeights) -> Floats:
        """Compute n alone, (K, K)."""
        found = self._once((weights.ends[0, :, None] * phi).T @ self.others(phi, weights.ends[-1]))
        return found + np.diag((self.loop_seen * weights.own) @ phi)

    def _once(self, value: Floats) -> Floats:
        """Count every dyad once: in undirected graphs a dyad within a block is met from both its ends."""
        return value if self.directed else 0.5 * (value + value.T) * (1 - 0.5 * np.eye(len(value)))

    def partners(self, phi: Floats, matrix: Floats, weight: Floats, *, outgoing: bool = True) -> Floats:
        """Compute the sum over the observed j != i of w_j sum_ab phi_ia M_ab phi_jb, (N,); phi_ja M_ab phi_ib if not
        outgoing."""
        ahead = phi @ (matrix if outgoing else matrix.T)
        return (ahead * self.others(phi, weight, outgoing=outgoing)).sum(1)


def _off_diagonal(lists: Neighbours) -> Any:
    matrix = lists.matrix.tocoo()
    keep = matrix.row != matrix.col
    pairs = (matrix.data[keep], (matrix.row[keep], matrix.col[keep]))
    return scipy.sparse.csr_matrix(pairs, shape=matrix.shape)


# ----- for collapsed Gibbs sampling ------------------------------------------------------------------------

#: What integrates the block matrix out: Beta against Bernoulli; Gamma against Poisson; Gamma against Poisson with the
#: propensities integrated out too (``cells.total``). Or nothing does: the block matrix is given.
BERNOULLI, POISSON, DEGREES, GIVEN = 0, 1, 2, 3


class Graph(NamedTuple):
    """links: of all nodes. weight (S, N): a node's part in exposures, 1 or its propensities. kind: see ``BERNOULLI``.

    alpha (K,), first, second (K, K): the priors: Dirichlet; Beta, or Gamma's shape and rate. Of what is given, pi and
    the A and B of ``likelihoods``; counted is False where pi is.
    """

    links: GraphLinks
    weight: Floats
    alpha: Floats
    first: Floats
    second: Floats
    kind: int
    counted: bool = True

    @property
    def num_nodes(self) -> int:
        return self.weight.shape[1]

    @property
    def num_blocks(self) -> int:
        return len(self.alpha)

    @property
    def directed(self) -> bool:
        return len(self.weight) == 2


class PartitionState(NamedTuple):
    """label z (N,), -1 in no block; size n (K,); sums of weights and degrees over blocks (S, K); m, t, f(m, t) (K, K);
    the edges and exposures between the node that is being moved and every block, (S, K); rng (1,): SplitMix64."""

    label: Whole
    size: Floats
    weight: Floats
    degree: Floats
    edges: Floats
    exposure: Floats
    cell: Floats
    near_edges: Floats
    near_exposure: Floats
    score: Floats
    probability: Floats
    rng: NDArray[np.uint64]

    @classmethod
    def empty(cls, graph: Graph, seed: int) -> PartitionState:
        """Return the state with no node in any block."""
        blocks = graph.num_blocks
        vector, sides, square = (blocks,), (len(graph.weight), blocks), (blocks, blocks)
        shapes = [vector, sides, sides, square, square, square, sides, sides, vector, vector]
        label, rng = np.full(graph.num_nodes, -1, np.int64), np.array([seed % 2**64], np.uint64)
        return cls._make([label, *(np.zeros(shape) for shape in shapes), rng])

    def counts(self, graph: Graph) -> BlockCounts:
        """Return m, t and n; each pair of blocks once."""
        return BlockCounts(self.edges, self.exposure, self.size).once(graph.directed)


def graph_of(rows: GraphRows, *, kind: int, alpha: Any, first: Any, second: Any) -> Graph:
    """Return a graph with priors, its weights 1. alpha (K,); first, second: (K, K) or one number."""
    own = SbmRows.of_rows(rows)
    links, alpha = own.links, np.array(alpha, np.float64)
    if kind == DEGREES:  # propensities on simplices: sum_ij theta_i theta_j = 1, with every i = j in it
        links = links._replace(own_exposure=np.full(len(own), 1.0 if own.directed else 0.5))
    square = (len(alpha), len(alpha))
    first, second = (np.array(np.broadcast_to(value, square), np.float64, order="C") for value in (first, second))
    return Graph(links, own.unweighted.ends, alpha, first, second, kind)
