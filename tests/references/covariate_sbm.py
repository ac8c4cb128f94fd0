"""Brute-force references for the block model with node covariates (source 002, eq. 27.76). No project code.

    x_ij | q_i = a, q_j = b ~ Bernoulli(sigmoid(w_ab' f(c_i, c_j)))      params["weight"]  (K, K, F)

with covariates c (N, P) and f = [1, ...] by ``combine``: "product" c_i * c_j, "concatenate" [c_i, c_j], "difference"
|c_i - c_j|; the rest as in ``_graphs``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import log_expit

from tests.references import _graphs
from tests.references._graphs import Labelled
from tests.references._shared import Array, Maybe, Params


def features(covariates: ArrayLike, i: ArrayLike, j: ArrayLike, combine: str = "product") -> Array:
    """f(c_i, c_j) of every dyad, (E, F)."""
    covariates = np.asarray(covariates, dtype=np.float64)
    first, second = covariates[np.asarray(i)], covariates[np.asarray(j)]
    combined = {
        "product": first * second,
        "concatenate": np.concatenate([first, second], axis=1),
        "difference": np.abs(first - second),
    }[combine]
    return np.concatenate([np.ones((len(combined), 1)), combined], axis=1)


def graph(
    params: Params, x: ArrayLike, covariates: ArrayLike, combine: str = "product", mask: Maybe = None,
    *, directed: bool = True, self_loops: bool = False,
) -> Labelled:  # fmt: skip
    """The graph at given globals: evidence, posterior of the labelings, mean field."""
    i, j, values = _graphs.dyads(x, mask, directed=directed, self_loops=self_loops)
    logits = np.einsum("ef,abf->eab", features(covariates, i, j, combine), np.asarray(params["weight"]))
    each = np.where(values[:, None, None] > 0, log_expit(logits), log_expit(-logits))
    return Labelled(_graphs.log_proportion(params), each, i, j, len(np.asarray(x)))


log_joint = _graphs.log_joint_of(graph)
