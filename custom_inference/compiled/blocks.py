"""Blocks of alike factors: tables of log-probabilities from the globals, and expected statistics from marginals.

The factors of a block have the same law, as many elements, and parents of the same sizes. The log table of a factor is
a product of the data's features and the law's natural parameters, so that one product of matrices does for all rows,
values and elements; and what the M step needs of the rows is the transposed product with the probabilities of the
values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from custom_inference.compiled.laws import NOTHING, Law
from custom_inference.compiled.sources import EntrySource, Source

#: Rows' features are laid out over all cells where these are no more than so many numbers a row, and so many times as
#: many as elements.
_LAID_OUT, _TIMES = 4096, 16


@dataclass(frozen=True)
class Block:
    """G factors.

    scopes: of each the parents, then the variable that is drawn, if it is a latent's. sizes: of these.
    sources: of each parameter of the law. own: (S, F) features of the values that may be drawn, own_base: (S,) what
    else log p has of them; None of data.
    elements: of each factor of data the statement and which of its elements.
    """

    law: Law
    scopes: tuple[tuple[int, ...], ...]
    sizes: tuple[int, ...]
    sources: tuple[Source, ...]
    own: Tensor | None = None
    own_base: Tensor | None = None
    elements: tuple[tuple[str, Tensor], ...] = ()

    def to(self, like: Tensor) -> Block:
        """Return the block with numbers of the type and device of ``like``."""
        own = None if self.own is None else self.own.to(like)
        base = None if self.own_base is None else self.own_base.to(like)
        return replace(self, sources=tuple(one.to(like) for one in self.sources), own=own, own_base=base)

    @property
    def key(self) -> tuple[object, ...]:
        """What blocks share that may be one."""
        law, many = self.law, self.elements[0][1].numel() if self.elements else 0
        return type(law), law.kind, law.names, law.sizes, self.sizes, self.own is None, many

    @property
    def is_direct(self) -> bool:
        """Whether its law has no features: each row has a density of its own, and probabilities are kept by row."""
        return not self.law.exponential

    def natural(self, flat: Tensor) -> Tensor:
        """Return the natural parameters (G, C, U, F); of a law whose tables are made of values (G, C, U, P)."""
        found = self.parameters(flat)
        return found if self.is_direct or self.law.by_value else self.law.natural(found)

    def expect(self, flat: Tensor, counted: Tensor, part: Part | None) -> Tensor:
        """Return the expected log-probability, from the expected statistics of the rows in ``part``."""
        if self.is_direct:
            return (self.tables(self.natural(flat), part).flatten(2) * counted).sum()
        return (self.law.natural(self.parameters(flat)) * counted).sum()

    def parameters(self, flat: Tensor) -> Tensor:
        """Return the parameters (G, C, U, P) of the law."""
        parts = [one.parameters(flat) for one in self.sources]
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)

    def take_apart(self, parameters: Tensor) -> Iterator[tuple[str, Source, Tensor]]:
        """Yield the name of each parameter, its source, and what of the parameters (G, C, U, P) it is."""
        parts = parameters.split([max(size, 1) for size in self.law.sizes], -1)
        return zip(self.law.names, self.sources, parts, strict=True)

    @property
    def sites(self) -> frozenset[str]:
        """The sites whose entries its parameters depend on."""
        return frozenset().union(*(one.sites for one in self.sources))

    def tables(self, natural: Tensor | tuple[Tensor, ...], part: Part | None) -> Tensor:
        """Return the log tables (G, N or 1, *sizes); of several natural parameters their mean."""
        if not torch.is_tensor(natural):
            return torch.stack([self.tables(one, part) for one in natural]).mean(0)
        number = len(self.scopes)
        if self.own is not None and self.own_base is not None:
            each = natural @ self.own.T + self.own_base  # (G, C, U, S)
            if part is None:
                return each[:, :, 0].reshape(number, 1, *self.sizes)
            return each.movedim(2, 1)[:, part.cells].reshape(number, -1, *self.sizes)
        assert part is not None
        if self.law.by_value:
            weighed = part.evaluate_features(self.law, natural)
        else:
            weighed = part.evaluate(self.law, natural) if self.is_direct else part.weigh(natural)
        return weighed.reshape(number, -1, *self.sizes)

    def statistics(self, marginals: Tensor, part: Part | None, num_cells: int) -> Tensor:
        """Return the expected features (G, C, U, F) from the probabilities (G, N or 1, *sizes)."""
        number = len(self.scopes)
        if self.own is None:
            assert part is not None
            share = marginals.reshape(number, marginals.shape[1], -1)
            return share if self.is_direct else part.gather(share, num_cells)
        each = marginals.reshape(number, marginals.shape[1], -1, self.sizes[-1])  # (G, N, C, S)
        if part is None:
            summed = each.sum(1).unsqueeze(2)
        else:
            assert part.cells is not None
            summed = each.new_zeros(number, num_cells, *each.shape[2:]).index_add(1, part.cells, each).movedim(1, 2)
        return summed @ self.own


@dataclass(frozen=True)
class Part:
    """What a block reads of some rows.

    features: (G, N, M): of each row, laid out over all cells and features where ``cells`` is None; else of its elements
    (G, N, E, F), with the cells (N, E) (of a latent (N,)) whose parameters they have. Of laws without features the
    values (1, N, E), with what of them was ``seen``.
    """

    features: Tensor | None = None
    cells: Tensor | None = None
    seen: Tensor | None = None

    def __len__(self) -> int:
        if self.features is not None:
            return self.features.shape[1]
        assert self.cells is not None
        return len(self.cells)

    @property
    def size(self) -> int:
        """How many numbers it has."""
        return sum(one.numel() for one in (self.features, self.cells, self.seen) if one is not None)

    def select(self, index: Tensor | slice) -> Part:
        features = None if self.features is None else self.features[:, index]
        cells, seen = (None if one is None else one[index] for one in (self.cells, self.seen))
        return Part(features, cells, seen)

    def to(self, like: Tensor) -> Part:
        return replace(self, features=None if self.features is None else self.features.to(like))

    def evaluate(self, law: Law, parameters: Tensor) -> Tensor:
        """Return the log-probabilities (1, N, C) of values under a law with parameters (1, C, U, P)."""
        assert self.features is not None
        own = parameters if self.cells is None else parameters[:, :, self.cells]  # (1, C, [N,] E, P)
        own = own.unsqueeze(2) if self.cells is None else own
        found = law.log_prob(own, self.features.unsqueeze(1))  # (1, C, N, E)
        found = torch.where(found > NOTHING, found, torch.full_like(found, NOTHING))
        if self.seen is not None:
            found = torch.where(self.seen, found, torch.zeros_like(found))
        return found.sum(-1).mT

    def evaluate_features(self, law: Law, parameters: Tensor) -> Tensor:
        """Return the log-probabilities (G, N, C) of values, from their features and parameters (G, C, U, P)."""
        assert self.features is not None
        if self.cells is None:
            features = self.features.unflatten(-1, (parameters.shape[2], -1)).unsqueeze(2)  # (G, N, 1, U, F)
            return law.evaluate(parameters.unsqueeze(1), features).sum(-1)
        by_cell, total = parameters.movedim(2, 1), None
        for element in range(self.cells.shape[1]):
            own = by_cell.index_select(1, self.cells[:, element])  # (G, N, C, P)
            part = law.evaluate(own, self.features[:, :, element].unsqueeze(2))
            total = part if total is None else total + part
        assert total is not None
        return total

    def weigh(self, natural: Tensor) -> Tensor:
        """Return the products (G, N, C) of features and natural parameters (G, C, U, F)."""
        assert self.features is not None
        if self.cells is None:
            return self.features @ natural.flatten(2).mT
        total = None
        by_cell = natural.movedim(2, 1)
        for element in range(self.cells.shape[1]):
            own = by_cell.index_select(1, self.cells[:, element])  # (G, N, C, F)
            part = (own * self.features[:, :, element].unsqueeze(2)).sum(-1)
            total = part if total is None else total + part
        assert total is not None
        return total

    def gather(self, share: Tensor, num_cells: int) -> Tensor:
        """Return the expected features (G, C, U, F) from probabilities (G, N, C)."""
        assert self.features is not None
        if self.cells is None:
            return (share.mT @ self.features).unflatten(-1, (num_cells, -1))
        size = self.features.shape[-1]
        found = share.new_zeros(len(share), num_cells, share.shape[2], size)
        for element in range(self.cells.shape[1]):
            each = share.unsqueeze(-1) * self.features[:, :, element].unsqueeze(2)
            found = found.index_add(1, self.cells[:, element], each)
        return found.movedim(1, 2)


def lay_out(features: Tensor, cells: Tensor, num_cells: int) -> Part:
    """Return the features (G, N, E, F) of elements, laid out over all cells (N, E) where these are not too many."""
    size = features.shape[-1]
    if num_cells * size > _LAID_OUT or num_cells > _TIMES * cells.shape[1]:
        return Part(features, cells)
    flat = features.new_zeros(len(features), features.shape[1], num_cells, size)
    place = cells[None, :, :, None].expand_as(features)
    return Part(flat.scatter_add(2, place, features).flatten(2))


def combine(blocks: Sequence[Block]) -> list[Block]:
    """Put blocks that may be one behind each other: of single entries, with the same key."""
    found: list[Block] = []
    groups: dict[tuple[object, ...], list[Block]] = {}
    for block in blocks:
        entries: list[Any] = [one for one in block.sources if one.of_entries]
        if len(entries) == len(block.sources) and not block.is_direct:
            groups.setdefault((block.key, *(tuple(one.index.shape[1:]) for one in entries)), []).append(block)
        else:
            found.append(block)
    for group in groups.values():
        stacks: list[Any] = [[one.sources[place] for one in group] for place in range(len(group[0].sources))]
        sources = tuple(EntrySource.stack(stack) for stack in stacks)
        scopes = tuple(scope for one in group for scope in one.scopes)
        elements = tuple(pair for one in group for pair in one.elements)
        found.append(replace(group[0], scopes=scopes, sources=sources, elements=elements))
    return found
