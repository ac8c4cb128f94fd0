"""Search for where the parameters of a program's elements come from: entries of globals, sums of entries, or the
program itself, run on copies of rows.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributions import constraints

from custom_inference.compiled.laws import Law
from custom_inference.compiled.probes import Probe
from custom_inference.compiled.reading import read
from custom_inference.compiled.sources import Entries, ProgramSource, Source, match_entries
from custom_inference.compiled.sums import find_linear
from ppl_models import Model


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
        probe, params = self.probe, self.give_values(flat)
        stated = read(probe.model, data, params, probe.variables, self.chosen, probe.tabulated)
        found = {name: one.parameters for name, one in stated.items()}
        self._last = weakref.ref(flat), grad, found
        return found

    def give_values(self, flat: Tensor) -> dict[str, Tensor]:
        """Return the values of the sites that a run is given."""
        return self.entries.unflatten(flat)

    def sites_of(self, statement: str, row: Tensor, element: Tensor, part: slice) -> frozenset[str]:
        """The sites that some parameters depend on, by their gradients."""
        flat = self.entries.flatten(self.probe.fingerprints[1])
        found = self.entries.find_sites(lambda at: self(at)[statement][row, element, part], flat)
        self._last = None
        return found


def find_sources(
    probe: Probe, entries: Entries, laws: Mapping[str, Law], asked: list[Asked]
) -> list[tuple[Source, ...]]:
    """Find where the parameters (1, C, U, P) of groups come from: entries, sums of entries, or the program."""
    flats = [entries.flatten(params) for params in probe.fingerprints]
    found: dict[tuple[int, str], Source] = {}
    rest: list[tuple[int, str, slice]] = []
    for number, one in enumerate(asked):
        law, start = laws[one.group.statement], 0
        for name, size in zip(law.names, law.sizes, strict=True):
            part = slice(start, start + max(size, 1))
            start = part.stop
            source = match_entries([v[..., part].unsqueeze(0) for v in one.values], flats, entries)
            if source is None:
                rest.append((number, name, part))
            else:
                found[number, name] = source
    for key, source in _find_sums(probe, entries, asked, rest, flats).items():
        found[key] = source
    return [tuple(found[number, name] for name in laws[one.group.statement].names) for number, one in enumerate(asked)]


def _find_sums(
    probe: Probe, entries: Entries, asked: list[Asked], rest: list[tuple[int, str, slice]], flats: list[Tensor]
) -> dict[tuple[int, str], Source]:
    """The sources of parameters that are no single entries."""
    found: dict[tuple[int, str], Any] = {}
    vectors = find_vectors(probe.model)
    for number, name, part in rest:
        one = asked[number]
        sites = one.runs.sites_of(one.group.statement, one.row, one.element, part)
        found[number, name] = ProgramSource(
            one.runs, one.group.statement, one.row[None], one.element[None], part, sites
        )
    by_runs: dict[int, list[tuple[int, str]]] = {}
    for number, name, _ in rest:
        if found[number, name].sites and not found[number, name].sites & vectors:
            by_runs.setdefault(id(asked[number].runs), []).append((number, name))
    for keys in by_runs.values():
        begun, programs = time.perf_counter(), [found[key] for key in keys]
        supports = {s: probe.model.supports[s] for one in programs for s in one.sites}

        def evaluate(flat: Tensor, programs: list[Source] = programs) -> list[Tensor]:
            with torch.no_grad():
                return [one.parameters(flat) for one in programs]

        sums = find_linear(
            evaluate, [name for _, name in keys], flats, entries, supports,
            lambda begun=begun: time.perf_counter() - begun,
        )  # fmt: skip
        found.update({key: one for key, one in zip(keys, sums, strict=True) if one is not None})
    return found


def find_vectors(model: Model) -> frozenset[str]:
    """The sites whose entries depend on each other."""
    plain = (constraints.real, constraints.positive, constraints.unit_interval)
    return frozenset(s for s in model.global_sites if not any(model.supports[s] is one for one in plain))
