"""Brute-force references for the cooperative vector quantizer (CVQ).

Written from the mathematics alone (slides 003, "Cooperative Vector Quantizer", with the Gaussian constant that they
lack), by summing over all 2^K codes.
It imports no project code.

Notation, for row n, feature j and source i::

    s in {0,1}^K,  P(s_i = 1) = pi_i                          params["source_prior"]  (K,)
    x_nj | s ~ Normal(sum_i s_i w_ij, sigma_j^2)              params["weight"]        (K, D)
                                                              params["scale"]         () or (D,), sigma

``mask`` (N, D) is True where an entry was observed; an unobserved entry drops out of the product, whatever ``x``
holds there. Everything is float64.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from tests.references import _shared
from tests.references._shared import Array, Maybe, Params, Priors
from tests.references.noca import log_code_prior


def _scale(params: Params) -> Array:
    """sigma_j, (D,)."""
    return np.broadcast_to(np.asarray(params["scale"], dtype=np.float64), np.shape(params["weight"])[1:])


def _log_likelihood(params: Params, x: ArrayLike, code: Array, mask: Maybe) -> Array:
    """log p(x_n | s) of one code (K,) or one code a row (N, K), (N,)."""
    seen, sigma = _shared.observed(x, mask), _scale(params)
    residual = _shared.filled(x, mask) - np.asarray(code, dtype=np.float64) @ params["weight"]
    density = -0.5 * np.log(2 * np.pi * sigma**2) - residual**2 / (2 * sigma**2)
    return np.where(seen, density, 0.0).sum(1)


def log_joint(params: Params, x: ArrayLike, source: ArrayLike, mask: Maybe = None, priors: Priors = None) -> float:
    """log p(globals) + sum_n log P(s_n) + sum_n log p(x_n | s_n), a scalar; sites without a prior are flat."""
    source = np.asarray(source, dtype=np.float64)
    rows = log_code_prior(params, source) + _log_likelihood(params, x, source, mask)
    return float(rows.sum()) + _shared.log_priors(params, priors)


def log_joint_table(params: Params, x: ArrayLike, mask: Maybe = None) -> Array:
    """log p(x_n, s) of every row and every code, (N, 2^K), columns in the order of ``all_codes``."""
    codes = _shared.all_codes(len(params["source_prior"]))
    columns = [_log_likelihood(params, x, code, mask) + log_code_prior(params, code) for code in codes]
    return np.stack(columns, axis=1)


log_evidence, posterior = _shared.summed_out(log_joint_table)
