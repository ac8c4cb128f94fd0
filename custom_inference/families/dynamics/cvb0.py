"""Dynamic topics by collapsed variational Bayes to zeroth order for the documents and Laplace's method for the walks.

E step: a document's proportions are integrated out; each of its tokens sees the expected counts of the OTHERS (Asuncion
et al., UAI 2009, eq. 9) at the topics b of its slice:

    r_dvk ~ (N_dk - r_dvk + alpha_k) b_{t_d k v},    N_dk = sum_v n_dv r_dvk

The sum over k, divided by L_d - 1 + sum alpha, is the token's predictive probability given the others.

M step, with n = sum_d n_dv r_dvk, their sums N_tk, and pi = softmax(b): ``steps`` of Newton's method for the posterior
mode of every chain, each topic's logarithm of the sum of exponentials by its diagonal curvature,

    b <- b + clip[(Lambda + diag(N pi))^-1 (n - N pi - Lambda (b - mu))]

tridiagonal, all words and topics at once, carried on by a part of the last change (``momentum``), and the numbers that
can be added to all words at their best. Background, first scale and drift variance are those of EM (``walks``) with the
variances of Laplace's method, by the OBSERVED information (Louis, JRSS B 1982): expected counts pretend that the
tokens' topics are known, and a drift learned under that is too small,

    J = Lambda + diag(max(N pi - sum_d n_dv r_dvk (1 - r_dvk), 0))

the step of the logarithm of the drift variance times ``relaxation``, as EM is slow in variances. The objective,

    sum of the log predictive probabilities + 1/2 sum_kv [log |Lambda| - (b - mu)'Lambda(b - mu) - log |J|]
    + log p(m, s, sigma^2)

estimates the log evidence: no bound, and iterations may lower it. Of restarts the highest is taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from custom_inference.core.engine import EStep, Objective, Params, Warm
from custom_inference.core.posteriors import DirichletPosterior
from custom_inference.core.posteriors.walk import Tridiagonal
from custom_inference.core.states import values_of
from custom_inference.families.dynamics.common import WalkEngine, in_slices, side_by_side
from custom_inference.families.dynamics.walks import WalkPrior, WalkState, hyper_steps
from custom_inference.families.rows.documents import DocumentRows
from custom_inference.families.topics.propose import TopicProposals
from ppl_models import DTM
from ppl_models.data import sparse

#: Passes over documents without responsibilities yet.
_COLD_SWEEPS = 8
#: The largest change of a logit in a Newton step.
_CLIP = 2.0


@dataclass(frozen=True, kw_only=True)
class DynamicCvb0(WalkEngine):
    """sweeps: over the documents an E step. steps: of Newton's method an M step.
    momentum: the part of the last change of the logits that is made again. relaxation: see above.
    """

    integrates_globals = True

    sweeps: int = 2
    steps: int = 2
    momentum: float = 0.8
    relaxation: float = 2.0

    name: ClassVar[str] = "cvb0"
    objective: ClassVar[Objective] = "estimate"
    extrapolated: ClassVar[tuple[str, ...]] = ("responsibility",)
    patience: ClassVar[int] = 3  # pyright: ignore[reportIncompatibleMethodOverride]

    def e_step(
        self, model: DTM, state: WalkState, rows: DocumentRows, warm: Warm = None, *,
        temperature: float = 1.0, generator: torch.Generator | None = None,
    ) -> EStep:  # fmt: skip
        topic = side_by_side(torch.softmax(temperature * state.mean, -1)).T.contiguous()
        found = refresh_responsibilities(rows, topic, self.alpha(model, topic), warm, self.sweeps)
        statistics = {"topic": found.counts.T, "missing": found.missing.T}
        return EStep(statistics, found.locals, found.value + rows.log_coefficient)

    def m_step(self, model: DTM, state: WalkState, step: EStep, rows: DocumentRows) -> WalkState:
        counts, missing = (in_slices(step.statistics[name], model.num_times) for name in ("topic", "missing"))
        prior, total = WalkPrior(model, state.hypers), counts.sum(-1, keepdim=True)
        mean = state.mean
        for _ in range(self.steps):
            weight = total * torch.softmax(mean, -1)
            chain = Tridiagonal.of(prior.diagonal + weight, prior.coupling)
            mean = mean + chain.solve(counts - weight - prior.pull(mean)).clamp_(-_CLIP, _CLIP)
        settled = mean = prior.centre_logits(mean)
        if state.settled is not None:
            mean = mean + self.momentum * (mean - state.settled)
        weight = total * torch.softmax(mean, -1)
        information = (weight - missing).clamp_(min=0)
        chain = Tridiagonal.of(prior.diagonal + information, prior.coupling)
        hypers = hyper_steps(model, state.hypers, mean, chain, self.relaxation)
        after = WalkPrior(model, hypers)
        diagonal = after.diagonal + information
        return WalkState(mean, diagonal, after.coupling.clone(), **hypers, settled=settled)

    def prior_term(self, model: DTM, state: WalkState) -> Tensor:
        prior = WalkPrior(model, state.hypers)
        walk = (prior.log_det - prior.quadratic(state.mean) - state.eliminated.log_det).double().sum() / 2
        return walk + self.log_prior_of_hypers(model, state)

    def posterior(self, model: DTM, state: WalkState, rows: DocumentRows, step: EStep) -> DirichletPosterior:
        """Return Dirichlet(alpha + N_d)."""
        return DirichletPosterior(self.alpha(model, state.mean) + rows.sum_by_document(step.locals["responsibility"]))

    def responsibilities(self, model: DTM, state: WalkState, rows: DocumentRows, warm: Params) -> Tensor:
        return warm["responsibility"]


@dataclass(frozen=True)
class Refreshed:
    """What passes over the documents find: sum_d n_dv r_dvk and sum_d n_dv r_dvk (1 - r_dvk) (V, K), the predictive
    probabilities' logarithms (N,), and what the next ones go on from."""

    counts: Tensor
    missing: Tensor
    value: Tensor
    locals: dict[str, Tensor]


