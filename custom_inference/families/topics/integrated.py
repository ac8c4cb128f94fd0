"""The exact posterior of a toy corpus under LDA, topics and topic proportions both integrated out.

Only the topics q of the T tokens remain, K^T values in all, with the collapsed (Dirichlet-multinomial) law

    log p(y, q) = log p(q | alpha) + log p(y | q, gamma)                     (002, eqs. 27.34 and 27.36, gamma for beta)

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
from custom_inference.families.common.dirichlet import dirichlet_prior, log_moment, log_rising
from custom_inference.families.common.documents import DocumentRows
from ppl_models import MethodError, Model
from ppl_models.core.document_model import TopicAdmixture

#: Values of q that are summed over at most, and so many at a time.
MAX_ASSIGNMENTS = 2**22
_BLOCK = 2**15


@dataclass(frozen=True)
class CollapsedPosterior:
    """p(q | y) of the topics of all tokens, as a table over its K^T values.

    document, word: (T,), the tokens, document by document and in each in the order of the words.
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
        """log p(y), or log p(n) of the counts where the model has the multinomial coefficient."""
        return self.constant + float(self.log_joint.logsumexp(0))

    @cached_property
    def log_probability(self) -> Tensor:
        """log p(q | y), (K^T,)."""
        return self.log_joint - self.log_joint.logsumexp(0)

    @cached_property
    def co_assignment(self) -> Tensor:
        """P(q_t = q_t' | y), (T, T): which tokens share a topic, whatever its label."""
        total = self.alpha.new_zeros(len(self.word), len(self.word))
        for start, q in assignment_blocks(len(self.alpha), len(self.word)):
            weight = self.log_probability[start : start + len(q), None].exp()
            for k in range(len(self.alpha)):
                here = (q == k).to(self.alpha)
                total += (here * weight).T @ here
        return total

    def divergence(self, shares: Tensor) -> float:
        """KL(prod_t r_t(q_t) || p(q | y)) of a factorised posterior of the tokens, shares r (T, K)."""
        total, log_share = 0.0, torch.log(shares)
        for start, q in assignment_blocks(len(self.alpha), len(self.word)):
            log_q = log_share.gather(1, q.T).sum(0)
            weight = log_q.exp()
            difference = log_q - self.log_probability[start : start + len(q)]
            total += float(torch.where(weight > 0, weight * difference, 0.0).sum())
        return total


def collapsed_posterior(model: Model, x: Any, *, mask: Any = None) -> CollapsedPosterior:
    """The exact posterior of the topics of a toy corpus's tokens.

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
    alpha = dirichlet_prior(model, "topic_proportion", like).expand(model.num_topics)
    gamma = dirichlet_prior(model, "topic", like)
    if gamma.ndim > 1:
        raise MethodError("the prior of 'topic' differs between topics; the collapsed posterior takes one for all")
    gamma = gamma.expand(model.vocabulary_size)
    blocks = [log_joint(document, word, alpha, gamma, q) for _, q in assignment_blocks(len(alpha), len(word))]
    constant = float(rows.log_coefficient.sum())
    return CollapsedPosterior(document, word, alpha, torch.cat(blocks), len(rows), constant)


def assignment_blocks(num_topics: int, tokens: int) -> Iterator[tuple[int, Tensor]]:
    """All K^T assignments in blocks (B, T), each with the number of its first."""
    total = num_topics**tokens
    for start in range(0, total, _BLOCK):
        yield start, digits(torch.arange(start, min(start + _BLOCK, total)), num_topics, tokens)


def digits(number: Tensor, base: int, length: int) -> Tensor:
    """(B, length), the most significant first."""
    place = torch.tensor([base**t for t in range(length - 1, -1, -1)], dtype=torch.long)
    return number[:, None] // place % base


def log_joint(document: Tensor, word: Tensor, alpha: Tensor, gamma: Tensor, q: Tensor) -> Tensor:
    """log p(y, q), (B,), of topics q (B, T)."""
    (documents, row), (words, column) = (one.unique(return_inverse=True) for one in (document, word))
    hot = torch.nn.functional.one_hot(q, len(alpha)).to(alpha)
    of_documents = hot.new_zeros(len(q), len(documents), len(alpha)).index_add(1, row, hot)
    of_words = hot.new_zeros(len(q), len(words), len(alpha)).index_add(1, column, hot)
    total = torch.lgamma(gamma.sum()) - torch.lgamma(gamma.sum() + of_words.sum(1))
    written = log_rising(of_words, gamma[words][:, None]).sum(-1) + total.sum(-1)
    return log_moment(of_documents, alpha).sum(-1) + written
