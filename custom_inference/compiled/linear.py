"""Parameters that are linear in entries of globals, on scales of their own: sums of loadings, products of failures,
linear predictors of covariates.

    link(parameter) = a + sum over entries b_t g_t(entry t)

is found from runs of the program in which one entry is changed at a time: which link and which g there are by changing
it twice, b by the difference, all of it proved at values that were not looked at.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import constraints
from torch.distributions.constraints import Constraint

from custom_inference.compiled.laws import Said, clamp_off
from custom_inference.compiled.sources import Entries, Sums

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

    of_entries: ClassVar[bool] = False

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

    def part_of(self, kind: str, site: str, support: Constraint, entries: Entries) -> str:
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
    """A linear source in which the parameters of every element are sums of its own entries by one design, as those of a
    noisy OR are by the codes of its causes: products of matrices do in place of sparse sums.

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
