"""The correlated topic model by variational EM: a Gaussian for every document (002, eqs. 27.50-27.56).

q(z_n) = N(m_n, V_n), V_n full, the tokens' topics summed out; globals as points. Of one document, for ANY m and any t
on the simplex,

    P = Sigma^-1 + L (diag t - t t'),  V = P^-1
    f(m, t) = sum_v n_v log sum_k exp(m_k) b_kv - L [lse_k(m_k + V_kk / 2 - (V t)_k) + t'V t / 2]
              - 1/2 [tr(Sigma^-1 V) - K + log|Sigma| + log|P| + (m - mu)' Sigma^-1 (m - mu)]
            <= log p(w | b, mu, Sigma)

The first bracket bounds E[log sum_k exp z_k] by Jensen's inequality on sum_k exp(z_k - t'z), the tilted bound (Knowles
& Minka, *Non-conjugate variational message passing for multinomial and binary regression*, NIPS 2011); t = 0 would be
that of Blei and Lafferty (27.53 by 21.8.1.1), which also pays for variance that the softmax does not see. It is
stationary in t at t = softmax(m + diag V / 2 - V t), and there in V too, so that one vector serves both. Newton's
matrix for m, at given responsibilities of the tokens (a minoriser), is P as well: one Cholesky factor a step, halved
where the bound falls.

M step: topics as LDA's (27.42); mu and Sigma by turns, each the exact conditional maximum under mu ~ N(m0, s0^2) and
Sigma ~ InverseWishart(df, Psi). What the data cannot see, equal changes of all logits, goes to its mode under the
priors where these are the same for all topics.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from custom_inference.core.engine import EStep, Params, Warm
from custom_inference.core.posteriors import GaussianPosterior
from custom_inference.families.common.documents import DocumentRows
from custom_inference.families.common.priors import conjugate_prior, normal_parameters
from custom_inference.families.topics.common import TopicEngine
from ppl_models import Model
from ppl_models.data import sparse
from ppl_models.distributions import InverseWishart

#: Halvings of a step at most; the last leaves the document where it is.
_HALVINGS = 24
#: Rounds of mean and covariance in an M step.
_ROUNDS = 50


class _Point(NamedTuple):
    """Where the documents are: m, t, V, the bound, the best tilt there, exp(m - max m), and sum_k of it times b_kv."""

    m: Tensor
    t: Tensor
    covariance: Tensor
    bound: Tensor
    best_t: Tensor
    scaled: Tensor
    denominator: Tensor


class _Problem:
    """What a document's bound depends on beside m and t."""

    def __init__(self, params: Params, rows: DocumentRows, temperature: float):
        self.row, word, count = sparse.triplets(rows.counts)
        factor = torch.linalg.cholesky(params["covariance"])
        self.precision, self.log_det = torch.cholesky_inverse(factor), 2 * factor.diagonal().log().sum()
        self.topic_of = params["topic"].T[word].clamp_min(torch.finfo(count.dtype).tiny)
        self.count, self.length, self.mean = temperature * count, temperature * rows.lengths, params["mean"]

    def at(self, m: Tensor, t: Tensor) -> _Point:
        spread = torch.diag_embed(t) - t[:, :, None] * t[:, None, :]
        factor = torch.linalg.cholesky(self.precision + self.length[:, None, None] * spread)
        covariance = torch.cholesky_inverse(factor)
        log_det = 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        tilted = (covariance @ t[:, :, None]).squeeze(-1)
        argument = m + covariance.diagonal(dim1=-2, dim2=-1) / 2 - tilted
        log_sum = torch.logsumexp(argument, 1) + (t * tilted).sum(1) / 2
        top = m.max(1, keepdim=True).values
        scaled = (m - top).exp()
        denominator = (scaled[self.row] * self.topic_of).sum(1)
        words = torch.zeros_like(self.length).index_add(0, self.row, self.count * denominator.log())
        off = m - self.mean
        quadratic = ((off @ self.precision) * off).sum(1)
        trace = (self.precision * covariance).sum((1, 2))
        divergence = 0.5 * (trace - m.shape[1] + self.log_det + log_det + quadratic)
        bound = words + self.length * (top.squeeze(1) - log_sum) - divergence
        return _Point(m, t, covariance, bound, torch.softmax(argument, 1), scaled, denominator)

    def stepped(self, at: _Point) -> _Point:
        """One safeguarded step of m (Newton) and t (contraction)."""
        weight = (self.count / at.denominator)[:, None] * self.topic_of
        counts = torch.zeros_like(at.m).index_add(0, self.row, weight) * at.scaled
        gradient = counts - self.length[:, None] * at.best_t - (at.m - self.mean) @ self.precision
        move_m, move_t = (at.covariance @ gradient[:, :, None]).squeeze(-1), at.best_t - at.t
        size = torch.ones_like(self.length)
        slack = 8 * torch.finfo(at.bound.dtype).eps
        new = at
        for halving in range(_HALVINGS + 1):
            new = self.at(at.m + size[:, None] * move_m, at.t + size[:, None] * move_t)
            worse = ~(new.bound >= at.bound - slack * at.bound.abs())
            if not bool(worse.any()):
                break
            size = torch.where(worse, size / 2 if halving < _HALVINGS - 1 else torch.zeros_like(size), size)
        return new


