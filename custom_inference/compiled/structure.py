"""The structure of a program: its factors, what they read of rows, and the proof that they are the program."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from custom_inference.compiled.blocks import Block, Part, lay_out
from custom_inference.compiled.bound import Bound
from custom_inference.compiled.elimination import Plan
from custom_inference.compiled.laws import Law
from custom_inference.compiled.origins import Asked, Group, ProgramRuns, find_sources
from custom_inference.compiled.probes import Probe, combinations, require_entries
from custom_inference.compiled.reading import NotCompiled, Statement, Variables, read
from custom_inference.compiled.sources import Entries, Source
from custom_inference.core.programs.density import RowDensity
from ppl_models import Data, Model

#: Values of all latents on which factors are proved to be the program, at most: even ones, and random ones; by how much
#: they may differ; and rows, at most.
_DIFFERENT, _DRAWN, _DIFFER, _PROVED = 8, 2, 1e-7, 4096
#: Log-probabilities below are those of what cannot be.
_IMPOSSIBLE = -1e20
#: Values of a row that a step of its sum takes at once, at most.
WIDEST = 2**16
#: Numbers of rows that are kept for the next time that they are asked for.
_KEPT = 2**22


@dataclass
class Structure:
    """What a program is made of, whatever the rows.

    laws: of every statement. groups: of its elements. blocks: of the groups whose parameters are the same in all rows;
    others are read off the rows (``bind``). exchangeable: axes whose places may be permuted, once they were looked for.
    proved: digests of rows in which the factors were proved, as blocks of a file are in every pass. kept: of few rows
    what was read of them, by these digests. refused: why the factors are not the program, where the first rows say so.
    """

    model: Model
    variables: Variables
    entries: Entries
    laws: dict[str, Law]
    groups: list[Group]
    blocks: list[Block]
    probe: Probe = field(repr=False)
    exchangeable: list[Any] | None = field(default=None, repr=False)
    proved: set[bytes] = field(default_factory=set, repr=False)
    kept: dict[bytes, Bound] = field(default_factory=dict, repr=False)
    refused: str = ""

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

    def bind(self, data: Data) -> Bound:
        """Read rows: the features of what was observed, and the parameters that differ between rows; and prove the
        factors in every one of these rows, which may be other than those that were probed.

        Raises NotCompiled where a statement of these rows is not as it was in the rows that were probed.
        """
        data = data.to(dtype=torch.float64)
        content = _digest(data)
        try:
            found = self.kept[content] if content in self.kept else self.read_rows(data)
            if content not in self.proved:
                prove(found, data)
        except NotCompiled as reason:
            if not self.proved:
                self.refused = str(reason)
            raise NotCompiled(f"{type(self.model).__name__} is not compiled: {reason}") from None
        self.proved.add(content)
        self._keep(content, found)
        return found

    def _keep(self, content: bytes, rows: Bound) -> None:
        """Keep rows for the next pass, in the place of any others: in turn nothing would be left of a long file."""
        self.kept.pop(content, None)
        if rows.size <= _KEPT:
            while self.kept and rows.size + sum(one.size for one in self.kept.values()) > _KEPT:
                del self.kept[list(self.kept)[content[0] % len(self.kept)]]
            self.kept[content] = rows

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
        if plan.width > WIDEST:
            raise NotCompiled(f"its sum goes through {plan.width:.3g} values of a row at once, of at most {WIDEST}")
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


def choose_rows(data: Data, most: int) -> Tensor:
    """Numbers of some rows that differ in what they are given, the first of each, with others."""
    number, given = len(data), [one.reshape(len(data), -1) for one in data.others.values()]
    rows = torch.linspace(0, number - 1, min(number, most)).long()
    if given:
        _, place = torch.unique(torch.cat([one.double() for one in given], 1), dim=0, return_inverse=True)
        first = torch.full((int(place.max()) + 1,), number).scatter_reduce(0, place, torch.arange(number), "amin")
        rows = torch.cat([first[:: max(1, len(first) // most)], rows])
    return torch.unique(rows)


def _digest(data: Data) -> bytes:
    """A digest of all that rows are given."""
    found = hashlib.sha256()
    for name, given in {"x": data.x, "mask": data.mask, **data.others}.items():
        if given is not None:
            given = given.to_dense() if given.layout != torch.strided else given
            found.update(f"{name} {tuple(given.shape)}".encode())
            found.update(given.detach().cpu().contiguous().numpy().tobytes())
    return found.digest()


def prove(bound: Bound, data: Data) -> None:
    """Compare the factors of rows with the program's own log joint, row by row, at random globals and at values of the
    latents that reach all of each: what one row alone has is not in others, where structure is looked for. Of very many
    rows some are, among them all that differ in what they are given, as far as these are not too many.

    Raises NotCompiled where they differ.
    """
    structure = bound.structure
    probe, variables = structure.probe, structure.variables
    rows = choose_rows(data, _PROVED)
    if len(rows) < len(data):
        bound, data = bound.select(rows), data.rows(rows)
    sizes = torch.tensor(variables.sizes)
    number = max((len(one) for one in variables.options), default=1)
    for attempt in range(min(number, _DIFFERENT) + _DRAWN):
        params = probe.draw_globals()
        if attempt < min(number, _DIFFERENT):  # the first, the last, and those between
            part = attempt / max(min(number, _DIFFERENT) - 1, 1)
            chosen = (part * (sizes - 1)).round().long().expand(len(data), -1)
        else:
            noise = torch.rand(len(data), len(sizes), generator=probe.generator, dtype=torch.float64)
            chosen = (noise * sizes).long()
        density = RowDensity(structure.model, params, data, variables.layout, variables.plates)
        with torch.no_grad():
            expected = density(variables.codes(chosen, data.x)[None])[0]
            found = bound.log_joint(structure.entries.flatten(params), chosen)
        possible = expected > _IMPOSSIBLE
        apart = possible & ~((found - expected).abs() <= _DIFFER * (1 + expected.abs()))
        apart |= ~possible & ~(found <= _IMPOSSIBLE)
        if bool(apart.any()):
            n = int(apart.nonzero()[0])
            raise NotCompiled(
                f"its factors give log p(x, latents) = {float(found[n]):.6g} in row {int(rows[n])}, the program "
                f"{float(expected[n]):.6g}"
            )
