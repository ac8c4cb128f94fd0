"""Brute-force references for the stochastic block model of counts (Karrer & Newman 2011, eq. 1, without its degrees).

    x_ij | q_i = a, q_j = b ~ Poisson(lambda_ab)         params["edge_rate"]  (K, K), symmetric if undirected

and the rest as in ``_graphs``. Rates have priors Gamma(shape, rate). No project code.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats
from scipy.special import gammaln, xlogy

from tests.references import _graphs
from tests.references._graphs import Labelled
from tests.references._shared import Array, Maybe, Pair, Params, expected_log_dirichlet


def graph(params: Params, x: ArrayLike, mask: Maybe = None, *, directed=True, self_loops=False) -> Labelled:
    """The graph at given globals: evidence, posterior of the labelings, mean field."""
    i, j, values = _graphs.dyads(x, mask, directed=directed, self_loops=self_loops)
    each = stats.poisson.logpmf(values[:, None, None], np.asarray(params["edge_rate"], dtype=np.float64))
    return Labelled(_graphs.log_proportion(params), each, i, j, len(np.asarray(x)))


log_joint = _graphs.log_joint_of(graph)


# ----- globals integrated out -----------------------------------------------------------------------------------------


def gamma_ratio(events: ArrayLike, exposure: ArrayLike, prior: Pair) -> Array:
    """log int lambda^events e^(-lambda exposure) Gamma(lambda | shape, rate) dlambda, elementwise."""
    events, exposure = np.asarray(events, dtype=np.float64), np.asarray(exposure, dtype=np.float64)
    shape, rate = prior
    before = shape * np.log(rate) - gammaln(shape)
    return before + gammaln(shape + events) - (shape + events) * np.log(rate + exposure)


def log_joint_integrated(
    q: ArrayLike, x: ArrayLike, num_blocks: int, alpha: ArrayLike = 1.0, prior: Pair = (1.0, 1.0),
    mask: Maybe = None, *, directed: bool = True, self_loops: bool = False, propensity=None,
) -> float:  # fmt: skip
    """log p(x, q | alpha, shape, rate) of one labeling (N,), pi and lambda integrated out; ``propensity`` = (out, in),
    (N,) each, makes the means theta_i theta'_j lambda_ab."""
    i, j, values = _graphs.dyads(x, mask, directed=directed, self_loops=self_loops)
    phi = np.eye(num_blocks)[np.asarray(q, dtype=int)]
    scale = np.ones_like(values) if propensity is None else np.asarray(propensity[0])[i] * np.asarray(propensity[1])[j]
    events = _graphs.block_sums(phi, values, i, j, directed=directed)
    exposure = _graphs.block_sums(phi, scale, i, j, directed=directed)
    free = _graphs.free_entries(num_blocks, directed=directed)
    edges = gamma_ratio(events, exposure, prior)[free].sum() + (xlogy(values, scale) - gammaln(values + 1)).sum()
    return float(_graphs.log_label_prior(q, num_blocks, alpha)) + float(edges)


table_integrated, log_evidence_integrated = _graphs.summed(log_joint_integrated)


# ----- variational Bayes: q(q) q(pi) q(lambda) ------------------------------------------------------------------------


def vb_terms(
    x: ArrayLike, phi: ArrayLike, weight: ArrayLike, shape: ArrayLike, rate: ArrayLike, alpha: ArrayLike = 1.0,
    prior: Pair = (1.0, 1.0), mask: Maybe = None,
    *, directed: bool = True, self_loops: bool = False,
) -> dict[str, float]:  # fmt: skip
    """Every term of E[log p(x, q, pi, lambda)] - E[log q(q, pi, lambda)] for any phi (N, K), pi ~ Dirichlet(weight) and
    lambda_ab ~ Gamma(shape_ab, rate_ab) (K, K). Signs included: the bound on log p(x) is the sum."""
    at = vb_graph(x, weight, shape, rate, mask, directed=directed, self_loops=self_loops)
    divergence = _graphs.gamma_divergence(shape, rate, prior)
    free = _graphs.free_entries(len(divergence), directed=directed)
    return {**_graphs.terms_of_labels(at, phi, weight, alpha), "edge rates": -float(divergence[free].sum())}


vb_bound = _graphs.bound_of(vb_terms)


def vb_globals(
    x: ArrayLike, phi: ArrayLike, alpha: ArrayLike = 1.0, prior: Pair = (1.0, 1.0),
    mask: Maybe = None, *, directed: bool = True, self_loops: bool = False,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """(weight, shape, rate) that maximise ``vb_bound`` at phi: prior plus expected counts."""
    i, j, values = _graphs.dyads(x, mask, directed=directed, self_loops=self_loops)
    phi = np.asarray(phi, dtype=np.float64)
    events = _graphs.block_sums(phi, values, i, j, directed=directed)
    pairs = _graphs.block_sums(phi, np.ones_like(values), i, j, directed=directed)
    return np.asarray(alpha) + phi.sum(0), prior[0] + events, prior[1] + pairs


def vb_graph(
    x: ArrayLike, weight: ArrayLike, shape: ArrayLike, rate: ArrayLike, mask: Maybe = None,
    *, directed: bool = True, self_loops: bool = False,
) -> Labelled:  # fmt: skip
    """The graph at E[log pi], E[lambda], E[log lambda]: its mean field optima are those of ``vb_bound`` over phi."""
    i, j, values = _graphs.dyads(x, mask, directed=directed, self_loops=self_loops)
    values = values[:, None, None]
    shape, rate = np.asarray(shape, dtype=np.float64), np.asarray(rate, dtype=np.float64)
    each = values * _graphs.expected_log_gamma(shape, rate) - shape / rate - gammaln(values + 1)
    return Labelled(expected_log_dirichlet(weight), each, i, j, len(np.asarray(x)))
