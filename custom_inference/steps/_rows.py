"""Binary rows the way the closed-form steps read them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ppl_models import Data


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

    def select(self, index: Tensor | slice) -> BinaryRows:
        return BinaryRows(self.ones[index], None if self.mask is None else self.mask[index])

    def to(self, dtype: torch.dtype) -> BinaryRows:
        return BinaryRows(self.ones.to(dtype), self.mask)

    @cached_property
    def zeros(self) -> Tensor:
        return (1 - self.ones) if self.mask is None else self.mask.to(self.ones) - self.ones

    @cached_property
    def nonzero(self) -> tuple[Tensor, Tensor]:
        """Row and column of every observed one, in row order: only these carry variational parameters."""
        row, column = self.ones.nonzero(as_tuple=True)
        return row, column

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
