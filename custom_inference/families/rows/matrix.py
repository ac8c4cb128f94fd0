"""Rows the way the closed-form steps read them: binary ones, and real-valued ones."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from custom_inference.families.rows.base import Rows
from ppl_models import Data

IntArray = NDArray[np.int64]
#: Rows a block: small enough for the block's (rows, ones, sources) arrays to stay in cache.
BLOCK_ROWS = 256


@dataclass(frozen=True)
class MatrixRows(Rows):
    """matrix: of the data (N, D), 0 where an entry is missing; mask: True where one was observed."""

    matrix: Tensor
    mask: Tensor | None = None

    @classmethod
    def of(cls, data: Data) -> Self:
        # Not a product with the mask: that would keep a NaN or an infinite fill value.
        return cls(data.x if data.mask is None else data.x.masked_fill(~data.mask, 0.0), data.mask)

    def parts(self, size: int = BLOCK_ROWS) -> list[tuple[slice, Self]]:
        """Yield the rows in consecutive blocks of ``size``, each with where it lies; themselves where one is enough.
        The blocks of the default size are kept, with all that is cached in them."""
        if len(self) <= size:
            return [(slice(0, len(self)), self)]  # not kept: rows that hold themselves are freed late
        return self._default_parts if size == BLOCK_ROWS else self._cut(size)

    def _cut(self, size: int) -> list[tuple[slice, Self]]:
        return [(at, self.select(at)) for at in self._spans(size)]

    def _spans(self, size: int) -> list[slice]:
        return [slice(start, min(start + size, len(self))) for start in range(0, len(self), size)]

    @cached_property
    def _default_parts(self) -> list[tuple[slice, Self]]:
        return self._cut(BLOCK_ROWS)

    @cached_property
    def observed(self) -> Tensor | None:
        """The mask as numbers; None where everything is observed."""
        return None if self.mask is None else self.mask.to(self.like)

    @cached_property
    def observed_count(self) -> Tensor:
        """Observed entries of each feature, (D,)."""
        if self.observed is None:
            return torch.full_like(self.like[0], len(self))
        return self.observed.sum(0)

    def sum_observed(self, row_values: Tensor) -> Tensor:
        """Compute sum_n m_nj v_nk, (K, D), of values (N, K)."""
        if self.observed is None:
            return row_values.sum(0)[:, None].expand(-1, self.like.shape[1])
        return row_values.T @ self.observed


class RealRows(MatrixRows):
    """Real-valued rows x (N, D)."""

    @property
    def x(self) -> Tensor:
        return self.like

    @cached_property
    def square(self) -> Tensor:
        """sum_n m_nj x_nj^2, (D,)."""
        return self.x.square().sum(0)


class BinaryRows(MatrixRows):
    """Binary rows: ones = x * observed and zeros = (1 - x) * observed, both (N, D): a missing entry is in neither."""

    @property
    def ones(self) -> Tensor:
        return self.like

    @cached_property
    def zeros(self) -> Tensor:
        return (1 - self.ones) if self.mask is None else self.mask.to(self.ones) - self.ones

    @cached_property
    def nonzero(self) -> tuple[Tensor, Tensor]:
        """Row and column of every observed one, in row order: only these carry variational parameters."""
        row, column = self.ones.nonzero(as_tuple=True)
        return row, column

    @cached_property
    def entries(self) -> tuple[IntArray, IntArray, IntArray]:
        """Columns of the entries of every row that are no zeros, the ones first, then those missing: start (N + 1,),
        where the ones end (N,), and the columns (E,)."""
        ones = self.ones.cpu().numpy() > 0
        rest = ones if self.mask is None else ones | ~self.mask.cpu().numpy()
        row, column = rest.nonzero()
        start = np.searchsorted(row, np.arange(len(ones) + 1))
        if self.mask is not None:
            column = column[np.lexsort((~ones[row, column], row))]
        return start, start[:-1] + ones.sum(1), column

    @cached_property
    def blocks(self) -> list[tuple[Tensor, Tensor]]:
        """Blocks of rows with similar numbers of ones: (row indices (B,), columns of their ones (B, M)). Shorter rows
        are padded with column D, which callers give a neutral meaning."""
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
