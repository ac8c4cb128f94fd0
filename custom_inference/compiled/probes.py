"""Runs of a program at values that tell its structure: fingerprints of globals, latents that differ in one place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.distributions import biject_to, constraints

from custom_inference.compiled.reading import NotCompiled, Statement, Variables, read
from ppl_models import Data, Model
from ppl_models.core.priors import support_of

#: Random values of all variables beside the first and the last ones, from which each is changed in turn.
_BASES = 4
#: How far apart globals are drawn on unconstrained scales; by how many signs what parameters change with each is found,
#: and how many times more or less than 1 that must be for another distance.
_SPREAD, _SIGNS, _UNUSUAL = 0.7, 4, 20.0
#: What numbers that are computed alike may differ by, relative to their size.
SAME = 1e-9
#: Numbers (rows, elements, parameters) of a run at most.
_ENTRIES = 2**24


@dataclass(frozen=True)
class Probe:
    """Runs of one program.

    data: in double precision. seed: of what is drawn. spreads: site of real numbers -> how far apart its entries are
    drawn, where that is not ``_SPREAD``.
    """

    model: Model
    data: Data
    variables: Variables
    tabulated: frozenset[str] = frozenset()
    seed: int = 0
    spreads: Mapping[str, Tensor] = field(default_factory=dict)

    @cached_property
    def generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(self.seed)

    @cached_property
    def unknown(self) -> dict[str, tuple[int, ...]]:
        """The globals that are learned, and their shapes."""
        return {site: shape for site, shape in self.model.shapes.items() if site not in self.model.known}

    def draw_globals(self, times: float = 1.0) -> dict[str, Tensor]:
        """Draw different numbers for all entries of all globals, within their supports; known ones as they are. times:
        so many times as far apart as usual."""
        found: dict[str, Tensor] = {site: value.double() for site, value in self.model.known.items()}
        for site, shape in self.model.shapes.items():
            if site in found:
                continue
            prior: Any = self.model.prior(site, values=found)
            transform: Any = biject_to(prior.support)
            noise = torch.randn(transform.inverse_shape(shape), generator=self.generator, dtype=torch.float64)
            found[site] = transform(times * self.spreads.get(site, _SPREAD) * noise)
        return {site: found[site].expand(shape).clone() for site, shape in self.model.shapes.items()}

    def unit_of(self, site: str) -> Tensor | float:
        """Return the units of the entries of a site, which numbers of usual size are multiplied with."""
        return self.spreads[site] / _SPREAD if site in self.spreads else 1.0

    def find_spreads(self) -> dict[str, Tensor]:
        """Find how far apart entries of sites of real numbers are to be drawn, so that what they are multiplied with,
        in whatever units, neither rules all else nor is lost beside it: by what parameters change with each, at 0."""
        values = self.draw_globals()
        sites = [s for s in self.unknown if support_of(self.model.prior(s, values=values)) is constraints.real]
        if not sites or not self.data.others:
            return {}
        leaves = {site: torch.zeros_like(values[site]).requires_grad_() for site in sites}
        drawn = torch.rand(len(self.data), len(self.variables), generator=self.generator, dtype=torch.float64)
        chosen = (drawn * torch.tensor(self.variables.sizes)).long()
        total = {site: torch.zeros_like(values[site]) for site in sites}
        with torch.enable_grad():
            stated = read(self.model, self.data, {**values, **leaves}, self.variables, chosen, self.tabulated)
            moving = [one.parameters for one in stated.values() if one.parameters.requires_grad]
            for _ in range(_SIGNS if moving else 0):
                signs = [torch.randn(one.shape, generator=self.generator, dtype=torch.float64).sign() for one in moving]
                weighed = torch.stack([(sign * one).sum() for sign, one in zip(signs, moving, strict=True)]).sum()
                slopes = torch.autograd.grad(weighed, [*leaves.values()], retain_graph=True, allow_unused=True)
                for site, slope in zip(sites, slopes, strict=True):
                    total[site] += 0 if slope is None else slope.square() / (_SIGNS * len(self.data))
        found = {}
        for site, square in total.items():
            change = square.sqrt()
            usual = ~change.isfinite() | (change == 0) | ((change > 1 / _UNUSUAL) & (change < _UNUSUAL))
            if not bool(usual.all()):
                found[site] = _SPREAD * torch.where(usual, 1.0, 1 / change)
        return found

    @cached_property
    def fingerprints(self) -> list[dict[str, Tensor]]:
        """Four values of all globals."""
        return [self.draw_globals() for _ in range(4)]

    def read(self, params: Mapping[str, Tensor], chosen: Tensor, rows: Tensor) -> dict[str, Statement]:
        """Run the program on copies of rows (B,), at the values (B, V) of their variables."""
        with torch.no_grad():
            return read(self.model, self.data.rows(rows), params, self.variables, chosen, self.tabulated)

    def bases(self) -> Tensor:
        """Values of all variables: the first, the last, and random ones, (B, V)."""
        sizes = torch.tensor(self.variables.sizes)
        drawn = torch.rand(_BASES, len(sizes), generator=self.generator, dtype=torch.float64)
        return torch.cat([torch.zeros(1, len(sizes)).long(), (sizes - 1)[None], (drawn * sizes).long()])

    def find_tabulated(self) -> frozenset[str]:
        """Find the binomials whose number of trials depends on the latents, or that are latents themselves."""
        bases, found = self.bases(), set[str]()
        stated = self.read(self.fingerprints[0], bases, torch.zeros(len(bases), dtype=torch.long))
        for name, one in stated.items():
            if one.law.has_trials:
                trials = one.value[..., 1]
                if name in self.variables.names or not bool((trials == trials[:1]).all()):
                    found.add(name)
        return frozenset(found)

    def find_scopes(self) -> dict[str, Tensor]:
        """Find which variables the law of every element depends on: of each statement (E, V).

        From several values of all of them each is given all of its other values in turn.
        """
        found: dict[str, Tensor] = {}
        sizes = self.variables.sizes
        changed = [(v, o) for v, size in enumerate(sizes) for o in range(1, size)]
        for place, base in enumerate(self.bases()):
            chosen = base.repeat(1 + len(changed), 1)
            row = place * (len(self.data) - 1) // (_BASES + 1)  # another one every time
            for number, (v, offset) in enumerate(changed, 1):
                chosen[number, v] = (base[v] + offset) % sizes[v]
            stated = self.read(self.fingerprints[0], chosen, torch.full((len(chosen),), row))
            owner = torch.tensor([v for v, _ in changed])
            for name, one in stated.items():
                differs = ~alike(one.parameters[1:], one.parameters[:1]).all(-1)  # (B, E)
                whole = torch.zeros(len(sizes), differs.shape[1], dtype=torch.bool)
                whole = whole.index_add(0, owner, differs) if len(owner) else whole
                found[name] = found.get(name, torch.zeros_like(whole.T)) | whole.T
        return found

    def find_varying(self) -> dict[str, Tensor]:
        """Find the elements (E,) of every statement whose law differs between rows at the same values of all."""
        rows = torch.arange(len(self.data))
        found: dict[str, Tensor] = {}
        for base in self.bases()[1:4]:
            stated = self.read(self.fingerprints[0], base.repeat(len(rows), 1), rows)
            for name, one in stated.items():
                differs = ~alike(one.parameters, one.parameters[:1]).all(-1).all(0)
                found[name] = found.get(name, torch.zeros_like(differs)) | differs
        return found


def alike(one: Tensor, other: Tensor) -> Tensor:
    """Tell where numbers are the same but for rounding; NaN is itself."""
    near = (one - other).abs() <= SAME * (1e-3 + torch.maximum(one.abs(), other.abs()))
    return near | (one == other) | (one.isnan() & other.isnan())


def combinations(sizes: tuple[int, ...]) -> Tensor:
    """Return all values of variables of these sizes, (C, V), the last one running first."""
    if not sizes:
        return torch.zeros(1, 0, dtype=torch.long)
    return torch.cartesian_prod(*(torch.arange(size) for size in sizes)).reshape(-1, len(sizes))


def require_entries(number: float) -> None:
    """Raise NotCompiled for a run of too many numbers."""
    if number > _ENTRIES:
        raise NotCompiled(f"its structure takes {number:.3g} numbers to read")
