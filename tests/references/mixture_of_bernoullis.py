"""Brute-force references for the mixture of Bernoullis (source 001, section 2.2 and eq. 26). No project code.

    c_n ~ Categorical(pi), one-hot     params["mixing_proportion"]  (K,)
    x_nt | c_n = k ~ Bernoulli(p_kt)   params["probability"]        (K, D)

``mask`` (N, D) is True where an entry was observed; an unobserved entry drops out of the product.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import xlog1py, xlogy

from tests.references import _mixture
from tests.references._shared import Array, Maybe, Pair, Params, filled, observed


def log_joint_table(params: Params, x: ArrayLike, mask: Maybe = None) -> Array:
    """log pi_k + sum_t log p(x_nt | k), (N, K)."""
    x, seen = filled(x, mask), observed(x, mask)
    proportion, probability = (np.asarray(params[s], dtype=np.float64) for s in ("mixing_proportion", "probability"))
    entries = xlogy(x[:, None], probability) + xlog1py(1.0 - x[:, None], -probability)
    with np.errstate(divide="ignore"):
        return np.log(proportion) + np.where(seen[:, None], entries, 0.0).sum(-1)


log_joint, log_evidence, posterior = _mixture.of(log_joint_table)


def expected_log_joint(params: Params, x: ArrayLike, weights: ArrayLike, mask: Maybe = None) -> float:
    """EM's objective sum_n sum_k r_nk log p(x_n, k)."""
    return float((np.asarray(weights) * log_joint_table(params, x, mask)).sum())


def m_step(
    x: ArrayLike, weights: ArrayLike, mask: Maybe = None, concentration: ArrayLike = 1.0, beta: Pair = (1.0, 1.0)
) -> dict[str, Array]:
    """The maximiser of the expected log joint + log prior for responsibilities r (N, K)::

    pi_k = (sum_n r_nk + alpha_k - 1) / (the same summed over k)
    p_kt = (sum_{n seen} r_nk x_nt + a - 1) / (sum_{n seen} r_nk + a + b - 2)
    """
    seen, r = observed(x, mask), np.asarray(weights, dtype=np.float64)
    present, total = r.T @ filled(x, mask) + beta[0] - 1.0, r.T @ seen.astype(float) + sum(beta) - 2.0
    return {"mixing_proportion": _mixture.proportions(r, concentration), "probability": present / total}
