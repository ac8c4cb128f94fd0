"""The mixture of multinomials as a distribution over counts: the tokens' in order times their number of orders."""

from __future__ import annotations

from collections.abc import Mapping

from numpy.typing import ArrayLike

from tests.references import mixture_of_multinomials as in_order
from tests.references._shared import Array, Params, Prior
from tests.references.mixture_of_multinomials import m_step, posterior

__all__ = ["log_evidence", "log_joint", "m_step", "posterior"]


def log_joint(
    params: Params,
    x: ArrayLike,
    component: ArrayLike,
    mask: ArrayLike | None = None,
    priors: Mapping[str, Prior] | None = None,
) -> float:
    """With log(L_n! / prod_v n_nv!) of every document (eq. 27.4)."""
    return in_order.log_joint(params, x, component, mask, priors, coefficient=True)


def log_evidence(params: Params, x: ArrayLike, mask: ArrayLike | None = None) -> Array:
    """log p(n_n), (N,)."""
    return in_order.log_evidence(params, x, mask, coefficient=True)
