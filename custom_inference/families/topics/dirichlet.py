"""LDA and PLSA with the topics as points and Dirichlet posteriors of the topic proportions (Murphy 2012, section
27.3.6.2).

q(pi_i, c_i) = Dirichlet(pi_i | pi~_i) prod_v Multinomial(c_iv | n_iv, c~_iv) (eq. 27.43); the M step is eq. 27.46 (see
``common``). This is also how documents are inferred at given topics, whatever these were fitted with.

Sweeps over documents (algorithm 27.1, Estep). With scores s_vk (the word probabilities b_vk, or exp(E[log b_vk]) where
the topics have a posterior too) and, for document i, e_ik = exp(E[log pi_ik]), the words' topics c_ivk = s_vk e_ik /
sum_j s_vj e_ij (eqs. 27.45 and 27.48) are summed where they are used and never stored:

    pi~_ik <- alpha_k + e_ik sum_v [n_iv / sum_j e_ij s_vj] s_vk                                     (eq. 27.44)
    bound_i = sum_v n_iv log sum_k e_ik s_vk - KL(Dirichlet(pi~_i) || Dirichlet(alpha))  <=  log p(n_i | b)
    sum_i n_iv c_ivk = s_vk sum_i [n_iv / sum_j e_ij s_vj] e_ik                              (eqs. 27.46 and 27.49)

plus, in the bound, the multinomial coefficient where the model has it.
The bound holds at any pi~_i, as c is at its best given pi~. On a processor compiled loops go through the documents one
by one (``kernels``); elsewhere each block of documents is two batched matrix products a sweep, with its scores gathered
once, in two layouts, so that both read memory in order. Scores are scaled by word, e by document, to a largest value of
1, and what the scales take away is added to the bound.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from custom_inference.core.engine import EStep, Params, Warm
from custom_inference.core.posteriors import DirichletPosterior
from custom_inference.families.conjugate.dirichlet import Dirichlet
from custom_inference.families.rows.documents import DocumentBlock, DocumentRows
from custom_inference.families.topics.common import TopicEngine
from ppl_models import Model
from ppl_models.distributions.tokens import sparse_product

#: Sweeps from which on a document counts as restless: its topics have moved.
_RESTLESS = 4
#: At globals that stay: so many sweeps of a document at most, until pi~ changes by less.
_MOST, _STILL = 2000, 1e-6


class TopicScores(NamedTuple):
    """word (V, K): s_vk over its largest value; log_scale (V,): the logarithm of that value."""

    word: Tensor
    log_scale: Tensor

    @classmethod
    def of(cls, log_score: Tensor) -> TopicScores:
        """Store exp log s_kv (K, V) relative to the largest value of each word."""
        largest = log_score.amax(0)
        # A word that no topic can write, log s = -inf for all k, has equal shares and the bound -inf.
        relative = torch.where(largest > -torch.inf, log_score - largest, torch.zeros_like(log_score))
        score = torch.where(relative > -torch.inf, relative.clamp(min=_lowest(relative)).exp(), 0.0)
        return cls(score.T.contiguous(), largest)


@dataclass(frozen=True, kw_only=True)
class LdaDirichlet(TopicEngine):
    """sweeps, cold_sweeps: at most this many of an E step that goes on from the last one, and of one that does not.
    threshold: a block of documents is done when pi~ changes by less than this, on average over the topics.
    """

    sweeps: int = 10
    cold_sweeps: int = 100
    threshold: float = 1e-3

    name: ClassVar[str] = "dirichlet"

    def at_length(self) -> Self:
        return replace(self, sweeps=_MOST, cold_sweeps=_MOST, threshold=_STILL)

    def scores(self, model: Model, params: Params, temperature: float = 1.0) -> TopicScores:
        """Return the scores log b, tempered."""
        return TopicScores.of(temperature * torch.log(self.topics(model, params)))

    def e_step(
        self, model: Model, params: Params, rows: DocumentRows, warm: Warm = None, *,
        temperature: float = 1.0, generator: torch.Generator | None = None,
    ) -> EStep:  # fmt: skip
        alpha = self.document_alpha(model, params, rows)
        return self.documents(rows, self.scores(model, params, temperature), alpha, warm)

    def documents(self, rows: DocumentRows, scores: TopicScores, alpha: Tensor, warm: Warm) -> EStep:
        """Infer the documents' posteriors at (expected) log b and alpha."""
        start, sweeps = (warm["concentration"], self.sweeps) if warm else (None, self.cold_sweeps)
        found = sweep_documents(rows, scores, alpha, start, sweeps, self.threshold, self.cold_sweeps)
        return EStep({"topic": found.counts}, {"concentration": found.concentration}, found.bound)

    def posterior(self, model: Model, params: Params, rows: DocumentRows, step: EStep) -> DirichletPosterior:
        return DirichletPosterior(step.locals["concentration"])

    def responsibilities(self, model: Model, params: Params, rows: DocumentRows, warm: Params) -> Tensor:
        """Compute c~_ivk of every stored cell (eq. 27.45), (nnz, K)."""
        return rows.responsibilities(relative_share(warm["concentration"]), self.scores(model, params).word)


