"""LDA exactly: the proportions integrated out at given topics, and of a toy corpus the topics too.

Given pi, the L tokens of a document are independent with probabilities sum_k pi_k b_kv (Murphy 2012, eq. 27.22), so
that

    p(y_1 .. y_L | pi) = prod_l sum_k pi_k b_{k, y_l}

is a polynomial in pi, which ``common.polynomial`` multiplies out and integrates. Collecting terms by how many tokens
each topic wrote, m with sum_k m_k = L, it is the sum over all K^L assignments of tokens to topics

    p(y) = sum_m DirichletMultinomial(m; alpha) beta(m),    p(pi | y) = sum_m [... / p(y)] Dirichlet(pi; alpha + m)

with C(L + K - 1, K - 1) terms: for short documents or few topics. EM from it is exact: it climbs the evidence.

Of a toy corpus topics and proportions are both integrated out: only the topics q of the T tokens remain, K^T values in
all, with the collapsed (Dirichlet-multinomial) law

    log p(y, q) = log p(q | alpha) + log p(y | q, gamma)             (Murphy 2012, eqs. 27.34 and 27.36, gamma for beta)

    log p(q | alpha) = sum_i log G(alpha.) - log G(alpha. + L_i) + sum_k log G(alpha_k + c_ik) - log G(alpha_k)
    log p(y | q, gamma) = sum_k log G(gamma.) - log G(gamma. + c_k) + sum_v log G(gamma_v + c_vk) - log G(gamma_v)

G being the Gamma function and a dot a sum. Every sampler and every bound of LDA can be held against it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from custom_inference.core.capacity import require
from custom_inference.core.engine import EStep, ExactEngine, Params, Warm
from custom_inference.core.posteriors import DirichletMixture
from custom_inference.families.common import polynomial as _polynomial
from custom_inference.families.common.polynomial import BLOCK_ENTRIES, num_states, num_terms
from custom_inference.families.conjugate.dirichlet import Dirichlet, log_rising
from custom_inference.families.rows.documents import DocumentRows
from custom_inference.families.topics.common import TopicEngine
from ppl_models import MethodError, Model
from ppl_models.core.document_model import TopicAdmixture

#: Values of q that are summed over at most, and so many at a time.
MAX_ASSIGNMENTS, _BLOCK = 2**22, 2**15
#: Polynomials of fewer terms than this cost what the calls cost: short documents are padded to the longest.
_LITTLE = 2**18


@dataclass(frozen=True, kw_only=True)
class LdaExact(TopicEngine, ExactEngine):
    """max_bytes: memory allowed; half of what is free by default."""

    max_bytes: float | None = None

    accelerate = "squarem"

    def feasible(self, model: Model) -> bool:
        """Tell whether exact inference is cheap: only with a single topic, as the documents' lengths are not known
        here."""
        return model.shapes["topic"][0] == 1

    def check(self, model: Model, rows: DocumentRows) -> None:
        """Raises MethodError for priors without closed-form updates, CapacityError for polynomials that do not fit."""
        super().check(model, rows)
        longest = int(rows.lengths.max()) if len(rows) else 0
        self.require(model.shapes[self.site][0], longest, 1, rows.like.values().element_size())

    def require(self, size: int, length: int, num_rows: int, itemsize: int, *, only_last: bool = False) -> None:
        what = f"{length} tokens in {size} topics"
        fits = 'documents of up to {most} tokens would fit; use a bound instead, such as "dirichlet"'
        settings = {"what": what, "fits": fits, "limit": self.max_bytes, "only_last": only_last}
        _polynomial.require_memory(length, size, num_rows, itemsize, **settings)

    def e_step(
        self, model: Model, params: Params, rows: DocumentRows, warm: Warm = None, *,
        temperature: float = 1.0, generator: torch.Generator | None = None,
    ) -> EStep:  # fmt: skip
        topic = self.topics(model, params)
        counts, bound = torch.zeros_like(topic.T), rows.log_coefficient.clone()
        for tokens, place, responsibility in self.attribute_tokens(
            topic, self.alpha(model, topic), rows, bound, temperature
        ):
            counts.index_add_(0, tokens.word[place], (responsibility * tokens.inside[place]).T)
        return EStep({"topic": counts.T}, {}, bound)

    def attribute_tokens(
        self, topic: Tensor, alpha: Tensor, rows: DocumentRows, bound: Tensor, temperature: float = 1.0
    ) -> Iterator[tuple[_Tokens, int, Tensor]]:
        """Yield, block by block and place by place, p(q = k | document) of the tokens there, (K, B). Adds log p(n) to
        the documents' places of ``bound``."""
        for tokens in self._blocks(topic, rows, temperature):
            states, log_scale = _polynomial.multiply_forms(tokens, keep=True)
            weight = _polynomial.prior_weight(len(tokens), alpha).to(tokens.like)
            bound[tokens.documents] += log_scale + (weight @ states[-1]).log()
            for place, responsibility in _polynomial.attribute_draws(tokens, states, weight):
                yield tokens, place, responsibility

    def _blocks(
        self, topic: Tensor, rows: DocumentRows, temperature: float = 1.0, *, keep: bool = True
    ) -> Iterator[_Tokens]:
        """Yield documents of one length each, as many as fit; of several lengths where all of them are little work."""
        lengths = rows.lengths.round().long()
        longest = int(lengths.max()) if len(rows) else 0
        if len(rows) * num_states(longest, len(topic)) <= _LITTLE:
            lengths = torch.where(lengths > 0, longest, 0)  # empty documents have probability 1, without rounding
        for length in torch.unique(lengths).tolist():
            documents = (lengths == length).nonzero().flatten()
            each = num_states(length, len(topic)) if keep else 4 * num_terms(length, len(topic))
            block = max(1, min(len(documents), BLOCK_ENTRIES // each))
            self.require(len(topic), length, block, topic.element_size())
            for part in documents.split(block):
                yield _Tokens(topic, rows, part, length, temperature)

    def log_evidence(self, model: Model, params: Params, rows: DocumentRows) -> Tensor:
        """Compute log p(n_d | topic, alpha), (N,); differentiable in the topics."""
        topic = self.topics(model, params)
        return self.log_tokens(topic, self.alpha(model, topic), rows) + rows.log_coefficient

    def log_tokens(self, topic: Tensor, alpha: Tensor, rows: DocumentRows) -> Tensor:
        """Compute the log probability (N,) of the documents' tokens in their order, without their attribution."""
        blocks = [(b.documents, _polynomial.log_terms(b, alpha)[1]) for b in self._blocks(topic, rows, keep=False)]
        place = torch.argsort(torch.cat([documents for documents, _ in blocks]))
        return torch.cat([found for _, found in blocks])[place]

    def posterior(
        self, model: Model, params: Params, rows: DocumentRows, step: EStep | None = None
    ) -> DirichletMixture:
        """Return the exact posterior of every document's proportions, a mixture of Dirichlets whose components all
        documents share."""
        topic = self.topics(model, params)
        return self.mixture(topic, self.alpha(model, topic), rows)

    def mixture(self, topic: Tensor, alpha: Tensor, rows: DocumentRows) -> DirichletMixture:
        """Return the exact posterior of the proportions at given topics (K, V) and concentration (K,)."""
        length = int(rows.lengths.max()) if len(rows) else 0
        self.require(len(topic), length, len(rows), topic.element_size(), only_last=True)
        block = max(1, BLOCK_ENTRIES // (4 * num_terms(length, len(topic))))
        parts = torch.arange(len(rows), device=topic.device).split(block)
        log_weight = [_polynomial.log_terms(_Tokens(topic, rows, part, length), alpha)[0] for part in parts]
        exponents = _polynomial.terms_of(length, len(topic), topic.device).every.to(topic)
        return DirichletMixture(torch.cat(log_weight), alpha + exponents)

    def responsibilities(self, model: Model, params: Params, rows: DocumentRows, warm: Params) -> Tensor:
        """Compute p(q = k | document) of the tokens of every stored cell, (nnz, K); those of one word share theirs."""
        topic = self.topics(model, params)
        found, ignored = topic.new_zeros(rows.counts.values().numel(), len(topic)), torch.zeros_like(rows.lengths)
        for tokens, place, responsibility in self.attribute_tokens(topic, self.alpha(model, topic), rows, ignored):
            inside = tokens.inside[place]
            found[tokens.cell[place][inside]] = responsibility.T[inside]
        return found


class _Tokens:
    """The tokens of some documents, one after the other: the linear forms of ``common.polynomial``.

    documents (B,): which; word, cell (length, B): each token's word, and where it is stored among the counts;
    inside (length, B): False past a document's end.
    """

    def __init__(self, topic: Tensor, rows: DocumentRows, documents: Tensor, length: int, temperature: float = 1.0):
        self.like, self.size, self.num_rows = topic, len(topic), len(documents)
        self.documents, self.temperature, self._length = documents, temperature, length
        self.weight = None if rows.weight is None else rows.weight[documents].T
        # Where each cell's tokens end among those of all documents, and where each document's begin.
        ends = rows.counts.values().round().long().cumsum(0)
        begins = torch.cat([ends.new_zeros(1), ends])[rows.counts.crow_indices()]
        token = begins[documents] + torch.arange(length, device=topic.device).unsqueeze(1)
        self.inside = token < begins[documents + 1]
        self.cell = torch.searchsorted(ends, token, right=True).clamp(max=max(len(ends) - 1, 0))
        columns = rows.counts.col_indices()
        self.word = columns[self.cell] if len(columns) else torch.zeros_like(self.cell)

    def __len__(self) -> int:
        return self._length

    def form(self, draw: int) -> Tensor:
        b = self.like[:, self.word[draw]].pow(self.temperature)
        b = b if self.weight is None else b * self.weight
        return torch.where(self.inside[draw], b, torch.ones_like(b))


@dataclass(frozen=True)
class CollapsedPosterior:
    """p(q | y) of the topics of all tokens, as a table over its K^T values.

    document, word: (T,), as ``DocumentRows.tokens`` has them.
    alpha: (K,), the concentration. log_joint: (K^T,), log p(y, q); value number m holds the digits of m to base K, the
    first token's the most significant. constant: log multinomial coefficients, where the model has them.
    """

    document: Tensor
    word: Tensor
    alpha: Tensor
    log_joint: Tensor
    num_documents: int
    constant: float = 0.0

    @cached_property
    def log_evidence(self) -> float:
        """The log evidence log p(y), or log p(n) of the counts where the model has the multinomial coefficient."""
        return self.constant + float(self.log_joint.logsumexp(0))

    @cached_property
    def log_probability(self) -> Tensor:
        """The log probabilities log p(q | y), (K^T,)."""
        return self.log_joint - self.log_joint.logsumexp(0)

    @cached_property
    def co_assignment(self) -> Tensor:
        """The probabilities P(q_t = q_t' | y), (T, T): which tokens share a topic, whatever its label."""
        total = self.alpha.new_zeros(len(self.word), len(self.word))
        for start, q in assignment_blocks(len(self.alpha), len(self.word)):
            weight = self.log_probability[start : start + len(q), None].exp()
            for k in range(len(self.alpha)):
                here = (q == k).to(self.alpha)
                total += (here * weight).T @ here
        return total

    def divergence(self, responsibilities: Tensor) -> float:
        """Compute KL(prod_t r_t(q_t) || p(q | y)) of a factorised posterior of the tokens, responsibilities r (T,
        K)."""
        total, log_responsibility = 0.0, torch.log(responsibilities)
        for start, q in assignment_blocks(len(self.alpha), len(self.word)):
            log_q = log_responsibility.gather(1, q.T).sum(0)
            weight = log_q.exp()
            difference = log_q - self.log_probability[start : start + len(q)]
            total += float(torch.where(weight > 0, weight * difference, 0.0).sum())
        return total


def collapsed_posterior(model: Model, x: Any, *, mask: Any = None) -> CollapsedPosterior:
    """Compute the exact posterior of the topics of a toy corpus's tokens.

    Raises
    ------
    CapacityError: more than 2^22 assignments K^T, with an estimate and what would fit.
    MethodError: the model is not LDA, or its priors are not Dirichlet.
    """
    if not isinstance(model, TopicAdmixture):
        raise MethodError(f"{type(model).__name__} has no tokens with topics; the collapsed posterior is that of LDA")
    rows = DocumentRows.of(model.prepare(x, mask=mask, dtype=torch.float64), coefficient=model.coefficient)
    document, word = rows.tokens()
    tokens, bits = len(word), len(word) * math.log2(model.num_topics)
    fits = next((t for t in range(64) if model.num_topics ** (t + 1) > MAX_ASSIGNMENTS), tokens)
    what = f"{tokens} tokens in {model.num_topics} topics have 2^{bits:.0f} assignments, whose table"
    require(what, 8 * 2.0 ** min(bits, 1000), allowed=8.0 * MAX_ASSIGNMENTS, fits=f"{fits} tokens would fit")
    like = torch.zeros((), dtype=torch.float64)
    alpha = Dirichlet.of(model, "topic_proportion", like).concentration.expand(model.num_topics)
    gamma = Dirichlet.of(model, "topic", like).concentration
    if gamma.ndim > 1:
        raise MethodError("the prior of 'topic' differs between topics; the collapsed posterior takes one for all")
    gamma = gamma.expand(model.vocabulary_size)
    blocks = [log_joint(document, word, alpha, gamma, q) for _, q in assignment_blocks(len(alpha), len(word))]
    return CollapsedPosterior(document, word, alpha, torch.cat(blocks), len(rows), float(rows.log_coefficient.sum()))


def assignment_blocks(num_topics: int, tokens: int) -> Iterator[tuple[int, Tensor]]:
    """Yield all K^T assignments in blocks (B, T), each with the number of its first."""
    total, place = num_topics**tokens, num_topics ** torch.arange(tokens - 1, -1, -1)  # the most significant first
    for start in range(0, total, _BLOCK):
        yield start, torch.arange(start, min(start + _BLOCK, total))[:, None] // place % num_topics


def log_joint(document: Tensor, word: Tensor, alpha: Tensor, gamma: Tensor, q: Tensor) -> Tensor:
    """Compute log p(y, q), (B,), of topics q (B, T)."""
    (documents, row), (words, column) = (one.unique(return_inverse=True) for one in (document, word))
    hot = torch.nn.functional.one_hot(q, len(alpha)).to(alpha)
    of_documents = hot.new_zeros(len(q), len(documents), len(alpha)).index_add(1, row, hot)
    of_words = hot.new_zeros(len(q), len(words), len(alpha)).index_add(1, column, hot)
    total = torch.lgamma(gamma.sum()) - torch.lgamma(gamma.sum() + of_words.sum(1))
    written = log_rising(of_words, gamma[words][:, None]).sum(-1) + total.sum(-1)
    return Dirichlet(alpha).log_marginal(of_documents).sum(-1) + written
