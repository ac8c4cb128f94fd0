"""Sources of the parameters of elements: single entries of globals, sums of entries, or the program itself.

Every source gives the parameters (G, C, U, P) of a block of G alike factors from a vector of all entries of all
globals: at the C values of a factor's parents, of its U elements.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Protocol, Self

import torch
from torch import Tensor
from torch.distributions import constraints
from torch.distributions.constraints import Constraint

from custom_inference.compiled.laws import COUNTED, Said
from custom_inference.compiled.probes import SAME, alike

#: Neighbours in the order of fingerprints that a number is compared with.
_NEIGHBOURS = (-2, -1, 0, 1, 2)


@dataclass(frozen=True)
class Entries:
    """The entries of all globals as one vector: the sites, their shapes, and where each begins."""

    shapes: dict[str, tuple[int, ...]]

    @cached_property
    def slices(self) -> dict[str, slice]:
        """Site -> its entries."""
        found, start = {}, 0
        for site, shape in self.shapes.items():
            size = torch.Size(shape).numel()
            found[site], start = slice(start, start + size), start + size
        return found

    def flatten(self, values: Mapping[str, Tensor]) -> Tensor:
        """Return all entries as one vector."""
        parts = [values[site].reshape(-1) for site in self.shapes]
        return torch.cat(parts) if parts else torch.zeros(1, dtype=torch.float64)  # constants stand at its place

    def find_sites(self, evaluate: Callable[[Tensor], Tensor], flat: Tensor) -> frozenset[str]:
        """Return the sites that what is computed from all entries depends on there, by its gradients."""
        flat = flat.clone().requires_grad_()
        with torch.enable_grad():
            own = evaluate(flat)
            if not own.requires_grad:
                return frozenset()
            weight = torch.randn(own.shape, generator=torch.Generator().manual_seed(0), dtype=own.dtype)
            (slope,) = torch.autograd.grad((own * weight).sum(), flat, allow_unused=True)
        if slope is None:
            return frozenset()
        return frozenset(site for site, part in self.slices.items() if bool((slope[part] != 0).any()))

    def unflatten(self, flat: Tensor) -> dict[str, Tensor]:
        """Return the values of the sites."""
        return {site: flat[part].reshape(self.shapes[site]) for site, part in self.slices.items()}


class Source(Protocol):
    """Gives parameters; ``sites`` are those whose entries they depend on."""

    #: Whether every parameter is one entry, so that blocks may be put behind each other.
    of_entries: ClassVar[bool]

    @property
    def sites(self) -> frozenset[str]: ...

    def parameters(self, flat: Tensor) -> Tensor:
        """Return the parameters (G, C, U, P) at a vector of all entries."""
        ...

    def part_of(self, kind: str, site: str, support: Constraint, entries: Entries) -> str:
        """Return the part that the entries of a site play as parameters that have counts of a kind: "mixed" where there
        is no closed form."""
        ...

    def count(self, said: Said, parameters: Tensor, flat: Tensor, total: dict[str, Tensor]) -> None:
        """Add what is said of the parameters (G, C, U, P) to the totals of the entries that they are made of."""
        ...

    def as_sums(self) -> Sums | None:
        """Return the parameters as sums of entries on a scale; None where they are something else."""
        ...

    def to(self, like: Tensor) -> Self:
        """Return the source with numbers of the type and the device of ``like``."""
        ...


class Sums(NamedTuple):
    """Parameters, flattened, as sums shift + slope entry on a scale.

    shift: (M,). place, entry, slope: of every slope that is not 0. link: the scale of the parameters; scales: those of
    entries. shape: of the parameters.
    """

    shift: Tensor
    place: Tensor
    entry: Tensor
    slope: Tensor
    link: str
    scales: frozenset[str]
    shape: tuple[int, ...]


@dataclass(frozen=True)
class EntrySource:
    """Every parameter is a + b v of one entry v, or a number a.

    index, shift, slope: (G, C, U, P) the entry's place, a, and b, which is 0 where there is no entry.
    """

    index: Tensor
    shift: Tensor
    slope: Tensor
    sites: frozenset[str]

    of_entries: ClassVar[bool] = True

    @property
    def plain(self) -> bool:
        """Whether every parameter is an entry as it is."""
        return bool((self.slope == 1).all()) and bool((self.shift == 0).all())

    def parameters(self, flat: Tensor) -> Tensor:
        found = flat[self.index]
        return found if self._plain else self.shift + self.slope * found

    def __post_init__(self) -> None:
        object.__setattr__(self, "_plain", self.plain)

    _plain = False

    def part_of(self, kind: str, site: str, support: Constraint, entries: Entries) -> str:
        """Return the part that the entries of a site play as a parameter that has counts of a kind."""
        own = entries.slices[site]
        used = (self.slope != 0) & (self.index >= own.start) & (self.index < own.stop)
        shift, slope = self.shift[used], self.slope[used]
        plain, turned = (shift == 0) & (slope == 1), (shift == 1) & (slope == -1)
        scaled = bool(((shift == 0) & (slope > 0)).all())
        if kind in ("chance", "proportion") and support is constraints.unit_interval and bool((plain | turned).all()):
            return "chance"
        if kind == "proportion" and support is constraints.simplex and bool(plain.all()):
            return "proportion"
        if kind in ("rate", "spread") and support is constraints.positive and scaled:
            return kind
        return "place" if kind == "place" and support is constraints.real else "mixed"

    def count(self, said: Said, parameters: Tensor, flat: Tensor, total: dict[str, Tensor]) -> None:
        """Add what is said of the parameters to the totals of their entries."""
        del parameters, flat
        kind, values = said
        index, slope, shift = self.index, self.slope, self.shift

        def add(name: str, value: Tensor) -> None:
            if name in total:
                value = value if self._plain else torch.where(slope != 0, value, torch.zeros_like(value))
                total[name].index_add_(0, index.reshape(-1), value.to(total[name]).reshape(-1))

        if self._plain and kind in ("chance", "proportion", "rate"):
            names = ("count", "on") if kind == "proportion" else COUNTED[kind]
            for name, value in zip(names, itertools.cycle(values)):
                add(name, value)
            return
        if kind == "proportion":
            add("count", values[0])
            add("on", torch.where(slope > 0, values[0], torch.zeros_like(values[0])))
            add("off", torch.where(slope < 0, values[0], torch.zeros_like(values[0])))
            return
        values = tuple(one.unsqueeze(-1) for one in values)
        if kind == "chance":
            add("on", torch.where(slope < 0, values[1], values[0]))
            add("off", torch.where(slope < 0, values[0], values[1]))
        elif kind == "rate":
            add("events", values[0])
            add("exposure", slope * values[1])
        elif kind == "place":
            sums, number, precision = values
            add("pull", slope * precision * (sums - shift * number))
            add("precision", slope.square() * precision * number)
        elif kind == "spread":
            add("squares", values[0] / torch.where(slope != 0, slope.square(), torch.ones_like(slope)))
            add("number", values[1].expand_as(slope))

    def as_sums(self) -> Sums:
        """Return the parameters as sums of entries."""
        used, every = self.slope.reshape(-1) != 0, torch.arange(self.slope.numel(), device=self.slope.device)
        triples = every[used], self.index.reshape(-1)[used], self.slope.reshape(-1)[used]
        return Sums(self.shift.reshape(-1), *triples, "identity", frozenset({"identity"}), tuple(self.slope.shape))

    def to(self, like: Tensor) -> EntrySource:
        return replace(self, index=self.index.to(like.device), shift=self.shift.to(like), slope=self.slope.to(like))

    @classmethod
    def stack(cls, sources: Sequence[EntrySource]) -> EntrySource:
        """Put the factors of several blocks behind each other."""
        index, shift, slope = (torch.cat([getattr(one, n) for one in sources]) for n in ("index", "shift", "slope"))
        return cls(index, shift, slope, frozenset().union(*(one.sites for one in sources)))


def match_entries(values: Sequence[Tensor], flat: Sequence[Tensor], entries: Entries) -> EntrySource | None:
    """Find the entry v of which every parameter is a + b v, from parameters at four values of all entries.

    (v - v') / (v - v'') is the same of a parameter and its entry, whatever a and b are, and differs between entries.
    None where there is some parameter without one.
    """
    shape = values[0].shape
    v, t = torch.stack([one.reshape(-1) for one in values]), torch.stack(list(flat))
    constant = alike(v[0], v[1]) & alike(v[0], v[2]) & alike(v[0], v[3])
    index = torch.zeros(v.shape[1], dtype=torch.long)
    shift, slope = torch.where(constant, v[0], 0.0), torch.zeros_like(v[0])
    rest = (~constant).nonzero()[:, 0]
    if len(rest):
        found = _match(v[:, rest], t)
        if found is None:
            return None
        index[rest], shift[rest], slope[rest] = found
    used = torch.unique(index[slope != 0])
    sites = frozenset(
        s for s, part in entries.slices.items() if bool(((used >= part.start) & (used < part.stop)).any())
    )
    return EntrySource(index.reshape(shape), shift.reshape(shape), slope.reshape(shape), sites)


def _match(v: Tensor, t: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
    """The entries, a and b of parameters (4, M), none of which is constant."""
    moving = ((t[0] != t[1]) & (t[0] != t[2])).nonzero()[:, 0]
    if not len(moving):
        return None
    t = t[:, moving]
    ratio, order = ((t[0] - t[1]) / (t[0] - t[2])).sort()
    wanted = (v[0] - v[1]) / (v[0] - v[2])
    near = torch.searchsorted(ratio, wanted.nan_to_num().contiguous())
    best = torch.full_like(wanted, torch.inf)
    index, shift, slope = torch.zeros_like(near), torch.zeros_like(wanted), torch.zeros_like(wanted)
    for step in _NEIGHBOURS:
        at = order[(near + step).clamp(0, len(order) - 1)]
        b = _snap((v[0] - v[1]) / (t[0, at] - t[1, at]))
        a = _snap(v[0] - b * t[0, at])
        right = torch.ones_like(best, dtype=torch.bool)
        for number in range(4):
            right &= alike(a + b * t[number, at], v[number])
        cost = torch.where(right, a.abs() + (b - 1).abs(), torch.inf)
        better = cost < best
        best, index = torch.where(better, cost, best), torch.where(better, moving[at], index)
        shift, slope = torch.where(better, a, shift), torch.where(better, b, slope)
    return (index, shift, slope) if bool(best.isfinite().all()) else None


def _snap(value: Tensor) -> Tensor:
    """Round what is a whole number but for rounding, and not so small that it may be itself."""
    whole = value.round()
    least = torch.where(whole == 0, SAME, 1e3 * SAME)
    return torch.where((value - whole).abs() < least, whole, value)


@dataclass(frozen=True)
class ProgramSource:
    """Parameters that the program itself computes, run on copies of rows at all values of the parents.

    runs: gives (rows, elements, parameters) of a statement at a vector of entries; many blocks share it. row, element:
    (G, C, U) which each is of. part: which of the law's numbers it is.
    """

    runs: Any
    statement: str
    row: Tensor
    element: Tensor
    part: slice
    sites: frozenset[str]

    of_entries: ClassVar[bool] = False

    def parameters(self, flat: Tensor) -> Tensor:
        return self.runs(flat)[self.statement][self.row, self.element, self.part]

    def part_of(self, kind: str, site: str, support: Constraint, entries: Entries) -> str:
        """Return that there is no closed form."""
        del kind, site, support, entries
        return "mixed"

    def count(self, said: Said, parameters: Tensor, flat: Tensor, total: dict[str, Tensor]) -> None:
        """Count nothing: parameters are made of no entries alone."""

    def as_sums(self) -> None:
        """Return None: parameters are anything."""

    def to(self, like: Tensor) -> ProgramSource:
        return replace(self, row=self.row.to(like.device), element=self.element.to(like.device))
