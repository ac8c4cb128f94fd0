"""Draws of causes, and shares of events, that are hidden once more behind the parameters of compiled blocks.

Of p = 1 - prod_t (1 - v_t) each of n successes has a first cause that did not fail, the causes in any order: cause t is
it with probability v_t / (1 - prod_(s >= t) (1 - v_s)) given that none before it was; those after it fail or not by
themselves. Of a rate sum_t b_t v_t events are shared as the rates are. Counts of alike rows are drawn together.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from custom_inference.compiled.laws import Law, Said, clamp_off
from custom_inference.compiled.linear import LinearSource
from custom_inference.compiled.sources import Source


def draw_said(law: Law, counted: Tensor, parameters: Tensor, generator: np.random.Generator) -> dict[str, Said]:
    """Return what features (..., F) of drawn codes say of every parameter (..., P); zeros in excess of a Poisson's are
    drawn."""
    if "gate" not in law.kinds:
        return law.say(counted, parameters)
    zero, events, rest = counted.unbind(-1)
    rate, gate = parameters.unbind(-1)
    gate = clamp_off(gate)
    excess = _draw_binomial(zero, (gate / (gate + (1 - gate) * torch.exp(-rate))).expand_as(zero), generator)
    return {"rate": ("rate", (events, zero - excess + rest)), "gate": ("chance", (excess, zero - excess + rest))}


def draw_hidden(
    source: Source, said: Said, parameters: Tensor, flat: Tensor, total: dict[str, Tensor],
    generator: np.random.Generator,
) -> None:  # fmt: skip
    """Add what is said of parameters to the totals of the entries that they are made of, with hidden causes drawn."""
    kind, values = said
    if source.of_entries or kind not in ("rate", "chance"):
        source.count(said, parameters, flat, total)
        return
    first, second = (one.reshape(-1) for one in values[:2])
    draw: Any = _share_events if kind == "rate" else _share_causes
    draw(source, first, second, flat, total, generator)


def _share_events(
    source: LinearSource, events: Tensor, exposure: Tensor, flat: Tensor, total: dict[str, Tensor],
    generator: np.random.Generator,
) -> None:  # fmt: skip
    """Share events among the terms of a sum of rates, one term after the other."""
    rate = source.slope * flat[source.entry]
    left, rest = events.clone(), source.shift.index_add(0, source.place, rate)
    for turn in _turns(source):
        place = source.place[turn]
        own = _draw_binomial(left[place], (rate[turn] / rest[place]).clamp(0, 1), generator)
        left, rest = left.index_add(0, place, -own), rest.index_add(0, place, -rate[turn])
        _add(total, "events", source.entry[turn], own)
    _add(total, "exposure", source.entry, exposure[source.place] * source.slope)


def _share_causes(
    source: LinearSource, first: Tensor, second: Tensor, flat: Tensor, total: dict[str, Tensor],
    generator: np.random.Generator,
) -> None:  # fmt: skip
    """Draw which causes of products broke them: those of ``link`` log1m are products of failures, of log of
    successes; an entry's factor is 1 - v or v."""
    failing = source.failing(flat)[source.entry]
    factor = torch.where(failing, 1 - flat[source.entry], flat[source.entry])
    broken_total, kept_total = (first, second) if source.link == "log1m" else (second, first)
    log_left = source.shift.index_add(0, source.place, torch.log(factor.clamp(min=torch.finfo(flat.dtype).tiny)))
    # A constant factor is a cause, too.
    unbroken = broken_total - _draw_binomial(
        broken_total, (-torch.expm1(source.shift) / clamp_off(-torch.expm1(log_left))).clamp(0, 1), generator
    )
    log_left = log_left - source.shift
    for turn in _turns(source):
        place, entry = source.place[turn], source.entry[turn]
        chance = 1 - factor[turn]
        by_itself = (chance / clamp_off(-torch.expm1(log_left[place]))).clamp(0, 1)
        new = _draw_binomial(unbroken[place], by_itself, generator)
        beside = _draw_binomial(broken_total[place] - unbroken[place], chance, generator)
        unbroken = unbroken.index_add(0, place, -new)
        log_left = log_left.index_add(0, place, -torch.log(factor[turn].clamp(min=torch.finfo(flat.dtype).tiny)))
        broken = new + beside
        kept = broken_total[place] + kept_total[place] - broken
        _add(total, "on", entry, torch.where(failing[turn], broken, kept))
        _add(total, "off", entry, torch.where(failing[turn], kept, broken))


def _turns(source: LinearSource) -> list[Tensor]:
    """Put the terms of all parameters into groups in which each parameter has one at most, in order."""
    order = torch.argsort(source.place, stable=True)
    place = source.place[order]
    start = torch.searchsorted(place, place)
    rank = torch.arange(len(place)) - start
    return [order[rank == turn] for turn in range(int(rank.max()) + 1)] if len(place) else []


def _add(total: dict[str, Tensor], name: str, entry: Tensor, value: Tensor) -> None:
    if name in total:
        total[name].index_add_(0, entry, value.to(total[name]))


def _draw_binomial(number: Tensor, chance: Tensor, generator: np.random.Generator) -> Tensor:
    drawn: Any = generator.binomial(number.round().long().clamp(min=0).numpy(), chance.double().numpy())
    return torch.as_tensor(np.asarray(drawn, dtype=np.float64)).to(number)
