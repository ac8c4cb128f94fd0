"""Maximum likelihood for the concentrations of Dirichlet priors, from expected logarithms of what they are priors of.

For N vectors p_i with means g_k = (1/N) sum_i E[log p_ik], the expected log density divided by N is

    f(a) = log Gamma(sum_k a_k) - sum_k log Gamma(a_k) + sum_k (a_k - 1) g_k,

concave in a. Its maximum solves psi(a_k) = psi(sum_j a_j) + g_k; setting a to psi^-1 of the right-hand side never
lowers f (Minka, *Estimating a Dirichlet distribution*, 2000, section 1).
"""

from __future__ import annotations

import torch
from torch import Tensor

from custom_inference.families.common.roots import decreasing_root

#: Concentrations stay above this: exp(psi(a)), about exp(-1 / a), is still a number.
LEAST = 4e-3
_MOST = 1e6


def fixed_point(mean_log: Tensor, start: Tensor, *, iterations: int = 20) -> Tensor:
    """Minka's fixed point from ``start`` (K,): a concentration for every component."""
    concentration = start
    for _ in range(iterations):
        before = concentration
        target = torch.digamma(before.sum()) + mean_log
        concentration = inverse_digamma(target).clamp(LEAST, _MOST)
        if bool(((concentration - before).abs() <= 1e-9 * concentration).all()):
            break
    return concentration


def inverse_digamma(value: Tensor) -> Tensor:
    """psi^-1 by Newton's method, from Minka's start (appendix C); five steps give full precision."""
    start = torch.where(value >= -2.22, value.exp() + 0.5, -1 / (value - torch.digamma(value.new_ones(()))))
    for _ in range(5):
        start = start - (torch.digamma(start) - value) / torch.polygamma(1, start)
    return start


def learned_scale(mean_log: Tensor, base: Tensor, start: Tensor) -> Tensor:
    """The factor s, a scalar, that maximises f(s base): one strength, the shares of the components being given.

    f'(s) = M psi(s M) - sum_v m_v psi(s m_v) + sum_v m_v g_v falls in s; m = base, M = sum m.
    """
    total = base.sum()

    def slope(s: Tensor) -> tuple[Tensor, Tensor]:
        value = total * torch.digamma(s * total) - (base * torch.digamma(s * base)).sum() + (base * mean_log).sum()
        bend = total**2 * torch.polygamma(1, s * total) - (base**2 * torch.polygamma(1, s * base)).sum()
        return value.reshape(1), bend.reshape(1)

    lower, upper = base.new_tensor([LEAST]) / base.min(), base.new_tensor([_MOST]) / base.max()
    return decreasing_root(slope, lower, upper, start.reshape(1)).squeeze(0)
