"""Supervised LDA with a binary response by variational EM: q over proportions and tokens' topics, globals as points.

q(pi_n) = Dirichlet(g_n), q(topic of each token of word v in n) = phi_nv. With S = w'qbar, l = 2c - 1 and u = E[S]
(002, eqs. 27.65-27.66; Jaakkola & Jordan 2000 for the bound on the sigmoid, lambda(xi) = tanh(xi / 2) / (4 xi)):

    E[log sigmoid(l S)] >= log sigmoid(xi) + (l u - xi) / 2 - lambda(xi) (M - xi^2),
    E[S^2] = u^2 + sum_v n_v (phi_v'w^2 - (phi_v'w)^2) / L^2  <=  M = (1 - 1/L) u^2 + sum_v n_v phi_v'w^2 / L^2

by Cauchy and Schwarz, sum_v n_v (phi_v'w)^2 >= L u^2. In phi the bound is concave and depends on a document through u
alone: its maximum is

    phi_vk  proportional to  b_kv exp(Psi(g_k) + l w_k / (2 L) - lambda w_k^2 / L^2 - 2 lambda (1 - 1/L) u w_k / L)

at the u that gives itself, one decreasing equation a document (Newton's method, bracketed); then g = alpha + sum n phi
(27.41), xi^2 = M. M step: topics as LDA's (27.42); in w the bound is a quadratic, maximised with its Normal prior.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from custom_inference.core.engine import EStep, Params, Warm
from custom_inference.core.posteriors import DirichletPosterior
from custom_inference.families.common.dirichlet import dirichlet_divergence, expected_log
from custom_inference.families.common.documents import DocumentRows
from custom_inference.families.common.priors import normal_parameters
from custom_inference.families.topics.common import TopicEngine
from custom_inference.families.topics.dirichlet import equal_shares
from ppl_models import Data, Model
from ppl_models.distributions.tokens import Cells, log_mean_sigmoid

#: Steps of Newton's method for the mean response of a document.
_NEWTON = 30


@dataclass(frozen=True)
class SupervisedRows(DocumentRows):
    """Documents with their responses (N,): 1, -1, or 0 where it is unknown."""

    sign: Tensor = None  # pyright: ignore[reportAssignmentType]

    def select(self, index: Tensor | slice) -> Self:
        return replace(super().select(index), sign=self.sign[index])

    def to(self, dtype: torch.dtype) -> Self:
        return replace(super().to(dtype), sign=self.sign.to(dtype))


def curvature(xi: Tensor) -> Tensor:
    """lambda(xi) = tanh(xi / 2) / (4 xi), 1/8 at 0."""
    safe = xi.clamp_min(1e-4)
    return torch.where(xi < 1e-4, 0.125 - xi.square() / 96, torch.tanh(safe / 2) / (4 * safe))


class _Documents:
    """The documents at given globals: what one round of updates needs."""

    def __init__(self, params: Params, rows: SupervisedRows, alpha: Tensor, temperature: float):
        self.cells = Cells.of(rows.counts)
        self.alpha, self.sign, self.weight = alpha, temperature * rows.sign, params["response_weight"]
        self.known = temperature * rows.sign.abs()
        topic = params["topic"].T[self.cells.word].clamp_min(torch.finfo(alpha.dtype).tiny)
        self.log_topic = temperature * topic.log()
        self.rest = 1 - 1 / self.cells.length

    def tokens(self, g: Tensor, xi: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        """phi (M, K) that maximise the bound at g and xi, and their u (N,), found from a first guess of it."""
        w, (row, _, count, length) = self.weight, self.cells
        lam = self.known * curvature(xi)
        shift = expected_log(g) + (self.sign / (2 * length))[:, None] * w - (lam / length**2)[:, None] * w.square()
        base = self.log_topic + shift[row]
        pull = (2 * lam * self.rest / length)[:, None] * w
        low, high = w.min().expand_as(u).clone(), w.max().expand_as(u).clone()
        phi = base
        for _ in range(_NEWTON):
            phi = torch.softmax(base - (pull * u[:, None])[row], 1)
            a = phi @ w
            sums = self.cells.summed(count[:, None] * torch.stack([a, phi @ w.square() - a.square()], 1))
            value = sums[:, 0] / length
            gap, slope = value - u, -1 - 2 * lam * self.rest * sums[:, 1] / length**2
            if float(gap.abs().max()) < 1e-12 * (1 + float(w.abs().max())):
                break
            low, high = torch.where(gap > 0, u, low), torch.where(gap > 0, high, u)
            new = u - gap / slope
            u = torch.where((new > low) & (new < high), new, (low + high) / 2)
        return phi, u

    def moments(self, phi: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """qbar (N, K), u and M (N,)."""
        qbar = self.cells.summed(self.cells.count[:, None] * phi) / self.cells.length[:, None]
        u = qbar @ self.weight
        return qbar, u, self.rest * u.square() + (qbar @ self.weight.square()) / self.cells.length

    def bound(self, phi: Tensor, g: Tensor, xi: Tensor) -> Tensor:
        words = phi * (self.log_topic + expected_log(g)[self.cells.row]) - torch.xlogy(phi, phi)
        _, u, second = self.moments(phi)
        answer = self.known * (logsigmoid(xi) - xi / 2 - curvature(xi) * (second - xi.square())) + self.sign * u / 2
        return self.cells.summed(self.cells.count * words.sum(1)) - dirichlet_divergence(g, self.alpha) + answer


@dataclass(frozen=True, kw_only=True)
class SupervisedDirichlet(TopicEngine):
    """Dirichlet posteriors of the topic proportions, globals as points.

    sweeps, cold_sweeps: rounds an E step, from where the last ended and from LDA's start.
    """

    sweeps: int = 5
    cold_sweeps: int = 60

    name: ClassVar[str] = "dirichlet"

    def rows(self, model: Model, data: Data) -> SupervisedRows:
        counts = DocumentRows.of(data).counts
        response = data.others.get("response", counts.values().new_full((len(data),), torch.nan))
        return SupervisedRows(counts, sign=torch.nan_to_num(2 * response - 1).to(counts.dtype))

    def check(self, model: Model, rows: DocumentRows) -> None:
        super().check(model, rows)
        normal_parameters(model, "response_weight", model.shapes["response_weight"], rows.like.values())

    def initial(self, model: Model, rows: DocumentRows, generator: torch.Generator) -> Params:
        return _unweighted(super().initial(model, rows, generator))

    def from_counts(self, model: Model, counts: Tensor) -> Params:
        return _unweighted(super().from_counts(model, counts))

    def e_step(
        self, model: Model, params: Params, rows: SupervisedRows, warm: Warm = None, *, temperature=1.0, generator=None
    ) -> EStep:
        documents = _Documents(params, rows, self.alpha(model, params["topic"]), temperature)
        if warm:
            g, u, xi, sweeps = warm["concentration"], warm["answer"], warm["xi"], self.sweeps
        else:
            g = equal_shares(rows, documents.alpha).contiguous()
            u, xi, sweeps = g.new_zeros(len(rows)), g.new_ones(len(rows)), self.cold_sweeps
        phi = qbar = g
        for _ in range(sweeps):
            phi, u = documents.tokens(g, xi, u)
            qbar, u, second = documents.moments(phi)
            xi = second.clamp_min(0).sqrt()
            before, g = g, documents.alpha + qbar * rows.lengths[:, None]
            if float((g - before).abs().max()) < 1e-7 * (1 + float(rows.lengths.max())):
                break
        cells, lam = documents.cells, documents.known * curvature(xi)
        words = phi.new_zeros(params["topic"].shape[1], phi.shape[1])
        pair = (qbar * (lam * documents.rest)[:, None]).T @ qbar
        statistics = {
            "topic": words.index_add(0, cells.word, cells.count[:, None] * phi).T.contiguous(),  # (K, V)
            # Of the sum of lambda M, a quadratic form in w, (K, K); and of l qbar / 2, (K,).
            "pair": pair + torch.diag((qbar * (lam / cells.length)[:, None]).sum(0)),
            "answer": (documents.sign[:, None] * qbar).sum(0) / 2,
        }
        return EStep(statistics, {"concentration": g, "answer": u, "xi": xi}, documents.bound(phi, g, xi))

    def m_step(self, model: Model, params: Params, step: EStep, rows: DocumentRows) -> Params:
        counts, like = step.statistics, params["response_weight"]
        center, precision = normal_parameters(model, "response_weight", tuple(like.shape), like)
        weight = torch.linalg.solve(2 * counts["pair"] + torch.diag(precision), counts["answer"] + precision * center)
        return {**super().m_step(model, params, step, rows), "response_weight": weight}

    def posterior(self, model: Model, params: Params, rows: DocumentRows, step: EStep) -> DirichletPosterior:
        return DirichletPosterior(step.locals["concentration"])


def _unweighted(params: Params) -> Params:
    """Topics with weights of 0: the first E step is LDA's."""
    return {**params, "response_weight": params["topic"].new_zeros(len(params["topic"]))}


def predicted_response(fit: Any, data: Data) -> Tensor:
    """P(response = 1 | words) of every document, (N,): topics inferred without a response, their tokens' summed out."""
    engine, model, params = SupervisedDirichlet(), fit.model, fit.globals
    rows = engine.rows(model, replace(data, others={}))
    step = engine.e_step(model, params, rows)
    documents = _Documents(params, rows, engine.alpha(model, params["topic"]), 1.0)
    phi, _ = documents.tokens(step.locals["concentration"], step.locals["xi"], step.locals["answer"])
    return log_mean_sigmoid(params["response_weight"], phi, documents.cells, 1.0).exp()
