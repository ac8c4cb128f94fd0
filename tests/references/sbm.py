"""Brute-force references for the stochastic block model (source 002, eq. 27.75). No project code.

    x_ij | q_i = a, q_j = b ~ Bernoulli(eta_ab)          params["edge_probability"]  (K, K), symmetric if undirected

and the rest as in ``_graphs``. Here: the log joint, everything that is exact at given globals, and with pi ~ Dirichlet
and eta_ab ~ Beta integrated out; the mean field bounds of both.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betaln, digamma

from tests.references import _graphs
from tests.references._graphs import Labelled
from tests.references._shared import Array, Maybe, Pair, Params, expected_log_dirichlet


def log_edges(params: Params, values: ArrayLike) -> Array:
    """log Bernoulli(x_ij | eta_ab), (E, K, K)."""
    eta = np.asarray(params["edge_probability"], dtype=np.float64)
    with np.errstate(divide="ignore"):
        return np.where(np.asarray(values)[:, None, None] > 0, np.log(eta), np.log1p(-eta))


def graph(params: Params, x: ArrayLike, mask: Maybe = None, *, directed=True, self_loops=False) -> Labelled:
    """The graph at given globals: evidence, posterior of the labelings, mean field."""
    i, j, values = _graphs.dyads(x, mask, directed=directed, self_loops=self_loops)
    return Labelled(_graphs.log_proportion(params), log_edges(params, values), i, j, len(np.asarray(x)))


log_joint = _graphs.log_joint_of(graph)


# ----- globals integrated out -----------------------------------------------------------------------------------------


def log_joint_integrated(
    q: ArrayLike, x: ArrayLike, num_blocks: int, alpha: ArrayLike = 1.0, prior: Pair = (1.0, 1.0),
    mask: Maybe = None, *, directed: bool = True, self_loops: bool = False,
) -> float:  # fmt: skip
    """log p(x, q | alpha, a, b) of one labeling (N,), pi and eta integrated out::

    log E[prod_k pi_k^n_k] + sum_ab log B(m_ab + a, z_ab + b) / B(a, b),   m edges and z non-edges between blocks
    """
    i, j, values = _graphs.dyads(x, mask, directed=directed, self_loops=self_loops)
    phi = np.eye(num_blocks)[np.asarray(q, dtype=int)]
    edges = _graphs.block_sums(phi, values, i, j, directed=directed)
    others = _graphs.block_sums(phi, 1.0 - values, i, j, directed=directed)
    each = betaln(edges + prior[0], others + prior[1]) - betaln(*prior)
    free = _graphs.free_entries(num_blocks, directed=directed)
    return float(_graphs.log_label_prior(q, num_blocks, alpha)) + float(each[free].sum())


table_integrated, log_evidence_integrated = _graphs.summed(log_joint_integrated)


# ----- variational Bayes: q(q) q(pi) q(eta) ---------------------------------------------------------------------------


def vb_terms(
    x: ArrayLike, phi: ArrayLike, weight: ArrayLike, a: ArrayLike, b: ArrayLike, alpha: ArrayLike = 1.0,
    prior: Pair = (1.0, 1.0), mask: Maybe = None,
    *, directed: bool = True, self_loops: bool = False,
) -> dict[str, float]:  # fmt: skip
    """Every term of E[log p(x, q, pi, eta)] - E[log q(q, pi, eta)] for any phi (N, K), pi ~ Dirichlet(weight (K,)) and
    eta_ab ~ Beta(a_ab, b_ab) (K, K), symmetric if undirected. Signs included: the bound on log p(x) is the sum."""
    at = vb_graph(x, weight, a, b, mask, directed=directed, self_loops=self_loops)
    divergence = _graphs.beta_divergence(a, b, prior)[_graphs.free_entries(len(np.asarray(a)), directed=directed)]
    return {**_graphs.terms_of_labels(at, phi, weight, alpha), "edge probabilities": -float(divergence.sum())}


vb_bound = _graphs.bound_of(vb_terms)


def vb_globals(
    x: ArrayLike, phi: ArrayLike, alpha: ArrayLike = 1.0, prior: Pair = (1.0, 1.0),
    mask: Maybe = None, *, directed: bool = True, self_loops: bool = False,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """(weight, a, b) that maximise ``vb_bound`` at phi: prior plus expected counts."""
    i, j, values = _graphs.dyads(x, mask, directed=directed, self_loops=self_loops)
    phi = np.asarray(phi, dtype=np.float64)
    edges = _graphs.block_sums(phi, values, i, j, directed=directed)
    others = _graphs.block_sums(phi, 1.0 - values, i, j, directed=directed)
    return np.asarray(alpha) + phi.sum(0), prior[0] + edges, prior[1] + others


def vb_graph(
    x: ArrayLike, weight: ArrayLike, a: ArrayLike, b: ArrayLike, mask: Maybe = None,
    *, directed: bool = True, self_loops: bool = False,
) -> Labelled:  # fmt: skip
    """The graph at E[log pi], E[log eta], E[log(1 - eta)]: its mean field optima are those of ``vb_bound`` over phi."""
    i, j, values = _graphs.dyads(x, mask, directed=directed, self_loops=self_loops)
    a, b = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    each = np.where(values[:, None, None] > 0, digamma(a), digamma(b)) - digamma(a + b)
    return Labelled(expected_log_dirichlet(weight), each, i, j, len(np.asarray(x)))
