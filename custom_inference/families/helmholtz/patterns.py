"""Binary rows of which many are alike."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from custom_inference.families.rows.matrix import BinaryRows


@dataclass(frozen=True)
class Patterns:
    """Rows (U, D) that all differ: ones, 0 where an entry is missing; seen, 1 where it is not (None: nowhere missing);
    count (U,): how often each occurs. place (N,): the pattern of every row."""

    ones: Tensor
    seen: Tensor | None
    count: Tensor
    place: Tensor

    def to(self, dtype: torch.dtype) -> Self:
        seen = None if self.seen is None else self.seen.to(dtype)
        return type(self)(self.ones.to(dtype), seen, self.count.to(dtype), self.place)


class PatternRows(BinaryRows):
    """Binary rows, and what is different among them: equal rows are computed once."""

    @cached_property
    def different(self) -> Patterns:
        size, ones = self.ones.shape[1], self.ones
        both = ones if self.observed is None else torch.cat([ones, self.observed], 1)
        found, place, count = torch.unique(both, dim=0, return_inverse=True, return_counts=True)
        seen = None if self.observed is None else found[:, size:]
        return Patterns(found[:, :size], seen, count.to(ones), place)

    def sample(self, most: int, generator: torch.Generator) -> Patterns:
        """The patterns; of more than ``most``, those of so many rows at random."""
        if len(self.different.ones) <= most:
            return self.different
        return self.select(torch.randperm(len(self), generator=generator)[:most].to(self.ones.device)).different
