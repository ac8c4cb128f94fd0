"""Counts of Bernoulli draws the way factor models of a probability matrix read them: likelihood, slope and curvature.

For an entry with ``ones`` ones and ``zeros`` zeros among its draws and probability p,

    L = ones log p + zeros log(1 - p),      dL/dp = rise - fall,      -d2L/dp2 = rise^2 / ones + fall^2 / zeros,
    rise = ones / p,      fall = zeros / (1 - p)

and all of a missing entry is 0. Rows are read in blocks, so that no work array is larger than a block.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from custom_inference.steps._rows import Rows
from ppl_models import Data, _sparse

#: Entries of a block: its few work arrays stay in a core's cache.
_BLOCK_ENTRIES = 2**17


@dataclass(frozen=True)
class Slopes:
    """rise and fall as above, and curvature = -d2L/dp2 with its part from the zeros; all (B, D)."""

    rise: Tensor
    fall: Tensor
    curvature: Tensor
    curvature_of_zeros: Tensor


@dataclass(frozen=True)
class CountRows(Rows):
    """ones = x * observed (N, D), whole numbers from 0 to ``total_count``; dense, or in torch's CSR layout."""

    ones: Tensor
    mask: Tensor | None = None
    total_count: int = 1

    @classmethod
    def of(cls, data: Data, total_count: int = 1) -> CountRows:
        ones = data.x if data.mask is None else data.x.masked_fill(~data.mask, 0.0)
        return cls(ones, data.mask, total_count)

    @property
    def is_sparse(self) -> bool:
        return _sparse.is_sparse(self.ones)

    @property
    def like(self) -> Tensor:
        return self.ones

    def select(self, index: Tensor | slice) -> CountRows:
        ones = _sparse.select_rows(self.ones, index)
        return CountRows(ones, None if self.mask is None else self.mask[index], self.total_count)

    def to(self, dtype: torch.dtype) -> CountRows:
        return CountRows(self.ones.to(dtype), self.mask, self.total_count)

    @property
    def blocks(self) -> Iterable[tuple[slice, CountRows]]:
        """The rows in dense blocks of about ``_BLOCK_ENTRIES`` entries, each with where it lies.

        Blocks of dense rows are kept with what is cached in them, those of sparse rows made again every time.
        """
        return self._sparse_blocks() if self.is_sparse else self._dense_blocks

    @property
    def _rows_a_block(self) -> int:
        return max(16, _BLOCK_ENTRIES // self.ones.shape[1])

    @cached_property
    def _dense_blocks(self) -> Sequence[tuple[slice, CountRows]]:
        return self.parts(self._rows_a_block)

    def _sparse_blocks(self) -> Iterator[tuple[slice, CountRows]]:
        for start in range(0, len(self), self._rows_a_block):
            stop = min(start + self._rows_a_block, len(self))
            dense = _sparse.dense_rows(self.ones, start, stop)
            yield slice(start, stop), CountRows(dense, None, self.total_count)

    @cached_property
    def zeros(self) -> Tensor:
        zeros = self.total_count - self.ones
        return zeros if self.mask is None else zeros.masked_fill_(~self.mask, 0.0)

    @cached_property
    def draws(self) -> Tensor:
        """Observed draws of each row, (N,)."""
        if self.mask is None:
            draws = float(self.total_count * self.ones.shape[1])
            return torch.full((len(self),), draws, dtype=self.ones.dtype, device=self.ones.device)
        return self.total_count * self.mask.sum(1).to(self.ones)

    @cached_property
    def log_coefficient(self) -> Tensor:
        """sum_t log C(total_count, x_nt) over the observed entries, (N,): 0 for binary data."""
        if self.total_count == 1:
            return torch.zeros(len(self), dtype=self.ones.dtype, device=self.ones.device)
        total = torch.lgamma(torch.tensor(self.total_count + 1.0))
        parts = []
        for _, block in self.blocks:
            entry = total - torch.lgamma(block.ones + 1) - torch.lgamma(block.total_count - block.ones + 1)
            parts.append((entry if block.mask is None else entry.masked_fill(~block.mask, 0.0)).sum(1))
        return torch.cat(parts)

    def log_likelihood(self, p: Tensor) -> Tensor:
        """L of every entry (N, D), without the binomial coefficient. Overwrites ``p``."""
        if self.total_count > 1:
            log_p = torch.log(p).mul_(self.ones)
            return log_p.addcmul_(torch.log1p(p.neg_()), self.zeros)
        # p - zeros is p where x = 1 and -(1 - p) where x = 0.
        entry = p.sub_(self._absent).abs_().log_()
        return entry if self.mask is None else entry.masked_fill_(~self.mask, 0.0)

    def slopes(self, p: Tensor) -> Slopes:
        """Overwrites ``p``."""
        if self.total_count == 1:
            slope = p.sub_(self._absent).reciprocal_()
            if self.mask is not None:
                slope.masked_fill_(~self.mask, 0.0)
            fall = slope.neg().clamp_(min=0)
            return Slopes(slope.clamp(min=0), fall, slope.square(), fall.square())
        rise = self.ones / p
        curvature = rise / p
        q = p.neg_().add_(1)
        fall = self.zeros / q
        of_zeros = fall / q
        return Slopes(rise, fall, curvature.add_(of_zeros), of_zeros)

    @cached_property
    def _absent(self) -> Tensor:
        """1 - x for binary data, whether observed or not."""
        return 1 - self.ones
