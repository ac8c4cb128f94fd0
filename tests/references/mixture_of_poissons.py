"""Brute-force references for the mixture of Poissons (source 002, eq. 27.5). No project code.

    c_n ~ Categorical(pi), one-hot           params["mixing_proportion"]  (K,)
    x_nj | c_n = k ~ Poisson(lambda_kj)      params["rate"]               (K, D)

``mask`` (N, D) is True where an entry was observed; an unobserved entry drops out of the product.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from tests.references import _mixture
from tests.references._shared import Array, Maybe, Pair, Params, filled, observed


def log_joint_table(params: Params, x: ArrayLike, mask: Maybe = None) -> Array:
    """log pi_k + sum_j log Poisson(x_nj | lambda_kj), (N, K)."""
    seen = observed(x, mask)
    each = stats.poisson.logpmf(filled(x, mask)[:, None], np.asarray(params["rate"]))
    return np.log(params["mixing_proportion"]) + np.where(seen[:, None], each, 0.0).sum(-1)


log_joint, log_evidence, posterior = _mixture.of(log_joint_table)


def m_step(
    x: ArrayLike, weights: ArrayLike, mask: Maybe = None, concentration: ArrayLike = 1.0, added: Pair = (0.0, 0.0)
) -> dict[str, Array]:
    """lambda_kj = (sum_{n seen} r_nk x_nj + events) / (sum_{n seen} r_nk + rows), ``added`` = (events, rows)."""
    seen, r = observed(x, mask).astype(float), np.asarray(weights, dtype=np.float64)
    events = r.T @ filled(x, mask) + added[0]
    return {"mixing_proportion": _mixture.proportions(r, concentration), "rate": events / (r.T @ seen + added[1])}
