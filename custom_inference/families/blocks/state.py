"""A graph and a labelling of its nodes, as the compiled sweeps of block models read and change them.

With the block proportions and the block matrix integrated out, a labelling z has the weight (notation of
``gibbs_kernels``)

    log p(x, z) = log G(A) / G(A + N) + sum_k log G(n_k + alpha_k) / G(alpha_k) + sum_(a, b) f(m_ab, t_ab) + constant

with n_k nodes of block k, m_ab the edges (their counts) from block a to block b, and t_ab the exposure: how many
observed dyads there are, or under degree correction the sum of theta_i theta_j over them. Undirected graphs count every
pair once, on and above the diagonal of m and t, which are kept symmetric.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from custom_inference.families.blocks.rows import Counts, Floats, Links, SbmRows, Whole
from custom_inference.families.common.graph_rows import GraphRows

#: What integrates the block matrix out: Beta against Bernoulli; Gamma against Poisson; Gamma against Poisson with the
#: propensities integrated out too (``gibbs_kernels.total``).
BERNOULLI, POISSON, DEGREES = 0, 1, 2


class Graph(NamedTuple):
    """links: of all nodes. weight (S, N): a node's part in exposures, 1 or its propensities. kind: see ``BERNOULLI``.

    alpha (K,), first, second (K, K): the priors: Dirichlet; Beta, or Gamma's shape and rate.
    """

    links: Links
    weight: Floats
    alpha: Floats
    first: Floats
    second: Floats
    kind: int

    @property
    def num_nodes(self) -> int:
        return self.weight.shape[1]

    @property
    def num_blocks(self) -> int:
        return len(self.alpha)

    @property
    def directed(self) -> bool:
        return len(self.weight) == 2


class State(NamedTuple):
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
    def empty(cls, graph: Graph, seed: int) -> State:
        """No node in any block."""
        blocks = graph.num_blocks
        vector, sides, square = (blocks,), (len(graph.weight), blocks), (blocks, blocks)
        shapes = [vector, sides, sides, square, square, square, sides, sides, vector, vector]
        label, rng = np.full(graph.num_nodes, -1, np.int64), np.array([seed % 2**64], np.uint64)
        return cls(label, *(np.zeros(shape) for shape in shapes), rng)

    def counts(self, graph: Graph) -> Counts:
        """m, t and n; each pair of blocks once."""
        return Counts(self.edges, self.exposure, self.size).once(graph.directed)


def graph_of(rows: GraphRows, *, kind: int, alpha: Any, first: Any, second: Any) -> Graph:
    """A graph with priors, its weights 1. alpha (K,); first, second: (K, K) or one number."""
    own = SbmRows.of_rows(rows)
    links, alpha = own.links, np.array(alpha, np.float64)
    if kind == DEGREES:  # propensities on simplices: sum_ij theta_i theta_j = 1, with every i = j in it
        links = links._replace(own_exposure=np.full(len(own), 1.0 if own.directed else 0.5))
    square = (len(alpha), len(alpha))
    first, second = (np.array(np.broadcast_to(value, square), np.float64, order="C") for value in (first, second))
    return Graph(links, own.unweighted.ends, alpha, first, second, kind)
