"""Counts of Bernoulli draws the way factor models of a probability matrix read them: likelihood, slope and curvature.

For an entry with ``ones`` ones and ``zeros`` zeros among its draws and probability p,

    L = ones log p + zeros log(1 - p),      dL/dp = rise - fall,      -d2L/dp2 = rise / p + fall / (1 - p),
    rise = ones / p,      fall = zeros / (1 - p)

and all of a missing entry is 0. Rows are read in blocks, so that no work array is larger than a block.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, Self

import torch
from torch import Tensor

from custom_inference.families.rows.matrix import MatrixRows
from ppl_models import Data
from ppl_models.data import sparse as _sparse

#: Entries of a block of whole rows.
_BLOCK_ENTRIES = 2**17
#: Rows and entries of a tile.
_TILE_ROWS = 512
_TILE_ENTRIES = 2**17


def margin(dtype: torch.dtype) -> float:
    """Return how far probabilities stay from 0 and 1, where an entry that contradicts them would be impossible."""
    return 1e-9 if dtype == torch.float64 else 1e-6


class LikelihoodSlopes(NamedTuple):
    """slope = dL/dp, fall and curvature = -d2L/dp2 as above, and the curvature's part from the zeros; all (B, D)."""

    slope: Tensor
    fall: Tensor
    curvature: Tensor
    curvature_of_zeros: Tensor


class Likelihood(NamedTuple):
    """The likelihood of the ``draws`` of every entry (B, D), at most 1; or its logarithm, where ``draws`` is None."""

    entry: Tensor
    draws: int | None

    def log(self) -> Tensor:
        """Compute the log-likelihood of every entry."""
        return self.entry if self.draws is None else self.entry.log()

    def sum(self, dim: int) -> Tensor:
        """Sum the log-likelihood over an axis. Logarithms are dear: of as many entries as cannot underflow only the
        product's is taken."""
        if self.draws is None:
            return self.entry.sum(dim)
        values, rest = self.entry, torch.zeros_like(self.entry.select(dim, 0))
        smallest = self.draws * math.log(margin(values.dtype) / 2)
        for _ in range(int(math.log2(math.log(torch.finfo(values.dtype).tiny) / smallest))):
            size, half = values.shape[dim], values.shape[dim] // 2
            if size % 2:
                rest = rest + values.select(dim, size - 1).log()
            values = values.narrow(dim, 0, half) * values.narrow(dim, half, half)
        return values.log().sum(dim) + rest


class Tiles(NamedTuple):
    """A block of rows: where it lies, the observed draws of its rows (B,), and its tiles with their columns."""

    at: slice
    draws: Tensor
    tiles: list[tuple[slice, CountRows]]


@dataclass(frozen=True)
class CountRows(MatrixRows):
    """ones = x * observed (N, D), whole numbers from 0 to ``total_count``; dense, or in torch's CSR layout."""

    total_count: int = 1

    @classmethod
    def of(cls, data: Data, total_count: int = 1) -> Self:
        return replace(super().of(data), total_count=total_count)

    @property
    def ones(self) -> Tensor:
        return self.like

    @property
    def is_sparse(self) -> bool:
        return _sparse.is_sparse(self.ones)

    @property
    def blocks(self) -> Iterable[tuple[slice, CountRows]]:
        """The rows in dense blocks of about ``_BLOCK_ENTRIES`` entries, each with where it lies. Blocks of dense rows
        are kept with what is cached in them, those of sparse rows made again every time."""
        if self.is_sparse:
            return ((at, self._dense(at)) for at in self._spans(self._rows_a_block))
        # Rows that are a block themselves are not kept: what holds itself is freed late.
        return self._dense_blocks if len(self) > self._rows_a_block else self.parts(self._rows_a_block)

    @property
    def _rows_a_block(self) -> int:
        return max(4, _BLOCK_ENTRIES // self.ones.shape[1])

    @cached_property
    def _dense_blocks(self) -> Sequence[tuple[slice, CountRows]]:
        return self.parts(self._rows_a_block)

    def iterate_tiles(self) -> Iterable[Tiles]:
        """Yield the rows in blocks, each cut into tiles of columns small enough for several work arrays to stay in
        cache."""
        return self._cut_up() if self.is_sparse else self._dense_tiles

    @cached_property
    def _dense_tiles(self) -> list[Tiles]:
        return list(self._cut_up())

    def _cut_up(self) -> Iterator[Tiles]:
        # Wide sparse rows are made dense a block at a time: not too many of them.
        for at in self._spans(max(16, min(_TILE_ROWS, 64 * _BLOCK_ENTRIES // self.ones.shape[1]))):
            rows, tiles = self._dense(at), []
            width = max(16, _TILE_ENTRIES // len(rows))
            for start in range(0, rows.ones.shape[1], width):
                columns = slice(start, start + width)
                mask = None if rows.mask is None else rows.mask[:, columns].contiguous()
                tiles.append((columns, replace(rows, matrix=rows.ones[:, columns].contiguous(), mask=mask)))
            yield Tiles(at, self.draws[at], tiles)

    def _dense(self, at: slice) -> CountRows:
        mask = None if self.mask is None else self.mask[at]
        return replace(self, matrix=_sparse.dense_rows(self.ones, at.start, at.stop), mask=mask)

    @property
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
        logs = [math.log(math.comb(self.total_count, ones)) for ones in range(self.total_count + 1)]
        table = torch.tensor(logs, dtype=self.ones.dtype, device=self.ones.device)
        # Unobserved entries hold 0, whose coefficient is 1.
        return torch.cat([table[block.ones.long()].sum(1) for _, block in self.blocks])

    def likelihood(self, p: Tensor) -> Likelihood:
        """Compute the log-likelihood at probabilities of ones (N, D), without the binomial coefficient. Overwrites
        ``p``."""
        if self.total_count > 2:
            entry = torch.log(p).mul_(self.ones)
            return Likelihood(entry.addcmul_(torch.log1p(p.neg_()), self.zeros), None)
        # p - absent is p for a draw that came out 1 and -(1 - p) for a 0.
        first, second = self._absent
        value = p - first if self.total_count > 1 else None
        entry = p.sub_(second).abs_() if value is None else p.sub_(second).mul_(value).abs_()
        return Likelihood(entry if self.mask is None else entry.masked_fill_(~self.mask, 1.0), self.total_count)

    def slopes(self, p: Tensor, *, curvature: bool = True) -> LikelihoodSlopes:
        """Compute the derivatives of the log-likelihood by p. Overwrites ``p``."""
        if self.total_count == 1:
            slope = p.sub_(self._absent[1]).reciprocal_()
            if self.mask is not None:
                slope.masked_fill_(~self.mask, 0.0)
            fall = slope.neg().clamp_(min=0)
            return LikelihoodSlopes(
                slope, fall, slope.square() if curvature else slope, fall.square() if curvature else fall
            )
        one = p.reciprocal()
        zero = p.neg_().add_(1).reciprocal_()
        rise, fall = self.ones * one, self.zeros * zero
        slope = rise - fall
        if not curvature:
            return LikelihoodSlopes(slope, fall, slope, fall)
        of_zeros = zero.mul_(fall)
        return LikelihoodSlopes(slope, fall, one.mul_(rise).add_(of_zeros), of_zeros)

    @property
    def _absent(self) -> tuple[Tensor, Tensor]:
        """Whether the first and the last draw came out 0, counting the ones first; observed or not."""
        # Made again each time: that takes less than fetching a kept copy from beyond the cache.
        return (1 - self.ones).clamp_(min=0), (self.total_count - self.ones).clamp_(max=1)
