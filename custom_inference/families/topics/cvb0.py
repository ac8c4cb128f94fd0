"""LDA by collapsed variational Bayes to zeroth order (CVB0): proportions and topics are integrated out.

Asuncion, Welling, Smyth & Teh, *On smoothing and inference for topic models*, UAI 2009, eq. 9. Every token has a
distribution over its topic, the same for all tokens of one word in one document: share_dvk. With expected counts

    N_dk = sum_v n_dv share_dvk,    N_kv = sum_d n_dv share_dvk,    N_k = sum_v N_kv

a token's share is the collapsed Gibbs conditional (002, eq. 27.37) at the expected counts of all OTHER tokens:

    share_dvk ~ (N_dk - share_dvk + alpha_k) (N_kv - share_dvk + gamma_v) / (N_k - share_dvk + sum_v gamma_v)

A word's tokens in a document are refreshed together and words in turn, each with the counts that the one before it left
(Gauss-Seidel), which converges in fewer passes than refreshing all by the counts of the last pass. What
the right-hand side sums to over k, divided by L_d - 1 + sum alpha, is the predictive probability of the token given all
others at their expected counts. The objective is the sum of its logarithms over all tokens: the leave-one-out (pseudo)
likelihood, no bound on log p(x), and not always monotone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from custom_inference.core.capabilities import GlobalPosterior, LocalEngine, Looks, Sequential, from_point
from custom_inference.core.capacity import allowed_bytes, require
from custom_inference.core.engine import Engine, EStep, Objective, Params, Warm
from custom_inference.core.posteriors import DirichletPosterior
from custom_inference.core.states import State
from custom_inference.families.common.dirichlet import dirichlet_prior
from custom_inference.families.common.documents import DocumentRows
from custom_inference.families.topics.common import TopicEngine
from custom_inference.families.topics.cvb0_sweeps import counted, refresh, start
from custom_inference.families.topics.dirichlet import LdaDirichlet
from custom_inference.families.topics.states import TopicCounts
from ppl_models import Model
from ppl_models.data import sparse as _sparse

#: Updates of the shares of documents that start from the topics alone.
_COLD_SWEEPS = 5


@dataclass(frozen=True, kw_only=True)
class LdaCvb0(Sequential, LocalEngine, GlobalPosterior, TopicEngine):
    """The state is N_kv. Locals: "share", of every stored cell (nnz, K), which add up to the counts that an E step with
    them is given.

    max_bytes: memory allowed for the shares, by default half of what is free.
    """

    max_bytes: float | None = None

    name = "cvb0"
    objective: ClassVar[Objective] = "estimate"
    state: ClassVar[type[State]] = TopicCounts

    def gamma(self, model: Model, like: Tensor) -> Tensor:
        """(1,) where all are the same, or (V,)."""
        gamma = dirichlet_prior(model, "topic", like).flatten()
        return gamma[:1] if bool((gamma == gamma[0]).all()) else gamma

    def local(self) -> Engine:
        """At given topics: the variational Dirichlet posteriors of the proportions."""
        return LdaDirichlet()

    def check(self, model: Model, rows: DocumentRows) -> None:
        """Raises CapacityError where the shares of all (document, word) pairs do not fit."""
        super().check(model, rows)
        values = rows.like.values()
        needed = 2.0 * values.numel() * model.shapes["topic"][0] * values.element_size()
        what = f"the topic shares of {values.numel()} (document, word) pairs"
        fits = 'use minibatches (batch_size), or guide="vb", which keeps none'
        require(what, needed, allowed=allowed_bytes(self.max_bytes), fits=fits)

    # ----- E step -------------------------------------------------------------------------------------------------

    def e_step(
        self,
        model: Model,
        state: TopicCounts,
        rows: DocumentRows,
        warm: Warm = None,
        *,
        temperature: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> EStep:
        alpha = self.alpha(model, state.counts)
        if warm:
            share, counts = warm["share"], state.counts.T
        else:
            share = start(rows, state.values(model)["topic"], alpha, sweeps=_COLD_SWEEPS)
            counts = counted(rows, share)
        found = refresh(rows, share, counts, alpha, self.gamma(model, alpha), temperature)
        return EStep({"topic": found.counts.T}, {"share": found.share}, found.bound + rows.log_coefficient)

    def m_step(self, model: Model, state: TopicCounts, step: EStep, rows: DocumentRows) -> TopicCounts:
        return TopicCounts(step.statistics["topic"])

    def prior_term(self, model: Model, state: TopicCounts) -> float:
        return 0.0

    # ----- what else the driver asks ------------------------------------------------------------------------------

    def initial(self, model: Model, rows: DocumentRows, generator: torch.Generator) -> TopicCounts:
        return from_point(self, model, super().initial(model, rows, generator), rows)

    def from_counts(self, model: Model, counts: Tensor) -> TopicCounts:
        return TopicCounts(counts)

    def from_point(self, model: Model, params: Params, rows: DocumentRows, e_step: Looks) -> TopicCounts:
        """The counts that topics of equal size would have."""
        topic = params["topic"]
        return TopicCounts(topic * (e_step().statistics["topic"].sum() / len(topic)))

    def posterior(self, model: Model, state: TopicCounts, rows: DocumentRows, step: EStep) -> DirichletPosterior:
        """Dirichlet(alpha + N_d)."""
        share = step.locals["share"]
        row, _, count = _sparse.triplets(rows.counts)
        found = self.alpha(model, share).expand(len(rows), -1).clone()
        return DirichletPosterior(found.index_add_(0, row, share * count.unsqueeze(-1)))

    def responsibilities(self, model: Model, state: TopicCounts, rows: DocumentRows, warm: Params) -> Tensor:
        """share of every stored cell, (nnz, K)."""
        return warm["share"]
