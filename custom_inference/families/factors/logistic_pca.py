"""Logistic PCA with point scores ("map") and with Gaussian posteriors of the scores ("gaussian").

Under ``Bernoulli().jaakkola(x, xi)``, with slope x - 1/2 and curvature c(xi), log p(x | theta) of log-odds theta is
bounded by a quadratic: every update of scores and of weights is a least-squares problem, and none lowers the objective
(Schein, Saul & Ungar 2003, eqs. 5-11, with their T = c(theta)). Its parts are taken one by one, as sweeps over the
scores need the curvature alone. Both engines alternate between xi and the scores:

- "map" (Schein, Saul & Ungar 2003): xi = |theta| at the current scores, where the bound touches the likelihood. The
  objective is sum log p(x_n | s_n) - (s_n - m)' P (s_n - m) / 2, the prior's constant left out. In the scores alone it
  is concave, so that the E step, repeated, ends at the best scores whatever it starts from.
- "gaussian" (Tipping 1999): q(s_n) = N(m_n, V_n), V_n^-1 = P + sum_t c(xi_nt) w_t w_t', and at the best
  xi_nt^2 = E_q[theta_nt^2] = (b_t + w_t'm_n)^2 + w_t'V_n w_t the bound on log p(x_n) is
  sum_t [(x_nt - 1/2) E theta_nt - log(2 cosh(xi_nt / 2))] - KL(q(s_n) || prior).

The statistics sum_n c_nt E[s~ s~'] and sum_n (x_nt - 1/2) E[s~], s~ = (s, 1), are additive and determine the M step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from custom_inference.core.engine import POINT, EStep, Params, Warm
from custom_inference.families.conjugate.normal import Normal
from custom_inference.families.factors.common import FactorEngine, least_squares, principal_axes
from custom_inference.families.factors.natural import extend_moments, outer_products
from custom_inference.families.rows.base import BlockSteps
from custom_inference.families.rows.matrix import BinaryRows
from ppl_models import Data, Model
from ppl_models.core.likelihood import jaakkola_curvature, log_two_cosh_half

#: Entries of the (rows, features) arrays per block: a few of them stay in cache.
_BLOCK_ENTRIES = 2**17
#: Sweeps of the first E step, which starts at the prior's mean.
_COLD_SWEEPS = 8


def half_signs(rows: BinaryRows) -> Tensor:
    """Return x - 1/2 where observed, 0 elsewhere, (N, D)."""
    return rows.ones - 0.5 if rows.mask is None else (rows.ones - rows.zeros) / 2


def zero_unobserved(rows: BinaryRows, value: Tensor) -> Tensor:
    return value if rows.mask is None else value * rows.mask


@dataclass(frozen=True, kw_only=True)
class LogisticEngine(FactorEngine):
    """Data and starts of the engines that are derived for logistic PCA alone."""

    def rows(self, model: Model, data: Data) -> BinaryRows:
        return BinaryRows.of(data)

    def start_bias(self, model: Model, rows: BinaryRows) -> Tensor:
        """Compute the log-odds of every column, with half a count of each kind added, (D,)."""
        ones = rows.ones.sum(0)
        return torch.log((ones + 0.5) / (rows.observed_count - ones + 0.5))

    def propose(self, model: Model, rows: BinaryRows, generator: torch.Generator, attempt: int) -> Params:
        """Start with the leading principal components of the data linearised at log-odds 0; later attempts are
        random."""
        if attempt > 0:
            return self.initial(model, rows, generator)
        # One step of Schein's algorithm from theta = 0, where c = 1/4: PCA of 4 (x - mean).
        mean = rows.ones.sum(0) / rows.observed_count.clamp(min=1)
        residual = 4 * zero_unobserved(rows, rows.ones - mean)
        return {"weight": principal_axes(residual, model.shapes["weight"][0]), "bias": self.start_bias(model, rows)}


class _ScorePosterior(NamedTuple):
    """q of a block of rows: mean (N, K), covariance (N, K, K) and its log determinant (N,); None for points."""

    score: Tensor
    covariance: Tensor | None = None
    log_det: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class _Quadratic(LogisticEngine):
    """The E step of both engines, here with points for scores.

    sweeps: updates of xi and the scores per E step.
    """

    sweeps: int = 2
    #: What is kept of the scores between E steps.
    local_names: ClassVar[tuple[str, ...]] = ("score",)

    def e_step(
        self, model: Model, params: Params, rows: BinaryRows, warm: Warm = None, *,
        temperature: float = 1.0, generator: torch.Generator | None = None,
    ) -> EStep:  # fmt: skip
        prior, steps = Normal.of(model, "score", model.local_shape, params["weight"]), BlockSteps()
        start = {"score": prior.mean, "covariance": torch.diag(1 / prior.precision)}  # the prior
        first = [(name, start[name]) for name in self.local_names]
        for block, part in rows.parts(max(64, _BLOCK_ENTRIES // rows.ones.shape[1])):
            kept = (
                {k: v[block] for k, v in warm.items()} if warm else {k: v.expand(len(part), *v.shape) for k, v in first}
            )
            at = _ScorePosterior(**kept)
            for _ in range(self.sweeps if warm else max(self.sweeps, _COLD_SWEEPS)):
                at = self._update_scores(params, part, prior, at, temperature)
            odds, xi = self._log_odds(params, at)
            kept = {name: getattr(at, name) for name in self.local_names}
            steps.add(self._statistics(part, at, xi, temperature), self._bound(part, prior, at, odds, xi), **kept)
        return steps.join()

    def _update_scores(
        self, params: Params, rows: BinaryRows, prior: Normal, at: _ScorePosterior, temperature: float
    ) -> _ScorePosterior:
        """Return the best scores at the best xi."""
        weight = params["weight"]
        rate = temperature * zero_unobserved(rows, jaakkola_curvature(self._log_odds(params, at)[1]))
        pair = (rate @ outer_products(weight.T)).unflatten(1, (len(weight), len(weight)))
        target = (temperature * half_signs(rows) - rate * params["bias"]) @ weight.T
        return self._scores_from_solution(*least_squares(pair, target, prior.mean, prior.precision, at.score))

    def _log_odds(self, params: Params, at: _ScorePosterior) -> tuple[Tensor, Tensor]:
        """Compute E[theta] and the best xi = sqrt(E[theta^2]), each (N, D)."""
        odds = params["bias"] + at.score @ params["weight"]
        if at.covariance is None:
            return odds, odds.abs()
        spread = at.covariance.reshape(len(odds), -1) @ outer_products(params["weight"].T).T
        return odds, (odds.square() + spread.clamp(min=0)).sqrt()

    def _statistics(self, rows: BinaryRows, at: _ScorePosterior, xi: Tensor, temperature: float) -> dict[str, Tensor]:
        extended, pair = extend_moments(at.score, at.covariance)
        rate = zero_unobserved(rows, jaakkola_curvature(xi))
        return {"pair": temperature * (rate.T @ pair), "target": temperature * (half_signs(rows).T @ extended)}

    def _scores_from_solution(self, mean: Tensor, factor: Tensor) -> _ScorePosterior:
        """Return the scores from the solution of their normal equations and the Cholesky factor of the system."""
        return _ScorePosterior(mean)

    def _bound(self, rows: BinaryRows, prior: Normal, at: _ScorePosterior, odds: Tensor, xi: Tensor) -> Tensor:
        """Compute sum_t [(x - 1/2) E theta - log(2 cosh(xi / 2))], and the log prior density of the scores, or less
        their divergence from it."""
        fit = (half_signs(rows) * odds - zero_unobserved(rows, log_two_cosh_half(xi))).sum(-1)
        if at.covariance is None or at.log_det is None:
            return fit + prior.log_kernel(at.score) + prior.log_constant()
        return fit - prior.kl_of(at.score, at.covariance, at.log_det)


@dataclass(frozen=True, kw_only=True)
class LogisticMap(_Quadratic):
    """Point estimates of the scores beside those of the globals."""

    has_point_locals = True

    name = POINT
    objective = "log joint"
    accelerate = "squarem"


@dataclass(frozen=True, kw_only=True)
class LogisticGaussian(_Quadratic):
    """Gaussian posteriors of the scores, which are integrated out."""

    name = "gaussian"
    local_names = ("score", "covariance")

    def _scores_from_solution(self, mean: Tensor, factor: Tensor) -> _ScorePosterior:
        log_det = -2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return _ScorePosterior(mean, torch.cholesky_inverse(factor), log_det)
