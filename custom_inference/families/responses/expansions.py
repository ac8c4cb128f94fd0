"""Lower bounds on log p(y | eta) that are quadratic in every entry of eta, at given moments.

binary        Jaakkola & Jordan's bound on the sigmoid, best at xi^2 = E[eta^2]
categorical   Boehning's on the softmax, its curvature (I - 1 1' / C) / 2 widened to I / 2
real          the log density itself
counts        e^eta <= e^t + e^t (eta - t) + kappa (eta - t)^2 / 2 for eta <= m,
              kappa = 2 [e^(m - t) - 1 - (m - t)] e^t / (m - t)^2,   since the third derivative of e^eta is positive;
              eta is a mean of weights, so that m is the largest weight (and ``MARGIN``, for the next weights)
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ppl_models.likelihoods import Bernoulli

#: Log rates grow by no more than this in an M step.
MARGIN = 0.5


class ResponseExpansion(NamedTuple):
    """constant (N,), slope and curvature (N, D): constant + sum_r (slope_r eta_r - curvature_r eta_r^2 / 2)."""

    constant: Tensor
    slope: Tensor
    curvature: Tensor


def expand_bound(
    kind: str, response: Tensor, mean: Tensor, second: Tensor, weight: Tensor, scale: Tensor | None
) -> ResponseExpansion:
    """Compute the bounds at E[eta] = mean and E[eta^2] = second, (N, D); 0 where the response (N, R) is NaN.

    weight: (D, K). scale: of real responses, () or (R,).
    """
    seen, y = ~torch.isnan(response), torch.nan_to_num(response)
    if kind == "categorical":
        constant, slope, curvature = _softmax(y[:, 0].long(), mean)
    elif kind == "binary":
        constant, slope, curvature = Bernoulli().jaakkola(y, second.clamp_min(0).sqrt())
    elif kind == "counts":
        constant, slope, curvature = _rate(y, mean, weight.amax(1))
    else:
        assert scale is not None
        curvature = scale.square().reciprocal().expand_as(y)
        constant = -0.5 * (math.log(2 * math.pi) - curvature.log() + curvature * y.square())
        slope = curvature * y
    zero = torch.zeros_like
    constant = torch.where(seen, constant, zero(constant)).sum(1)
    return ResponseExpansion(constant, *(torch.where(seen, part, zero(part)) for part in (slope, curvature)))


def _softmax(y: Tensor, at: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    chance = torch.softmax(at, 1)
    constant = ((chance - at / 4) * at).sum(1, keepdim=True) - at.logsumexp(1, keepdim=True)
    chosen = torch.nn.functional.one_hot(y, at.shape[1]).to(at)
    return constant, chosen - chance + at / 2, torch.full_like(at, 0.5)


def _rate(y: Tensor, at: Tensor, most: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    at = torch.minimum(at, most)
    reach, rate = most + MARGIN - at, at.exp()
    curvature = 2 * rate * (torch.expm1(reach) - reach) / reach.square()
    constant = rate * (at - 1) - 0.5 * curvature * at.square() - torch.lgamma(y + 1)
    return constant, y - rate + curvature * at, curvature
