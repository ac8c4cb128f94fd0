"""Rows that a structure has read: tables of log-probabilities, and expected statistics."""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from custom_inference.compiled.blocks import Block, Part
from custom_inference.compiled.elimination import Plan
from ppl_models import Model

if TYPE_CHECKING:
    from custom_inference.compiled.structure import Structure

#: Numbers in the tables of a part of the rows, which threads take in turn.
_PART = 2**19


@dataclass(frozen=True)
class Bound:
    """A structure and the rows that it has read.

    blocks: of all factors. parts: what each reads of the rows (None: nothing). cells: how many cells each has. offset:
    (N,) what log p has beside the factors. plan: of the sum over all variables. steps: the M steps of models on them.
    """

    structure: Structure
    blocks: tuple[Block, ...]
    parts: tuple[Part | None, ...]
    cells: tuple[int, ...]
    offset: Tensor
    plan: Plan
    steps: weakref.WeakKeyDictionary[Model, Any] = field(default_factory=weakref.WeakKeyDictionary, repr=False)

    def __len__(self) -> int:
        return len(self.offset)

    @property
    def like(self) -> Tensor:
        """A tensor of the type and device of the rows."""
        return self.offset

    @property
    def size(self) -> int:
        """How many numbers are kept of the rows."""
        return sum(0 if part is None else part.size for part in self.parts) + len(self)

    @property
    def scopes(self) -> list[tuple[int, ...]]:
        """The scopes of all factors."""
        return [scope for block in self.blocks for scope in block.scopes]

    def cut(self) -> list[Bound]:
        """Return the rows in parts of a limited number of entries."""
        size = max(1, int(_PART / self.entries_of_row))
        if size >= len(self):
            return [self]
        return [self.select(slice(start, start + size)) for start in range(0, len(self), size)]

    def select(self, index: Tensor | slice) -> Bound:
        """Return some of the rows."""
        parts = tuple(None if part is None else part.select(index) for part in self.parts)
        return replace(self, parts=parts, offset=self.offset[index])

    def to(self, dtype: torch.dtype) -> Bound:
        """Return the rows with numbers of another type."""
        if dtype == self.offset.dtype:
            return self
        like = self.offset.to(dtype)
        parts = tuple(None if part is None else part.to(like) for part in self.parts)
        blocks = tuple(one.to(like) for one in self.blocks)
        return replace(self, blocks=blocks, parts=parts, offset=like, steps=weakref.WeakKeyDictionary())

    def naturals(self, flat: Tensor) -> list[Tensor]:
        """Return the natural parameters of every block at a vector of all entries."""
        return [block.natural(flat) for block in self.blocks]

    @property
    def entries_of_row(self) -> float:
        """How many numbers the tables of a row are, and those that a step of the sum takes at once."""
        sizes = [
            math.prod(block.sizes) * (max(1, number) if block.law.by_value else 1)
            for block, number in zip(self.blocks, self.cells, strict=True)
            for _ in block.scopes
            if block.own is None
        ]
        return self.plan.width + sum(sizes)

    def tables(self, naturals: list[Tensor], temperature: float = 1.0) -> list[Tensor]:
        """Return the log tables of all factors, as the plan knows them; those of data raised to a temperature."""
        found: list[Tensor] = []
        for block, part, natural in zip(self.blocks, self.parts, naturals, strict=True):
            table = block.tables(natural, part)
            found += (table if temperature == 1.0 or block.own is not None else temperature * table).unbind(0)
        return found

    def gather(self, marginals: list[Tensor]) -> list[Tensor]:
        """Return the expected statistics (G, C, U, F) of every block from the marginals of all factors."""
        found, start = [], 0
        for block, part, number in zip(self.blocks, self.parts, self.cells, strict=True):
            own = torch.stack(marginals[start : start + len(block.scopes)])
            found.append(block.statistics(own, part, number))
            start += len(block.scopes)
        return found

    def log_evidence(self, flat: Tensor) -> Tensor:
        """Return log p(x_n | globals), (N,)."""
        return self.plan.total(self.tables(self.naturals(flat))) + self.offset

    def log_joint(self, flat: Tensor, chosen: Tensor) -> Tensor:
        """Return log p(x_n, latents | globals), (..., N), at the numbers (..., N, V) of the values of all variables."""
        total, place = self.offset, 0
        row = torch.arange(len(self))
        tables = self.tables(self.naturals(flat))
        for block in self.blocks:
            for scope in block.scopes:
                own, place = tables[place], place + 1
                at = row if len(own) > 1 else torch.zeros_like(row)
                total = total + own[(at, *(chosen[..., v] for v in scope))]
        return total


def keys_of(rows: Bound) -> list[str]:
    """Return what the statistics of every block are called: where they add up over parts of these rows alone, or not
    at all, after these rows."""
    fixed, found = len(rows.structure.blocks), list[str]()
    for place, block in enumerate(rows.blocks):
        own = id(rows.offset) if block.is_direct else None if place < fixed else id(rows.blocks)
        found.append(str(place) if own is None else f"{place} of {own}")
    return found


def flatten(rows: Bound, values: Mapping[str, Tensor]) -> Tensor:
    """Return the entries of all globals as one vector, in the numbers of the rows."""
    return rows.structure.entries.flatten({site: values[site].to(rows.like) for site in rows.structure.entries.shapes})
