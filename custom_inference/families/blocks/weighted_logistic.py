"""Penalised logistic regressions of the same responses with weights of their own, by Newton's method."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import softplus

from custom_inference.core.optimize.newton import cut_steps

#: Entries of the (regressions, observations) arrays of a block.
_BLOCK = 2**20
#: Newton steps of a call, and the largest change of a coefficient in a step.
_NEWTON, _LARGEST = 8, 4.0
#: Share of the curvature by which flat directions are held back.
_RIDGE = 1e-8


def objectives(beta: Tensor, x: Tensor, design: Tensor, weight: Tensor, mean: Tensor, precision: Tensor) -> Tensor:
    """Compute sum_e w_pe log p(x_e | beta_p' f_e) - sum_f precision_pf (beta_pf - mean_pf)^2 / 2, (P,)."""
    penalty = (precision * (beta - mean) ** 2).sum(-1) / 2
    logit = beta @ design.T
    return -(weight * softplus(torch.where(x > 0.5, -logit, logit))).sum(-1) - penalty


def fit_weighted(beta: Tensor, x: Tensor, design: Tensor, weight: Tensor, mean: Tensor, precision: Tensor) -> Tensor:
    """Return coefficients (P, F) that raise every objective, from ``beta``; at its maximum where a few steps lead
    there.

    x (E,) 0 or 1; design (E, F); weight (P, E), not negative; mean, precision (P, F) of the Normal priors.
    """
    value = objectives(beta, x, design, weight, mean, precision)
    for _ in range(_NEWTON):
        step = _newton_step(beta, x, design, weight, mean, precision)

        def move(size: Tensor, beta: Tensor = beta, step: Tensor = step) -> tuple[tuple[Tensor, Tensor], Tensor]:
            moved = beta + step * size[:, None]
            found = objectives(moved, x, design, weight, mean, precision)
            return (moved, found), found

        before = value
        beta, value = cut_steps(move, torch.nextafter(value, torch.full_like(value, torch.inf)), cuts=12)
        if bool((value - before <= 1e-12 * value.abs()).all()):
            break
    return beta


def _newton_step(beta: Tensor, x: Tensor, design: Tensor, weight: Tensor, mean: Tensor, precision: Tensor) -> Tensor:
    gradient = -precision * (beta - mean)
    curvature = torch.diag_embed(precision)
    size = max(1, _BLOCK // len(beta))
    for start in range(0, len(x), size):
        part = slice(start, start + size)
        f, w = design[part], weight[:, part]
        p = torch.sigmoid(beta @ f.T)
        gradient = gradient + (w * (x[part] - p)) @ f
        curvature = curvature + torch.einsum("pe,ef,eg->pfg", w * p * (1 - p), f, f)
    diagonal = curvature.diagonal(dim1=1, dim2=2)
    ridge = _RIDGE * diagonal.amax(-1, keepdim=True) + torch.finfo(beta.dtype).tiny ** 0.5
    step = torch.linalg.solve(curvature + torch.diag_embed(ridge.expand_as(diagonal)), gradient)
    return step * (_LARGEST / step.abs().amax(-1, keepdim=True).clamp_min(_LARGEST))
