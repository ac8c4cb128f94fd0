"""Points and Gaussians for the scores of exponential-family PCA: objectives, Newton's steps, sums for M steps.

The mathematics is that of :mod:`custom_inference.families.factors.newton`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from custom_inference.core.optimize.newton import cut_steps
from custom_inference.families.factors.natural import Curvature, NaturalExpectations, Spread, extend_moments
from custom_inference.families.factors.rows import ScoreProblem


class Point(NamedTuple):
    """The state of rows: scores (N, K) with precisions and covariances (N, K, K; None: points), the tilt of groups of
    categories (N, G, C); what is expected there, and the objective (N,)."""

    score: Tensor
    precision: Tensor
    covariance: Tensor | None
    tilt: Tensor | None
    expected: NaturalExpectations
    eta: Tensor
    objective: Tensor


class Points:
    """A problem whose points s_n are evaluated and moved."""

    def __init__(self, problem: ScoreProblem):
        self.problem, self.prior = problem, torch.diag(problem.prior.precision)

    def at(self, score: Tensor, precision: Tensor, tilt: Tensor | None) -> Point:
        """Evaluate the rows at given scores. tilt: of the bound, of groups of categories."""
        problem, eta = self.problem, self.problem.eta(score)
        expected = problem.normaliser.at(eta)
        objective = problem.log_likelihood(eta, expected.normaliser) + problem.prior.log_kernel(score)
        return Point(score, precision, None, tilt, expected, eta, objective)

    def start(self, size: int) -> Point:
        """Return the prior's mean, with the curvature there."""
        score = self.problem.prior.mean.expand(size, -1)
        first = Points.at(self, score, self.prior.expand(size, -1, -1), None)
        share = first.expected.curvature.share
        return self.at(score, self.precision_at(first), share)

    def residual(self, at: Point) -> Tensor:
        """Compute T - L p, (N, G, C)."""
        return self.problem.target - self.problem.total.unsqueeze(-1) * at.expected.mean

    def gradient(self, at: Point) -> Tensor:
        """Compute the gradient of the objective in the scores, (N, K)."""
        prior = self.problem.prior
        slope = self.residual(at).flatten(1) @ self.problem.weight.flatten(1).T
        return slope - prior.precision * (at.score - prior.mean)

    def curvature(self, at: Point) -> Curvature:
        """Compute L D of every group."""
        return at.expected.curvature.scale_by(self.problem.total)

    def precision_at(self, at: Point) -> Tensor:
        """Compute P + sum_g L_g w_g D_g w_g', (N, K, K)."""
        # A flat prior is held up where there is no curvature either, which moves no optimum.
        little = torch.finfo(self.prior.dtype).eps * torch.eye(len(self.prior)).to(self.prior)
        return self.curvature(at).of_scores(self.problem.weight) + self.prior + little

    def step(self, at: Point, size: Tensor) -> Point:
        """Take one step of Newton's method, halved in each row until it does not lower the objective; size (N,): 1, or
        0 of rows that stay."""
        aim, gradient = self.precision_at(at), self.gradient(at)
        slack = 8 * torch.finfo(size.dtype).eps * (1 + at.objective.abs())

        def move(size: Tensor) -> tuple[Point, Tensor]:
            share = size.view(-1, 1, 1)
            precision = at.precision + share * (aim - at.precision)
            factor = torch.linalg.cholesky(aim if at.covariance is None else precision)
            way = torch.cholesky_solve(gradient.unsqueeze(-1), factor).squeeze(-1)
            best, tilt = at.expected.tilt, at.tilt
            if best is not None and tilt is not None:
                tilt = tilt + share * (best - tilt)
            new = self.at(at.score + size.unsqueeze(-1) * way, precision, tilt)
            return new, new.objective

        return cut_steps(move, at.objective - slack, size=size)

    def run_newton(self, at: Point, steps: int, tolerance: float) -> Point:
        """Take so many steps at most. A row whose objective gains less than the tolerance stays where it is, so that
        where it ends does not depend on the rows beside it."""
        active = torch.ones_like(at.objective)
        for _ in range(steps):
            before, at = at, self.step(at, active)
            active = active * (at.objective - before.objective >= tolerance)
            if not bool(active.any()):
                break
        return at


class Gaussians(Points):
    """A problem whose Gaussians N(m_n, V_n) are evaluated and moved."""

    def at(self, score: Tensor, precision: Tensor, tilt: Tensor | None) -> Point:
        problem, eta = self.problem, self.problem.eta(score)
        factor = torch.linalg.cholesky(precision)
        covariance = torch.cholesky_inverse(factor)
        expected = problem.normaliser.over(eta, Spread(covariance, problem.weight), tilt)
        log_det = -2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        objective = problem.log_likelihood(eta, expected.normaliser) - problem.prior.kl_of(score, covariance, log_det)
        return Point(score, precision, covariance, tilt, expected, eta, objective)


def equations(
    problem: ScoreProblem,
    at: Point,
    covariance: Tensor | None,
    curvature: Curvature,
    residual: Tensor | None = None,
    beside: Tensor | None = None,
) -> dict[str, Tensor]:
    """Compute pair (M, (K + 1)^2) and target (M, K + 1) of the rows.

    residual (N, G, C): in place of T - L p at the scores. beside (N, K): z, by which T - L p is multiplied besides.
    """
    plain = problem.target - problem.total.unsqueeze(-1) * at.expected.mean
    residual = plain if residual is None else residual
    one, pair = extend_moments(at.score, covariance)
    rate = curvature.rate.flatten(1)
    eta = at.eta if problem.offset is None else at.eta - problem.offset.view(-1, 1, 1)
    # Of categories that a feature lacks the rate is 0, and their logits are no numbers to reckon with.
    target = (residual.flatten(1) + torch.where(rate > 0, rate * eta.flatten(1), 0.0)).T @ one
    aside = torch.zeros_like(target[:, :-1]) if beside is None else plain.flatten(1).T @ beside
    if covariance is not None and curvature.share is not None and curvature.strength is not None:
        turned = curvature.strength.unsqueeze(-1) * Spread(covariance, problem.weight).apply_to(curvature.share)
        aside = aside + torch.einsum("ngc,ngk->gck", curvature.share, turned).flatten(0, 1)
    return {"pair": rate.T @ pair, "target": target + torch.nn.functional.pad(aside, (0, 1))}
