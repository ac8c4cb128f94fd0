"""Concentrations and shapes of priors by maximum likelihood, from expected logarithms of what they are priors of.

For N vectors p_i ~ Dirichlet(a) with means g_k = (1/N) sum_i E[log p_ik], the expected log density divided by N is

    f(a) = log Gamma(sum_k a_k) - sum_k log Gamma(a_k) + sum_k (a_k - 1) g_k,

concave in a. Its maximum solves psi(a_k) = psi(sum_j a_j) + g_k; setting a to psi^-1 of the right-hand side never
lowers f (Minka, *Estimating a Dirichlet distribution*, 2000, section 1).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import digamma
from torch import Tensor

from custom_inference.core.optimize.newton import decreasing_root

#: Learned concentrations stay above this: exp(psi(a)), about exp(-1 / a), is still a number.
LEAST = 4e-3
_MOST = 1e6
#: Learned shapes of Gammas stay above this; Newton steps for them.
LEAST_SHAPE, _STEPS = 1e-3, 8
#: Concentrations that are learned from counts stay above this.
_LEAST_OF_COUNTS = 1e-6


def fit_concentration(mean_log: Tensor, start: Tensor, *, iterations: int = 20) -> Tensor:
    """Fit a concentration for every component by Minka's fixed point from ``start`` (K,)."""
    concentration = start
    for _ in range(iterations):
        before = concentration
        target = torch.digamma(before.sum()) + mean_log
        concentration = inverse_digamma(target).clamp(LEAST, _MOST)
        if bool(((concentration - before).abs() <= 1e-9 * concentration).all()):
            break
    return concentration


def inverse_digamma(value: Tensor) -> Tensor:
    """Compute psi^-1 by Newton's method, from Minka's start (appendix C); five steps give full precision."""
    start = torch.where(value >= -2.22, value.exp() + 0.5, -1 / (value - torch.digamma(value.new_ones(()))))
    for _ in range(5):
        start = start - (torch.digamma(start) - value) / torch.polygamma(1, start)
    return start


def fit_scale(mean_log: Tensor, base: Tensor, start: Tensor) -> Tensor:
    """Find the factor s, a scalar, that maximises f(s base): one strength, the shares of the components being given.

    f'(s) = M psi(s M) - sum_v m_v psi(s m_v) + sum_v m_v g_v falls in s; m = base, M = sum m.
    """
    total = base.sum()

    def slope(s: Tensor) -> tuple[Tensor, Tensor]:
        value = total * torch.digamma(s * total) - (base * torch.digamma(s * base)).sum() + (base * mean_log).sum()
        bend = total**2 * torch.polygamma(1, s * total) - (base**2 * torch.polygamma(1, s * base)).sum()
        return value.reshape(1), bend.reshape(1)

    lower, upper = base.new_tensor([LEAST]) / base.min(), base.new_tensor([_MOST]) / base.max()
    return decreasing_root(slope, lower, upper, start.reshape(1)).squeeze(0)


def fit_shape(mean: Tensor, mean_log: Tensor, start: Tensor) -> Tensor:
    """Find the most probable shapes of Gammas of these means and mean logarithms: the root of log a - psi(a) = log mean
    - mean log, by Newton steps in 1 / a (Minka, *Estimating a Gamma distribution*, 2002, eq. 10)."""
    apart, shape = (mean.log() - mean_log).clamp(min=1e-9), start
    for _ in range(_STEPS):
        slope = shape * (1 - shape * torch.polygamma(1, shape))
        inverse = 1 / shape + (shape.log() - torch.digamma(shape) - apart) / slope
        shape = (1 / inverse.clamp(min=1e-6)).clamp(LEAST_SHAPE, _MOST)
    return shape


def update_concentration(
    counts: NDArray[Any], concentration: NDArray[np.float64], *, symmetric: bool = False
) -> NDArray[np.float64]:
    """Take one step up log prod_i E[prod_k p_k^{c_ik}] with p ~ Dirichlet(a).

    Minka, *Estimating a Dirichlet distribution*, 2000, eq. 55:

        a_k <- a_k sum_i [psi(c_ik + a_k) - psi(a_k)] / sum_i [psi(c_i + sum a) - psi(sum a)]

    symmetric: all a_k the same, numerator and denominator both summed over k. Where a document lacks topics, and its
    row of concentrations (N, K) is 0 there, it counts for those that it has.
    """
    if concentration.ndim > 1:
        return _update_row_concentration(counts, concentration)
    total, mass = counts.sum(1), concentration.sum()
    below = (digamma(total + mass) - digamma(mass)).sum()
    above = (digamma(counts + concentration) - digamma(concentration)).sum(0)
    ratio = (concentration * above).sum() / mass if symmetric else above
    if below <= 0:
        return concentration
    return np.maximum(concentration * ratio / below, _LEAST_OF_COUNTS)


def _update_row_concentration(counts: NDArray[Any], concentration: NDArray[np.float64]) -> NDArray[np.float64]:
    """Take one step of the concentration that all rows share; return it by row, (N, K), 0 where it was."""
    allowed, mass = concentration > 0, concentration.sum(1)
    below = ((digamma(counts.sum(1) + mass) - digamma(mass))[:, None] * allowed).sum(0)
    own = np.where(allowed, concentration, 1.0)
    above = ((digamma(np.where(allowed, counts, 0) + own) - digamma(own)) * allowed).sum(0)
    found = concentration.max(0) * np.where(below > 0, above / np.where(below > 0, below, 1.0), 1.0)
    return np.where(allowed, np.maximum(found, _LEAST_OF_COUNTS), 0.0)
