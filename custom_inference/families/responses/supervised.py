"""Supervised LDA by variational EM: q over proportions and tokens' topics, globals as points.

q(pi_n) = Dirichlet(g_n), q(topic of each token of word v in n) = phi_nv. With eta = W qbar, u = E[eta] (Murphy, eqs.
27.65-27.66), one entry eta_r a response or class, every kind of response has a bound that is quadratic in each eta_r,

    log p(y | eta) >= a + sum_r (b_r eta_r - lambda_r eta_r^2 / 2)                         (``expansions``)

    E[eta_r^2] = u_r^2 + sum_v n_v (phi_v'w_r^2 - (phi_v'w_r)^2) / L^2
              <=  M_r = (1 - 1/L) u_r^2 + sum_v n_v phi_v'w_r^2 / L^2

by Cauchy and Schwarz, sum_v n_v (phi_v'w_r)^2 >= L u_r^2. In phi the bound is concave and depends on a document through
u alone: its maximum is

    phi_vk  proportional to  b_kv exp(Psi(g_k) + sum_r [b_r w_rk / L - lambda_r w_rk^2 / (2 L^2)
                                                        - lambda_r (1 - 1/L) u_r w_rk / L])

at the u that gives itself, where a convex function of u has its minimum (Newton's method, halved where it overshoots);
then g = alpha + sum n phi (27.41), and the expansions at these moments. M step: topics as LDA's (27.42); in W the bound
is a quadratic, maximised with its Normal prior; the scale of real responses is the mode given what is left.

Real responses and their weights are taken about the centre and in the unit that the program states (``InUnits``): what
follows is the same whatever these are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor
from torch.distributions import InverseGamma, LogNormal

from custom_inference.core.engine import EStep, Params, Warm
from custom_inference.core.posteriors import DirichletPosterior
from custom_inference.families.conjugate.dirichlet import Dirichlet
from custom_inference.families.conjugate.normal import Normal
from custom_inference.families.conjugate.scale import scale_mode
from custom_inference.families.responses.expansions import MARGIN, ResponseExpansion, expand_bound
from custom_inference.families.rows.documents import DocumentRows
from custom_inference.families.topics.common import TopicEngine
from custom_inference.families.topics.dirichlet import equal_shares
from ppl_models import Data, SupervisedLDA
from ppl_models.distributions.tokens import Cells

#: Steps of Newton's method for the mean responses of the documents.
_NEWTON = 40


class InUnits(NamedTuple):
    """centre and unit of the responses, (R,); 0 and 1 of such as have none."""

    centre: Tensor
    unit: Tensor

    @classmethod
    def of(cls, model: SupervisedLDA, like: Tensor) -> InUnits:
        return cls(*model.scale_of_columns(like))

    def weights(self, weight: Tensor) -> Tensor:
        """Weights (..., K) as (D, K), about the centre in units."""
        return (weight.reshape(-1, weight.shape[-1]) - self.centre[:, None]) / self.unit[:, None]

    def back(self, weight: Tensor) -> Tensor:
        """Weights (D, K) as the program has them."""
        return self.centre[:, None] + self.unit[:, None] * weight

    def scales(self, scale: Tensor | None) -> Tensor | None:
        """Standard deviations () or (R,), as (R,) in units."""
        return None if scale is None else scale.reshape(-1) / self.unit

    def prior(self, mean: Tensor, precision: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and precision of the weights' Normal prior, each (D, K), of the weights in units."""
        flat = precision.reshape(-1, precision.shape[-1])
        return self.weights(mean), flat * self.unit.square()[:, None]

    def volume(self, response: Tensor) -> Tensor:
        """What is taken from log densities (N,) in units of responses (N, R), NaN where unknown."""
        return (~torch.isnan(response)).to(self.unit) @ self.unit.log()


@dataclass(frozen=True)
class SupervisedRows(DocumentRows):
    """Documents with their responses (N, R), about the centre in units; NaN where unknown."""

    response: Tensor = None  # pyright: ignore[reportAssignmentType]

    @classmethod
    def with_responses(cls, model: SupervisedLDA, data: Data) -> Self:
        """All NaN where the data have none."""
        counts = DocumentRows.of(data).counts
        size = len(data), model.num_responses
        response = data.others.get("response", counts.values().new_full(size, torch.nan))
        given = response.reshape(size)
        return cls(counts, response=model.standard(given).to(counts.dtype))


