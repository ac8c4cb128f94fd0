"""The structure of a program: its factors, what they depend on, and the proof that they are the program."""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.distributions import constraints

from custom_inference.compiled.blocks import Block, Part, combine, lay_out
from custom_inference.compiled.elimination import Plan
from custom_inference.compiled.laws import Exponential, Law, TabulatedLaw
from custom_inference.compiled.linear import find_linear
from custom_inference.compiled.probes import Probe, combinations, require_entries
from custom_inference.compiled.reading import NotCompiled, Statement, Variables, read
from custom_inference.compiled.sources import Entries, ProgramSource, Source, match_entries
from custom_inference.core.programs.density import RowDensity
from custom_inference.core.programs.ranges import cover
from ppl_models import Data, Model
from ppl_models.core.hierarchy import typical_values

#: Values of a law that is no exponential family, at most.
_MOST_VALUES = 64
#: Rows, and values of their latents, on which factors are proved to be the program; and by how much they may differ.
_PROVED, _DIFFER = 48, 1e-7
#: Log-probabilities below are those of what cannot be.
_IMPOSSIBLE = -1e20
#: Values of a row that a step of its sum takes at once, at most.
_WIDEST = 2**16
#: Numbers in the tables of a part of the rows, which threads take in turn.
_PART = 2**19
#: Rows on which the latents of a program are read.
_READ = 64


@dataclass(frozen=True)
class Group:
    """Elements of a statement that have the same parents. own: the variable that they draw, of latents."""

    statement: str
    elements: Tensor
    parents: tuple[int, ...]
    own: int | None
    varying: bool


@dataclass(frozen=True)
class Asked:
    """Parameters whose source is looked for: of a group, in runs of the program, at the rows and the elements (C, U) of
    these; values: (C, U, P) at every fingerprint."""

    group: Group
    runs: ProgramRuns
    row: Tensor
    element: Tensor
    values: list[Tensor]