class Swept(NamedTuple):
    """concentration (N, K): pi~; bound (N,); counts (K, V): sum_i n_iv c_ivk. share, ratio: as in :class:`Settled`."""

    concentration: Tensor
    bound: Tensor
    counts: Tensor
    share: Tensor
    ratio: Tensor


class Settled(NamedTuple):
    """share (N, K): exp(E[log pi]) up to a factor of the document; ratio (nnz,): n_iv over its mixture in that scale;
    bound (N,): sum_v n_iv log sum_k exp(E[log pi_ik]) s_vk; sweeps (N,)."""

    share: Tensor
    ratio: Tensor
    bound: Tensor
    sweeps: Tensor


def sweep_documents(
    rows: DocumentRows,
    scores: TopicScores,
    alpha: Tensor,
    start: Tensor | None,
    sweeps: int,
    threshold: float,
    afresh: int = 0,
    due: Tensor | None = None,
) -> Swept:
    """Sweep until pi~ changes by less than ``threshold`` on average over k (algorithm 27.1, line 22), document by
    document or block by block.

    alpha: (K,), or (N, K) where it differs by document.
    start: pi~ (N, K) to go on from; None: equal shares. afresh: documents that take ``_RESTLESS`` sweeps or more from
    ``start`` are tried from equal shares too, with this many sweeps at most, and keep what bounds better: what was best
    for topics that have moved since often is a poor local optimum for those of now. due (N,): of which documents alone.
    """
    found_at = equal_shares(rows, alpha) if start is None else start.to(alpha)
    concentration = found_at.clone(memory_format=torch.contiguous_format)
    found, bound = _settle(rows, scores.word, alpha, concentration, sweeps, threshold)
    moved = found.sweeps >= _RESTLESS
    restless = (moved if due is None else moved & due).nonzero().flatten()
    if start is not None and afresh and len(restless):
        part = rows.select(restless)
        own = alpha if alpha.ndim == 1 else alpha[restless]
        other = equal_shares(part, own).contiguous()
        again, reached = _settle(part, scores.word, own, other, afresh, threshold)
        better = reached > bound[restless]
        at = restless[better]
        concentration[at], found.share[at], bound[at] = other[better], again.share[better], reached[better]
        chosen = torch.zeros_like(bound, dtype=torch.bool)
        chosen[at] = True
        cells, others = (one.counts.crow_indices().diff() for one in (rows, part))
        found.ratio[chosen.repeat_interleave(cells)] = again.ratio[better.repeat_interleave(others)]
    share = found.share if rows.weight is None else found.share * rows.weight
    counts = scores.word * rows.sum_by_word(found.ratio, share)
    counted = rows.counts.to(scores.log_scale.dtype)
    scale = sparse_product(counted, scores.log_scale.unsqueeze(-1)).squeeze(-1)
    return Swept(concentration, bound + scale + rows.log_coefficient, counts.T, found.share, found.ratio)


