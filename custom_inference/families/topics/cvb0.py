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

from dataclasses import dataclass, field, replace
from typing import Self

import torch
from torch import Tensor

from custom_inference.core.capacity import allowed_bytes, require
from custom_inference.core.engine import Engine, EStep, Params
from custom_inference.core.posteriors import DirichletPosterior
from custom_inference.families.common.dirichlet import dirichlet_prior, normalised
from custom_inference.families.common.documents import DocumentRows
from custom_inference.families.topics.common import TopicSteps
from custom_inference.families.topics.cvb0_sweeps import counted, refresh, start
from custom_inference.families.topics.dirichlet import LdaDirichlet
from ppl_models import Model
from ppl_models.data import sparse as _sparse

#: Updates of the shares of documents that start from the topics alone.
_COLD_SWEEPS = 5


@dataclass(frozen=True, kw_only=True)
class LdaCvb0(TopicSteps):
    """Params: "topic", the expected counts N_kv (K, V). Locals: "share", of every stored cell (nnz, K), which add up to
    the params that an E step with them is given.

    topic_concentration: gamma, one number or (V,), set by ``for_model``; max_bytes: memory allowed for the shares, by
    default half of what is free.
    """

    topic_concentration: tuple[float, ...] = field(default=(1.0,), repr=False)
    max_bytes: float | None = None

    name = "cvb0"
    integrates_globals = True
    is_bound = False
    accelerate = None
    sequential = True

    def for_model(self, model: Model) -> Self:
        steps = super().for_model(model)
        gamma = dirichlet_prior(model, "topic", torch.ones((), dtype=torch.float64)).flatten()
        same = bool((gamma == gamma[0]).all())
        return replace(steps, topic_concentration=tuple((gamma[:1] if same else gamma).tolist()))

    def gamma(self, like: Tensor) -> Tensor:
        """(1,) or (V,)."""
        return like.new_tensor(self.topic_concentration)

    def local(self) -> Engine:
        """At given topics: the variational Dirichlet posteriors of the proportions."""
        return LdaDirichlet(concentration=self.concentration, coefficient=self.coefficient)

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
        params: Params,
        rows: DocumentRows,
        locals_: dict[str, Tensor] | None = None,
        *,
        temperature: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> EStep:
        alpha = self.alpha(params)
        if locals_:
            share, counts = locals_["share"], params["topic"].T
        else:
            share = start(rows, self.mean(params), alpha, sweeps=_COLD_SWEEPS)
            counts = counted(rows, share)
        found = refresh(rows, share, counts, alpha, self.gamma(alpha), temperature)
        return EStep({"topic": found.counts.T}, {"share": found.share}, found.bound + rows.log_coefficient)

    def m_step(self, model: Model, params: Params, step: EStep, rows: DocumentRows) -> Params:
        return {"topic": step.statistics["topic"]}

    def objective(self, model: Model, params: Params, bound: Tensor) -> float:
        return float(bound.double().sum())

    # ----- what else the driver asks ------------------------------------------------------------------------------

    def mean(self, params: Params) -> Tensor:
        """(N_kv + gamma_v) / (N_k + sum gamma), (K, V)."""
        return normalised(params["topic"] + self.gamma(params["topic"]))

    def initial(self, model: Model, rows: DocumentRows, generator: torch.Generator) -> Params:
        return self.starting(model, super().initial(model, rows, generator), rows)

    def from_counts(self, model: Model, counts: Tensor) -> Params:
        return {"topic": counts}

    def starting(self, model: Model, params: Params, rows: DocumentRows) -> Params:
        """The counts that topics of equal size would have."""
        topic = params["topic"]
        tokens = self.looked(params, rows).statistics["topic"].sum()
        return {"topic": topic * (tokens / len(topic))}

    def reported(self, model: Model, params: Params) -> tuple[Params, dict[str, DirichletPosterior]]:
        """The smoothed expected topics: means of Dirichlet(N_k + gamma), their posterior at the expected counts."""
        posterior = DirichletPosterior(params["topic"] + self.gamma(params["topic"]))
        return {"topic": posterior.mean}, {"topic": posterior}

    def posterior(self, params: Params, rows: DocumentRows, step: EStep) -> DirichletPosterior:
        """Dirichlet(alpha + N_d)."""
        share = step.locals["share"]
        row, _, count = _sparse.triplets(rows.counts)
        found = self.alpha(params).expand(len(rows), -1).clone()
        return DirichletPosterior(found.index_add_(0, row, share * count.unsqueeze(-1)))

    def responsibilities(self, params: Params, rows: DocumentRows, locals_: dict[str, Tensor]) -> Tensor:
        """share of every stored cell, (nnz, K)."""
        return locals_["share"]
