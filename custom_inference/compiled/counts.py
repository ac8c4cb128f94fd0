"""What the expected features of factors say of the entries of globals, and which parts entries play.

A law whose parameter is an entry, or a sum on a scale on which its parts are hidden causes, gives counts for a mode in
closed form:

    chance       on log v + off log(1 - v)           probabilities; of products of failures (noisy OR, noisy AND) after
                                                     the expected numbers of causes that failed or not
    proportion   count log v                         points of simplexes
    rate         events log v - exposure v           rates; of sums of rates after the expected shares of events
    place        -precision (v - pull / precision)^2 / 2    means of normals; of linear predictors jointly ("linear")
    spread       -number log v - squares / (2 v^2)   standard deviations of normals
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributions import constraints

from custom_inference.compiled.blocks import Block
from custom_inference.compiled.laws import (
    BernoulliLaw,
    CategoricalLaw,
    ExponentialLaw,
    NormalLaw,
    PoissonLaw,
    ZeroInflatedPoissonLaw,
    clamped,
)
from custom_inference.compiled.linear import DesignSource, LinearSource
from custom_inference.compiled.sources import Entries, EntrySource, Source
from ppl_models import Model

#: What is summed for entries in every part but the linear one.
COUNTED = {
    "chance": ("on", "off"), "proportion": ("count",), "rate": ("events", "exposure"), "place": ("pull", "precision"),
    "spread": ("squares", "number"),
}  # fmt: skip

#: What a block says of one of its parameters: the kind, and its counts (G, C, U), of proportions (G, C, U, P).
Said = tuple[str, tuple[Tensor, ...]]


def parts_in(block: Block, model: Model, entries: Entries) -> Iterator[tuple[str, str]]:
    """Yield (site, part) of all entries in a block: "mixed" where there is no closed form."""
    kinds = _kinds(block)
    for name, source in zip(block.law.names, block.sources, strict=True):
        for site in source.sites:
            part = _part(kinds.get(name, ""), source, site, model.sites[site].support, entries)
            yield site, part


def _kinds(block: Block) -> dict[str, str]:
    """The kinds of counts that the law's parameters have, by name."""
    law = block.law
    if isinstance(law, CategoricalLaw):
        return {"probs": "proportion"}
    if isinstance(law, BernoulliLaw):
        return {"probs": "chance"}
    if isinstance(law, PoissonLaw | ExponentialLaw):
        return {"rate": "rate"}
    if isinstance(law, ZeroInflatedPoissonLaw):
        return {"rate": "rate", "gate": "chance"}
    return {"loc": "place", "scale": "spread"} if isinstance(law, NormalLaw) else {}


def _part(kind: str, source: Source, site: str, support: Any, entries: Entries) -> str:
    if isinstance(source, EntrySource):
        own = entries.slices[site]
        used = (source.slope != 0) & (source.index >= own.start) & (source.index < own.stop)
        shift, slope = source.shift[used], source.slope[used]
        plain, turned = (shift == 0) & (slope == 1), (shift == 1) & (slope == -1)
        scaled = bool(((shift == 0) & (slope > 0)).all())
        if kind in ("chance", "proportion") and support is constraints.unit_interval and bool((plain | turned).all()):
            return "chance"
        if kind == "proportion" and support is constraints.simplex and bool(plain.all()):
            return "proportion"
        if kind in ("rate", "spread") and support is constraints.positive and scaled:
            return kind
        return "place" if kind == "place" and support is constraints.real else "mixed"
    if not isinstance(source, LinearSource):
        return "mixed"
    same = set(source.scales)
    if kind == "place" and source.link == "identity" and same == {"identity"} and support is constraints.real:
        return "linear"
    if kind == "rate" and source.link == "identity" and same == {"identity"} and support is constraints.positive:
        return "rate" if bool((source.slope > 0).all()) and bool((source.shift >= 0).all()) else "mixed"
    if kind == "chance" and source.link in ("log", "log1m") and same <= {"log", "log1m"}:
        alone = support is constraints.unit_interval and bool((source.slope == 1).all())
        return "chance" if alone and bool((source.shift <= 0).all()) else "mixed"
    return "mixed"


def say(block: Block, counted: Tensor, parameters: Tensor) -> dict[str, Said]:
    """Return what the expected features (G, C, U, F) say of every parameter (G, C, U, P), by name."""
    law = block.law
    if isinstance(law, CategoricalLaw):
        return {"probs": ("proportion", (counted,))}
    if isinstance(law, BernoulliLaw):
        return {"probs": ("chance", tuple(counted.unbind(-1)))}
    if isinstance(law, PoissonLaw | ExponentialLaw):
        return {"rate": ("rate", tuple(counted.unbind(-1)))}
    if isinstance(law, ZeroInflatedPoissonLaw):
        zero, events, rest = counted.unbind(-1)
        rate, gate = parameters.unbind(-1)
        gate = clamped(gate)
        excess = zero * gate / (gate + (1 - gate) * torch.exp(-rate))
        return {"rate": ("rate", (events, zero - excess + rest)), "gate": ("chance", (excess, zero - excess + rest))}
    if isinstance(law, NormalLaw):
        squares, sums, number = counted.unbind(-1)
        loc, scale = parameters.unbind(-1)
        apart = (squares - 2 * loc * sums + loc.square() * number).clamp(min=0)
        return {"loc": ("place", (sums, number, scale**-2)), "scale": ("spread", (apart, number))}
    return {}


