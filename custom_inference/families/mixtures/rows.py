"""Rows of counts the way the steps of mixtures read them: matrix products, sparse where the counts are.

Every class-conditional density of Murphy (2012), section 27.2.1, is an exponential family in counts x (N, F):

    log p(row n | class k) = sum_f x_nf w_kf - sum_j m_nj r_kj + base_n,      m_nj = 1 where entry j was observed

with natural parameters w and log-normalisers r: of events, of successes; of words of documents, and of indicators
"response j is c", which lie side by side, with r = 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from custom_inference.core.threads import MOST_SHARDS, count_shards
from custom_inference.families.rows.base import Rows
from custom_inference.families.rows.matrix import RealRows
from ppl_models import Data
from ppl_models.data import sparse as _sparse
from ppl_models.data.entries import split_entries
from ppl_models.distributions.tokens import log_coefficient
from ppl_models.likelihoods import ExponentialFamily

#: Counts of a row that leave its class open at first: longer ones are annealed from there.
BRIEF = 10.0
#: Counts of a part of many rows, and of few, at least: threads share parts.
_PART, _SMALL = 2**20, 2**17


@dataclass(frozen=True)
class MixtureRows(Rows):
    """counts (N, F), dense or CSR, 0 where nothing was observed; base (N,), what does not depend on the class.

    mask: (N, D) bool, for densities that entries which were not observed must drop out of; None where all were.
    """

    counts: Tensor
    base: Tensor
    mask: Tensor | None = None

    @classmethod
    def of_entries(cls, data: Data, likelihood: ExponentialFamily) -> MixtureRows:
        """Read numbers as they come; base sum_j log h(x_nj), which is 0 where x_nj is."""
        x = RealRows.of(data).x
        if not _sparse.is_sparse(x):
            base = torch.cat([likelihood.log_base(part).sum(-1) for part in split_entries(x)])
            return cls(x, base, data.mask)
        return cls(x, _sparse.row_sums(_sparse.with_values(x, likelihood.log_base(x.values()))), data.mask)

    @classmethod
    def of_tokens(cls, data: Data, *, coefficient: bool) -> MixtureRows:
        """Read word counts, sparse; masked ones are left out of their documents."""
        x = RealRows.of(data).x
        counts = x if _sparse.is_sparse(x) else _sparse.from_dense(x)
        return cls(counts, log_coefficient(counts) if coefficient else counts.values().new_zeros(len(data)))

    @classmethod
    def of_categories(cls, data: Data, categories: tuple[int, ...]) -> MixtureRows:
        """Read categories as indicators (N, C_1 + ... + C_R), sparse: response r is c in column C_1 + ... + C_(r-1) +
        c; responses that are missing have none."""
        x = data.x.long() if data.mask is None else data.x.masked_fill(~data.mask, 0.0).long()
        seen = torch.ones_like(x, dtype=torch.bool) if data.mask is None else data.mask
        sizes = torch.tensor(categories, device=x.device)
        column = (x + sizes.cumsum(0) - sizes)[seen]
        crow = torch.cat([seen.new_zeros(1, dtype=torch.long), seen.sum(1).cumsum(0)])
        ones = torch.ones(len(column), dtype=data.x.dtype, device=data.x.device)
        counts = _sparse.tensor(crow, column, ones, size=(len(x), sum(categories)))
        return cls(counts, ones.new_zeros(len(x)))

    @cached_property
    def parts(self) -> list[MixtureRows]:
        """These rows in parts of about equal size, which threads share; few rows are one part. Dense ones are views."""
        width = self.counts.shape[1]
        step = max(1, _PART // width)
        if len(self) < MOST_SHARDS * step:
            step = -(-len(self) // count_shards(len(self) * width, 0, _SMALL))
        if len(self) <= step:
            return [self]
        return [self._slice(first, min(first + step, len(self))) for first in range(0, len(self), step)]

    def _slice(self, first: int, last: int) -> MixtureRows:
        if _sparse.is_sparse(self.counts):
            return self.select(torch.arange(first, last, device=self.base.device))
        own = slice(first, last)
        return MixtureRows(self.counts[own], self.base[own], None if self.mask is None else self.mask[own])

    @property
    def like(self) -> Tensor:
        return self.base

    def table(self, weight: Tensor, rate: Tensor | None = None) -> Tensor:
        """Compute log p(row n | class k), (N, K), from w (K, F) and r (K, D)."""
        found = (self.counts @ weight.T.contiguous()).add_(self.base.unsqueeze(-1))
        if rate is None:
            return found
        seen = self.observed_entries
        return found.sub_(rate.sum(-1)) if seen is None else found.addmm_(seen, rate.T, alpha=-1)

    def collect(self, responsibility: Tensor) -> Tensor:
        """Compute S_kf = sum_n r_nk x_nf, (K, F)."""
        if not _sparse.is_sparse(self.counts):
            return responsibility.T @ self.counts
        return (self._transposed @ responsibility).T

    def sum_observed(self, responsibility: Tensor) -> Tensor | None:
        """Compute M_kj = sum_n r_nk m_nj, (K, D); None where everything was observed."""
        return None if self.observed_entries is None else responsibility.T @ self.observed_entries

    def statistics(self, responsibility: Tensor) -> dict[str, Tensor]:
        """Sum what the M step reads: rows (K,), counts S (K, F), and observed M (K, D) where entries may be missing."""
        found = {"rows": responsibility.sum(0), "counts": self.collect(responsibility)}
        observed = self.sum_observed(responsibility)
        return found if observed is None else {**found, "observed": observed}

    def map_counts(self, function: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """Return the counts with function(row, values) in place of their entries; of sparse ones, of those that are
        stored."""
        if not _sparse.is_sparse(self.counts):
            return function(torch.arange(len(self), device=self.base.device).unsqueeze(-1), self.counts)
        row, _, values = _sparse.triplets(self.counts)
        return _sparse.with_values(self.counts, function(row, values))

    @cached_property
    def observed_entries(self) -> Tensor | None:
        """The mask as numbers."""
        return None if self.mask is None else self.mask.to(self.base)

    @cached_property
    def lengths(self) -> Tensor:
        """Sum of the counts of each row, (N,)."""
        return _sparse.row_sums(self.counts)

    @cached_property
    def temperature(self) -> float:
        """The likelihood's exponent at which a row weighs as much as one of ``BRIEF`` counts, at most 1."""
        return min(1.0, BRIEF / max(float(self.lengths.mean()), 1e-9))

    @cached_property
    def mean(self) -> Tensor:
        """Mean counts of a row, (F,); of entries that may be missing, over the rows that have them."""
        observed = len(self) if self.mask is None else self.mask.sum(0).clamp(min=1)
        return _sparse.column_sums(self.counts) / observed

    @cached_property
    def _transposed(self) -> Tensor:
        """(F, N) in CSR: a product with it is several times as fast as one with the transposed view."""
        found = _sparse.to_scipy(self.counts).T
        return _sparse.from_scipy(found, dtype=self.counts.dtype, device=self.counts.device)
