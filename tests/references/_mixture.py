"""What the references of mixtures share: sums over the class of each row. No project code."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from tests.references._shared import Array, Function, log_priors, summed_out


def of(table: Function) -> tuple[Callable[..., float], Function, Function]:
    """(log_joint, log_evidence, posterior) of a mixture, from its table (N, K) of log pi_k + log p(x_n | c_n = k)."""

    def log_joint(params, x, component, mask=None, priors=None) -> float:
        """log p(globals) + sum_n log pi_{c_n} + sum_n log p(x_n | c_n); ``component`` one-hot (N, K)."""
        each = table(params, x, mask)
        return float(each[np.arange(len(each)), np.asarray(component).argmax(1)].sum()) + log_priors(params, priors)

    return log_joint, *summed_out(table)


def proportions(weights: ArrayLike, concentration: ArrayLike = 1.0) -> Array:
    """pi_k = (sum_n r_nk + alpha_k - 1) / (the same summed over k)."""
    share = np.asarray(weights, dtype=np.float64).sum(0) + np.asarray(concentration) - 1.0
    return share / share.sum()