def count(source: Source, said: Said, parameters: Tensor, flat: Tensor, total: dict[str, Tensor]) -> None:
    """Add what is said of parameters (G, C, U, P) to the totals of the entries that they are made of."""
    if isinstance(source, EntrySource):
        _count_entries(source, said, total)
    elif isinstance(source, DesignSource):
        _count_by_design(source, said, parameters, flat, total)
    elif isinstance(source, LinearSource):
        _count_causes(source, said, parameters.reshape(-1), flat, total)


def _count_entries(source: EntrySource, said: Said, total: dict[str, Tensor]) -> None:
    kind, values = said
    index, slope, shift = source.index, source.slope, source.shift

    def add(name: str, value: Tensor) -> None:
        if name in total:
            value = torch.where(slope != 0, value, torch.zeros_like(value)).to(total[name])
            total[name].index_add_(0, index.reshape(-1), value.reshape(-1))

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


def _count_causes(source: LinearSource, said: Said, parameters: Tensor, flat: Tensor, total: dict[str, Tensor]) -> None:
    """Share what was counted among hidden causes.

    Of p = 1 - prod_t (1 - v_t): given a success each cause succeeded with probability v_t / p, given none of them did.
    Of p = prod_t q_t with 1 - p in the place of p. Of a rate sum_t b_t v_t events are shared as the rates are.
    """
    kind, values = said
    value = flat[source.entry]

    def add(name: str, own: Tensor) -> None:
        if name in total:
            total[name].index_add_(0, source.entry, own.to(total[name]))

    first, second = (one.reshape(-1)[source.place] for one in values[:2])
    if kind == "rate":
        add("events", first * source.slope * value / parameters[source.place])
        add("exposure", second * source.slope)
        return
    if kind != "chance":
        return
    p, failing = clamped(parameters)[source.place], source.failing(flat)[source.entry]
    factor = torch.where(failing, 1 - value, value)
    # Of link log1m the product is that of failures: what is counted first came about as some cause did not fail.
    broken = first * ((1 - factor) / p) if source.link == "log1m" else second * ((1 - factor) / (1 - p))
    kept = first + second - broken
    add("on", torch.where(failing, broken, kept))
    add("off", torch.where(failing, kept, broken))


def _count_by_design(
    source: DesignSource, said: Said, parameters: Tensor, flat: Tensor, total: dict[str, Tensor]
) -> None:
    """The same by products of matrices."""
    kind, values = said
    first, second = (one.reshape(source.shape[1:3]) for one in values[:2])
    p, value, design = parameters.reshape(source.shape[1:3]), flat[source.own], source.design

    def add(name: str, own: Tensor) -> None:
        if name in total:
            total[name].index_add_(0, source.own.reshape(-1), own.to(total[name]).reshape(-1))

    if kind == "rate":
        add("events", (design.T @ (first / p)) * value)
        add("exposure", design.T @ second)
    elif kind == "chance":
        p, failing = clamped(p), source.failing(flat)[source.own]
        factor = torch.where(failing, 1 - value, value)
        broken = design.T @ (first / p if source.link == "log1m" else second / (1 - p)) * (1 - factor)
        kept = design.T @ (first + second) - broken
        add("on", torch.where(failing, broken, kept))
        add("off", torch.where(failing, kept, broken))


@dataclass(frozen=True)
class Predictors:
    """The means of normals of a block as linear predictors of the entries that are solved for.

    matrix: (M, L) the slopes in these. shift: (M,), and others: places, entries and slopes of entries that are held.
    """

    matrix: Tensor
    shift: Tensor
    others: tuple[Tensor, Tensor, Tensor]

    @classmethod
    def of(cls, source: Source, column: Tensor, size: int) -> Predictors:
        """column: (entries,) which unknown each entry is, -1 of those that are not solved for."""
        if isinstance(source, EntrySource):
            used = source.slope.reshape(-1) != 0
            place, entry = torch.arange(source.slope.numel())[used], source.index.reshape(-1)[used]
            slope, shift = source.slope.reshape(-1)[used], source.shift.reshape(-1)
        else:
            assert isinstance(source, LinearSource)
            place, entry, slope, shift = source.place, source.entry, source.slope, source.shift
        learned = column[entry] >= 0
        matrix = torch.zeros(len(shift), size, dtype=torch.float64)
        matrix.index_put_((place[learned], column[entry[learned]]), slope[learned].double(), accumulate=True)
        return cls(matrix, shift, (place[~learned], entry[~learned], slope[~learned]))

    def equations(self, said: Said, flat: Tensor) -> tuple[Tensor, Tensor]:
        """Return the matrix (L, L) and the right-hand side (L,) of the entries' system."""
        sums, number, precision = said[1]
        place, entry, slope = self.others
        held = self.shift.index_add(0, place, slope * flat[entry]) if len(place) else self.shift
        weight = (precision * number).reshape(-1)
        pull = (precision * sums).reshape(-1) - weight * held
        weighted = self.matrix * weight.double().unsqueeze(-1)
        return self.matrix.T @ weighted, self.matrix.T @ pull.double()
