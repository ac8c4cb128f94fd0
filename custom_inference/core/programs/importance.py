"""Estimates by importance sampling of log p(x_n) and of the posterior of latents that no sum and no quadrature reach.

For every value c of the finite latents draws come from a Student t about the mode with the curvature there, and
p(x_n) = sum_c mean_s p(x_n, c, u_cs) / q_c(u_cs). Pareto's k of the weights says whether the estimate can be relied on
(Vehtari et al., *Pareto smoothed importance sampling*, JMLR 2024): not above .7.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import pyro.distributions as dist
import torch
from torch import Tensor

from custom_inference.core.isolation import torch_seeded
from custom_inference.core.programs.density import RowDensity
from custom_inference.core.programs.modes import find_modes

#: Draws for every row and value of the finite latents, and degrees of freedom of the proposal.
DRAWS, _DEGREES = 1000, 6.0
#: Values of the finite latents, and real numbers, at most: each of the former has a mode of its own.
MOST_CONFIGURATIONS, MOST_REALS = 256, 60


class Weighted(NamedTuple):
    """codes (N, S, W) with log_weight (N, S), normalised; log_evidence (N,) with its standard_error (N,); pareto_k
    (N,)."""

    codes: Tensor
    log_weight: Tensor
    log_evidence: Tensor
    standard_error: Tensor
    pareto_k: Tensor


def sample_by_importance(density: RowDensity, *, draws: int = DRAWS, seed: int = 0) -> Weighted:
    """Weighted draws of every row's latents."""
    codes = density.layout.configurations(density.like)
    number, rows, size = len(codes), len(density), density.layout.num_reals
    with torch.no_grad():
        centre, root = find_modes(density, codes)
        with torch_seeded(seed):
            normal = torch.randn(number, draws, rows, size, dtype=centre.dtype)
            spread = dist.Gamma(_DEGREES / 2, _DEGREES / 2).sample((number, draws, rows)).to(centre)
        t = normal.to(centre) / spread.sqrt().unsqueeze(-1)
        u = centre[:, None] + torch.einsum("cnrs,cqns->cqnr", root, t)
        code, volume = density.constrain(codes.repeat_interleave(draws, 0)[:, None], u.flatten(0, 1))
        value = (density(code) + volume).reshape(number, draws, rows)
        log_q = _student(t) - torch.linalg.slogdet(root)[1][:, None]
        weight = (value - log_q).nan_to_num(nan=-torch.inf).flatten(0, 1).T - math.log(draws)
        evidence = weight.logsumexp(-1)
        share = (weight - evidence.unsqueeze(-1)).exp()
        apart = share.reshape(rows, number, draws)
        error = (apart.var(-1) * draws).sum(-1).sqrt()
        return Weighted(
            code.reshape(number * draws, rows, -1).transpose(0, 1), share.log(), evidence, error, pareto_k(weight)
        )


def _student(t: Tensor) -> Tensor:
    """Log density of the standard multivariate t over the last axis."""
    size, v = t.shape[-1], _DEGREES
    constant = math.lgamma((v + size) / 2) - math.lgamma(v / 2) - size / 2 * math.log(v * math.pi)
    return constant - (v + size) / 2 * torch.log1p(t.square().sum(-1) / v)


def pareto_k(log_weight: Tensor) -> Tensor:
    """The shape of the generalised Pareto distribution of the largest weights, (N,) of (N, S), by the estimate of Zhang
    and Stephens (Technometrics 2009)."""
    size = log_weight.shape[-1]
    tail = max(5, min(size // 5, math.ceil(3 * math.sqrt(size))))
    ordered = log_weight.sort(-1).values
    cut = ordered[:, -tail - 1 : -tail]
    excess = ((ordered[:, -tail:] - ordered[:, -1:]).exp() - (cut - ordered[:, -1:]).exp()).clamp_min(1e-300)
    return _fit_pareto(excess)


def _fit_pareto(x: Tensor) -> Tensor:
    """k of sorted excesses (N, n), with the weak prior that arviz and loo use."""
    n = x.shape[-1]
    number = 30 + math.isqrt(n)
    quarter, largest = x[:, int(n / 4 + 0.5) - 1], x[:, -1]
    place = torch.arange(1, number + 1).to(x) - 0.5
    b = (1 - (number / place).sqrt()) / (3 * quarter[:, None]) + 1 / largest[:, None]
    k = torch.log1p(-b[..., None] * x[:, None]).mean(-1)
    score = n * (torch.log(-b / k) - k - 1)
    weight = torch.softmax(score.nan_to_num(nan=-torch.inf), -1)
    best = (b * weight).sum(-1)
    found = torch.log1p(-best[:, None] * x).mean(-1)
    return (n * found + 5) / (n + 10)