@dataclass(frozen=True, kw_only=True)
class CorrelatedGaussian(TopicEngine):
    """q(topic_logit_n) = Normal(m_n, V_n), globals as points.

    steps, cold_steps: Newton steps an E step, from where the last ended and from the prior's mean.
    tolerance: an E step ends when no document's bound gains more than this.
    """

    steps: int = 3
    cold_steps: int = 60
    tolerance: float = 1e-9

    name: ClassVar[str] = "gaussian"

    def alpha(self, model: Model, like: Tensor) -> Tensor:
        """(K,): the logits have no Dirichlet prior; starts are sampled as under a flat one."""
        return like.new_ones(model.shapes["topic"][0])

    def check(self, model: Model, rows: DocumentRows) -> None:
        super().check(model, rows)
        normal_parameters(model, "mean", model.shapes["mean"], rows.like.values())
        conjugate_prior(model, "covariance", InverseWishart)

    def initial(self, model: Model, rows: DocumentRows, generator: torch.Generator) -> Params:
        topic = super().initial(model, rows, generator)["topic"]
        size = len(topic)
        return {"topic": topic, "mean": topic.new_zeros(size), "covariance": torch.eye(size).to(topic)}

    def e_step(
        self, model: Model, params: Params, rows: DocumentRows, warm: Warm = None, *, temperature=1.0, generator=None
    ) -> EStep:
        problem = _Problem(params, rows, temperature)
        if warm:
            at, steps = problem.at(warm["mean"], warm["tilt"]), self.steps
        else:
            start = params["mean"].expand(len(rows), -1)
            at, steps = problem.at(start, torch.softmax(start, -1)), self.cold_steps
        for _ in range(steps):
            before, at = at, problem.stepped(at)
            if float((at.bound - before.bound).max()) < self.tolerance:
                break
        weight = at.scaled[problem.row] * problem.topic_of * (problem.count / at.denominator)[:, None]
        words = weight.new_zeros(params["topic"].shape[1], weight.shape[1])
        statistics = {
            "topic": words.index_add(0, rows.counts.col_indices(), weight).T.contiguous(),
            "logit": at.m.sum(0),
            "outer": at.m.T @ at.m + at.covariance.sum(0),
            "rows": at.m.new_tensor(float(len(rows))),
        }
        found = {"mean": at.m, "tilt": at.t, "covariance": at.covariance}
        return EStep(statistics, found, at.bound + rows.log_coefficient)

    def m_step(self, model: Model, params: Params, step: EStep, rows: DocumentRows) -> Params:
        counts, size = step.statistics, len(params["mean"])
        n, eye = counts["rows"], torch.eye(size).to(params["mean"])
        center, weight = normal_parameters(model, "mean", (size,), params["mean"])
        prior = conjugate_prior(model, "covariance", InverseWishart)
        df, psi = prior.df.to(n), prior.scale.to(n)
        mean, covariance = params["mean"], params["covariance"]
        for _ in range(_ROUNDS):
            precision = torch.cholesky_inverse(torch.linalg.cholesky(covariance))
            right = precision @ counts["logit"] + weight * center
            before, mean = mean, torch.linalg.solve(n * precision + torch.diag(weight), right)
            cross = torch.outer(counts["logit"], mean)
            scatter = counts["outer"] - cross - cross.T + n * torch.outer(mean, mean)
            covariance = (psi + scatter) / (df + size + 1 + n)
            covariance = (covariance + covariance.T) / 2
            if float((mean - before).abs().max()) < 1e-10:
                break
        diagonal = psi.diagonal()
        same = all(bool((value == value[0]).all()) for value in (center, weight, diagonal))
        if same and bool((psi == torch.diag(diagonal)).all()):
            # Equal changes of all logits: to their mode under the priors, which never lowers the objective.
            centre = eye - 1.0 / size
            mean = centre @ mean + center.mean()
            covariance = centre @ covariance @ centre + psi[0, 0] / (df + size + 1) / size
        return {**super().m_step(model, params, step, rows), "mean": mean, "covariance": covariance}

    def posterior(self, model: Model, params: Params, rows: DocumentRows, step: EStep) -> GaussianPosterior:
        return GaussianPosterior(step.locals["mean"], step.locals["covariance"])
