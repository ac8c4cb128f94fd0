"""Parameters that are linear in entries of globals, on scales of their own: sums of loadings, products of failures,
linear predictors of covariates.

    link(parameter) = a + sum over entries b_t g_t(entry t)

is found from runs of the program in which one entry is changed at a time: which link and which g there are by changing it
twice, b by the difference, all of it proved at values that were not looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.distributions import constraints

from custom_inference.compiled.probes import SAME, alike
from custom_inference.compiled.sources import Entries

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
    #: The same of logits, which distributions keep as logarithms of probabilities.
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
        counted = self.slope * self.scaled(flat)[self.entry]
        total = self.shift.index_add(0, self.place, counted)
        return SCALES[self.link][1](total.reshape(self.shape))

    def scaled(self, flat: Tensor) -> Tensor:
        """Return all entries, each on its scale."""
        found = flat
        for name, index in self.scales.items():
            if name != "identity":
                found = found.index_copy(0, index, SCALES[name][0](flat[index]))
        return found

    def to(self, like: Tensor) -> LinearSource:
        device = like.device
        scales = {name: index.to(device) for name, index in self.scales.items()}
        moved = {"place": self.place.to(device), "entry": self.entry.to(device), "scales": scales}
        return replace(self, shift=self.shift.to(like), slope=self.slope.to(like), **moved)


def find_linear(
    evaluate: Callable[[Tensor], list[Tensor]], names: Sequence[str], flats: Sequence[Tensor], entries: Entries,
    supports: dict[str, Any], spent: Callable[[], float],
) -> list[LinearSource | None]:  # fmt: skip
    """Find the linear form of several parameters at once, where there is one.

    evaluate: entries -> the parameters, each of a shape of its own. names: what each is called. flats: values of all
    entries, three at least. supports: of the sites that change. spent: for how many seconds this has gone on.
    """
    base, other, third = flats[:3]
    before = evaluate(base)
    trials = [_trials(name, tuple(one.shape), one) for name, one in zip(names, before, strict=True)]
    for site, part in entries.slices.items():
        for entry in range(part.start, part.stop) if site in supports else ():
            alive = [trial for own in trials for trial in own if trial.alive]
            if not alive or spent() > SECONDS:
                return [None] * len(names)
            moved = evaluate(_with(base, entry, other[entry]))
            again: list[Tensor] | None = None
            for number, own in enumerate(trials):
                for trial in own:
                    if not trial.change(entry, moved[number]) or site in trial.scales:
                        continue
                    again = again or evaluate(_with(base, entry, third[entry]))
                    trial.choose_scale(
                        site, again[number], [flat[entry] for flat in (base, other, third)], supports[site]
                    )
    site_of = {n: site for site, part in entries.slices.items() for n in range(part.start, part.stop)}
    sources: list[LinearSource | None] = [
        next((trial.build(base, other, site_of) for trial in own if trial.alive), None) for own in trials
    ]
    return _proved(sources, evaluate, flats[1:])


def _trials(name: str, shape: tuple[int, ...], before: Tensor) -> list[_Trial]:
    """The scales that a parameter may be linear on."""
    links = ("ratio" if name == "probs" else "difference",) if shape[-1] > 1 else _OF_PARAMETERS.get(name, _OTHERS)
    found = [_Trial(link, shape, SCALES[link][0](before).reshape(-1)) for link in links]
    return [one for one in found if bool(one.before.isfinite().all())]


def _with(flat: Tensor, entry: int, value: Tensor) -> Tensor:
    found = flat.clone()
    found[entry] = value
    return found


@dataclass
class _Trial:
    """A parameter on a scale, of which a linear form is looked for.

    before: (M,) its values. scales: site -> the scale on which its entries count. changes: entry, which values it
    changes, and how they are then.
    """

    link: str
    shape: tuple[int, ...]
    before: Tensor
    scales: dict[str, str] = field(default_factory=dict)
    changes: list[tuple[int, Tensor, Tensor]] = field(default_factory=list)
    alive: bool = True

    def change(self, entry: int, moved: Tensor) -> bool:
        """Take in what another value of an entry changes; tell whether it is anything."""
        if not self.alive:
            return False
        own = SCALES[self.link][0](moved).reshape(-1)
        where = torch.nonzero(~alike(own, self.before))[:, 0]
        if len(where):
            self.changes.append((entry, where, own[where]))
            self.alive = bool(own[where].isfinite().all())
        return bool(len(where)) and self.alive

    def choose_scale(self, site: str, again: Tensor, entry: list[Tensor], support: Any) -> None:
        """Find the scale on which the last entry counts linearly, by a third value of it; of none this is no form."""
        _, where, moved = self.changes[-1]
        values = self.before[where], moved, SCALES[self.link][0](again).reshape(-1)[where]
        ratio = (values[1] - values[0]) / (values[2] - values[0])
        for name in _OF_ENTRIES.get(support, ("identity",)):
            own = [SCALES[name][0](one) for one in entry]
            wanted = (own[1] - own[0]) / (own[2] - own[0])
            if bool(((ratio - wanted).abs() <= 1e4 * SAME * (1 + wanted.abs())).all()):
                self.scales[site] = name
                return
        self.alive = False

    def build(self, base: Tensor, other: Tensor, site_of: dict[int, str]) -> LinearSource:
        """Return the source of what was found."""
        places, entry, slopes, shift = [], [], [], self.before.clone()
        by_scale: dict[str, list[int]] = {}
        for number, where, moved in self.changes:
            scale = self.scales[site_of[number]]
            first, last = (SCALES[scale][0](flat[number]) for flat in (base, other))
            slope = (moved - self.before[where]) / (last - first)
            whole = slope.round()
            slope = torch.where((slope - whole).abs() < 1e4 * SAME, whole, slope)
            places.append(where)
            entry.append(torch.full_like(where, number))
            slopes.append(slope)
            shift[where] -= slope * first
            by_scale.setdefault(scale, []).append(number)
        shift = torch.where(shift.abs() < 1e5 * SAME * (1e-3 + self.before.abs()), torch.zeros_like(shift), shift)
        return LinearSource(
            self.shape, self.link, shift, torch.cat(places), torch.cat(entry), torch.cat(slopes),
            {name: torch.tensor(own) for name, own in by_scale.items()},
            frozenset(site_of[number] for number, _, _ in self.changes),
        )  # fmt: skip


def _proved(
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
