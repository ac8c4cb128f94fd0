"""Brute-force references for the mixed-membership block model (source 002, eqs. 27.77-27.79). No project code.

    pi_i ~ Dirichlet(alpha)                                       membership  (N, K)
    s_ij ~ Categorical(pi_i),  r_ij ~ Categorical(pi_j)           one pair of indicators a dyad       (eq. 27.77)
    x_ij | s_ij = a, r_ij = b ~ rho delta_0 + (1 - rho) Bernoulli(eta_ab)                              (eq. 27.79)

with params["edge_probability"] = eta (K, K), symmetric if undirected, and rho = params["sparsity"] or 0. rho is the
probability that a dyad is a background one, z_ij = 1, whose x_ij is 0 whatever its indicators. Dyads as in ``_graphs``.
Exact at given globals here; ``mmsb_integrated`` has eta and rho integrated out, and the variational bounds.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logsumexp

from tests.references import _graphs, _shared
from tests.references._graphs import Labels
from tests.references._shared import Array, Maybe, Params, Priors


def sparsity_of(params: Params) -> float:
    return float(np.asarray(params.get("sparsity", 0.0)))


def log_edges(params: Params, values: ArrayLike) -> Array:
    """log p(x_ij | s_ij = a, r_ij = b) with the background summed out (eq. 27.79), (E, K, K)."""
    eta, rho = np.asarray(params["edge_probability"], dtype=np.float64), sparsity_of(params)
    with np.errstate(divide="ignore"):
        linked, empty = np.log((1 - rho) * eta), np.log(rho + (1 - rho) * (1 - eta))
    return np.where(np.asarray(values)[:, None, None] > 0, linked, empty)


def log_joint(
    params: Params,
    x: ArrayLike,
    membership: ArrayLike,
    mask: Maybe = None,
    priors: Priors = None,
    *,
    directed: bool = True,
    self_loops: bool = False,
) -> float:
    """log p(globals) + sum_i log p(pi_i) + sum_ij log sum_ab pi_ia pi_jb p(x_ij | a, b), indicators summed out; a site
    that ``priors`` leaves out adds 0."""
    i, j, values = _graphs.dyads(x, mask, directed=directed, self_loops=self_loops)
    pi, total = np.asarray(membership, dtype=np.float64), 0.0
    for table, s, r in zip(np.exp(log_edges(params, values)), i, j, strict=True):
        total += float(np.log(pi[s] @ table @ pi[r]))
    return total + _graphs.log_priors({**params, "membership": pi}, priors, directed=directed)


def log_joint_of_indicators(
    params: Params,
    x: ArrayLike,
    membership: ArrayLike,
    sender: ArrayLike,
    receiver: ArrayLike,
    mask: Maybe = None,
    priors: Priors = None,
    *,
    directed: bool = True,
    self_loops: bool = False,
) -> float:
    """The same with the indicators s, r (E,) of the observed dyads kept."""
    i, j, values = _graphs.dyads(x, mask, directed=directed, self_loops=self_loops)
    s, r, pi = np.asarray(sender, dtype=int), np.asarray(receiver, dtype=int), np.asarray(membership, dtype=np.float64)
    edges = log_edges(params, values)[np.arange(len(i)), s, r]
    total = float((np.log(pi[i, s]) + np.log(pi[j, r]) + edges).sum())
    return total + _graphs.log_priors({**params, "membership": pi}, priors, directed=directed)


# ----- memberships integrated out, at given globals -------------------------------------------------------------------


def member_counts(s: ArrayLike, r: ArrayLike, i: Labels, j: Labels, num_nodes: int, num_blocks: int, seen=None):
    """c_nk, how often node n took block k as a sender or as a receiver, (..., N, K), from indicators (..., E); ``seen``
    (..., E) says which dyads count."""
    s, r = np.asarray(s, dtype=int), np.asarray(r, dtype=int)
    counted = np.ones(s.shape) if seen is None else np.asarray(seen, dtype=np.float64)
    ends = np.eye(num_nodes)
    total = np.einsum("...e,...ek,en->...nk", counted, np.eye(num_blocks)[s], ends[i])
    return total + np.einsum("...e,...ek,en->...nk", counted, np.eye(num_blocks)[r], ends[j])


def indicators(num_blocks: int, num_dyads: int) -> tuple[Labels, Labels]:
    """All K^2E values of (s, r), (M, E) each."""
    both = _graphs.labelings(num_blocks, 2 * num_dyads)
    return both[:, :num_dyads], both[:, num_dyads:]


def table(
    params: Params, x: ArrayLike, alpha: ArrayLike, mask: Maybe = None,
    *, directed: bool = True, self_loops: bool = False,
) -> tuple[Labels, Labels, Array, Array]:  # fmt: skip
    """(s (M, E), r (M, E), their counts (M, N, K), log p(x, s, r | globals) (M,)) over all indicators."""
    i, j, values = _graphs.dyads(x, mask, directed=directed, self_loops=self_loops)
    size = len(np.asarray(params["edge_probability"]))
    s, r = indicators(size, len(i))
    counts = member_counts(s, r, i, j, len(np.asarray(x)), size)
    edges = log_edges(params, values)[np.arange(len(i)), s, r].sum(-1)
    return s, r, counts, edges + _shared.log_dirichlet_moment(counts, alpha).sum(-1)


def log_evidence(params: Params, x: ArrayLike, alpha: ArrayLike, *arguments, **keywords) -> float:
    """log p(x | globals): memberships integrated out, all K^2E indicators summed."""
    return float(logsumexp(table(params, x, alpha, *arguments, **keywords)[3]))


def posterior_mean(params: Params, x: ArrayLike, alpha: ArrayLike, *arguments, **keywords) -> Array:
    """E[pi_i | x, globals], (N, K): given the indicators, pi_i is Dirichlet(alpha + c_i)."""
    _, _, counts, log_weight = table(params, x, alpha, *arguments, **keywords)
    return _shared.mean_given_counts(log_weight, counts, alpha)


def indicator_posterior(params: Params, x: ArrayLike, alpha: ArrayLike, *arguments, **keywords) -> Array:
    """P(s_ij = a, r_ij = b | x, globals) of every observed dyad, (E, K, K)."""
    s, r, _, log_weight = table(params, x, alpha, *arguments, **keywords)
    one_hot = np.eye(len(np.asarray(params["edge_probability"])))
    return np.einsum("m,mea,meb->eab", _graphs.normalised(log_weight), one_hot[s], one_hot[r])


# ----- the same by multiplying out, dyad by dyad: more nodes ----------------------------------------------------------


def count_terms(
    params: Params, x: ArrayLike, mask: Maybe = None, *, directed: bool = True, self_loops: bool = False
) -> tuple[Array, Array]:
    """prod_ij sum_ab pi_ia pi_jb p(x_ij | a, b) as a polynomial in pi: exponents (M, N, K), log coefficients (M,)."""
    i, j, values = _graphs.dyads(x, mask, directed=directed, self_loops=self_loops)
    size, num_nodes = len(np.asarray(params["edge_probability"])), len(np.asarray(x))
    pairs = [(a, b) for a in range(size) for b in range(size)]
    factors = (
        {(s * size + a, r * size + b): weight[a, b] for a, b in pairs}
        for weight, s, r in zip(np.exp(log_edges(params, values)), i, j, strict=True)
    )
    exponents, coefficients = _shared.multiplied_out(factors, num_nodes * size)
    return exponents.reshape(-1, num_nodes, size), coefficients


def log_evidence_polynomial(params: Params, x: ArrayLike, alpha: ArrayLike, *arguments, **keywords) -> float:
    """log p(x | globals) from the Dirichlet moments of the polynomial's terms."""
    counts, coefficients = count_terms(params, x, *arguments, **keywords)
    return float(logsumexp(coefficients + _shared.log_dirichlet_moment(counts, alpha).sum(-1)))


def posterior_mean_polynomial(params: Params, x: ArrayLike, alpha: ArrayLike, *arguments, **keywords) -> Array:
    """E[pi_i | x, globals], (N, K)."""
    counts, coefficients = count_terms(params, x, *arguments, **keywords)
    return _shared.mean_given_counts(coefficients + _shared.log_dirichlet_moment(counts, alpha).sum(-1), counts, alpha)
