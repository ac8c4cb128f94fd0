"""The structure of a program: its factors, and what they read of rows."""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from custom_inference.compiled.blocks import Block, Part, lay_out
from custom_inference.compiled.elimination import Plan
from custom_inference.compiled.laws import Law
from custom_inference.compiled.messages import align
from custom_inference.compiled.origins import Asked, Group, ProgramRuns, find_sources
from custom_inference.compiled.probes import Probe, combinations, require_entries
from custom_inference.compiled.reading import NotCompiled, Statement, Variables, read
from custom_inference.compiled.sources import Entries, Source
from ppl_models import Data, Model

#: Values of a row that a step of its sum takes at once, at most.
WIDEST = 2**16
#: Numbers in the tables of a part of the rows, which threads take in turn.
_PART = 2**19


@dataclass
class Structure:
    """What a program is made of, whatever the rows.

    laws: of every statement. groups: of its elements. blocks: of the groups whose parameters are the same in all rows;
    others are read off the rows (``bind``). exchangeable: axes whose places may be permuted, once they were looked for.
    proved: digests of the rows in which the factors were proved, as those of a file are met in every pass. kept: of few
    rows what was read of them, by their digest, and for how many numbers more there is room. refused: why the factors
    are not the program, where the first rows say so. steps: the M steps of models, where rows make no blocks.
    """

    model: Model
    variables: Variables
    entries: Entries
    laws: dict[str, Law]
    groups: list[Group]
    blocks: list[Block]
    probe: Probe = field(repr=False)
    exchangeable: list[Any] | None = field(default=None, repr=False)
    proved: list[NDArray[np.uint64]] = field(default_factory=list, repr=False)
    kept: dict[bytes, Bound] = field(default_factory=dict, repr=False)
    room: int = 2**22
    refused: str = ""
    steps: dict[torch.dtype, weakref.WeakKeyDictionary[Model, Any]] = field(default_factory=dict, repr=False)

    @property
    def varying(self) -> list[Group]:
        """The groups whose parameters differ between rows."""
        return [group for group in self.groups if group.varying]

    @property
    def is_deep(self) -> bool:
        """Whether the sum over the latents of a row takes several steps, as along a chain."""
        scopes = {frozenset(group.parents) | ({group.own} if group.own is not None else set()) for group in self.groups}
        return len(self.variables) > 1 and not any(len(scope) == len(self.variables) for scope in scopes)

    @property
    def width(self) -> float:
        """The largest number of values of a row that a step of the sum takes at once."""
        own = [(*group.parents, *(() if group.own is None else (group.own,))) for group in self.groups]
        return Plan.of(own, self.variables.sizes).width

    def read_rows(self, data: Data) -> Bound:
        """Read rows in double precision, without a proof of the factors."""
        zeros = torch.zeros(len(data), len(self.variables), dtype=torch.long)
        with torch.no_grad():
            stated = read(self.model, data, self.probe.fingerprints[0], self.variables, zeros, self.probe.tabulated)
        blocks, parts, cells = list(self.blocks), list[Part | None](), list[int]()
        offset = torch.zeros(len(data), dtype=torch.float64)
        for block in blocks:
            if block.is_direct:
                parts.append(_values(stated[block.elements[0][0]], block.elements[0][1]))
                cells.append(0)
                continue
            pieces = [self._features(stated[name], index, block.law) for name, index in block.elements]
            offset = offset + sum((base.sum(-1) for _, base in pieces), torch.zeros_like(offset))
            parts.append(Part(torch.stack([one.flatten(1) for one, _ in pieces])) if pieces else None)
            cells.append(block.elements[0][1].numel() if pieces else 1)
        for group in self.varying:
            block, cell, number = self._read_varying(group, data)
            if block.is_direct:
                parts.append(replace(_values(stated[group.statement], group.elements), cells=cell))
            elif group.own is None:
                features, base = self._features(stated[group.statement], group.elements, block.law)
                offset = offset + base.sum(-1)
                parts.append(lay_out(features.unsqueeze(0), cell, number))
            else:
                parts.append(Part(None, cell[:, 0]))
            blocks.append(block)
            cells.append(number)
        plan = Plan.of([scope for block in blocks for scope in block.scopes], self.variables.sizes)
        return Bound(self, tuple(blocks), tuple(parts), tuple(cells), offset, plan)

    def _features(self, stated: Statement, elements: Tensor, law: Law) -> tuple[Tensor, Tensor]:
        """Features (N, E, F) and bases (N, E) of some elements, 0 where they are masked."""
        value = stated.value[:, elements]
        unknown = law.find_unknown(value)
        if stated.seen is not None:
            unknown = unknown & stated.seen[:, elements].reshape(*unknown.shape[:2], *[1] * (unknown.ndim - 2))
        if bool(unknown.any()):
            raise NotCompiled(f"{law.kind.__name__} has further values in these rows")
        if stated.seen is None:
            return law.features(value), law.base(value)
        seen = stated.seen[:, elements]
        wide = seen.reshape(*seen.shape, *[1] * (value.ndim - seen.ndim))
        value = torch.where(wide, value, torch.full_like(value, law.inside))
        return law.features(value) * seen.unsqueeze(-1), law.base(value) * seen

    def _read_varying(self, group: Group, data: Data) -> tuple[Block, Tensor, int]:
        """The block of a group whose parameters differ between rows, the cells (N, E) of its elements, and how many
        cells there are."""
        parents = combinations(tuple(self.variables.sizes[v] for v in group.parents))
        require_entries(float(len(data)) * len(parents) * len(group.elements) * self.laws[group.statement].width)
        chosen = torch.zeros(len(parents), len(self.variables), dtype=torch.long)
        chosen[:, list(group.parents)] = parents
        rows = torch.arange(len(data)).repeat(len(parents))
        every = chosen.repeat_interleave(len(data), 0)
        probe, found = replace(self.probe, data=data), []
        for params in self.probe.fingerprints:
            own = probe.read(params, every, rows)[group.statement].parameters[:, group.elements]
            found.append(own.reshape(len(parents), -1, own.shape[-1]))  # (C, N E, P)
        distinct, cell = torch.unique(torch.cat(found, -1).movedim(0, 1).flatten(1), dim=0, return_inverse=True)
        number = len(distinct)
        values = distinct.reshape(number, len(parents), 4, -1).movedim(2, 0).transpose(1, 2)  # (4, C, U, P)
        first = torch.full((number,), len(cell)).scatter_reduce(0, cell, torch.arange(len(cell)), "amin")
        block = self.make_block(
            group,
            find_sources(self.probe, self.entries, self.laws, [self._ask(group, probe, chosen, first, values)])[0],
        )
        return block, cell.reshape(len(data), -1), number

    def _ask(self, group: Group, probe: Probe, chosen: Tensor, cells: Tensor, values: Tensor) -> Asked:
        """Ask for the source of the parameters of cells, numbered by (row, element), in rows that differ."""
        many = len(group.elements)
        rows, place = torch.unique(cells // many, return_inverse=True)
        runs = ProgramRuns(probe, self.entries, chosen.repeat_interleave(len(rows), 0), rows.repeat(len(chosen)))
        row = torch.arange(len(chosen))[:, None] * len(rows) + place[None, :]
        return Asked(group, runs, row, group.elements[cells % many].expand_as(row), list(values.unbind(0)))

    def make_block(self, group: Group, sources: tuple[Source, ...]) -> Block:
        sizes, law = self.variables.sizes, self.laws[group.statement]
        if group.own is None:
            shape = tuple(sizes[v] for v in group.parents)
            return Block(law, (group.parents,), shape, sources, elements=((group.statement, group.elements),))
        scope, values = (*group.parents, group.own), self.variables.own_values(group.own)
        own = law.features(values)
        return Block(law, (scope,), tuple(sizes[v] for v in scope), sources, own, law.base(values))


def _values(stated: Statement, elements: Tensor) -> Part:
    """The values of some elements, for laws without features."""
    seen = None if stated.seen is None else stated.seen[:, elements]
    return Part(stated.value[:, elements].unsqueeze(0), None, seen)


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

    def join(self, tables: Sequence[Tensor]) -> Tensor:
        """Add up the log tables of all factors at all values of all variables together, (N or 1, C)."""
        sizes = self.structure.variables.sizes
        every = tuple(range(len(sizes)))
        aligned = [align(table, scope, every, sizes) for table, scope in zip(tables, self.scopes, strict=True)]
        return sum(aligned[1:], aligned[0]).expand(-1, *sizes).flatten(1)

    def log_evidence(self, flat: Tensor) -> Tensor:
        """Return log p(x_n | globals), (N,)."""
        return self.plan.total(self.tables(self.naturals(flat))) + self.offset

    def log_joint(self, flat: Tensor, chosen: Tensor) -> Tensor:
        """Return log p(x_n, latents | globals), (..., N), at the numbers (..., N, V) of the values of all variables."""
        prior, likelihood = self.look_up(self.tables(self.naturals(flat)), chosen)
        return prior + likelihood

    def look_up(self, tables: list[Tensor], chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Return log p(latents | globals) and log p(x_n | latents, globals), (..., N) each, from the log tables of all
        factors, at the numbers (..., N, V) of the values of all variables."""
        total, place = [torch.zeros_like(self.offset), self.offset], 0
        row = torch.arange(len(self))
        for block in self.blocks:
            for scope in block.scopes:
                own, place = tables[place], place + 1
                at = row if len(own) > 1 else torch.zeros_like(row)
                total[block.own is None] = total[block.own is None] + own[(at, *(chosen[..., v] for v in scope))]
        return total[0], total[1]


def keys_of(rows: Bound) -> list[str]:
    """Return what the statistics of every block are called: where they add up over parts of these rows alone, or not
    at all, after these rows."""
    fixed, found = len(rows.structure.blocks), list[str]()
    for place, block in enumerate(rows.blocks):
        own = id(rows.offset) if block.is_direct else None if place < fixed else id(rows.blocks)
        found.append(str(place) if own is None else f"{place} of {own}")
    return found


class RowsOfEntries(Protocol):
    """Rows that a program of entries has read."""

    @property
    def structure(self) -> Any: ...

    @property
    def like(self) -> Tensor: ...


def flatten(rows: RowsOfEntries, values: Mapping[str, Tensor]) -> Tensor:
    """Return the entries of all globals as one vector, in the numbers of the rows."""
    return rows.structure.entries.flatten({site: values[site].to(rows.like) for site in rows.structure.entries.shapes})
