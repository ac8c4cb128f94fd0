"""Exponential-family PCA with points ("map") or Gaussians for the scores ("variational", "gaussian", "laplace").

In the notation of :mod:`custom_inference.families.factors.natural`, with the prior N(m0, P^-1) of a row's scores:

- "map" (Collins, Dasgupta & Schapire 2002): the scores that maximise log p(x_n, s_n), the prior's constant left out, by
  Newton's method; concave, and every step is halved until it does not descend.
- "variational": q(s_n) = N(m_n, V_n), and the bound sum_g [T_g . E eta_g - L_g a_g] + log h - KL(q || prior), where a_g
  is E[A] itself for numbers and the tilted bound on it for categories and words. With the slopes p and D of a,

      gradient_m = sum_g w_g (T_g - L_g p_g) - P (m - m0),      -2 gradient_V = P + sum_g L_g w_g D_g w_g' - V^-1

  so that V^-1 <- (1 - h) V^-1 + h (P + sum_g L_g w_g D_g w_g'), m <- m + h V gradient_m is a step along the natural
  gradient (Khan & Lin, *Conjugate-computation variational inference*, AISTATS 2017), h halved until it does not
  descend.
- "gaussian": the bound whose curvature is the largest there is (Boehning 1992; exact for real numbers), best at the
  scores of "map": V_n^-1 = P + sum_g L_g w_g D w_g' at the constant D, and log p(x_n, m_n) less tr(V (V^-1 - P)) / 2.
- "laplace": log p(x_n, c_n) + K / 2 log 2 pi - 1/2 log|H_n| at the mode c_n, H_n minus the Hessian there: an estimate.
  Its gradient in w_gc counts that c_n and H_n move with it, by z = -H^-1 sum_g w_g tau_g / 2 (kept as "lean"), tau =
  d tr(w_g'H^-1 w_g L_g D) / d eta: residuals T - L p - tau / 2 - L D w'z in place of T - L p, and (T - L p) z beside.

The M step's equations (:mod:`custom_inference.families.factors.common`) have r of D in each column; u and c add to the
targets what the other categories of a group bring, at the present weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from custom_inference.core.engine import POINT, EStep, Objective, Params, Warm
from custom_inference.families.factors.common import FactorEngine, NewtonSteps, centre_logits
from custom_inference.families.factors.moving import Gaussians, Point, Points, equations
from custom_inference.families.factors.natural import Spread, pull_back
from custom_inference.families.factors.rows import FactorRows, ScoreProblem
from custom_inference.families.rows.base import BlockSteps
from ppl_models import MethodError, Model

#: Entries of the (rows, natural parameters) arrays per block: a few of them stay in cache.
_BLOCK_ENTRIES = 2**17


@dataclass(frozen=True, kw_only=True)
class ScoreEngine(FactorEngine):
    """E steps by Newton's method in blocks of rows, here of points.

    steps, cold_steps: steps an E step, from where the last ended and from the prior's mean.
    tolerance: of an E step, a row ends where its objective gains less than this.
    """

    steps: int = 2
    cold_steps: int = 30
    tolerance: float = 1e-9

    #: What is kept of a block beside the scores.
    keeps_tilt: ClassVar[bool] = False

    def moving(self, problem: ScoreProblem) -> Points:
        return Points(problem)

    def e_step(
        self, model: Model, params: Params, rows: FactorRows, warm: Warm = None, *,
        temperature: float = 1.0, generator: torch.Generator | None = None,
    ) -> EStep:  # fmt: skip
        steps, (groups, size) = BlockSteps(), rows.shape
        for block, part in rows.parts(max(64, _BLOCK_ENTRIES // (groups * size))):
            problem = part.problem(model, params, temperature)
            start = {k: v[block] for k, v in warm.items()} if warm else None
            moving, at = self._solve(problem, start, len(part))
            bound, found, statistics = self.summarise_rows(moving, at)
            steps.add(statistics, bound, **found)
        return steps.join()

    def _solve(self, problem: ScoreProblem, start: dict[str, Tensor] | None, size: int) -> tuple[Points, Point]:
        moving = self.moving(problem)
        if start is None:
            at, steps = moving.start(size), self.cold_steps
        else:
            precision = start.get("precision")
            if precision is None:
                precision = moving.prior.expand(size, -1, -1)
            tilt = start["tilt"].view_as(problem.target) if "tilt" in start else None
            at, steps = moving.at(start["score"], precision, tilt), self.steps
        return moving, moving.run_newton(at, steps, self.tolerance)

    def summarise_rows(self, moving: Points, at: Point) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
        """Return the bounds (N,), what is kept of the rows, and the statistics."""
        return at.objective, {"score": at.score}, equations(moving.problem, at, None, moving.curvature(at))


@dataclass(frozen=True, kw_only=True)
class FactorMap(NewtonSteps, ScoreEngine):
    """Point estimates of the scores beside those of the globals."""

    has_point_locals = True

    name = POINT
    objective: ClassVar[Objective] = "log joint"

    def summarise_rows(self, moving: Points, at: Point) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
        objective, kept, statistics = super().summarise_rows(moving, at)
        return objective + moving.problem.prior.log_constant(), kept, statistics


@dataclass(frozen=True, kw_only=True)
class FactorVariational(NewtonSteps, ScoreEngine):
    """The best Gaussians, under E[A] itself or the tilted bound on it."""

    name = "variational"

    def moving(self, problem: ScoreProblem) -> Points:
        return Gaussians(problem)

    def summarise_rows(self, moving: Points, at: Point) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
        assert at.covariance is not None
        kept = {"score": at.score, "covariance": at.covariance, "precision": at.precision}
        if at.tilt is not None:
            kept["tilt"] = at.tilt.flatten(1)
        return at.objective, kept, equations(moving.problem, at, at.covariance, moving.curvature(at))


@dataclass(frozen=True, kw_only=True)
class FactorGaussian(ScoreEngine):
    """Boehning's bound."""

    name = "gaussian"

    def check(self, model: Model, rows: FactorRows) -> None:
        """Raises MethodError also for likelihoods whose curvature has no bound."""
        super().check(model, rows)
        if not rows.normaliser().bounded:
            raise MethodError("log likelihoods of counts have no quadratic bound; use guide='variational'")

    def step_towards(self, model: Model, current: Tensor, found: Tensor, mean: Tensor, precision: Tensor) -> Tensor:
        return centre_logits(model, found, mean, precision)

    def summarise_rows(self, moving: Points, at: Point) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
        problem = moving.problem
        curvature = problem.normaliser.steepest(at.eta).scale_by(problem.total)
        spread = curvature.of_scores(problem.weight)
        factor = torch.linalg.cholesky(spread + moving.prior)
        covariance = torch.cholesky_inverse(factor)
        log_det = -2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        fit = problem.log_likelihood(at.eta, at.expected.normaliser) - 0.5 * (spread * covariance).sum((1, 2))
        bound = fit - problem.prior.kl_of(at.score, covariance, log_det)
        return bound, {"score": at.score, "covariance": covariance}, equations(problem, at, covariance, curvature)


@dataclass(frozen=True, kw_only=True)
class FactorLaplace(NewtonSteps, ScoreEngine):
    """Laplace's estimate of the evidence, and the Gaussians that it is made of."""

    name = "laplace"
    objective: ClassVar[Objective] = "estimate"
    steps: int = 30

    def summarise_rows(self, moving: Points, at: Point) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
        problem, curvature = moving.problem, moving.curvature(at)
        factor = torch.linalg.cholesky(moving.precision_at(at))
        covariance = torch.cholesky_inverse(factor)
        log_volume = -factor.diagonal(dim1=-2, dim2=-1).log().sum(-1) + 0.5 * problem.prior.precision.log().sum()
        tau = problem.total.unsqueeze(-1) * problem.normaliser.third(at.eta, Spread(covariance, problem.weight))
        pull = -0.5 * pull_back(tau, problem.weight).sum(1)
        z = (covariance @ pull.unsqueeze(-1)).squeeze(-1)
        along = (z @ problem.weight.flatten(1)).view_as(tau)
        residual = moving.residual(at) - 0.5 * tau - curvature.times(along)
        statistics = equations(problem, at, covariance, curvature, residual, z)
        return at.objective + log_volume, {"score": at.score, "covariance": covariance, "lean": z}, statistics
