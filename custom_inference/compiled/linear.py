"""Parameters that are linear in entries of globals, on scales of their own: sums of loadings, products of failures,
linear predictors of covariates.

    link(parameter) = a + sum over entries b_t g_t(entry t)

is found from runs of the program in which one entry is changed at a time: which link and which g there are by changing
it twice, b by the difference, all of it proved at values that were not looked at.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.distributions import constraints

from custom_inference.compiled.laws import Said, clamp_off
from custom_inference.compiled.probes import SAME, alike
from custom_inference.compiled.sources import Entries, Sums

#: Seconds that runs with one entry changed may take.
SECONDS = 2.0

Scale = tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]
#: Scales by name: the function, and its inverse.
SCALES: dict[str, Scale] = {
    "identity": (lambda v: v, lambda v: v),
    "log": (torch.log, torch.exp),
    "log1m": (lambda v: torch.log1p(-v), lambda v: -torch.expm1(v)),
    "logit": (torch.logit, torch.sigmoid),
    #: Of points of simplexes, the logarithms of their ratios to the first.
    "ratio": (lambda v: torch.log(v) - torch.log(v[..., :1]), lambda v: torch.softmax(v, -1)),
    #: The same of logarithms of them.
    "difference": (lambda v: v - v[..., :1], lambda v: torch.log_softmax(v, -1)),
}  # fmt: skip
#: The scales on which entries of a support may count, and those of parameters by their names.
_OF_ENTRIES: dict[Any, tuple[str, ...]] = {
    constraints.unit_interval: ("identity", "log1m", "log", "logit"),
    constraints.positive: ("identity", "log"),
}
_OF_PARAMETERS: dict[str, tuple[str, ...]] = {
    "probs": ("log1m", "log", "logit", "identity"),
    "rate": ("log", "identity"),
}
#: Other parameters.
_OTHERS = ("identity", "log")


@dataclass(frozen=True)
class LinearSource:
    """Parameters (G, C, U, P) that are linear in entries, on scales.

    link: the scale of the parameters. shift: (M,), a of each. place, entry, slope: of every b that is not 0, which
    parameter, which entry, and its value. scales: scale -> the entries that count on it.
    """

    shape: tuple[int, ...]
    link: str
    shift: Tensor
    place: Tensor
    entry: Tensor
    slope: Tensor
    scales: dict[str, Tensor]
    sites: frozenset[str]

    def parameters(self, flat: Tensor) -> Tensor:
        counted = self.slope * self.put_on_scales(flat)[self.entry]
        total = self.shift.index_add(0, self.place, counted)
        return SCALES[self.link][1](total.reshape(self.shape))

    def put_on_scales(self, flat: Tensor) -> Tensor:
        """Return all entries, each on its scale."""
        found = flat
        for name, index in self.scales.items():
            if name != "identity":
                found = found.index_copy(0, index, SCALES[name][0](flat[index]))
        return found

    def failing(self, flat: Tensor) -> Tensor:
        """Tell of all entries whether 1 - v is their factor in a product."""
        found = torch.zeros(len(flat), dtype=torch.bool, device=flat.device)
        if "log1m" in self.scales:
            found[self.scales["log1m"]] = True
        return found

    def part_of(self, kind: str, site: str, support: Any, entries: Entries) -> str:
        """Return the part that the entries of a site play as a parameter that has counts of a kind."""
        del site, entries
        same = set(self.scales)
        if kind == "place" and self.link == "identity" and same == {"identity"} and support is constraints.real:
            return "linear"
        if kind == "rate" and self.link == "identity" and same == {"identity"} and support is constraints.positive:
            return "rate" if bool((self.slope > 0).all()) and bool((self.shift >= 0).all()) else "mixed"
        if kind == "chance" and self.link in ("log", "log1m") and same <= {"log", "log1m"}:
            alone = support is constraints.unit_interval and bool((self.slope == 1).all())
            return "chance" if alone and bool((self.shift <= 0).all()) else "mixed"
        return "mixed"

    def count(self, said: Said, parameters: Tensor, flat: Tensor, total: dict[str, Tensor]) -> None:
        """Share what was counted among hidden causes.

        Of p = 1 - prod_t (1 - v_t): given a success each cause succeeded with probability v_t / p, given none of them
        did. Of p = prod_t q_t with 1 - p in the place of p. Of a rate sum_t b_t v_t events are shared as the rates are.
        """
        parameters = parameters.reshape(-1)
        kind, values = said
        value = flat[self.entry]

        def add(name: str, own: Tensor) -> None:
            if name in total:
                total[name].index_add_(0, self.entry, own.to(total[name]))

        first, second = (one.reshape(-1)[self.place] for one in values[:2])
        if kind == "rate":
            add("events", first * self.slope * value / parameters[self.place])
            add("exposure", second * self.slope)
            return
        if kind != "chance":
            return
        p, failing = clamp_off(parameters)[self.place], self.failing(flat)[self.entry]
        factor = torch.where(failing, 1 - value, value)
        # Of link log1m the product is that of failures: what is counted first came about as some cause did not fail.
        broken = first * ((1 - factor) / p) if self.link == "log1m" else second * ((1 - factor) / (1 - p))
        kept = first + second - broken
        add("on", torch.where(failing, broken, kept))
        add("off", torch.where(failing, kept, broken))

    def as_sums(self) -> Sums:
        """Return the parameters as sums of entries."""
        scales = frozenset(self.scales)
        return Sums(self.shift, self.place, self.entry, self.slope, self.link, scales, self.shape)

    def to(self, like: Tensor) -> LinearSource:
        device = like.device
        scales = {name: index.to(device) for name, index in self.scales.items()}
        moved = {"place": self.place.to(device), "entry": self.entry.to(device), "scales": scales}
        return replace(self, shift=self.shift.to(like), slope=self.slope.to(like), **moved)


@dataclass(frozen=True)
class DesignSource(LinearSource):
    """A linear source in which the parameters of every element are sums of its own entries by one design, as those of a noisy OR
    are by the codes of its causes: products of matrices do in place of sparse sums.

    design: (C, T) slopes at every value of the parents. own: (T, U) the entries of every element.
    """

    design: Tensor = field(default_factory=lambda: torch.empty(0))
    own: Tensor = field(default_factory=lambda: torch.empty(0))

    def parameters(self, flat: Tensor) -> Tensor:
        total = self.shift.reshape(self.shape[1:3]) + self.design @ self.put_on_scales(flat)[self.own]
        return SCALES[self.link][1](total.reshape(self.shape))

    def count(self, said: Said, parameters: Tensor, flat: Tensor, total: dict[str, Tensor]) -> None:
        """Share what was counted among hidden causes by products of matrices."""
        kind, values = said
        first, second = (one.reshape(self.shape[1:3]) for one in values[:2])
        p, value, design = parameters.reshape(self.shape[1:3]), flat[self.own], self.design

        def add(name: str, own: Tensor) -> None:
            if name in total:
                total[name].index_add_(0, self.own.reshape(-1), own.to(total[name]).reshape(-1))

        if kind == "rate":
            add("events", (design.T @ (first / p)) * value)
            add("exposure", design.T @ second)
        elif kind == "chance":
            p, failing = clamp_off(p), self.failing(flat)[self.own]
            factor = torch.where(failing, 1 - value, value)
            broken = design.T @ (first / p if self.link == "log1m" else second / (1 - p)) * (1 - factor)
            kept = design.T @ (first + second) - broken
            add("on", torch.where(failing, broken, kept))
            add("off", torch.where(failing, kept, broken))

    def to(self, like: Tensor) -> DesignSource:
        moved: Any = LinearSource.to(self, like)
        return replace(moved, design=self.design.to(like), own=self.own.to(like.device))


def by_design(source: LinearSource) -> LinearSource:
    """Return the source by a design, where there is one."""
    _, rows, elements, width = source.shape
    if width > 1 or not len(source.entry):
        return source
    element, row = source.place % elements, source.place // elements
    # The entries of every element, in order; as many of each.
    pairs, where = torch.unique(torch.stack([element, source.entry], 1), dim=0, return_inverse=True)
    many = torch.bincount(pairs[:, 0], minlength=elements)
    number = int(many[0])
    if not bool((many == number).all()) or number == 0:
        return source
    own = pairs[:, 1].reshape(elements, number).T
    table = torch.zeros(rows, len(pairs), dtype=source.slope.dtype)
    table[row, where] = source.slope
    table = table.reshape(rows, elements, number)
    if not bool((table == table[:, :1]).all()):
        return source
    values = {
        one: getattr(source, one) for one in ("shape", "link", "shift", "place", "entry", "slope", "scales", "sites")
    }
    return DesignSource(**values, design=table[:, 0].contiguous(), own=own.contiguous())


def find_linear(
    evaluate: Callable[[Tensor], list[Tensor]], names: Sequence[str], flats: Sequence[Tensor], entries: Entries,
    supports: dict[str, Any], spent: Callable[[], float],
) -> list[LinearSource | None]:  # fmt: skip
    """Find the linear form of several parameters at once, where there is one.

    evaluate: entries -> the parameters, each of a shape of its own. names: what each is called. flats: values of all
    entries, three at least. supports: of the sites that change. spent: for how many seconds this has gone on.
    """
    changes = _Changes(evaluate, flats[:3], spent)
    sources: list[LinearSource | None] = []
    for number, name in enumerate(names):
        shape, found = tuple(changes.before[number].shape), None
        links = ("ratio" if name == "probs" else "difference",) if shape[-1] > 1 else _OF_PARAMETERS.get(name, _OTHERS)
        for link in links:
            found = found or _Form(number, link, shape, changes).find(entries, supports)
        sources.append(found)
    return [one and by_design(one) for one in _keep_proved(sources, evaluate, flats[1:])]


class _Changes:
    """What becomes of the parameters when some entries have other values, each run once."""

    def __init__(self, evaluate: Callable[[Tensor], list[Tensor]], flats: Sequence[Tensor], spent: Callable[[], float]):
        self.evaluate, self.flats, self.spent = evaluate, flats, spent
        self.before = evaluate(flats[0])
        self._known: dict[tuple[int, ...], tuple[list[Tensor], list[Tensor]]] = {}

    def at(self, chosen: Tensor) -> tuple[list[Tensor], list[Tensor]] | None:
        """Return all parameters at the second and the third values of the chosen entries; None after too long."""
        key = tuple(chosen.tolist())
        if key not in self._known:
            if self.spent() > SECONDS:
                return None
            moved = []
            for other in self.flats[1:]:
                flat = self.flats[0].clone()
                flat[chosen] = other[chosen]
                moved.append(self.evaluate(flat))
            self._known[key] = moved[0], moved[1]
        return self._known[key]


@dataclass
class _Form:
    """The linear form of a parameter on a scale, which is looked for.

    places, found, slopes: which values are changed by which entries, and the slopes on their scale.
    """

    number: int
    link: str
    shape: tuple[int, ...]
    changes: _Changes
    places: list[Tensor] = field(default_factory=list)
    found: list[Tensor] = field(default_factory=list)
    slopes: list[Tensor] = field(default_factory=list)
    scales: dict[str, Tensor] = field(default_factory=dict)

    def find(self, entries: Entries, supports: dict[str, Any]) -> LinearSource | None:
        """Return the source, or None where the parameter is not linear on this scale."""
        before = self._on_scale(self.changes.before)
        if not bool(before.isfinite().all()):
            return None
        sites = []
        for site, part in entries.slices.items():
            if site in supports:
                known = len(self.places)
                if not self._take(before, part, entries.shapes[site], supports[site]):
                    return None
                sites += [site] * (len(self.places) > known)
        if not self.places:
            return None
        place, entry, slope = torch.cat(self.places), torch.cat(self.found), torch.cat(self.slopes)
        scaled = torch.zeros_like(self.changes.flats[0])
        for name, index in self.scales.items():
            scaled[index] = SCALES[name][0](self.changes.flats[0][index])
        shift = before.index_add(0, place, -slope * scaled[entry])
        shift = torch.where(shift.abs() < 1e5 * SAME * (1e-3 + before.abs()), torch.zeros_like(shift), shift)
        return LinearSource(self.shape, self.link, shift, place, entry, slope, self.scales, frozenset(sites))

    def _on_scale(self, values: list[Tensor]) -> Tensor:
        return SCALES[self.link][0](values[self.number]).reshape(-1)

    def _take(self, before: Tensor, part: slice, shape: tuple[int, ...], support: Any) -> bool:
        """Find what the entries of a site do: all of them changed at once where each value has its own among them,
        else those with the same place along an axis, else one by one."""
        place = torch.arange(part.start, part.stop).reshape(shape)
        groups = [[place.reshape(-1)]]
        groups += [list(place.movedim(axis, 0).reshape(size, -1)) for axis, size in enumerate(shape) if size > 1]
        groups += [list(place.reshape(-1, 1))] if len(shape) > 1 else []
        for scale in _OF_ENTRIES.get(support, ("identity",)):
            for group in groups:
                found = list(itertools.takewhile(bool, (self._match(before, chosen, scale) for chosen in group)))
                if len(found) == len(group):
                    self._keep([one for one in found if one is not None and len(one[0])], scale)
                    return True
        return False

    def _keep(self, found: list[tuple[Tensor, Tensor, Tensor]], scale: str) -> None:
        for where, entry, slope in found:
            self.places.append(where)
            self.found.append(entry)
            self.slopes.append(slope)
        if found:
            known = self.scales.get(scale, torch.zeros(0, dtype=torch.long))
            self.scales[scale] = torch.unique(torch.cat([known, *(entry for _, entry, _ in found)]))

    def _match(self, before: Tensor, chosen: Tensor, scale: str) -> tuple[Tensor, Tensor, Tensor] | None:
        """Find which values chosen entries change, which of these each is changed by, and the slopes; None where a
        value is not changed by one of them alone, linearly on a scale."""
        moved = self.changes.at(chosen)
        if moved is None:
            return None
        first, second = (self._on_scale(one) for one in moved)
        where = torch.nonzero(~alike(first, before) | ~alike(second, before))[:, 0]
        if not len(where):
            return where, where, before[where]
        own = [SCALES[scale][0](flat[chosen]) for flat in self.changes.flats]
        wanted = (first - before)[where] / (second - before)[where]
        if not bool(wanted.isfinite().all()):
            return None
        ratio, order = ((own[1] - own[0]) / (own[2] - own[0])).sort()
        near = torch.searchsorted(ratio, wanted.contiguous())
        sides = torch.stack([(near - 1).clamp(min=0), near.clamp(max=len(ratio) - 1)])
        apart = (ratio[sides] - wanted).abs()
        best = torch.where(apart[0] <= apart[1], sides[0], sides[1])
        if not bool((apart.amin(0) <= 1e4 * SAME * (1 + wanted.abs())).all()):
            return None
        entry = order[best]
        slope = (first - before)[where] / (own[1] - own[0])[entry]
        whole = slope.round()
        slope = torch.where((slope - whole).abs() < 1e4 * SAME, whole, slope)
        return where, chosen[entry], slope


def _keep_proved(
    sources: list[LinearSource | None], evaluate: Callable[[Tensor], list[Tensor]], flats: Sequence[Tensor]
) -> list[LinearSource | None]:
    """Leave out the sources that are not the parameters at other values of all entries."""
    for flat in flats:
        expected = evaluate(flat)
        for n, source in enumerate(sources):
            if source is not None:
                own = source.parameters(flat)
                near = (own - expected[n]).abs() <= 1e3 * SAME * (1 + expected[n].abs())
                if not bool(near.all()):
                    sources[n] = None
    return sources
