"""Correlated topic models by variational EM: a Gaussian for every document (Murphy 2012, eqs. 27.50-27.56).

q(z_n) = N(m_n, V_n), the tokens' topics summed out; globals as points. Of one document with the prior N(mu, Sigma), for
ANY m and any t on the simplex,

    P = Sigma^-1 + L (diag t - t t'),  V = P^-1, or diag(P)^-1 where it is diagonal
    f(m, t) = sum_v n_v log sum_k exp(m_k) b_kv - L [lse_k(m_k + V_kk / 2 - (V t)_k) + t'V t / 2]
              - 1/2 [tr(Sigma^-1 V) - K + log|Sigma| - log|V| + (m - mu)' Sigma^-1 (m - mu)]
            <= log p(w | b, mu, Sigma)

The first bracket bounds E[log sum_k exp z_k] by Jensen's inequality on sum_k exp(z_k - t'z), the tilted bound (Knowles
& Minka, *Non-conjugate variational message passing for multinomial and binary regression*, NIPS 2011); t = 0 would be
that of Blei and Lafferty (27.53 by 21.8.1.1), which also pays for variance that the softmax does not see. It is
stationary in t at t = softmax(m + diag V / 2 - V t), and there in V too, so that one vector serves both. Newton's
matrix for m, at given responsibilities of the tokens (a minoriser), is P as well: one Cholesky factor a step, halved
where the bound falls.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from custom_inference.core.engine import EStep, Params, Warm
from custom_inference.core.optimize.newton import cut_steps
from custom_inference.families.correlated.common import CorrelatedEngine, CorrelatedRows, DocumentLogits, Moments
from ppl_models.core.likelihood import softmax_and_log_sum
from ppl_models.ctm import LogisticNormalTopics
from ppl_models.data import sparse


class _Point(NamedTuple):
    """The state of the documents: m, t, P^-1, V, the bound, the best tilt there, exp(m - max m), and sum_k of it times
    b_kv."""

    m: Tensor
    t: Tensor
    inverse: Tensor
    covariance: Tensor
    bound: Tensor
    best_t: Tensor
    scaled: Tensor
    denominator: Tensor


class _Problem(DocumentLogits):
    """What a document's bound depends on beside m and t."""

    def __init__(
        self, model: LogisticNormalTopics, params: Params, rows: CorrelatedRows, temperature: float, diagonal: bool
    ):
        super().__init__(model, params, rows, temperature)
        self.row, word, count = sparse.triplets(rows.counts)
        self.topic_of = params["topic"].T[word].clamp_min(torch.finfo(count.dtype).tiny)
        self.count, self.diagonal = temperature * count, diagonal

    def at(self, m: Tensor, t: Tensor) -> _Point:
        spread = torch.diag_embed(t) - t[:, :, None] * t[:, None, :]
        matrix = self.precision + self.length[:, None, None] * spread
        factor = torch.linalg.cholesky(matrix)
        covariance = inverse = torch.cholesky_inverse(factor)
        log_det = 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        if self.diagonal:
            own = matrix.diagonal(dim1=-2, dim2=-1)
            covariance, log_det = torch.diag_embed(own.reciprocal()), own.log().sum(-1)
        tilted = (covariance @ t[:, :, None]).squeeze(-1)
        argument = m + covariance.diagonal(dim1=-2, dim2=-1) / 2 - tilted
        best, log_sum = softmax_and_log_sum(argument)
        log_sum = log_sum + (t * tilted).sum(1) / 2
        top = m.max(1, keepdim=True).values
        scaled = (m - top).exp()
        denominator = (scaled[self.row] * self.topic_of).sum(1)
        words = torch.zeros_like(self.length).index_add(0, self.row, self.count * denominator.log())
        trace = (self.precision * covariance).sum((1, 2))
        divergence = 0.5 * (trace - m.shape[1] + self.log_det + log_det + self.pull(m)[1])
        bound = words + self.length * (top.squeeze(1) - log_sum) - divergence
        return _Point(m, t, inverse, covariance, bound, best, scaled, denominator)

    def counts(self, at: _Point) -> Tensor:
        """The tokens' responsibilities, times how often they are there, (nnz, K)."""
        return at.scaled[self.row] * self.topic_of * (self.count / at.denominator)[:, None]

    def step(self, at: _Point) -> _Point:
        """Take one safeguarded step of m (Newton) and t (contraction)."""
        counts = torch.zeros_like(at.m).index_add(0, self.row, self.counts(at))
        gradient = counts - self.length[:, None] * at.best_t - self.pull(at.m)[0]
        move_m, move_t = (at.inverse @ gradient[:, :, None]).squeeze(-1), at.best_t - at.t
        slack = 8 * torch.finfo(at.bound.dtype).eps

        def move(size: Tensor) -> tuple[_Point, Tensor]:
            new = self.at(at.m + size[:, None] * move_m, at.t + size[:, None] * move_t)
            return new, new.bound

        return cut_steps(move, at.bound - slack * at.bound.abs())


@dataclass(frozen=True, kw_only=True)
class CorrelatedGaussian(CorrelatedEngine):
    """q(topic_logit_n) = Normal(m_n, V_n), globals as points.

    diagonal: V_n diagonal, as Blei and Lafferty's; by default full, which is closer to the evidence and no slower.
    steps, cold_steps: Newton steps an E step, from where the last ended and from the prior's mean.
    tolerance: an E step ends when no document's bound gains more than this.
    """

    diagonal: bool = False
    steps: int = 3
    cold_steps: int = 60
    tolerance: float = 1e-10

    name: ClassVar[str] = "gaussian"

    @property
    def saved_settings(self) -> dict[str, Any]:
        return {"diagonal": True} if self.diagonal else {}

    def e_step(
        self, model: LogisticNormalTopics, params: Params, rows: CorrelatedRows, warm: Warm = None, *,
        temperature: float = 1.0, generator: torch.Generator | None = None,
    ) -> EStep:  # fmt: skip
        problem = _Problem(model, params, rows, temperature, self.diagonal)
        if warm:
            at, steps = problem.at(warm["mean"], warm["tilt"]), self.steps
        else:
            at, steps = problem.at(problem.mean, torch.softmax(problem.mean, -1)), self.cold_steps
        for _ in range(steps):
            before, at = at, problem.step(at)
            if float((at.bound - before.bound).max()) < self.tolerance:
                break
        weight = problem.counts(at)
        words = weight.new_zeros(params["topic"].shape[1], weight.shape[1])
        statistics = {
            "topic": words.index_add(0, rows.counts.col_indices(), weight).T.contiguous(),
            **Moments.of(rows, at.m, at.covariance)._asdict(),
        }
        found = {"mean": at.m, "tilt": at.t, "covariance": at.covariance}
        return EStep(statistics, found, at.bound + rows.log_coefficient)
