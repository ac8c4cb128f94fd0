"""Brute-force references for bilinear factors of choices (source 002, section 27.6.2). No project code.

    p(x_ut = l) = exp(a_u'b_(v_l)) / sum_m exp(a_u'b_(v_m))      over the items v_l that were shown

with the factors of tests/references/bilinear_pmf.py. x (U, T) places, shown (U, T, L) items, -1 where a place is empty;
without it all items are shown in their order.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logsumexp

from tests.references import _shared
from tests.references._shared import Array, Maybe, Params, Priors
from tests.references.bilinear_pmf import log_odds


def log_likelihood(
    params: Params, x: ArrayLike, user: ArrayLike, mask: Maybe = None, shown: Maybe = None,
    user_covariates: Maybe = None, item_covariates: Maybe = None,
) -> Array:  # fmt: skip
    """log p(x_u | user_u), (U,), one choice at a time."""
    theta = log_odds(params, user, user_covariates, item_covariates)
    seen, x = _shared.observed(x, mask), _shared.filled(x, mask)
    total = np.zeros(len(x))
    for u, t in zip(*np.nonzero(seen), strict=True):
        items = np.arange(theta.shape[1]) if shown is None else np.asarray(shown)[u, t].astype(int)
        scores = theta[u, items[items >= 0]]
        total[u] += theta[u, items[int(x[u, t])]] - logsumexp(scores)
    return total


def log_joint(
    params: Params, x: ArrayLike, user: ArrayLike, mask: Maybe = None, priors: Priors = None, shown: Maybe = None,
    user_covariates: Maybe = None, item_covariates: Maybe = None,
) -> float:  # fmt: skip
    """log p(globals) + sum_u log p(user_u) + sum_u log p(x_u | user_u); a global that ``priors`` leaves out is flat."""
    return _joint(params, x, user, mask, priors, shown, user_covariates, item_covariates)


_joint = _shared.log_joint_of(log_likelihood, "user", ("normal", 0.0, 1.0))


def log_evidence_hermite(
    params: Params, x: ArrayLike, mask: Maybe = None, shown: Maybe = None, points: int = 30
) -> Array:
    """log p(x_u) with the user's own factor integrated out by a Gauss-Hermite product rule, (U,); without features."""
    grid, log_weight = _shared.hermite(np.shape(params["item"])[1], points)
    rows = [log_likelihood(params, x, np.tile(one, (len(np.asarray(x)), 1)), mask, shown) for one in grid]
    return np.asarray(logsumexp(np.array(rows).T + log_weight, axis=1))
