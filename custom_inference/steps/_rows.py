"""Binary rows the way the closed-form steps read them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ppl_models import Data

#: Rows a block: small enough for the block's (rows, ones, sources) arrays to stay in cache.
BLOCK_ROWS = 256


@dataclass(frozen=True)
class BinaryRows:
    """ones = x * observed and zeros = (1 - x) * observed, both (N, D): a missing entry is in neither."""

    ones: Tensor
    mask: Tensor | None = None

    @classmethod
    def of(cls, data: Data) -> BinaryRows:
        return cls(data.x if data.mask is None else data.x * data.mask, data.mask)

    def __len__(self) -> int:
        return self.ones.shape[0]

    @property
    def like(self) -> Tensor:
        return self.ones

    def select(self, index: Tensor | slice) -> BinaryRows:
        return BinaryRows(self.ones[index], None if self.mask is None else self.mask[index])

    def to(self, dtype: torch.dtype) -> BinaryRows:
        return BinaryRows(self.ones.to(dtype), self.mask)

    @cached_property
    def zeros(self) -> Tensor:
        return (1 - self.ones) if self.mask is None else self.mask.to(self.ones) - self.ones

    @cached_property
    def parts(self) -> list[BinaryRows]:
        """The rows in consecutive blocks; themselves where one is enough."""
        if len(self) <= BLOCK_ROWS:
            return [self]
        return [self.select(slice(start, start + BLOCK_ROWS)) for start in range(0, len(self), BLOCK_ROWS)]

    @cached_property
    def nonzero(self) -> tuple[Tensor, Tensor]:
        """Row and column of every observed one, in row order: only these carry variational parameters."""
        row, column = self.ones.nonzero(as_tuple=True)
        return row, column

    @cached_property
    def blocks(self) -> list[tuple[Tensor, Tensor]]:
        """Blocks of rows with similar numbers of ones: (row indices (B,), columns of their ones (B, M)).

        Shorter rows are padded with column D, which callers give a neutral meaning.
        """
        count = self.ones.sum(1).long()
        found = []
        for rows in torch.argsort(count).split(BLOCK_ROWS):
            row, column = self.ones[rows].nonzero(as_tuple=True)
            start = torch.cumsum(count[rows], 0) - count[rows]
            width = max(int(count[rows].max()), 1)
            index = torch.full((len(rows), width), self.ones.shape[1], device=self.ones.device)
            index[row, torch.arange(len(row), device=index.device) - start[row]] = column
            found.append((rows, index))
        return found

    @cached_property
    def observed_count(self) -> Tensor:
        """Observed entries of each feature, (D,)."""
        if self.mask is None:
            return torch.full_like(self.ones[0], len(self))
        return self.mask.to(self.ones).sum(0)

    def observed_sum(self, row_values: Tensor) -> Tensor:
        """sum_n m_nj v_nk -> (K, D)."""
        if self.mask is None:
            return row_values.sum(0)[:, None].expand(-1, self.ones.shape[1])
        return row_values.T @ self.mask.to(self.ones)
