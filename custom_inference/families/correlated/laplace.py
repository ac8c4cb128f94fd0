"""Correlated topic models by Laplace's approximation (Wang & Blei, *Variational inference in nonconjugate models*, JMLR
2013; what the structural topic model's software does).

    h_n(z) = sum_v n_v log (softmax(z)'b_v) - 1/2 (z - mu)' Sigma^-1 (z - mu),      m_n = argmax h_n,
    V_n^-1 = - d2 h_n / dz2 = Sigma^-1 + L (diag pi - pi pi') - diag c + sum_v n_v phi_v phi_v',
    log p(w_n) ~ h_n(m_n) - 1/2 log|Sigma| + 1/2 log|V_n|

with phi_vk = pi_k b_kv / pi'b_v and c = sum_v n_v phi_v, by safeguarded Newton steps; where the matrix is not positive
definite it is taken at given phi. q(z_n) = N(m_n, V_n), the topics' expected tokens are those at m_n. The estimate is
no bound, and EM need not climb it. About modes the logits' covariance comes out too small: it is for speed, not Sigma.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from custom_inference.core.engine import EStep, Objective, Params, Warm
from custom_inference.core.optimize.newton import cut_steps
from custom_inference.families.common.laplace import TokenMoments
from custom_inference.families.correlated.common import CorrelatedEngine, CorrelatedRows, DocumentLogits, Moments
from ppl_models.ctm import LogisticNormalTopics


class _LogitPeak(NamedTuple):
    """h (N,), the gradient (N, K), and the Cholesky factor of V^-1 (N, K, K)."""

    value: Tensor
    slope: Tensor
    factor: Tensor


class _LogitPosterior(DocumentLogits):
    """h of every document and its derivatives."""

    def __init__(self, model: LogisticNormalTopics, params: Params, rows: CorrelatedRows, temperature: float):
        super().__init__(model, params, rows, temperature)
        self.tokens = TokenMoments(rows, params["topic"], temperature)

    def at(self, z: Tensor) -> _LogitPeak:
        share, (pulled, quadratic) = torch.softmax(z, -1), self.pull(z)
        found = self.tokens.moments(share)
        slope = found.counts - self.length[:, None] * share - pulled
        spread = torch.diag_embed(share) - share[:, :, None] * share[:, None, :]
        given = self.precision + self.length[:, None, None] * spread
        factor, failed = torch.linalg.cholesky_ex(given - torch.diag_embed(found.counts) + found.pairs)
        wrong = failed != 0
        if bool(wrong.any()):
            factor[wrong] = torch.linalg.cholesky(given[wrong])
        return _LogitPeak(found.log_likelihood - 0.5 * quadratic, slope, factor)

    def value(self, z: Tensor) -> Tensor:
        return self.tokens.log_likelihood(torch.softmax(z, -1)) - 0.5 * self.pull(z)[1]


@dataclass(frozen=True, kw_only=True)
class CorrelatedLaplace(CorrelatedEngine):
    """A Gaussian at the mode of every document's logits, globals as points.

    steps: Newton steps an E step at most. tolerance: they end where none promises more than this.
    """

    steps: int = 40
    tolerance: float = 1e-9

    name: ClassVar[str] = "laplace"
    objective: ClassVar[Objective] = "estimate"

    def e_step(
        self, model: LogisticNormalTopics, params: Params, rows: CorrelatedRows, warm: Warm = None, *,
        temperature: float = 1.0, generator: torch.Generator | None = None,
    ) -> EStep:  # fmt: skip
        documents = _LogitPosterior(model, params, rows, temperature)
        z, peak = self._maximise(documents, warm["mean"] if warm else documents.mean)
        covariance = torch.cholesky_inverse(peak.factor)
        log_det = 2 * peak.factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        words = temperature * rows.sum_shares(rows.responsibilities(torch.softmax(z, -1), params["topic"].T))
        statistics = {"topic": words.T.contiguous(), **Moments.of(rows, z, covariance)._asdict()}
        bound = peak.value - 0.5 * (documents.log_det + log_det) + rows.log_coefficient
        return EStep(statistics, {"mean": z, "covariance": covariance}, bound)

    def _maximise(self, documents: _LogitPosterior, z: Tensor) -> tuple[Tensor, _LogitPeak]:
        slack = 8 * torch.finfo(z.dtype).eps
        peak = documents.at(z)
        for _ in range(self.steps):
            move = torch.cholesky_solve(peak.slope[:, :, None], peak.factor).squeeze(-1)
            settled = not bool(((peak.slope * move).sum(1) > self.tolerance + slack * peak.value.abs()).any())

            def try_step(size: Tensor, z: Tensor = z, move: Tensor = move) -> tuple[Tensor, Tensor]:
                new = z + size[:, None] * move
                return new, documents.value(new)

            z = cut_steps(try_step, peak.value - slack * peak.value.abs(), divisor=4, cuts=12)
            peak = documents.at(z)
            if settled:
                break
        return z, peak
