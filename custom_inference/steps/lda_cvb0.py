"""LDA by collapsed variational Bayes to zeroth order (CVB0): proportions and topics are integrated out.

Asuncion, Welling, Smyth & Teh, *On smoothing and inference for topic models*, UAI 2009, eq. 9. Every token has a
distribution over its topic, the same for all tokens of one word in one document: share_dvk. With expected counts

    N_dk = sum_v n_dv share_dvk,    N_kv = sum_d n_dv share_dvk,    N_k = sum_v N_kv

a token's share is the collapsed Gibbs conditional (002, eq. 27.37) at the expected counts of all OTHER tokens:

    share_dvk proportional to (N_dk - share_dvk + alpha_k) (N_kv - share_dvk + gamma_v) / (N_k - share_dvk + sum_v gamma_v)

A word's tokens in a document are refreshed together and blocks of documents in turn, each with the counts that the ones
before it left (Gauss-Seidel), which converges in fewer passes than refreshing all with the counts of the last pass. What
the right-hand side sums to over k, divided by L_d - 1 + sum alpha, is the predictive probability of the token given all
others at their expected counts. The objective is the sum of its logarithms over all tokens: the leave-one-out (pseudo)
likelihood, no bound on log p(x), and not always monotone.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Self

import torch
from torch import Tensor

from custom_inference._capacity import allowed_bytes, require
from custom_inference.posterior import DirichletPosterior
from custom_inference.steps._dirichlet import dirichlet_prior, normalised
from custom_inference.steps._documents import Block, DocumentRows
from custom_inference.steps._protocol import EStep, Params, Steps
from custom_inference.steps.lda_topics import TopicSteps
from ppl_models import Model

#: Updates of the shares of documents that start from the topics alone.
_COLD_SWEEPS = 5


@dataclass(frozen=True, kw_only=True)
class LdaCvb0(TopicSteps):
    """Params: "topic", the expected counts N_kv (K, V). Locals: "share", of every (document, word) place of the blocks.

    topic_concentration: gamma, one number or (V,), set by ``for_model``; max_bytes: memory allowed for the shares, by
    default half of what is free.
    """

    topic_concentration: tuple[float, ...] = field(default=(1.0,), repr=False)
    max_bytes: float | None = None

    bound_name = "cvb0"
    integrates_globals = True
    accelerate = None

    def for_model(self, model: Model) -> Self:
        steps = super().for_model(model)
        gamma = dirichlet_prior(model, "topic", torch.ones((), dtype=torch.float64)).flatten()
        same = bool((gamma == gamma[0]).all())
        return replace(steps, topic_concentration=tuple((gamma[:1] if same else gamma).tolist()))

    def gamma(self, like: Tensor) -> Tensor:
        """(1,) or (V,)."""
        return like.new_tensor(self.topic_concentration)

    def local(self) -> Steps:
        """At given topics: the variational Dirichlet posteriors of the proportions."""
        from custom_inference.engines import family_at_given_topics

        return family_at_given_topics(self.concentration, self.coefficient)

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
        alpha, counts = self.alpha(params), params["topic"].T
        if locals_ is None:
            share = self._cold(params, rows, alpha)
        else:
            share = locals_["share"].clone()
        table = _Table(counts_of(rows, share, counts.shape[0]), self.gamma(counts))
        bound = rows.log_coefficient.clone()
        for block, at in _placed(rows):
            old = share[at].view(*block.word.shape, -1)
            document = block.count.unsqueeze(1) @ old + alpha
            new = table.others(block, old, temperature).mul_(document - old).clamp_(min=0)
            total = new.sum(-1)
            bound[block.documents] += _log_predictive(total, document, block)
            new *= _reciprocal(total, block).unsqueeze(-1)
            table.add(block, (new - old).mul_(block.count.unsqueeze(-1)))
            share[at] = new.flatten(0, 1)
        # Counted anew: the running table has rounded at every block.
        return EStep({"topic": counts_of(rows, share, counts.shape[0]).T}, {"share": share}, bound)

    def _cold(self, params: Params, rows: DocumentRows, alpha: Tensor) -> Tensor:
        """Shares at given topics, each token's own share left out of its document's counts only."""
        topic = self._mean(params).T.contiguous()
        share = topic.new_zeros(sum(block.word.numel() for block in rows.blocks), len(alpha))
        for block, at in _placed(rows):
            seen = topic.index_select(0, block.word.flatten()).view(*block.word.shape, -1)
            new = seen * _reciprocal(seen.sum(-1), block).unsqueeze(-1)
            for _ in range(_COLD_SWEEPS):
                new = ((block.count.unsqueeze(1) @ new + alpha) - new).clamp_(min=0).mul_(seen)
                new *= _reciprocal(new.sum(-1), block).unsqueeze(-1)
            share[at] = new.flatten(0, 1)
        return share

    def m_step(self, model: Model, params: Params, step: EStep, rows: DocumentRows) -> Params:
        return {"topic": step.statistics["topic"]}

    def objective(self, model: Model, params: Params, bound: Tensor) -> float:
        return float(bound.double().sum())

    # ----- what else the driver asks ------------------------------------------------------------------------------

    def _mean(self, params: Params) -> Tensor:
        return normalised(params["topic"] + self.gamma(params["topic"]))

    def initial(self, model: Model, rows: DocumentRows, generator: torch.Generator) -> Params:
        return self.starting(model, super().initial(model, rows, generator), rows)

    def starting(self, model: Model, params: Params, rows: DocumentRows) -> Params:
        """The counts that topics of equal size would have."""
        topic = params["topic"]
        return {"topic": topic * (rows.num_tokens / len(topic))}

    def reported(self, model: Model, params: Params) -> tuple[Params, dict[str, DirichletPosterior]]:
        """The smoothed expected topics: means of Dirichlet(N_k + gamma), their posterior at the expected counts."""
        posterior = DirichletPosterior(params["topic"] + self.gamma(params["topic"]))
        return {"topic": posterior.mean}, {"topic": posterior}

    def posterior(self, params: Params, rows: DocumentRows, step: EStep) -> DirichletPosterior:
        """Dirichlet(alpha + N_d)."""
        alpha, found = self.alpha(params), params["topic"].new_empty(len(rows), len(params["topic"]))
        for block, at in _placed(rows):
            share = step.locals["share"][at].view(*block.word.shape, -1)
            found[block.documents] = alpha + (block.count.unsqueeze(1) @ share).squeeze(1)
        return DirichletPosterior(found)

    def responsibilities(self, params: Params, rows: DocumentRows, locals_: dict[str, Tensor]) -> Tensor:
        """share of every stored cell, (nnz, K)."""
        cells = torch.cat([block.cells.flatten() for block in rows.blocks])
        inside = cells >= 0
        found = torch.empty_like(locals_["share"][: int(inside.sum())])
        found[cells[inside]] = locals_["share"][inside]
        return found

    def same_solution(self, first: Params, second: Params) -> bool:
        return super().same_solution({"topic": self._mean(first)}, {"topic": self._mean(second)})


class _Table:
    """N_kv + gamma_v (V, K) and N_k + sum gamma (K,), kept up to date."""

    def __init__(self, counts: Tensor, gamma: Tensor):
        self.word = counts + gamma.unsqueeze(-1)
        self.total = self.word.sum(0)

    def others(self, block: Block, share: Tensor, temperature: float) -> Tensor:
        """The smoothed probability of every place's word in each topic without one token's share, (B, M, K)."""
        seen = self.word.index_select(0, block.word.flatten()).view_as(share).sub_(share)
        seen.div_(self.total - share)
        return seen if temperature == 1.0 else seen.clamp_(min=0).pow_(temperature)

    def add(self, block: Block, change: Tensor) -> None:
        change = change.flatten(0, 1)
        self.word.index_add_(0, block.word.flatten(), change)
        self.total += change.sum(0)


def counts_of(rows: DocumentRows, share: Tensor, vocabulary_size: int) -> Tensor:
    """N_kv as (V, K)."""
    counts = share.new_zeros(vocabulary_size, share.shape[1])
    for block, at in _placed(rows):
        counts.index_add_(0, block.word.flatten(), share[at] * block.count.flatten().unsqueeze(-1))
    return counts


def _placed(rows: DocumentRows) -> list[tuple[Block, slice]]:
    """The blocks, and where their places lie among those of all."""
    found, start = [], 0
    for block in rows.blocks:
        found.append((block, slice(start, start + block.word.numel())))
        start += block.word.numel()
    return found


def _reciprocal(total: Tensor, block: Block) -> Tensor:
    """1 / total, 0 for padding."""
    return torch.where(block.count > 0, 1 / total.clamp(min=torch.finfo(total.dtype).tiny), torch.zeros_like(total))


def _log_predictive(total: Tensor, document: Tensor, block: Block) -> Tensor:
    """sum_v n_dv log p(v | all other tokens), (B,); ``document`` (B, 1, K) is N_dk + alpha_k."""
    others = document.sum(-1) - 1
    tiny = torch.finfo(total.dtype).tiny
    return torch.where(block.count > 0, block.count * (total / others).clamp(min=tiny).log(), 0.0).sum(-1)
