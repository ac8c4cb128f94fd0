"""The search for parameters that are linear in entries of globals: runs of the program with some entries changed.

Entries are changed twice, which tells on which scale they count, and many at once where each parameter has its own
among them: the ratio of its two changes tells which. What is found is proved at values that were not looked at.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.distributions import constraints
from torch.distributions.constraints import Constraint

from custom_inference.compiled.linear import SCALES, LinearSource, by_design
from custom_inference.compiled.probes import SAME, alike
from custom_inference.compiled.sources import Entries

#: Seconds that runs with entries changed may take.
_SECONDS = 2.0
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
            if self.spent() > _SECONDS:
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
        if not bool(before.isfinite().any()) or bool(before.isnan().any()):  # 0 and 1 stay what they are
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
        shift = torch.where(shift.abs() < 1e3 * SAME * (1e-3 + before.abs()), torch.zeros_like(shift), shift)
        return LinearSource(self.shape, self.link, shift, place, entry, slope, self.scales, frozenset(sites))

    def _on_scale(self, values: list[Tensor]) -> Tensor:
        return SCALES[self.link][0](values[self.number]).reshape(-1)

    def _take(self, before: Tensor, part: slice, shape: tuple[int, ...], support: Constraint) -> bool:
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
        slope = torch.where((whole != 0) & ((slope - whole).abs() < 1e4 * SAME), whole, slope)
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
