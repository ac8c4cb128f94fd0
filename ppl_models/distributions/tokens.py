"""The tokens of a document as one distribution over its word counts: what topic models observe."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import constraints

from ppl_models.data import sparse as _sparse
from ppl_models.distributions.sparse_products import entry_products


class Tokens(TorchDistribution):
    """Word counts n (V,) of documents whose every token is drawn from sum_k pi_k b_k (002, eq. 27.13).

        log p(n) = sum_v n_v log sum_k pi_k b_kv,    plus log(L! / prod_v n_v!) with ``coefficient`` (002, eq. 27.11)

    Without the coefficient it is the probability of the tokens in their order. The number of tokens is given, not
    modelled: ``num_tokens`` says how many a draw has.

    Parameters
    ----------
    proportion: (..., B, K) shares of the topics in each document; a one-hot row for a document of one topic.
    topic: (K, V) word probabilities; each row sums to 1.
    num_tokens: tokens of each document, (B,) or one number.

    ``log_prob`` takes counts (..., B, V) or, without a dense copy, a torch CSR tensor (B, V).
    """

    arg_constraints: ClassVar[Any] = {}
    support: ClassVar[Any] = constraints.independent(constraints.nonnegative_integer, 1)

    def __init__(self, proportion: Tensor, topic: Tensor, num_tokens: Any = 1, *, coefficient: bool = False):
        self.proportion, self.topic, self.coefficient = proportion, topic, coefficient
        self.num_tokens = torch.as_tensor(num_tokens, device=topic.device)
        super().__init__(proportion.shape[:-1], topic.shape[-1:], validate_args=False)

    def expand(self, batch_shape, _instance=None):
        del _instance
        proportion = self.proportion.expand(*batch_shape, self.proportion.shape[-1])
        return type(self)(proportion, self.topic, self.num_tokens, coefficient=self.coefficient)

    @property
    def probs(self) -> Tensor:
        """Word probabilities of each document, (..., B, V)."""
        return self.proportion @ self.topic

    @property
    def mean(self) -> Tensor:
        """Expected counts, (..., B, V)."""
        return self.num_tokens.to(self.topic).unsqueeze(-1) * self.probs

    def sample(self, sample_shape=torch.Size()) -> Tensor:  # noqa: B008
        with torch.no_grad():
            shape = self._extended_shape(sample_shape)
            probs = self.probs.expand(shape).reshape(-1, shape[-1])
            lengths = self.num_tokens.expand(shape[:-1]).reshape(-1)
            return draw_counts(probs, lengths).reshape(shape)

    def log_prob(self, value: Tensor) -> Tensor:
        total = self._sparse_terms(value) if _sparse.is_sparse(value) else torch.xlogy(value, self.probs).sum(-1)
        return total + log_coefficient(value) if self.coefficient else total

    def _sparse_terms(self, value: Tensor) -> Tensor:
        row, _, count = _sparse.triplets(value)
        probability = entry_products(self.proportion, self.topic, value)
        terms = torch.xlogy(count, probability)
        return terms.new_zeros(*terms.shape[:-1], value.shape[0]).index_add(-1, row, terms)


def draw_counts(probs: Tensor, lengths: Tensor) -> Tensor:
    """Counts (B, V) of so many words (B,) drawn in every document by its probabilities (B, V)."""
    counts = torch.zeros_like(probs)
    longest = int(lengths.max()) if lengths.numel() else 0
    if longest:
        drawn = torch.multinomial(probs, longest, replacement=True)
        kept = torch.arange(longest, device=probs.device) < lengths.unsqueeze(-1)
        counts.scatter_add_(1, drawn, kept.to(probs))
    return counts


def log_coefficient(counts: Tensor) -> Tensor:
    """log(L! / prod_v n_v!) of every row, (..., B); counts dense or CSR."""
    if not _sparse.is_sparse(counts):
        return torch.lgamma(counts.sum(-1) + 1) - torch.lgamma(counts + 1).sum(-1)
    row, _, count = _sparse.triplets(counts)
    lengths = _sparse.row_sums(counts)
    return torch.lgamma(lengths + 1).index_add(0, row, -torch.lgamma(count + 1))