@dataclass
class Structure:
    """What a program is made of, whatever the rows.

    laws: of every statement. groups: of its elements. blocks: of the groups whose parameters are the same in all rows;
    others are read off the rows (``bind``). exchangeable: axes whose places may be permuted, once they were looked for.
    """

    model: Model
    variables: Variables
    entries: Entries
    laws: dict[str, Law]
    groups: list[Group]
    blocks: list[Block]
    probe: Probe = field(repr=False)
    exchangeable: list[Any] | None = field(default=None, repr=False)

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

    def bind(self, data: Data, *, prove_too: bool = True) -> Bound:
        """Read rows: the features of what was observed, and the parameters that differ between rows.

        prove_too: prove the factors of rows that are given something, which may be other than in the rows before.

        Raises NotCompiled where a statement of these rows is not as it was in the rows that were probed.
        """
        data = data.to(dtype=torch.float64)
        if prove_too and (data.others or self.varying):
            prove(self, data)
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
        scopes = [scope for block in blocks for scope in block.scopes]
        plan = Plan.of(scopes, self.variables.sizes)
        if plan.width > _WIDEST:
            raise NotCompiled(f"its sum goes through {plan.width:.3g} values of a row at once, of at most {_WIDEST}")
        return Bound(self, tuple(blocks), tuple(parts), tuple(cells), offset, plan)

    def _features(self, stated: Statement, elements: Tensor, law: Law) -> tuple[Tensor, Tensor]:
        """Features (N, E, F) and bases (N, E) of some elements, 0 where they are masked."""
        value = stated.value[:, elements]
        if isinstance(law, TabulatedLaw):
            unknown = ~torch.isin(value, law.values) & (True if stated.seen is None else stated.seen[:, elements])
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
            own = read_without_gradients(probe, params, every, rows)[group.statement].parameters[:, group.elements]
            found.append(own.reshape(len(parents), -1, own.shape[-1]))  # (C, N E, P)
        distinct, cell = torch.unique(torch.cat(found, -1).movedim(0, 1).flatten(1), dim=0, return_inverse=True)
        number = len(distinct)
        values = distinct.reshape(number, len(parents), 4, -1).movedim(2, 0).transpose(1, 2)  # (4, C, U, P)
        first = torch.full((number,), len(cell)).scatter_reduce(0, cell, torch.arange(len(cell)), "amin")
        block = self._block(group, self.find_sources([self._asked(group, probe, chosen, first, values)])[0])
        return block, cell.reshape(len(data), -1), number

    def _asked(self, group: Group, probe: Probe, chosen: Tensor, cells: Tensor, values: Tensor) -> Asked:
        """What is asked of the parameters of cells, numbered by (row, element), in rows that differ."""
        many = len(group.elements)
        rows, place = torch.unique(cells // many, return_inverse=True)
        runs = ProgramRuns(probe, self.entries, chosen.repeat_interleave(len(rows), 0), rows.repeat(len(chosen)))
        row = torch.arange(len(chosen))[:, None] * len(rows) + place[None, :]
        return Asked(group, runs, row, group.elements[cells % many].expand_as(row), list(values.unbind(0)))

    def find_sources(self, asked: list[Asked]) -> list[tuple[Source, ...]]:
        """Find where the parameters (1, C, U, P) of groups come from: entries, sums of entries, or the program."""
        flats = [self.entries.flatten(params) for params in self.probe.fingerprints]
        found: dict[tuple[int, str], Source] = {}
        rest: list[tuple[int, str, slice]] = []
        for number, one in enumerate(asked):
            law, start = self.laws[one.group.statement], 0
            for name, size in zip(law.names, law.sizes, strict=True):
                part = slice(start, start + max(size, 1))
                start = part.stop
                source = match_entries([v[..., part].unsqueeze(0) for v in one.values], flats, self.entries)
                if source is None:
                    rest.append((number, name, part))
                else:
                    found[number, name] = source
        for key, source in self._find_sums(asked, rest, flats).items():
            found[key] = source
        return [
            tuple(found[number, name] for name in self.laws[one.group.statement].names)
            for number, one in enumerate(asked)
        ]

    def _find_sums(
        self, asked: list[Asked], rest: list[tuple[int, str, slice]], flats: list[Tensor]
    ) -> dict[tuple[int, str], Source]:
        """The sources of parameters that are no single entries."""
        found: dict[tuple[int, str], Source] = {}
        for number, name, part in rest:
            one = asked[number]
            sites = one.runs.sites_of(one.group.statement, one.row, one.element, part)
            found[number, name] = ProgramSource(
                one.runs, one.group.statement, one.row[None], one.element[None], part, sites
            )
        by_runs: dict[int, list[tuple[int, str]]] = {}
        for number, name, _ in rest:
            if found[number, name].sites and not found[number, name].sites & self._vectors:
                by_runs.setdefault(id(asked[number].runs), []).append((number, name))
        for keys in by_runs.values():
            begun, programs = time.perf_counter(), [found[key] for key in keys]
            supports = {s: self.model.sites[s].support for one in programs for s in one.sites}

            def evaluate(flat: Tensor, programs: list[Source] = programs) -> list[Tensor]:
                with torch.no_grad():
                    return [one.parameters(flat) for one in programs]

            sums = find_linear(
                evaluate, [name for _, name in keys], flats, self.entries, supports,
                lambda begun=begun: time.perf_counter() - begun,
            )  # fmt: skip
            found.update({key: one for key, one in zip(keys, sums, strict=True) if one is not None})
        return found

    @property
    def _vectors(self) -> frozenset[str]:
        """The sites whose entries depend on each other."""
        plain = (constraints.real, constraints.positive, constraints.unit_interval)
        return frozenset(
            s for s in self.model.global_sites if not any(self.model.sites[s].support is one for one in plain)
        )

    def _block(self, group: Group, sources: tuple[Source, ...]) -> Block:
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


class ProgramRuns:
    """The parameters of all statements in a run of the program on copies of rows, as functions of the globals."""

    def __init__(self, probe: Probe, entries: Entries, chosen: Tensor, rows: Tensor):
        self.probe, self.entries, self.chosen = probe, entries, chosen
        self.data = probe.data.rows(rows)
        self._last: tuple[weakref.ref[Tensor], bool, dict[str, Tensor]] | None = None

    def __call__(self, flat: Tensor) -> dict[str, Tensor]:
        """Return (B, E, P) of every statement; the last run is kept, as several blocks ask for it."""
        grad = torch.is_grad_enabled()
        if self._last is not None and self._last[0]() is flat and self._last[1] == grad:
            return self._last[2]
        data = self.data if flat.dtype == torch.float64 else self.data.to(dtype=flat.dtype)
        probe, params = self.probe, self.entries.unflatten(flat)
        stated = read(probe.model, data, params, probe.variables, self.chosen, probe.tabulated)
        found = {name: one.parameters for name, one in stated.items()}
        self._last = weakref.ref(flat), grad, found
        return found

    def sites_of(self, statement: str, row: Tensor, element: Tensor, part: slice) -> frozenset[str]:
        """The sites that some parameters depend on, by their gradients."""
        flat = self.entries.flatten(self.probe.fingerprints[1]).requires_grad_()
        with torch.enable_grad():
            own = self(flat)[statement][row, element, part]
            if not own.requires_grad:
                return frozenset()
            weight = torch.randn(own.shape, generator=torch.Generator().manual_seed(0), dtype=own.dtype)
            (slope,) = torch.autograd.grad((own * weight).sum(), flat, allow_unused=True)
        self._last = None
        if slope is None:
            return frozenset()
        return frozenset(site for site, part in self.entries.slices.items() if bool((slope[part] != 0).any()))


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
        sizes = [math.prod(block.sizes) for block in self.blocks for _ in block.scopes if block.own is None]
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
    """Return what the statistics of every block are called: where they do not add up over rows, after these rows."""
    return [f"{n} of {id(rows.offset)}" if one.is_direct else str(n) for n, one in enumerate(rows.blocks)]


def flatten(rows: Bound, values: Mapping[str, Tensor]) -> Tensor:
    """Return the entries of all globals as one vector, in the numbers of the rows."""
    return rows.structure.entries.flatten({site: values[site].to(rows.like) for site in rows.structure.entries.shapes})


def read_without_gradients(
    probe: Probe, params: Mapping[str, Tensor], chosen: Tensor, rows: Tensor
) -> dict[str, Statement]:
    """Run the program on copies of rows."""
    return probe.read(params, chosen, rows)


#: Model -> its structure, or why it has none.
_STRUCTURES: weakref.WeakKeyDictionary[Model, Structure | str] = weakref.WeakKeyDictionary()


def structure_of(model: Model, data: Data) -> Structure:
    """Return the structure of a program, found once, on some of the rows.

    Raises NotCompiled where it has none.
    """
    known = _STRUCTURES.get(model)
    if isinstance(known, Structure) and known.variables.layout.moving:
        known = known if _ranges(_density_on(model, data)) == known.variables.ranges else None
    if known is None:
        try:
            density = _density_on(model, data)
            variables = Variables.of(density.layout, density.plates)
            known = derive(density.model, density.data.rows(_different_rows(density.data)), variables)
        except NotCompiled as reason:
            known = str(reason)
        _STRUCTURES[model] = known
    if isinstance(known, str):
        raise NotCompiled(f"{type(model).__name__} is not compiled: {known}")
    return known


def structure_if_known(model: Model) -> Structure | None:
    """Return the structure of a program that was read before."""
    known = _STRUCTURES.get(model)
    return known if isinstance(known, Structure) else None


def _density_on(model: Model, data: Data) -> RowDensity:
    """The density of a program whose latents are finite, with all values that they may have in these rows, at typical
    globals."""
    data = data.to(dtype=torch.float64)
    values = {site: value.double() for site, value in typical_values(model).items()}
    density = RowDensity.of(model, values, data.rows(torch.arange(min(len(data), _READ))))
    if density.layout.num_reals:
        raise NotCompiled("it has latents that are real numbers")
    if any(latent.open for latent in density.layout):
        raise NotCompiled("a latent has no largest value")
    if density.layout.moving:
        density = cover(RowDensity.of(model, values, data))
        for number in range(2):
            other = Probe(model, data, Variables.of(density.layout, density.plates), seed=number).draw_globals()
            if _ranges(cover(density.at(other))) != _ranges(density):
                raise NotCompiled("which values a latent has depends on globals")
    return density if len(density) == len(data) else replace(density, data=model.as_read(data).dense())


def _ranges(density: RowDensity) -> list[list[list[float]]]:
    """The values that the latents of a density may have."""
    return Variables.of(density.layout, density.plates).ranges


def _different_rows(data: Data) -> Tensor:
    """Numbers of some rows that differ in what they are given, the first of each, with others."""
    number, given = len(data), [one.reshape(len(data), -1) for one in data.others.values()]
    rows = torch.linspace(0, number - 1, min(number, _READ)).long()
    if given:
        _, place = torch.unique(torch.cat([one.double() for one in given], 1), dim=0, return_inverse=True)
        first = torch.full((int(place.max()) + 1,), number).scatter_reduce(0, place, torch.arange(number), "amin")
        rows = torch.cat([first[:: max(1, len(first) // _READ)], rows])
    return torch.unique(rows)


def derive(model: Model, data: Data, variables: Variables, *, seed: int = 0) -> Structure:
    """Read the structure of a program off runs of it, and prove it.

    data: dense. variables: the latents of its rows, which are all finite.

    Raises NotCompiled, with the reason, where the program is not a product of factors that can be read.
    """
    data = data.to(dtype=torch.float64)
    probe = Probe(model, data, variables, seed=seed)
    try:
        probe = replace(probe, tabulated=probe.find_tabulated())
        scopes, varying = probe.find_scopes(), probe.find_varying()
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise NotCompiled(f"it does not run on values that differ between rows ({reason})") from None
    entries = Entries({site: tuple(shape) for site, shape in model.shapes.items()})
    groups = [group for name in scopes for group in _group(name, scopes[name], varying[name], variables.of_site(name))]
    for group in groups:
        number = math.prod(float(variables.sizes[v]) for v in group.parents)
        if number > _WIDEST:
            raise NotCompiled(f"'{group.statement}' depends on {number:.3g} values at once, of at most {_WIDEST}")
    zeros = torch.zeros(len(data), len(variables), dtype=torch.long)
    stated = probe.read(probe.fingerprints[0], zeros, torch.arange(len(data)))
    laws = {name: _law(name, one, variables) for name, one in stated.items()}
    structure = Structure(model, variables, entries, laws, groups, [], probe)
    structure.blocks = combine(_fixed_blocks(structure))
    prove(structure, data)
    return structure


def _group(name: str, scope: Tensor, varying: Tensor, own: list[int]) -> list[Group]:
    """Put the elements (E, V) of a statement into groups of the same parents; those of latents stay alone."""
    if own:
        if len(own) != len(scope):
            raise NotCompiled(f"'{name}' draws {len(scope)} values, of {len(own)} that its latent has")
        for element, v in enumerate(own):
            if bool(scope[element, v]):
                raise NotCompiled(f"the law of '{name}' depends on its own value")
        each = [tuple(scope[e].nonzero()[:, 0].tolist()) for e in range(len(own))]
        return [Group(name, torch.tensor([e]), each[e], own[e], bool(varying[e])) for e in range(len(own))]
    found: dict[tuple[Any, ...], list[int]] = {}
    for element in range(len(scope)):
        parents = tuple(scope[element].nonzero()[:, 0].tolist())
        found.setdefault((parents, bool(varying[element])), []).append(element)
    return [Group(name, torch.tensor(where), parents, None, moves) for (parents, moves), where in found.items()]


def _law(name: str, stated: Statement, variables: Variables) -> Law:
    """The law of a statement's elements; of what is no exponential family, with the values that there are."""
    law, own = stated.law, variables.of_site(name)
    if isinstance(law, Exponential):
        return law
    if own:
        values = torch.unique(torch.cat([variables.own_values(v) for v in own]))
    else:
        values = torch.unique(stated.value if stated.seen is None else stated.value[stated.seen])
    made = TabulatedLaw(law.kind, law.names, law.sizes, values) if len(values) <= _MOST_VALUES else law
    try:
        made.log_prob(stated.parameters[:1, :1].unsqueeze(-2), values[:1])
    except (RuntimeError, ValueError, TypeError, IndexError, AttributeError) as error:
        raise NotCompiled(f"'{name}': {law.kind.__name__} is not made by its parameters ({error})") from None
    return made


def _fixed_blocks(structure: Structure) -> list[Block]:
    """The blocks of the groups whose parameters are the same in all rows."""
    variables, probe = structure.variables, structure.probe
    fixed = [group for group in structure.groups if not group.varying]
    rows: dict[tuple[int, ...], int] = {}
    chosen = list[Tensor]()
    total = 0
    for group in fixed:
        if group.parents not in rows:
            values = combinations(tuple(variables.sizes[v] for v in group.parents))
            part = torch.zeros(len(values), len(variables), dtype=torch.long)
            part[:, list(group.parents)] = values
            rows[group.parents], total = total, total + len(values)
            chosen.append(part)
            widest = max(law.width for law in structure.laws.values())
            require_entries(float(total) * sum(len(one.elements) for one in fixed) * widest)
    if not chosen:
        return []
    every, first = torch.cat(chosen), torch.zeros(total, dtype=torch.long)
    stated = [probe.read(params, every, first) for params in probe.fingerprints]
    runs = ProgramRuns(probe, structure.entries, every, first)
    asked = []
    for group in fixed:
        number = math.prod(variables.sizes[v] for v in group.parents)
        row = torch.arange(rows[group.parents], rows[group.parents] + number)[:, None].expand(-1, len(group.elements))
        element = group.elements.expand_as(row)
        values = [one[group.statement].parameters[row, element] for one in stated]
        asked.append(Asked(group, runs, row, element, values))
    return [structure._block(g, s) for g, s in zip(fixed, structure.find_sources(asked), strict=True)]


def prove(structure: Structure, data: Data) -> None:
    """Compare the factors with the program's own log joint, row by row, at random globals and values of the latents.

    Raises NotCompiled where they differ.
    """
    probe, variables = structure.probe, structure.variables
    rows = _different_rows(data)
    rows = rows[torch.randperm(len(rows), generator=probe.generator)[:_PROVED]]
    some, sizes, extreme = data.rows(rows), torch.tensor(variables.sizes), probe.bases()
    bound = structure.bind(some, prove_too=False)
    for attempt in range(4):
        params = probe.draw_globals()
        drawn = (torch.rand(len(rows), len(sizes), generator=probe.generator, dtype=torch.float64) * sizes).long()
        if attempt < 2:
            drawn[: len(extreme)] = extreme[: len(drawn)]
        density = RowDensity(structure.model, params, some, variables.layout, variables.plates)
        with torch.no_grad():
            expected = density(variables.codes(drawn, some.x)[None])[0]
            found = bound.log_joint(structure.entries.flatten(params), drawn)
        possible = expected > _IMPOSSIBLE
        apart = possible & ~((found - expected).abs() <= _DIFFER * (1 + expected.abs()))
        apart |= ~possible & ~(found <= _IMPOSSIBLE)
        if bool(apart.any()):
            n = int(apart.nonzero()[0])
            raise NotCompiled(
                f"its factors give log p(x, latents) = {float(found[n]):.6g} in row {int(rows[n])}, the program "
                f"{float(expected[n]):.6g}"
            )
