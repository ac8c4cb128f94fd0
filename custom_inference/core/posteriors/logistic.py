"""The exact posterior of the scores of logistic PCA: a density of no standard form, given up to its integral.

log p(s | x_n) = log p(x_n | s) + log N(s; prior) - log p(x_n), concave in s. Mean, covariance and log p(x_n) are
those of adaptive quadrature (:mod:`custom_inference.families.factors.quadrature`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from custom_inference.core.posteriors.scores import GridPosterior
from ppl_models.core.likelihood import log_two_cosh_half


class LogisticJoint(NamedTuple):
    """temperature log p(x_n | s) + log N(s; prior_mean, 1 / prior_precision) as a function of s.

    half: x - 1/2, 0 where not observed (N, D). weight (K, D), bias (D,). observed: 1 where x is, None: everywhere.
    """

    half: Tensor
    weight: Tensor
    bias: Tensor
    prior_mean: Tensor
    prior_precision: Tensor
    observed: Tensor | None = None
    temperature: float = 1.0

    def __call__(self, score: Tensor) -> Tensor:
        """Evaluate at scores (..., N, Q, K), with result (..., N, Q)."""
        odds = self.bias + score @ self.weight
        loss = log_two_cosh_half(odds.abs())
        loss = loss.sum(-1) if self.observed is None else (loss @ self.observed[..., None])[..., 0]
        fit = (odds @ self.half[..., None])[..., 0] - loss
        distance = ((score - self.prior_mean).square() * self.prior_precision).sum(-1)
        constant = 0.5 * (self.prior_precision.log().sum() - len(self.prior_mean) * math.log(2 * math.pi))
        return self.temperature * fit - 0.5 * distance + constant

    def mode(self, steps: int = 12) -> tuple[Tensor, Tensor]:
        """About the mode (N, K), and the Cholesky factor of minus the Hessian there (N, K, K).

        Newton steps where they climb, which they do near the mode; elsewhere steps under the bound whose curvature is
        the largest there is, 1/4 for every feature (Boehning 1992), which never descend.
        """
        at = self.prior_mean.expand(len(self.half), -1)
        every, row = self._curvature(torch.full_like(self.half, 0.25)), torch.arange(len(at), device=at.device)
        for _ in range(steps):
            slope, factor = self._slope_and_curvature(at)
            moves = [torch.cholesky_solve(slope[..., None], each)[..., 0] for each in (factor, every)]
            candidates = torch.stack([at, at + moves[0], at + moves[1]], 1)
            at = candidates[row, self(candidates).argmax(-1)]
        return at, self._slope_and_curvature(at)[1]

    def _slope_and_curvature(self, at: Tensor) -> tuple[Tensor, Tensor]:
        """The gradient (N, K) at scores (N, K), and the Cholesky factor of minus the Hessian."""
        odds = self.bias + at @ self.weight
        miss = self.half - self._where_observed(torch.tanh(odds / 2) / 2)
        slope = self.temperature * miss @ self.weight.T - self.prior_precision * (at - self.prior_mean)
        return slope, self._curvature(torch.sigmoid(odds) * torch.sigmoid(-odds))

    def _curvature(self, rate: Tensor) -> Tensor:
        """The Cholesky factor (N, K, K) of sum_d rate_nd w_d w_d' + the prior's precision."""
        pairs = (self.weight[:, None] * self.weight).flatten(0, 1)
        size = len(self.weight)
        total = (self.temperature * self._where_observed(rate) @ pairs.T).reshape(-1, size, size)
        return torch.linalg.cholesky(total + torch.diag(self.prior_precision))

    def _where_observed(self, value: Tensor) -> Tensor:
        return value if self.observed is None else value * self.observed


@dataclass(frozen=True)
class LogisticPosterior(GridPosterior):
    """p(s_n | x_n) of logistic PCA with few components.

    location (N, K), covariance (N, K, K), log_evidence (N,): its mean, its covariance and log p(x_n). half (N, D),
    weight (K, D), bias (D,), prior_mean and prior_precision (K,): see :class:`LogisticJoint`.
    """

    half: Annotated[Tensor, "nd"]
    weight: Annotated[Tensor, "kd"]
    bias: Annotated[Tensor, "d"]
    prior_mean: Annotated[Tensor, "k"]
    prior_precision: Annotated[Tensor, "k", "positive"]

    @property
    def joint_density(self) -> LogisticJoint:
        """log p(x_n, s)."""
        seen = self.half != 0
        observed = None if bool(seen.all()) else seen.to(self.half)
        return LogisticJoint(self.half, self.weight, self.bias, self.prior_mean, self.prior_precision, observed)

    @property
    def num_columns(self) -> int:
        return len(self.bias)

    @property
    def mode(self) -> Tensor:
        return self.joint_density.mode(steps=30)[0]
