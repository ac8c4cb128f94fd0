"""A graph and a labelling of its nodes, as the compiled sweeps of block models read and change them.

With the block proportions and the block matrix integrated out, a labelling z has the weight (notation of
``gibbs._sbm_kernels``)

    log p(x, z) = log G(A) / G(A + N) + sum_k log G(n_k + alpha_k) / G(alpha_k) + sum_(a, b) f(m_ab, t_ab) + constant

with n_k nodes of block k, m_ab the edges (their counts) from block a to block b, and t_ab the exposure: how many
observed dyads there are, or under degree correction the sum of theta_i theta_j over them. Undirected graphs count every
pair once, on and above the diagonal of m and t, which are kept symmetric.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from custom_inference.families.common.graph_rows import GraphRows, Neighbours

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]

#: What integrates the block matrix out: Beta against Bernoulli; Gamma against Poisson; Gamma against Poisson with the
#: propensities integrated out too (``gibbs._sbm_kernels.total``).
BERNOULLI, POISSON, DEGREES = 0, 1, 2


class Graph(NamedTuple):
    """Nodes' lists in CSR, without self loops; the incoming ones are not read where the graph is undirected.

    out_start (N + 1,), out_node (E,), out_count (E,): edges from a node. hidden_*: unobserved dyads of a node.
    own (N,): its self loops. own_exposure (N,): 1 where it might have one, is observed, and the model has them.
    out_weight, in_weight (N,): its share in exposures, 1 or its propensities. out_degree, in_degree (N,).
    alpha (K,), first, second (K, K): the priors: Dirichlet; Beta, or Gamma's shape and rate. kind: see ``BERNOULLI``.
    """

    out_start: Whole
    out_node: Whole
    out_count: Floats
    in_start: Whole
    in_node: Whole
    in_count: Floats
    hidden_out_start: Whole
    hidden_out_node: Whole
    hidden_in_start: Whole
    hidden_in_node: Whole
    own: Floats
    own_exposure: Floats
    out_weight: Floats
    in_weight: Floats
    out_degree: Floats
    in_degree: Floats
    alpha: Floats
    first: Floats
    second: Floats
    directed: bool
    kind: int

    @property
    def num_nodes(self) -> int:
        return len(self.own)

    @property
    def num_blocks(self) -> int:
        return len(self.alpha)


class State(NamedTuple):
    """z (N,), -1 in no block; n (K,); sums of weights and degrees over blocks (K,); m, t, f(m, t) (K, K); the edges
    and exposures between the node that is being moved and every block, (K,); rng (1,): SplitMix64."""

    label: Whole
    size: Floats
    out_weight: Floats
    in_weight: Floats
    out_degree: Floats
    in_degree: Floats
    edges: Floats
    exposure: Floats
    cell: Floats
    out_edges: Floats
    in_edges: Floats
    out_exposure: Floats
    in_exposure: Floats
    score: Floats
    share: Floats
    rng: NDArray[np.uint64]

    @classmethod
    def empty(cls, graph: Graph, seed: int) -> State:
        """No node in any block."""
        blocks = graph.num_blocks
        label = np.full(graph.num_nodes, -1, np.int64)
        vectors = [np.zeros(blocks) for _ in range(5)]
        matrices = [np.zeros((blocks, blocks)) for _ in range(3)]
        work = [np.zeros(blocks) for _ in range(6)]
        return cls._make([label, *vectors, *matrices, *work, np.array([seed % 2**64], np.uint64)])


def graph_of(
    rows: GraphRows, *, kind: int, alpha: Any, first: Any, second: Any, weights: tuple[Any, Any] | None = None
) -> Graph:
    """The lists of a graph with priors. alpha (K,); first, second: (K, K) or one number.

    weights: propensities (out, in), each (N,).
    """
    size, alpha = len(rows), np.array(alpha, np.float64)
    (out, own), (into, _) = (_without_loops(lists) for lists in (rows.outgoing, rows.incoming))
    (hidden_out, hidden_own), (hidden_in, _) = (_without_loops(lists) for lists in (rows.hidden_out, rows.hidden_in))
    own_exposure = float(rows.self_loops) - hidden_own
    if kind == DEGREES:  # propensities on simplices: sum_ij theta_i theta_j = 1, with every i = j in it
        own_exposure = np.full(size, 1.0 if rows.directed else 0.5)
    degree = [_sums(lists) for lists in (rows.outgoing, rows.incoming)]
    degree = degree if rows.directed else [degree[0] + own] * 2  # both ends of an undirected loop are the node's
    weight = [np.array(w, np.float64) for w in ((np.ones(size), np.ones(size)) if weights is None else weights)]
    square = (len(alpha), len(alpha))
    priors = [np.array(np.broadcast_to(v, square), np.float64, order="C") for v in (first, second)]
    lists = [*out, *into, *hidden_out[:2], *hidden_in[:2]]
    return Graph._make([*lists, own, own_exposure, *weight, *degree, alpha, *priors, rows.directed, kind])


def _sums(lists: Neighbours) -> Floats:
    source = np.repeat(np.arange(len(lists.start) - 1), np.diff(lists.start))
    return np.bincount(source, lists.value, len(lists.start) - 1).astype(np.float64)


def _without_loops(lists: Neighbours) -> tuple[tuple[Whole, Whole, Floats], Floats]:
    """The lists (start, node, value) of the other nodes, and the loops' values (N,)."""
    size = len(lists.start) - 1
    source = np.repeat(np.arange(size), np.diff(lists.start))
    loop = source == lists.index
    own = np.bincount(source[loop], lists.value[loop], size).astype(np.float64)
    start = np.concatenate([[0], np.cumsum(np.bincount(source[~loop], minlength=size))])
    kept = start.astype(np.int64), lists.index[~loop].astype(np.int64), lists.value[~loop].astype(np.float64)
    return kept, own