def refresh_responsibilities(rows: DocumentRows, topic: Tensor, alpha: Tensor, warm: Warm, sweeps: int) -> Refreshed:
    """Make passes at topics (V, K) from the responsibilities of an earlier one, which are left as they are."""
    if warm:
        responsibility = warm["responsibility"].contiguous()
    else:
        cells = topic[rows.counts.col_indices()]
        responsibility = cells / cells.sum(-1, keepdim=True).clamp(min=torch.finfo(cells.dtype).tiny)
        sweeps = max(sweeps, _COLD_SWEEPS)
    if topic.device.type == "cpu":
        # The compiler is loaded where it is needed, not with the package.
        from custom_inference.families.dynamics.kernels import refresh_at_topics as refresh
    else:
        refresh = refresh_in_blocks
    after, counts, missing, value = refresh(rows, topic, alpha, responsibility, sweeps)
    return Refreshed(counts, missing, value, {"responsibility": after})


def refresh_in_blocks(
    rows: DocumentRows, topic: Tensor, alpha: Tensor, before: Tensor, sweeps: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Update like :func:`custom_inference.families.dynamics.kernels.refresh_at_topics`, on any device: all words of a
    document at once, to the same fixed points."""
    responsibility, value = before.clone(), torch.zeros_like(rows.lengths)
    for block in rows.blocks if len(responsibility) else ():
        seen, count = block.of_words(topic), block.count.unsqueeze(-1)
        own, real = responsibility[block.cells], (block.cells >= 0).unsqueeze(-1)
        mass = count
        for _ in range(sweeps):
            at = alpha + (count * own).sum(1)
            new = (at.unsqueeze(1) - own).clamp(min=1e-30) * seen
            mass = new.sum(-1, keepdim=True).clamp(min=1e-30)
            own = torch.where(real, new / mass, own)
        length = block.count.sum(-1)
        value[block.documents] = torch.xlogy(count, mass).sum((1, 2)) - torch.xlogy(length, length + alpha.sum() - 1)
        flat = block.cells.flatten()
        responsibility[flat[flat >= 0]] = own.flatten(0, 1)[flat >= 0]
    missing = rows.sum_shares(responsibility * (1 - responsibility))
    return responsibility, rows.sum_shares(responsibility), missing, value


#: Iterations of EM for the topics that do not change.
_STATIC = 18
#: Documents that a start looks at, at most.
_SEARCH_ROWS = 5000


class DynamicProposals(TopicProposals):
    """Static topics by EM with each token left out of its document's proportions, from random responsibilities."""

    tolerance = 2e-3

    def propose(self, model: DTM, rows: DocumentRows, generator: torch.Generator, attempt: int) -> Any:
        del attempt
        static = _merge_slices(rows, model.vocabulary_size)
        like, shape = rows.like.values(), (model.vocabulary_size, model.num_topics)
        alpha = self.engine.alpha(model, like)
        weight = -torch.log1p(-torch.rand(shape, generator=generator, dtype=torch.float64) * (1 - 1e-6)).to(like)
        own = weight[static.counts.col_indices()]
        locals_ = {"responsibility": own / own.sum(-1, keepdim=True)}
        counts = weight * sparse.column_sums(static.counts).unsqueeze(-1) / weight.sum(-1, keepdim=True)
        for _ in range(_STATIC):
            topic = counts + 0.05
            found = refresh_responsibilities(static, topic / topic.sum(0), alpha, locals_, 1)
            counts, locals_ = found.counts, found.locals
        return self.engine.from_static(model, rows, counts.T)

    def search_size(self, model: DTM, num_rows: int) -> tuple[int, int]:
        return 3, min(num_rows, _SEARCH_ROWS)

    def components(self, model: DTM, state: WalkState | Params) -> Tensor:
        """Return the word probabilities, the mean over the slices, (K, V)."""
        return torch.softmax(values_of(model, state)["topic_logit"], -1).mean(0)


def _merge_slices(rows: DocumentRows, words: int) -> DocumentRows:
    """Return the documents with columns v for t V + v."""
    counts = rows.counts
    size = (len(rows), words)
    crow, column = counts.crow_indices(), counts.col_indices() % words
    return DocumentRows(sparse.tensor(crow, column, counts.values(), size=size))
