"""Regression of responses on topic shares, with Normal priors of the weights: the mode, by Newton's method.

    J(W) = sum_n log p(y_n | eta = W q_n) - sum_r (w_r - m_r)' T_r (w_r - m_r) / 2,   T diagonal

is concave in W. Steps are halved until J does not fall.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from custom_inference.core.optimize.newton import cut_steps
from ppl_models.core.likelihood import ExponentialFamily


class Regression(NamedTuple):
    """weight (D, K); precision (D K, D K): minus the Hessian of J there; value: J."""

    weight: Tensor
    precision: Tensor
    value: Tensor


def log_responses(likelihood: ExponentialFamily, y: Tensor, eta: Tensor, scale: Tensor | None = None) -> Tensor:
    """sum_r log p(y_nr | eta_nr), (N,), of what is known. eta: (N, D). scale: of real responses."""
    seen, given = ~torch.isnan(y), torch.nan_to_num(y)
    if likelihood.is_vector:
        return torch.where(seen[:, 0], likelihood.log_prob(given[:, 0], eta), 0.0)
    if scale is not None:
        each = torch.distributions.Normal(eta, scale).log_prob(given)
    else:
        each = likelihood.log_prob(given, eta)
    return torch.where(seen, each, torch.zeros_like(each)).sum(1)


def residuals(likelihood: ExponentialFamily, y: Tensor, eta: Tensor, scale: Tensor | None = None) -> Tensor:
    """d log p(y_n | eta_n) / d eta_n, (N, D); 0 where y is unknown."""
    seen, given = ~torch.isnan(y), torch.nan_to_num(y)
    if likelihood.is_vector:
        given = torch.nn.functional.one_hot(given[:, 0].long(), eta.shape[1]).to(eta)
    gap = torch.where(seen, given - likelihood.mean(eta), torch.zeros_like(eta))
    return gap if scale is None else gap / scale.square()


def fit_regression(
    likelihood: ExponentialFamily,
    y: Tensor,
    q: Tensor,
    centre: Tensor,
    precision: Tensor,
    start: Tensor,
    *,
    scale: Tensor | None = None,
    steps: int = 30,
    tolerance: float = 1e-8,
) -> Regression:
    """y: (N, R), NaN where unknown. q: (N, K). centre, precision, start: (D, K). scale: of real responses."""

    def objective(weight: Tensor) -> Tensor:
        fitted = log_responses(likelihood, y, q @ weight.T, scale).sum()
        return fitted - 0.5 * (precision * (weight - centre).square()).sum()

    weight, value = start, objective(start)
    hessian = _hessian(likelihood, y, q, weight, precision, scale)
    for _ in range(steps):
        slope = residuals(likelihood, y, q @ weight.T, scale).T @ q - precision * (weight - centre)
        step = torch.linalg.solve(hessian, slope.flatten()).view_as(weight)

        def move(size: Tensor, weight: Tensor = weight, step: Tensor = step) -> tuple[tuple[Tensor, Tensor], Tensor]:
            after = objective(weight + size * step)
            return (weight + size * step, after), after

        before = value
        weight, value = cut_steps(move, value - 1e-10 * (1 + value.abs()), cuts=20)
        gain = value - before
        hessian = _hessian(likelihood, y, q, weight, precision, scale)
        if float(gain) < tolerance * (1 + abs(float(value))):
            break
    return Regression(weight, hessian, value)


def _hessian(
    likelihood: ExponentialFamily, y: Tensor, q: Tensor, weight: Tensor, precision: Tensor, scale: Tensor | None
) -> Tensor:
    """(D K, D K); of separate responses block diagonal."""
    curvature = likelihood.curvature(q @ weight.T)
    size, width = weight.shape
    ridge = torch.diag(precision.flatten()) + 1e-10 * torch.eye(size * width).to(q)
    if likelihood.is_vector:
        curvature = torch.where(torch.isnan(y)[:, :, None], 0.0, curvature)
        blocks = torch.einsum("ncd,nk,nj->ckdj", curvature, q, q)
        return blocks.reshape(size * width, size * width) + ridge
    curvature = torch.where(torch.isnan(y), torch.zeros_like(curvature), curvature)
    curvature = curvature if scale is None else curvature / scale.square()
    return torch.block_diag(*((q * one[:, None]).T @ q for one in curvature.T)) + ridge
