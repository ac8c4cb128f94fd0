"""A graph and a labelling of its nodes, as the compiled sweeps of block models read and change them.

With the block proportions and the block matrix integrated out, a labelling z has the weight (notation of
``_sbm_kernels``)

    log p(x, z) = log G(A) / G(A + N) + sum_k log G(n_k + alpha_k) / G(alpha_k) + sum_(a, b) f(m_ab, t_ab) + constant

with n_k nodes of block k, m_ab the edges (their counts) from block a to block b, and t_ab the exposure: how many
observed dyads there are, or under degree correction the sum of theta_i theta_j over them. Undirected graphs count every
pair once, on and above the diagonal of m and t, which are kept symmetric.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]

#: What integrates the block matrix out: Beta against Bernoulli; Gamma against Poisson; Gamma against Poisson with the
#: propensities integrated out too (``_sbm_kernels.total``).
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
        return cls(label, *vectors, *matrices, *work, np.array([seed % 2**64], np.uint64))


def neighbours(size: int, source: Any, target: Any, count: Any | None = None) -> tuple[Whole, Whole, Floats]:
    """Lists (start (N + 1,), node (E,), count (E,)) of pairs (E,) by their first node; self loops are left out."""
    source, target = np.asarray(source, np.int64), np.asarray(target, np.int64)
    value = np.ones(len(source)) if count is None else np.asarray(count, np.float64)
    others = source != target
    source, target, value = source[others], target[others], value[others]
    order = np.lexsort((target, source))
    start = np.concatenate([[0], np.cumsum(np.bincount(source, minlength=size))]).astype(np.int64)
    return start, target[order], value[order]


def make_graph(
    size: int,
    edges: Any,
    count: Any | None,
    hidden: Any | None,
    *,
    directed: bool,
    self_loops: bool,
    kind: int,
    alpha: Any,
    first: Any,
    second: Any,
    weights: tuple[Any, Any] | None = None,
) -> Graph:
    """Node lists from edges (2, E), each undirected pair once, with counts (E,), and hidden dyads (2, M).

    alpha (K,); first, second: (K, K) or one number. weights: propensities (out, in), each (N,).
    """
    source, target = np.asarray(edges, np.int64).reshape(2, -1)
    value = np.ones(len(source)) if count is None else np.asarray(count, np.float64)
    unseen = np.zeros((2, 0), np.int64) if hidden is None else np.asarray(hidden, np.int64).reshape(2, -1)
    loop, alpha = source == target, np.ascontiguousarray(alpha, np.float64)
    # Without edges, bincount answers in whole numbers.
    own, outgoing, incoming = (
        np.bincount(node, weight, size).astype(np.float64)
        for node, weight in ((source[loop], value[loop]), (source, value), (target, value))
    )
    own_exposure = np.full(size, float(self_loops))
    own_exposure[unseen[0][unseen[0] == unseen[1]]] = 0
    if kind == DEGREES:  # propensities on simplices: sum_ij theta_i theta_j = 1, with every i = j in it
        own_exposure = np.full(size, 1.0 if directed else 0.5)
    if directed:
        lists = *neighbours(size, source, target, value), *neighbours(size, target, source, value)
        hiding = *neighbours(size, *unseen)[:2], *neighbours(size, *unseen[::-1])[:2]
    else:
        both, twice = (np.concatenate([pair, pair[::-1]], 1) for pair in (np.stack([source, target]), unseen))
        found = neighbours(size, *both, np.concatenate([value, value]))
        lists, hiding = (*found, *found), neighbours(size, *twice)[:2] * 2
        outgoing = incoming = outgoing + incoming
    out_weight, in_weight = (np.ones(size), np.ones(size)) if weights is None else weights
    square = (len(alpha), len(alpha))
    priors = [np.array(np.broadcast_to(v, square), np.float64, order="C") for v in (first, second)]
    return Graph(
        *lists, *hiding, own, own_exposure, np.asarray(out_weight, np.float64), np.asarray(in_weight, np.float64),
        outgoing, incoming, alpha, *priors, directed, kind,
    )  # fmt: skip