def equal_shares(rows: DocumentRows, alpha: Tensor) -> Tensor:
    """Return pi~ (N, K) of documents whose tokens belong to every topic alike."""
    return alpha + rows.lengths.unsqueeze(-1) / alpha.shape[-1]


def _settle(
    rows: DocumentRows, score: Tensor, alpha: Tensor, concentration: Tensor, sweeps: int, threshold: float
) -> tuple[Settled, Tensor]:
    """Sweep until the documents have converged, updating ``concentration`` in place; return the bound (N,) with the
    divergence."""
    settle = settle_blocks
    if concentration.device.type == "cpu":
        # The compiler is loaded where it is needed, not with the package.
        from custom_inference.families.topics.kernels import settle_documents as settle
    found = Settled(*settle(rows, score, alpha, concentration, sweeps=sweeps, threshold=threshold))
    return found, found.bound - Dirichlet(concentration).kl(alpha)


def relative_share(concentration: Tensor) -> Tensor:
    """Compute exp(E[log pi_ik]) relative to the largest of its row."""
    value = torch.digamma(concentration)
    value = value - value.amax(-1, keepdim=True)
    return value.clamp(min=_lowest(value)).exp()


def _lowest(value: Tensor) -> float:
    """Return half the logarithm of the smallest normal number: the product of two such factors is still a normal
    number."""
    return 0.49 * float(torch.log(torch.tensor(torch.finfo(value.dtype).tiny)))


def settle_blocks(
    rows: DocumentRows, score: Tensor, alpha: Tensor, concentration: Tensor, *, sweeps: int, threshold: float
) -> Settled:
    """Update like :func:`custom_inference.families.topics.kernels.settle_documents`, in blocks, on any device."""
    share, bound = torch.empty_like(concentration), torch.empty_like(rows.lengths)
    ratio = torch.zeros_like(torch.cat([rows.counts.values(), bound[:1]]))  # the last place takes the padding
    used = torch.zeros(len(rows), dtype=torch.int32, device=bound.device)
    alpha = alpha.expand_as(concentration)
    for block in rows.blocks:
        seen = block.of_words(score)
        if rows.weight is not None:
            seen = seen * rows.weight[block.documents].unsqueeze(1)
        each = alpha[block.documents]
        found, made = _swept(block, seen, each, concentration[block.documents], sweeps, threshold)
        each = relative_share(found)
        mixture = (seen @ each.unsqueeze(-1)).squeeze(-1)
        ratio[block.cells] = block.count / mixture
        largest = Dirichlet(found).expected().amax(-1) * block.count.sum(-1)
        bound[block.documents] = torch.xlogy(block.count, mixture).sum(-1) + largest
        concentration[block.documents], share[block.documents], used[block.documents] = found, each, made
    return Settled(share, ratio[:-1], bound, used)


def _swept(
    block: DocumentBlock, seen: Tensor, alpha: Tensor, concentration: Tensor, sweeps: int, threshold: float
) -> tuple[Tensor, int]:
    """Sweep over a block's documents; return pi~ (B, K) and how many sweeps were made."""
    across, count = seen.transpose(1, 2).contiguous(), block.count.unsqueeze(1)
    before, alpha, used = concentration.unsqueeze(1), alpha.unsqueeze(1), 0
    for used in range(1, sweeps + 1):  # noqa: B007
        share = relative_share(before)
        after = torch.addcmul(alpha, share, (count / (share @ across)) @ seen)
        change = (after - before).abs_().mean(-1).amax()
        before = after
        if float(change) < threshold:
            break
    return before.squeeze(1), used
