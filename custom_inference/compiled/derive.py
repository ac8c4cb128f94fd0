"""Structures of programs: found once for a model, on some of its rows."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from custom_inference.compiled.blocks import Block, combine
from custom_inference.compiled.kept import KeptStructures, refuse_errors
from custom_inference.compiled.laws import Law, TabulatedLaw
from custom_inference.compiled.origins import Asked, Group, ProgramRuns, find_sources
from custom_inference.compiled.probes import Probe, combinations, require_entries
from custom_inference.compiled.proof import choose_rows
from custom_inference.compiled.reading import NotCompiled, Statement, Variables
from custom_inference.compiled.sources import Entries
from custom_inference.compiled.structure import WIDEST, Structure
from custom_inference.core.programs.density import RowDensity
from custom_inference.core.programs.ranges import cover
from ppl_models import Data, Model
from ppl_models.core.errors import warn_caller
from ppl_models.core.hierarchy import typical_values

#: Values of a law that is no exponential family, at most, to be counted one by one.
_MOST_VALUES = 64
#: Rows on which the latents of a program are read.
_READ = 64
#: So many times as large as in the rows that were probed what others are given is at most, and as small, of so many
#: rows.
_LARGER, _FEW = 64.0, 8
#: By how much a parameter may leave its range by rounding, and how many times as far
#: apart globals are drawn where it is looked at.
_OUTSIDE, _WIDE = 1e-6, 4.0

_STRUCTURES = KeptStructures[Structure]()


def structure_of(model: Model, data: Data) -> Structure:
    """Return the structure of a program, found once, on some of the rows.

    Raises NotCompiled where it has none.
    """

    def serves(known: Structure) -> bool:
        moved = known.variables.layout.moving and _ranges(_density_on(model, data)) != known.variables.ranges
        return not moved and _is_alike(known.probe.data, data)

    return _STRUCTURES.find(model, lambda own: _derive_on(own, data), serves)


def _derive_on(model: Model, data: Data) -> Structure:
    """Read the structure of a program off the values that its latents have in these rows."""
    density = _density_on(model, data)
    return derive(density.model, density.data, Variables.of(density.layout, density.plates))


def _is_alike(probed: Data, data: Data) -> bool:
    """Tell whether what rows are given is about as large as in the rows that the program was probed on; few may have
    small numbers."""
    for name, one in data.others.items():
        if name in probed.others:
            before, now = (float(each.double().square().nanmean().sqrt()) for each in (probed.others[name], one))
            if now > _LARGER * before or (before > _LARGER * now and len(data) >= _FEW):
                return False
    return True


def structure_if_known(model: Model) -> Structure | None:
    """Return the structure of a program that was read before."""
    return _STRUCTURES.recall(model)


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


def derive(
    model: Model, data: Data, variables: Variables, *, seed: int = 0, without: Collection[str] = ()
) -> Structure:
    """Read the structure of a program off runs of it on some of the rows; binding rows to it proves it.

    data: dense. variables: the finite latents of its rows, which are all but for those of the statements ``without``,
    which are left to others.

    Raises NotCompiled, with the reason, where the program is not a product of factors that can be read.
    """
    every = data.to(dtype=torch.float64)
    data = every.rows(choose_rows(every, _READ))
    probe = Probe(model, data, variables, seed=seed)
    with refuse_errors():
        probe = replace(probe, spreads=probe.find_spreads())
        probe = replace(probe, tabulated=probe.find_tabulated())
        scopes, varying = probe.find_scopes(), probe.find_varying()
    entries = Entries({site: tuple(shape) for site, shape in model.shapes.items()})
    groups = [
        group
        for name in scopes
        if name not in without
        for group in _group(name, scopes[name], varying[name], variables.of_site(name))
    ]
    for group in groups:
        number = math.prod(float(variables.sizes[v]) for v in group.parents)
        if number > WIDEST:
            raise NotCompiled(f"'{group.statement}' depends on {number:.3g} values at once, of at most {WIDEST}")
    zeros = torch.zeros(len(data), len(variables), dtype=torch.long)
    stated = probe.read(probe.fingerprints[0], zeros, torch.arange(len(data)))
    if not all(
        one.law.exponential for name, one in stated.items() if name not in without
    ):  # of which all values are asked
        zeros = torch.zeros(len(every), len(variables), dtype=torch.long)
        stated = replace(probe, data=every).read(probe.fingerprints[0], zeros, torch.arange(len(every)))
    laws = {name: choose_law(name, one, variables) for name, one in stated.items() if name not in without}
    structure = Structure(model, variables, entries, laws, groups, [], probe)
    structure.blocks = combine(_make_blocks(structure))
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


def choose_law(name: str, stated: Statement, variables: Variables) -> Law:
    """Return the law of a statement's elements; of what is no exponential family, with the values that there are."""
    law, own = stated.law, variables.of_site(name)
    if law.exponential:
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


def _warn_of_parameters(model: Model, stated: Sequence[Mapping[str, Statement]]) -> None:
    """Warn of laws whose parameters leave their range while the globals stay within their supports."""
    for name, law in ((name, one.law) for name, one in stated[0].items()):
        kind: Any = law.kind
        for part in law.names:
            allowed = kind.arg_constraints.get(part)
            lower, upper = (getattr(allowed, end, None) for end in ("lower_bound", "upper_bound"))
            value = torch.cat([law.split(one[name].parameters)[part].flatten() for one in stated])
            low, high = (float(one) for one in value.aminmax())
            below, above = lower is not None and low < lower - _OUTSIDE, upper is not None and high > upper + _OUTSIDE
            if below or above:
                found = low if below else high
                warn_caller(
                    f"the {part} of '{name}' in {type(model).__name__} may be {found:.3g} while all globals are within "
                    f"their supports, but {kind.__name__} allows {allowed}; what its density is there means nothing. "
                    "Expected globals of a narrower support, or a link such as torch.sigmoid or torch.exp"
                )


def _make_blocks(structure: Structure) -> list[Block]:
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
    if not variables.layout.moving:  # else there are values of latents among these that cannot be
        wide = [probe.read(probe.draw_globals(_WIDE), every, first) for _ in range(2)]
        _warn_of_parameters(structure.model, [*stated, *wide])
    runs = ProgramRuns(probe, structure.entries, every, first)
    asked = []
    for group in fixed:
        number = math.prod(variables.sizes[v] for v in group.parents)
        row = torch.arange(rows[group.parents], rows[group.parents] + number)[:, None].expand(-1, len(group.elements))
        element = group.elements.expand_as(row)
        values = [one[group.statement].parameters[row, element] for one in stated]
        asked.append(Asked(group, runs, row, element, values))
    return [
        structure.make_block(g, s)
        for g, s in zip(fixed, find_sources(probe, structure.entries, structure.laws, asked), strict=True)
    ]
