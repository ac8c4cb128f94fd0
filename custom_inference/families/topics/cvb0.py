"""LDA by collapsed variational Bayes to zeroth order (CVB0): proportions and topics are integrated out.

Asuncion, Welling, Smyth & Teh, *On smoothing and inference for topic models*, UAI 2009, eq. 9. Every token has a
distribution over its topic, the same for all tokens of one word in one document: r_dvk. With expected counts

    N_dk = sum_v n_dv r_dvk,    N_kv = sum_d n_dv r_dvk,    N_k = sum_v N_kv

a token's responsibility is the collapsed Gibbs conditional (Murphy 2012, eq. 27.37) at the expected counts of all OTHER
tokens:

    r_dvk ~ (N_dk - r_dvk + alpha_k) (N_kv - r_dvk + gamma_v) / (N_k - r_dvk + sum_v gamma_v)

A word's tokens in a document are refreshed together and words in turn, each with the counts that the one before it left
(Gauss-Seidel), which converges in fewer passes than refreshing all by the counts of the last pass. What
the right-hand side sums to over k, divided by L_d - 1 + sum alpha, is the predictive probability of the token given all
others at their expected counts. The objective is the sum of its logarithms over all tokens: the leave-one-out (pseudo)
likelihood, no bound on log p(x), and not always monotone.

On a processor compiled loops refresh word by word (``kernels``); elsewhere whole blocks of documents are refreshed at
once, by the counts that the blocks before them left. Both have the same fixed points.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from custom_inference.core.capacity import memory_limit, require
from custom_inference.core.engine import Engine, EStep, InitialStep, Objective, Params, Warm
from custom_inference.core.posteriors import DirichletPosterior
from custom_inference.core.states import State
from custom_inference.families.conjugate.dirichlet import Dirichlet
from custom_inference.families.rows.documents import DocumentBlock, DocumentRows
from custom_inference.families.topics.common import TopicEngine
from custom_inference.families.topics.dirichlet import LdaDirichlet
from ppl_models import Model

#: More responsibilities than this are kept in single precision, whatever the counts are in.
_MANY = 2**22
#: Updates of the responsibilities of documents that start from the topics alone.
_COLD_SWEEPS = 5


@dataclass(frozen=True)
class TopicCounts(State):
    """counts: N_kv (K, V), the expected tokens of every word in every topic."""

    counts: Tensor

    def posteriors(self, model: Model) -> Mapping[str, DirichletPosterior]:
        """Return Dirichlet(N_k + gamma), the posterior at the expected counts: its means are (N_kv + gamma_v) / (N_k +
        sum gamma)."""
        return {"topic": DirichletPosterior(self.counts + Dirichlet.of(model, "topic", self.counts).concentration)}

    @classmethod
    def from_posterior(cls, model: Model, posterior: DirichletPosterior) -> Self:
        return cls(posterior.concentration - Dirichlet.of(model, "topic", posterior.concentration).concentration)


@dataclass(frozen=True, kw_only=True)
class LdaCvb0(TopicEngine):
    """The state is N_kv. Locals: "responsibility", of every stored cell (nnz, K), which add up to the counts that an E
    step with them is given.

    max_bytes: memory allowed for the responsibilities, by default half of what is free. Many are kept in single
        precision: their rounding, 1e-7 of a token, is far below any tolerance.
    """

    sequential = True
    integrates_globals = True
    hands_on_locals = True

    max_bytes: float | None = None

    name = "cvb0"
    objective: ClassVar[Objective] = "estimate"
    state: ClassVar[type[State]] = TopicCounts

    def local(self) -> Engine:
        """Return the engine at given topics: the variational Dirichlet posteriors of the proportions."""
        return LdaDirichlet()

    def check(self, model: Model, rows: DocumentRows) -> None:
        """Raises CapacityError where the responsibilities of all (document, word) pairs do not fit."""
        super().check(model, rows)
        values = rows.like.values()
        number = values.numel() * model.shapes["topic"][0]
        needed = 2.0 * number * _precision_of(values.dtype, number).itemsize
        what = f"the topic responsibilities of {values.numel()} (document, word) pairs"
        fits = 'use minibatches (batch_size), or guide="vb", which keeps none'
        require(what, needed, allowed=memory_limit(self.max_bytes), fits=fits)

    def e_step(
        self, model: Model, state: TopicCounts, rows: DocumentRows, warm: Warm = None, *,
        temperature: float = 1.0, generator: torch.Generator | None = None,
    ) -> EStep:  # fmt: skip
        """Make one pass; the responsibilities and counts that it starts from are left as they are."""
        alpha, (start, refresh) = self.document_alpha(model, state, rows), _passes(state.counts.device)
        if warm:
            kept = _precision_of(rows.like.dtype, warm["responsibility"].numel())
            responsibility, counts = warm["responsibility"].to(kept, copy=True).contiguous(), state.counts.T
        else:
            kept = _precision_of(rows.like.dtype, rows.counts.values().numel() * len(state.counts))
            responsibility = start(rows, state.values(model)["topic"].T.contiguous(), alpha, _COLD_SWEEPS, kept)
            counts = rows.sum_shares(responsibility)
        table = (counts + self.words_prior(model, counts).expand_as(state.counts).T).contiguous()
        bound = torch.zeros_like(rows.lengths)
        counts = refresh(rows, responsibility, alpha, table, bound, temperature)
        return EStep({"topic": counts.T}, {"responsibility": responsibility}, bound + rows.log_coefficient)

    def m_step(self, model: Model, state: TopicCounts, step: EStep, rows: DocumentRows) -> TopicCounts:
        return TopicCounts(step.statistics["topic"])

    def prior_term(self, model: Model, state: TopicCounts) -> float:
        return 0.0

    def initial(self, model: Model, rows: DocumentRows, generator: torch.Generator) -> TopicCounts:
        return self.start_from(model, super().initial(model, rows, generator), rows)

    def from_counts(self, model: Model, counts: Tensor) -> TopicCounts:
        return TopicCounts(counts)

    def from_point(self, model: Model, params: Params, rows: DocumentRows, e_step: InitialStep) -> TopicCounts:
        """Return the counts that topics of equal size would have."""
        topic = params["topic"]
        return TopicCounts(topic * (e_step().statistics["topic"].sum() / len(topic)))

    def posterior(self, model: Model, state: TopicCounts, rows: DocumentRows, step: EStep) -> DirichletPosterior:
        """Return the posteriors of the proportions, Dirichlet(alpha + N_d)."""
        tokens = rows.sum_by_document(step.locals["responsibility"])
        return DirichletPosterior(self.document_alpha(model, state, rows) + tokens)

    def responsibilities(self, model: Model, state: TopicCounts, rows: DocumentRows, warm: Params) -> Tensor:
        return warm["responsibility"]


def _precision_of(dtype: torch.dtype, number: int) -> torch.dtype:
    """Return the precision that so many responsibilities are kept in, where the counts have ``dtype``."""
    return torch.float32 if number > _MANY else dtype


def _passes(device: torch.device) -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
    """Return two functions: one finds responsibilities near the fixed point at given topics, the other refreshes
    them."""
    if device.type != "cpu":
        return start_blocks, refresh_blocks
    # Not at the top: numba takes a second to import, and most of the suite does without.
    from custom_inference.families.topics import kernels

    return kernels.start_documents, kernels.refresh_documents


def refresh_blocks(
    rows: DocumentRows, responsibility: Tensor, alpha: Tensor, table: Tensor, bound: Tensor, temperature: float
) -> Tensor:
    """Update like :func:`custom_inference.families.topics.kernels.refresh_documents`, on any device."""
    for block in rows.blocks if len(responsibility) else ():
        inside = block.cells >= 0
        old = responsibility[block.cells].to(table.dtype) * inside.unsqueeze(-1)
        document = block.count.unsqueeze(1) @ old + of_block(alpha, block)
        seen = (block.of_words(table) - old).clamp(min=0) / (table.sum(0) - old)
        new, mass = _normalise((document - old) * (seen if temperature == 1.0 else seen**temperature), inside)
        each = torch.where(inside, block.count * (mass / (document.sum(-1) - 1)).log(), 0.0)
        bound[block.documents] += each.sum(-1)
        table.index_add_(0, block.word.flatten(), ((new - old) * block.count.unsqueeze(-1)).flatten(0, 1))
        responsibility[block.cells[inside]] = new[inside].to(responsibility.dtype)
    return rows.sum_shares(responsibility)


def start_blocks(
    rows: DocumentRows, topic: Tensor, alpha: Tensor, sweeps: int, kept: torch.dtype | None = None
) -> Tensor:
    """Start like :func:`custom_inference.families.topics.kernels.start_documents`, on any device."""
    responsibility = topic.new_empty(rows.counts.values().numel(), topic.shape[1], dtype=kept)
    for block in rows.blocks:
        inside = block.cells >= 0
        prior = of_block(alpha, block)
        seen = block.of_words(topic) * (prior > 0)
        new = _normalise(seen, inside)[0]
        for _ in range(sweeps):
            new = _normalise((block.count.unsqueeze(1) @ new + prior - new) * seen, inside)[0]
        responsibility[block.cells[inside]] = new[inside].to(responsibility.dtype)
    return responsibility


def of_block(alpha: Tensor, block: DocumentBlock) -> Tensor:
    """Select alpha of a block's documents, (B, 1, K) or (K,)."""
    return alpha if alpha.ndim == 1 else alpha[block.documents].unsqueeze(1)


def _normalise(weight: Tensor, inside: Tensor) -> tuple[Tensor, Tensor]:
    """Divide by the sums over topics; return shares, 0 for padding, and these sums."""
    weight = weight.clamp(min=0)
    mass = weight.sum(-1).clamp(min=1e-30)
    equal = torch.full_like(weight, 1 / weight.shape[-1])
    responsibility = torch.where((mass > 1e-30).unsqueeze(-1), weight / mass.unsqueeze(-1), equal)
    return responsibility * inside.unsqueeze(-1), mass
