"""Brute-force references for the mixture of categoricals (source 002, eq. 27.3). No project code.

    c_n ~ Categorical(pi), one-hot                   params["mixing_proportion"]  (K,)
    y_nr | c_n = k ~ Categorical(b_k^(r))            params["response"]           (K, R, C)

``mask`` (N, R) is True where a response was observed; an unobserved one drops out of the product.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

from tests.references import _mixture
from tests.references._shared import Array, Params, Prior, log_priors, observed


def log_joint_table(params: Params, x: ArrayLike, mask: ArrayLike | None = None) -> Array:
    """log pi_k + sum_r log b_k^(r)_{y_nr}, (N, K)."""
    seen, y = observed(x, mask), np.asarray(x)
    table = np.tile(np.log(params["mixing_proportion"]), (len(y), 1))
    for n, r in zip(*seen.nonzero(), strict=True):
        table[n] += np.log(params["response"][:, r, int(y[n, r])])
    return table


def log_joint(
    params: Params,
    x: ArrayLike,
    component: ArrayLike,
    mask: ArrayLike | None = None,
    priors: Mapping[str, Prior] | None = None,
) -> float:
    """log p(globals) + sum_n log pi_{c_n} + sum_n log p(y_n | c_n); ``component`` one-hot (N, K)."""
    return _mixture.chosen(log_joint_table(params, x, mask), component) + log_priors(params, priors)


def log_evidence(params: Params, x: ArrayLike, mask: ArrayLike | None = None) -> Array:
    """log p(y_n), (N,)."""
    return _mixture.evidence(log_joint_table(params, x, mask))


def posterior(params: Params, x: ArrayLike, mask: ArrayLike | None = None) -> Array:
    """P(c_n = k | y_n), (N, K)."""
    return _mixture.posterior(log_joint_table(params, x, mask))


def m_step(
    x: ArrayLike,
    weights: ArrayLike,
    num_categories: int,
    mask: ArrayLike | None = None,
    concentration: ArrayLike = 1.0,
    added: float = 0.0,
) -> dict[str, Array]:
    """b_k^(r)_c proportional to ``added`` + sum_{n seen, y_nr = c} r_nk."""
    seen, r = observed(x, mask), np.asarray(weights, dtype=np.float64)
    counts = np.full((r.shape[1], seen.shape[1], num_categories), float(added))
    for n, j in zip(*seen.nonzero(), strict=True):
        counts[:, j, int(np.asarray(x)[n, j])] += r[n]
    return {"mixing_proportion": _mixture.proportions(r, concentration), "response": counts / counts.sum(-1)[..., None]}
