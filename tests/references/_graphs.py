"""What the references of block models share: dyads, and sums over all K^N labelings of the nodes. No project code.

Source 002, section 27.5.1, eq. 27.75. N nodes, K blocks, x (N, N) the adjacency, mask (N, N) True where observed.

    q_i ~ Categorical(pi)                  the block of a node, whole numbers (N,)     params["block_proportion"]  (K,)
    x_ij | q_i = a, q_j = b ~ p(. | a, b)  for every dyad (i, j)

Dyads are ordered pairs i != j of a directed graph, pairs i < j of an undirected one, and also (i, i) where there are
self loops. An unobserved dyad drops out of the product; of an undirected graph the entries i > j are never looked at.
What depends on the likelihood comes in as a table (E, K, K) of log p(x_ij | a, b), one row a dyad.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betaln, digamma, gammaln, logsumexp, softmax, xlogy

from tests.references import _shared
from tests.references._shared import Array, Labels, Maybe, Pair, Params, Priors, observed

#: Sites that an undirected graph makes symmetric in their first two axes.
MATRICES = ("edge_probability", "edge_rate", "weight")
labelings = _shared.assignments  #: all K^N values of q, (K^N, N)
normalised = softmax


def dyads(
    x: ArrayLike, mask: Maybe = None, *, directed: bool = True, self_loops: bool = False
) -> tuple[Labels, Labels, Array]:
    """(i, j, x_ij) of the observed dyads, (E,) each, in lexicographic order."""
    x, seen = np.asarray(x, dtype=np.float64), observed(x, mask)
    pairs = [
        (i, j)
        for i in range(len(x))
        for j in range(len(x))
        if seen[i, j] and (i < j or (i > j and directed) or (i == j and self_loops))
    ]
    i, j = np.array(pairs, dtype=int).reshape(-1, 2).T
    return i, j, x[i, j]


def log_priors(params: Params, priors: Priors, *, directed: bool = True) -> float:
    """Sum of the log prior densities of the sites that ``priors`` names; of a symmetric matrix the entries a <= b."""
    total = 0.0
    for site, prior in (priors or {}).items():
        if site not in params:
            continue
        value = np.asarray(params[site], dtype=np.float64)
        if site in MATRICES and not directed:
            name, *arguments = prior if isinstance(prior[0], str) else ("beta", *prior)
            upper = np.triu(np.ones(value.shape[:2], dtype=bool))
            prior = (name, *[np.broadcast_to(np.asarray(one, dtype=float), value.shape)[upper] for one in arguments])
            value = value[upper]
        total += _shared.log_density(value, prior)
    return total


# ----- given globals --------------------------------------------------------------------------------------------------


def log_joint_of(graph: Callable[..., Labelled]) -> Callable[..., float]:
    """The log joint of a block model, from its ``graph`` at given globals."""

    def log_joint(params, x, block, mask=None, priors=None, *, directed=True, self_loops=False, **more) -> float:
        """log p(globals) + sum_i log pi_{q_i} + sum_ij log p(x_ij | q_i, q_j); a site not in ``priors`` adds 0."""
        at = graph(params, x, mask=mask, directed=directed, self_loops=self_loops, **more)
        return float(at.log_joint(block)) + log_priors(params, priors, directed=directed)

    return log_joint


def summed(log_joint_integrated: Callable[..., float]) -> tuple[Callable[..., Any], Callable[..., float]]:
    """(table_integrated, log_evidence_integrated) of a block model from log p(x, q), its globals integrated out."""

    def table_integrated(x, num_blocks, *arguments, **keywords) -> tuple[Labels, Array]:
        """All labelings (M, N) and log p(x, q) (M,)."""
        every = labelings(num_blocks, len(np.asarray(x)))
        return every, np.array([log_joint_integrated(q, x, num_blocks, *arguments, **keywords) for q in every])

    def log_evidence_integrated(x, num_blocks, *arguments, **keywords) -> float:
        """log p(x): everything latent summed or integrated out."""
        return float(logsumexp(table_integrated(x, num_blocks, *arguments, **keywords)[1]))

    return table_integrated, log_evidence_integrated


@dataclass(frozen=True)
class Labelled:
    """A graph at given globals: log pi (K,) and log p(x_ij | a, b) (E, K, K) of the dyads (i, j).

    The mean field posterior is prod_i Cat(q_i; phi_i), phi (N, K).
    """

    log_pi: Array
    table: Array
    i: Labels
    j: Labels
    num_nodes: int

    def log_joint(self, q: ArrayLike) -> Array:
        """log p(x, q | globals) of labelings q (..., N), (...)."""
        q = np.asarray(q, dtype=int)
        edges = self.table[np.arange(len(self.i)), q[..., self.i], q[..., self.j]]
        return self.log_pi[q].sum(-1) + edges.sum(-1)

    def every(self) -> Labels:
        return labelings(len(self.log_pi), self.num_nodes)

    def log_evidence(self) -> float:
        """log p(x | globals) = log sum_q p(x, q | globals): all K^N terms."""
        return float(logsumexp(self.log_joint(self.every())))

    def posterior(self) -> tuple[Labels, Array]:
        """All labelings (M, N) and P(q | x, globals) (M,)."""
        q = self.every()
        return q, normalised(self.log_joint(q))

    def elbo(self, phi: ArrayLike) -> float:
        """E[log p(x, q)] - E[log q(q)], pair by pair: both ends of a self loop are one node, hence one indicator."""
        phi = np.asarray(phi, dtype=np.float64)
        total = float(np.where(phi > 0, phi * self.log_pi, 0.0).sum() - xlogy(phi, phi).sum())
        for one, share in zip(self.table, pair_shares(phi, self.i, self.j), strict=True):
            total += float(np.where(share > 0, share * one, 0.0).sum())
        return total

    def elbo_by_labelings(self, phi: ArrayLike) -> float:
        """The same as an expectation over all K^N labelings."""
        phi = np.asarray(phi, dtype=np.float64)
        q = self.every()
        probability = phi[np.arange(len(phi)), q].prod(-1)
        q, probability = q[probability > 0], probability[probability > 0]
        return float(probability @ (self.log_joint(q) - np.log(probability)))

    def coordinate_optimum(self, phi: ArrayLike, node: int) -> Array:
        """The phi_node (K,) that maximises ``elbo``, the others held: proportional to exp E[log p(x, q) | q_node]."""
        phi, score = np.asarray(phi, dtype=np.float64), np.array(self.log_pi)
        for one, s, r in zip(self.table, self.i, self.j, strict=True):
            if s == r == node:
                score = score + np.diag(one)
            elif s == node:
                score = score + one @ phi[r]
            elif r == node:
                score = score + phi[s] @ one
        return normalised(score)

    def mean_field(self, phi: ArrayLike, sweeps: int = 200) -> Array:
        """phi after sweeps of coordinate optima, node by node."""
        phi = np.array(phi, dtype=np.float64)
        for _ in range(sweeps):
            for node in range(len(phi)):
                phi[node] = self.coordinate_optimum(phi, node)
        return phi


def log_proportion(params: Params) -> Array:
    with np.errstate(divide="ignore"):
        return np.log(np.asarray(params["block_proportion"], dtype=np.float64))


def pair_shares(phi: Array, i: Labels, j: Labels) -> Array:
    """q(q_i = a, q_j = b) of every dyad, (E, K, K)."""
    shares = [np.diag(phi[s]) if s == r else np.outer(phi[s], phi[r]) for s, r in zip(i, j, strict=True)]
    return np.array(shares).reshape(len(i), phi.shape[1], phi.shape[1])


def marginals(q: Labels, weight: Array, num_blocks: int) -> Array:
    """P(q_i = k), (N, K), from all labelings (M, N) and their probabilities (M,)."""
    return np.stack([weight @ (q == k) for k in range(num_blocks)], axis=-1)


def coassignment(q: Labels, weight: Array) -> Array:
    """P(q_i = q_j), (N, N): does not depend on what the blocks are called."""
    return np.einsum("m,mij->ij", weight, (q[:, :, None] == q[:, None, :]).astype(float))


def relabelled(params: Params, order: ArrayLike) -> dict[str, Array]:
    """The globals with their blocks called by other names: new block a is old block order[a]."""
    order, result = np.asarray(order, dtype=int), {}
    for site, value in params.items():
        value = np.asarray(value)
        if site in MATRICES:
            result[site] = value[np.ix_(order, order)]
        else:
            result[site] = value[order] if site == "block_proportion" else value
    return result


# ----- globals integrated out -----------------------------------------------------------------------------------------


def block_sums(phi: ArrayLike, values: ArrayLike, i: Labels, j: Labels, *, directed: bool = True) -> Array:
    """sum over dyads of v_ij q(q_i = a, q_j = b), (K, K); of an undirected graph the entry (a, b) holds both orders
    together, and its mirror image repeats it: look at a <= b."""
    total = np.einsum("e,eab->ab", np.asarray(values, dtype=np.float64), pair_shares(np.asarray(phi, float), i, j))
    return total if directed else total + total.T - np.diag(np.diag(total))


def free_entries(num_blocks: int, *, directed: bool = True) -> NDArray[np.bool_]:
    """(K, K): True at the entries of a block matrix that have a prior of their own."""
    full = np.ones((num_blocks, num_blocks), dtype=bool)
    return full if directed else np.triu(full)


def log_label_prior(q: Labels, num_blocks: int, alpha: ArrayLike) -> Array:
    """log p(q | alpha) with pi ~ Dirichlet(alpha) integrated out, for labelings (..., N)."""
    return _shared.log_dirichlet_moment(_shared.counts_of_values(np.asarray(q, dtype=int), num_blocks), alpha)


# ----- expectations under posteriors of the globals -------------------------------------------------------------------


def bound_of(terms: Callable[..., dict[str, float]]) -> Callable[..., float]:
    """The sum of the terms: at most log p(x), the globals integrated out."""
    return lambda *arguments, **keywords: sum(terms(*arguments, **keywords).values())


def terms_of_labels(at: Labelled, phi: ArrayLike, weight: ArrayLike, alpha: ArrayLike) -> dict[str, float]:
    """What phi (N, K) and pi ~ Dirichlet(weight) bring to a bound, ``at`` the expectations of the other globals."""
    phi = np.asarray(phi, dtype=np.float64)
    return {
        "labels": float((phi * at.log_pi).sum()),
        "edges": float((pair_shares(phi, at.i, at.j) * at.table).sum()),
        "entropy of labels": -float(xlogy(phi, phi).sum()),
        "proportions": -float(_shared.dirichlet_divergence(weight, alpha)),
    }


def beta_divergence(a: ArrayLike, b: ArrayLike, prior: Pair) -> Array:
    """KL(Beta(a, b) || Beta(prior)), elementwise."""
    a, b = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    mean = digamma(a + b)
    return betaln(*prior) - betaln(a, b) + (a - prior[0]) * (digamma(a) - mean) + (b - prior[1]) * (digamma(b) - mean)


def gamma_divergence(shape: ArrayLike, rate: ArrayLike, prior: Pair) -> Array:
    """KL(Gamma(shape, rate) || Gamma(prior)), elementwise."""
    shape, rate = np.asarray(shape, dtype=np.float64), np.asarray(rate, dtype=np.float64)
    density = gammaln(prior[0]) - gammaln(shape) + prior[0] * np.log(rate / prior[1])
    return density + (shape - prior[0]) * digamma(shape) + shape * (prior[1] - rate) / rate


def expected_log_gamma(shape: ArrayLike, rate: ArrayLike) -> Array:
    return digamma(np.asarray(shape, dtype=np.float64)) - np.log(np.asarray(rate, dtype=np.float64))
