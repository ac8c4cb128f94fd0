"""Brute-force references for the degree-corrected block model (Karrer & Newman 2011, eq. 14). No project code.

    x_ij | q_i = a, q_j = b ~ Poisson(theta_i theta_j eta_ab)       undirected: params["propensity"]  (N,)
    x_ij | q_i = a, q_j = b ~ Poisson(theta_i theta'_j eta_ab)      directed: "out_propensity", "in_propensity"  (N,)

with params["edge_rate"] = eta (K, K) and the rest as in ``_graphs``. Rates and propensities have priors Gamma. What is
left of x_ij ~ Poisson(.) at a self loop of an undirected graph is theta_i^2 eta_aa, as the formula says.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats
from scipy.special import gammaln

from tests.references import _graphs, poisson_sbm
from tests.references._graphs import Labelled
from tests.references._shared import Array, Maybe, Pair, Params, expected_log_dirichlet

Moments = tuple[ArrayLike, ArrayLike]  #: (shape, rate)


def propensities(params: Params, *, directed: bool = True) -> tuple[Array, Array]:
    """(theta of the sender, theta of the receiver), (N,) each: one and the same if undirected."""
    names = ("out_propensity", "in_propensity") if directed else ("propensity", "propensity")
    return np.asarray(params[names[0]], dtype=np.float64), np.asarray(params[names[1]], dtype=np.float64)


def graph(params: Params, x: ArrayLike, mask: Maybe = None, *, directed=True, self_loops=False) -> Labelled:
    """The graph at given globals: evidence, posterior of the labelings, mean field."""
    i, j, values = _graphs.dyads(x, mask, directed=directed, self_loops=self_loops)
    out, into = propensities(params, directed=directed)
    mean = (out[i] * into[j])[:, None, None] * np.asarray(params["edge_rate"], dtype=np.float64)
    each = stats.poisson.logpmf(values[:, None, None], mean)
    return Labelled(_graphs.log_proportion(params), each, i, j, len(np.asarray(x)))


log_joint = _graphs.log_joint_of(graph)


def log_joint_integrated(q: ArrayLike, x: ArrayLike, params: Params, num_blocks: int, *arguments, **keywords) -> float:
    """log p(x, q | theta) with pi and the rates integrated out; ``params`` holds the propensities alone."""
    propensity = propensities(params, directed=keywords.get("directed", True))
    return poisson_sbm.log_joint_integrated(q, x, num_blocks, *arguments, propensity=propensity, **keywords)


# ----- variational Bayes: q(q) q(pi) q(eta) prod_i q(theta_i) q(theta'_i) ---------------------------------------------
#
# A posterior of the propensities is ((shape, rate) of the sender's, (shape, rate) of the receiver's), (N,) each; in an
# undirected graph there is one theta_i, and only the first pair is looked at.


def _products(out: Moments, into: Moments, i, j, directed: bool) -> tuple[Array, Array]:
    """(E[theta_i theta'_j], E[log theta_i + log theta'_j]) of every dyad, (E,)."""
    shape, rate = (np.asarray(one, dtype=np.float64) for one in out)
    other, divisor = (np.asarray(one, dtype=np.float64) for one in (into if directed else out))
    mean = shape[i] / rate[i] * other[j] / divisor[j]
    if not directed:  # of a self loop E[theta_i^2]
        mean = np.where(i == j, shape[i] * (shape[i] + 1) / rate[i] ** 2, mean)
    log = _graphs.expected_log_gamma(shape, rate)[i] + _graphs.expected_log_gamma(other, divisor)[j]
    return mean, log


def vb_graph(
    x: ArrayLike, weight: ArrayLike, shape: ArrayLike, rate: ArrayLike, out: Moments, into: Moments,
    mask: Maybe = None, *, directed: bool = True, self_loops: bool = False,
) -> Labelled:  # fmt: skip
    """The graph at the expectations of all globals: its mean field optima are those of ``vb_bound`` over phi."""
    i, j, values = _graphs.dyads(x, mask, directed=directed, self_loops=self_loops)
    mean, log = _products(out, into, i, j, directed)
    shape, rate = np.asarray(shape, dtype=np.float64), np.asarray(rate, dtype=np.float64)
    each = values[:, None, None] * (log[:, None, None] + _graphs.expected_log_gamma(shape, rate))
    each = each - mean[:, None, None] * shape / rate - gammaln(values + 1)[:, None, None]
    return Labelled(expected_log_dirichlet(weight), each, i, j, len(np.asarray(x)))


def vb_terms(
    x: ArrayLike, phi: ArrayLike, weight: ArrayLike, shape: ArrayLike, rate: ArrayLike, out: Moments, into: Moments,
    alpha: ArrayLike = 1.0, prior: Pair = (1.0, 1.0), propensity_prior: Pair = (1.0, 1.0),
    mask: Maybe = None, *, directed: bool = True, self_loops: bool = False,
) -> dict[str, float]:  # fmt: skip
    """Every term of E[log p(x, q, pi, eta, theta)] - E[log q] for any phi (N, K), pi ~ Dirichlet(weight (K,)), eta_ab ~
    Gamma(shape_ab, rate_ab) (K, K) and theta as above. Signs included: the bound on log p(x) is the sum."""
    at = vb_graph(x, weight, shape, rate, out, into, mask, directed=directed, self_loops=self_loops)
    divergence = _graphs.gamma_divergence(shape, rate, prior)
    free = _graphs.free_entries(len(divergence), directed=directed)
    propensities = [_graphs.gamma_divergence(*one, propensity_prior).sum() for one in (out, into)[: 1 + directed]]
    rates = {"edge rates": -float(divergence[free].sum()), "propensities": -float(sum(propensities))}
    return {**_graphs.terms_of_labels(at, phi, weight, alpha), **rates}


vb_bound = _graphs.bound_of(vb_terms)