class _SupervisedDocuments:
    """The documents at given globals: what one round of updates needs."""

    def __init__(self, model: SupervisedLDA, params: Params, rows: SupervisedRows, alpha: Tensor, temperature: float):
        self.kind, self.response, self.temperature = model.response, rows.response, temperature
        units = InUnits.of(model, alpha)
        self.cells, self.alpha, self.scale = Cells.of(rows.counts), alpha, units.scales(params.get("response_scale"))
        self.weight, self.volume = units.weights(params["response_weight"]), units.volume(rows.response)
        topic = params["topic"].T[self.cells.word].clamp_min(torch.finfo(alpha.dtype).tiny)
        self.log_topic = temperature * topic.log()
        self.length = self.cells.length[:, None]
        self.rest = 1 - 1 / self.length

    def expansion(self, u: Tensor, second: Tensor) -> ResponseExpansion:
        found = expand_bound(self.kind, self.response, u, second, self.weight, self.scale)
        return ResponseExpansion(*(self.temperature * part for part in found))

    def tokens(self, g: Tensor, at: ResponseExpansion, u: Tensor) -> tuple[Tensor, Tensor]:
        """phi (M, K) that maximise the bound at g, and their u (N, D), found from a first guess of it."""
        w, row, count = self.weight, self.cells.row, self.cells.count
        slope = at.slope / self.length
        shift = Dirichlet(g).expected() + slope @ w - (at.curvature / (2 * self.length**2)) @ w.square()
        base = self.log_topic + shift[row]
        pull = at.curvature * self.rest
        best, least, phi, step = u, torch.full_like(self.cells.length, torch.inf), base, torch.zeros_like(u)
        rounding = torch.finfo(w.dtype).eps
        for _ in range(_NEWTON):
            logits = base - ((pull * u / self.length) @ w)[row]
            norm = logits.logsumexp(1)
            phi = (logits - norm[:, None]).exp()
            value = 0.5 * (pull * u.square()).sum(1) + self.cells.sum_by_document(count * norm)
            good = value <= least + 20 * rounding * (1 + value.abs())
            step = torch.where(good[:, None], self._newton(phi, u, pull), 0.5 * step)
            best = torch.where(good[:, None], u, best)
            least = torch.where(good, value, least)
            if float(step.abs().max()) < max(1e-9, 50 * rounding) * (1 + float(w.abs().max())):
                break
            u = best + step
        return phi, self.moments(phi)[1]

    def _newton(self, phi: Tensor, u: Tensor, pull: Tensor) -> Tensor:
        """(I + H Lambda)^-1 (ubar - u) with H = sum_v n_v Cov_phi(w) (1 - 1/L) / L^2."""
        w, count = self.weight, self.cells.count
        a = phi @ w.T
        gap = self.cells.sum_by_document(count[:, None] * a) / self.length - u
        size = len(w)
        pairs = torch.stack([(phi @ (w[r] * w[s])) - a[:, r] * a[:, s] for r in range(size) for s in range(size)], 1)
        spread = self.cells.sum_by_document(count[:, None] * pairs).view(-1, size, size) / self.length[..., None] ** 2
        jacobian = torch.eye(size).to(w) + spread * pull[:, None, :]
        return torch.linalg.solve(jacobian, gap.unsqueeze(-1)).squeeze(-1)

    def moments(self, phi: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """qbar (N, K), u and M (N, D)."""
        qbar = self.cells.sum_by_document(self.cells.count[:, None] * phi) / self.length
        u = qbar @ self.weight.T
        return qbar, u, self.rest * u.square() + qbar @ self.weight.T.square() / self.length

    def bound(self, phi: Tensor, g: Tensor, at: ResponseExpansion) -> Tensor:
        words = phi * (self.log_topic + Dirichlet(g).expected()[self.cells.row]) - torch.xlogy(phi, phi)
        _, u, second = self.moments(phi)
        answer = at.constant + (at.slope * u - 0.5 * at.curvature * second).sum(1) - self.temperature * self.volume
        return self.cells.sum_by_document(self.cells.count * words.sum(1)) - Dirichlet(g).kl(self.alpha) + answer


@dataclass(frozen=True, kw_only=True)
class SupervisedDirichlet(TopicEngine):
    """Dirichlet posteriors of the topic proportions, globals as points.

    sweeps, cold_sweeps: rounds an E step, from where the last ended and from LDA's start.
    """

    sweeps: int = 5
    cold_sweeps: int = 60

    name: ClassVar[str] = "dirichlet"
    conjugate: ClassVar[Any] = {"response_scale": (LogNormal, InverseGamma)}

    def rows(self, model: SupervisedLDA, data: Data) -> SupervisedRows:
        return SupervisedRows.with_responses(model, data)

    def check(self, model: SupervisedLDA, rows: DocumentRows) -> None:
        super().check(model, rows)
        Normal.of(model, "response_weight", model.shapes["response_weight"], rows.like.values())

    def initial(self, model: SupervisedLDA, rows: DocumentRows, generator: torch.Generator) -> Params:
        return start_as_lda(model, super().initial(model, rows, generator))

    def from_counts(self, model: SupervisedLDA, counts: Tensor) -> Params:
        return start_as_lda(model, super().from_counts(model, counts))

    def e_step(
        self, model: SupervisedLDA, params: Params, rows: SupervisedRows, warm: Warm = None, *,
        temperature: float = 1.0, generator: torch.Generator | None = None,
    ) -> EStep:  # fmt: skip
        documents = _SupervisedDocuments(model, params, rows, self.alpha(model, params["topic"]), temperature)
        if warm:
            g, u, second, sweeps = warm["concentration"], warm["answer"], warm["second"], self.sweeps
        else:
            g, sweeps = equal_shares(rows, documents.alpha).contiguous(), self.cold_sweeps
            u = (g / g.sum(1, keepdim=True)) @ documents.weight.T
            second = u.square() + 1
        at = documents.expansion(u, second)
        phi = qbar = g
        for _ in range(sweeps):
            phi, u = documents.tokens(g, at, u)
            qbar, u, second = documents.moments(phi)
            at = documents.expansion(u, second)
            before, g = g, documents.alpha + qbar * rows.lengths[:, None]
            if float((g - before).abs().max()) < 1e-7 * (1 + float(rows.lengths.max())):
                break
        statistics = {"topic": _words(documents.cells, phi, params), **_equations(documents, qbar, at)}
        warm = {"concentration": g, "answer": u, "second": second}
        return EStep(statistics, warm, documents.bound(phi, g, at))

    def m_step(self, model: Any, params: Params, step: EStep, rows: DocumentRows) -> Params:
        counts, before = step.statistics, params["response_weight"]
        units = InUnits.of(model, before)
        centre, precision = units.prior(*Normal.of(model, "response_weight", tuple(before.shape), before))
        hessian = counts["pair"] + torch.diag_embed(precision)
        goal = counts["answer"] + precision * centre
        weight = torch.linalg.solve(hessian, goal.unsqueeze(-1)).squeeze(-1)
        if model.response == "counts":  # the bound holds for rates up to here
            old = units.weights(before)
            most = old.amax(1, keepdim=True) + MARGIN
            rise = ((most - old) / (weight - old).clamp(min=1e-30)).amin(1, keepdim=True)
            weight = old + rise.clamp(max=1.0) * (weight - old)
        found = {"response_weight": units.back(weight).reshape(before.shape)}
        if model.response == "real":
            found["response_scale"] = _scale(model, params["response_scale"], counts, weight, units)
        return {**super().m_step(model, params, step, rows), **found}

    def posterior(self, model: SupervisedLDA, params: Params, rows: DocumentRows, step: EStep) -> DirichletPosterior:
        return DirichletPosterior(step.locals["concentration"])


def _words(cells: Cells, phi: Tensor, params: Params) -> Tensor:
    """The expected tokens of every word in every topic, (K, V)."""
    words = phi.new_zeros(params["topic"].shape[1], phi.shape[1])
    return words.index_add(0, cells.word, cells.count[:, None] * phi).T.contiguous()


def _equations(documents: _SupervisedDocuments, qbar: Tensor, at: ResponseExpansion) -> Params:
    """pair (D, K, K) and answer (D, K): sum_n of lambda M / 2 is the quadratic form w'pair w / 2, and of b u answer'w.
    Of real responses also how many there are, and their squares, (D,)."""
    whole, parts = at.curvature * documents.rest, (at.curvature / documents.length).T @ qbar
    pair = torch.stack([(qbar * one[:, None]).T @ qbar for one in whole.T]) + torch.diag_embed(parts)
    found = {"pair": pair, "answer": at.slope.T @ qbar}
    if documents.kind == "real":
        seen = ~torch.isnan(documents.response)
        square = torch.nan_to_num(documents.response).square()
        found |= {"observed": documents.temperature * seen.to(square).sum(0)}
        found |= {"square": documents.temperature * square.sum(0)}
    return found


def _scale(model: SupervisedLDA, scale: Tensor, counts: Params, weight: Tensor, units: InUnits) -> Tensor:
    """The mode given sum_n E[(y - eta)^2]; the statistics of the weights are over the old variance."""
    variance, volume = (scale.reshape(-1) / units.unit).square(), units.unit.square()
    fitted = variance * ((weight.unsqueeze(1) @ counts["pair"]).squeeze(1) * weight).sum(1)
    cross = variance * (counts["answer"] * weight).sum(1)
    residual = (counts["square"] - 2 * cross + fitted).clamp(min=0)
    own = {**counts, "square": volume * counts["square"]}
    return scale_mode(model, scale, own, volume * residual, site="response_scale")


def start_as_lda(model: SupervisedLDA, params: Params) -> Params:
    """Return topics with weights at the centre of the responses, a scale of their unit: the first E step is LDA's."""
    shapes, like = model.shapes, params["topic"]
    units, shape = InUnits.of(model, like), shapes["response_weight"]
    rows = math.prod(shape[:-1])
    weight = units.back(like.new_zeros(rows, shape[-1])).reshape(shape)
    scale = {"response_scale": units.unit.reshape(shapes["response_scale"])} if "response_scale" in shapes else {}
    return {**params, "response_weight": weight, **scale}
