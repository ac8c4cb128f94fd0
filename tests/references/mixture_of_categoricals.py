"""Brute-force references for the mixture of categoricals (source 002, eq. 27.3). No project code.

    c_n ~ Categorical(pi), one-hot                   params["mixing_proportion"]  (K,)
    y_nr | c_n = k ~ Categorical(b_k^(r))            params["response"]           (K, R, C)

``mask`` (N, R) is True where a response was observed; an unobserved one drops out of the product.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from tests.references import _mixture
from tests.references._shared import Array, Maybe, Params, observed


def log_joint_table(params: Params, x: ArrayLike, mask: Maybe = None) -> Array:
    """log pi_k + sum_r log b_k^(r)_{y_nr}, (N, K)."""
    seen, y = observed(x, mask), np.asarray(x)
    table = np.tile(np.log(params["mixing_proportion"]), (len(y), 1))
    for n, r in zip(*seen.nonzero(), strict=True):
        table[n] += np.log(params["response"][:, r, int(y[n, r])])
    return table


log_joint, log_evidence, posterior = _mixture.of(log_joint_table)


def m_step(
    x: ArrayLike,
    weights: ArrayLike,
    num_categories: int,
    mask: Maybe = None,
    concentration: ArrayLike = 1.0,
    added: float = 0.0,
) -> dict[str, Array]:
    """b_k^(r)_c proportional to ``added`` + sum_{n seen, y_nr = c} r_nk."""
    seen, r = observed(x, mask), np.asarray(weights, dtype=np.float64)
    counts = np.full((r.shape[1], seen.shape[1], num_categories), float(added))
    for n, j in zip(*seen.nonzero(), strict=True):
        counts[:, j, int(np.asarray(x)[n, j])] += r[n]
    return {"mixing_proportion": _mixture.proportions(r, concentration), "response": counts / counts.sum(-1)[..., None]}
