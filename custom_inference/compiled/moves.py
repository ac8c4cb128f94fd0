"""Moves of what may change places: along every axis of the globals under whose permutations a program does not change.

EM cannot move a class across a region that no rows come from. A move merges two places of such an axis that are alike,
gives the one that is free half of a third, lets EM settle, and is kept where the objective gains (Ueda, Nakano,
Ghahramani & Hinton, *SMEM algorithm for mixture models*, Neural Computation 12, 2000), here for any program: what is
merged and split are the values of its globals. Every other move frees a place and lets it be born again from the rows
that are explained worst without it: so a source is found that others stand for together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.distributions import constraints

from custom_inference.compiled.derive import structure_if_known
from custom_inference.compiled.expectations import solve
from custom_inference.compiled.structure import Bound, Structure, flatten
from custom_inference.core.engine import Engine, Params
from custom_inference.em.loop import Run, run_em
from ppl_models import Model

#: EM iterations after a move, where rows have one latent and many, and those more where it is nearly as good as before.
_SETTLE, _DEEP, _LONGER = 12, 25, 50
#: What a row may lose at most, in nats, after the first of these; where rows have many latents.
_NEARLY, _DEEP_NEARLY = 2e-3, 2e-2
#: What a row must gain for a move to count: less is that EM was not at its end.
_GAINED = 1e-4
#: The log weight of what is not so where a place is held, far below what data say.
_HELD = -1e4
#: How far the halves of a place are moved apart, on logarithmic scales.
_APART = 0.5
#: Rows, permutations, and the relative difference on which an axis is told to be exchangeable.
_ROWS, _PERMUTATIONS, _SAME = 12, 2, 1e-8
#: The part of the distance between places that the same place may differ by in two solutions.
_ALIKE = 0.15


@dataclass(frozen=True)
class Exchangeable:
    """Axes of one size whose places may be permuted together.

    sites: site -> which of its axes. choices, bits: the variables whose values, and the elements of latents, are its
    places. turned: site -> c, where two places are the values of a bit: when they change places, v becomes c - v, of
    chances 1 - v and of logits -v.
    """

    size: int
    sites: Mapping[str, tuple[int, ...]]
    choices: tuple[int, ...]
    bits: tuple[tuple[int, ...], ...]
    turned: Mapping[str, float] = field(default_factory=dict)

    def permute(self, values: Mapping[str, Tensor], order: Tensor) -> dict[str, Tensor]:
        """Return values of the globals with the places in another order."""
        found = dict(values)
        for site, axes in self.sites.items():
            for axis in axes:
                found[site] = found[site].index_select(axis, order)
        changed = not torch.equal(order, torch.arange(self.size))
        return found | {site: number - found[site] for site, number in self.turned.items() if changed}

    def match_turned(self, reference: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> Tensor:
        """Return the order of two places in which values, some of which are turned then, are nearest to a
        reference's."""
        wanted = {site: scale_alike(reference[site].double()) for site in {*self.sites, *self.turned}}

        def distance(order: Tensor) -> float:
            moved = self.permute(values, order)
            return sum(float((scale_alike(moved[s].double()) - value).square().sum()) for s, value in wanted.items())

        return min((torch.tensor([0, 1]), torch.tensor([1, 0])), key=distance)


def scale_alike(value: Tensor) -> Tensor:
    """Put values on a scale on which differences are alike."""
    if bool((value >= 0).all()):
        return value.sqrt()
    return value / value.std().clamp(min=1e-9) if value.numel() > 1 else value


def find_exchangeable(structure: Structure) -> list[Exchangeable]:
    """Find the axes of the globals under whose permutations log p(x | globals) does not change."""
    known = structure.exchangeable
    if known is None:
        known = structure.exchangeable = [
            one for field in dict.fromkeys(structure.model.axes.values()) if (one := _try(structure, field)) is not None
        ]
    return known


def _try(structure: Structure, field: str) -> Exchangeable | None:
    model = structure.model
    axes = {axis for axis, own in model.axes.items() if own == field}
    size = int(getattr(model, field))
    sites = {
        site: places
        for site in model.unknown_sites
        if (places := tuple(n for n, axis in enumerate(model.sites[site].dims) if axis in axes))
    }
    if size < 2 or not sites:
        return None
    choices, bits = list[int](), list[tuple[int, ...]]()
    for latent in structure.variables.layout:
        site, own = model.sites[latent.name], structure.variables.of_site(latent.name)
        inner = (*site.plates[1:], *site.dims)
        if site.choice in axes or (site.support is constraints.one_hot and inner[-1:] and inner[-1] in axes):
            choices += own
        elif inner[-1:] and inner[-1] in axes and len(own) % size == 0:
            bits += [tuple(own[start : start + size]) for start in range(0, len(own), size)]
    found, probe = Exchangeable(size, sites, tuple(choices), tuple(bits)), structure.probe
    bound = structure.read_rows(probe.data.rows(torch.arange(min(len(probe.data), _ROWS))))
    tried = [found] if choices or bits else _list_turned(bound, found) if size == 2 else []
    return next((one for one in tried if _is_symmetric(structure, bound, one)), None)


def _list_turned(bound: Bound, axis: Exchangeable) -> Iterator[Exchangeable]:
    """Yield an axis of two places as the values of each bit that a row has, and of all of them together."""
    structure = bound.structure
    model, names = structure.model, structure.variables.names
    bits = [n for n, name in enumerate(names) if model.sites[name].support is constraints.boolean]
    numbers = {constraints.unit_interval: 1.0, constraints.real: 0.0}
    for group in dict.fromkeys([*((bit,) for bit in bits if names.count(names[bit]) == 1), tuple(bits)]):
        drawn = [one for one in bound.blocks if one.own is not None and {scope[-1] for scope in one.scopes} & {*group}]
        sites = frozenset[str]().union(*(one.sites for one in drawn)) & {*model.unknown_sites}
        if group and all(model.supports[site] in numbers for site in sites):
            yield replace(axis, choices=group, turned={s: numbers[model.supports[s]] for s in sites})


def _is_symmetric(structure: Structure, bound: Bound, found: Exchangeable) -> bool:
    probe, entries = structure.probe, structure.entries
    for _ in range(_PERMUTATIONS):
        values = probe.draw_globals()
        order = torch.randperm(found.size, generator=probe.generator)
        order = order if not bool((order == torch.arange(found.size)).all()) else order.roll(1)
        one, other = (bound.log_evidence(entries.flatten(v)) for v in (values, found.permute(values, order)))
        if not bool(((one - other).abs() <= _SAME * (1 + one.abs())).all()):
            return False
    return True


def is_same(model: Model, first: Params, second: Params) -> bool:
    """Tell whether values of the globals are alike, but for the order of what may change places: every place of one has
    its own among those of the other, with values as near as what differs between places is far."""
    known = structure_if_known(model)
    for one in [] if known is None else find_exchangeable(known):
        second = one.permute(second, one.match_turned(first, second)) if one.turned else second
        own, other = (_profiles(one, state) for state in (first, second))
        distance = torch.cdist(own, other)
        match = linear_sum_assignment(distance.numpy())
        spread = torch.pdist(own).median()
        return bool((distance[match] < _ALIKE * spread).all())
    return all(bool(torch.allclose(first[s], second[s], rtol=_ALIKE, atol=_ALIKE)) for s in model.unknown_sites)


def move_places(
    engine: Engine[Any, Any], model: Model, rows: Bound, state: Params, patience: int, generator: torch.Generator
) -> Params:
    """Return the state after the moves that gained something; so many in turn that gain nothing end it.

    Raises KeyboardInterrupt where one ended a run of EM.
    """
    every = [one for one in find_exchangeable(rows.structure) if one.size > 2]
    if not every:
        return state
    settle, nearly = (_DEEP, _DEEP_NEARLY) if rows.structure.is_deep else (_SETTLE, _NEARLY)
    best, failures, number, born = _continue(engine, model, rows, state, _LONGER), 0, 0, 0
    while failures < patience:
        chosen, number = every[number % len(every)], number + 1
        usage = _usage(chosen, rows, engine, best)
        # One of which whole rows with many latents would be born is none of their steps alone.
        bears = number % 2 == 1 and born < chosen.size and bool(chosen.bits or not rows.structure.is_deep)
        if bears:
            place, born = int(usage.argsort()[born]), born + 1
            moved = _bear(chosen, engine, model, rows, best.state, place, generator)
        else:
            moved = _propose(chosen, model, best.state, usage, generator)
        run = _continue(engine, model, rows, moved, settle)
        if run.objective > best.objective - (0 if bears else nearly) * len(rows):
            run = _continue(engine, model, rows, run.state, _LONGER)
        gained = run.objective > best.objective + max(1e-6 * abs(best.objective), _GAINED * len(rows))
        best, failures, born = (run, 0, 0) if gained else (best, failures + 1, born)
    return best.state


def _continue(engine: Engine[Any, Any], model: Model, rows: Bound, state: Params, iterations: int) -> Run:
    accelerate = None if iterations == _SETTLE else engine.accelerate
    run = run_em(engine, model, rows, state, max_iterations=iterations, tolerance=1e-5, accelerate=accelerate)
    if run.interrupted:
        raise KeyboardInterrupt
    return run


def _usage(chosen: Exchangeable, rows: Bound, engine: Engine[Any, Any], run: Run) -> Tensor:
    """How often each place is expected to be taken, (K,)."""
    total, place = torch.zeros(chosen.size, dtype=torch.float64), 0
    wanted = {v: None for v in chosen.choices} | {v: n for group in chosen.bits for n, v in enumerate(group)}
    marginals = rows.plan.marginals(rows.tables(rows.naturals(flatten(rows, run.state))))[1]
    for block in rows.blocks:
        for scope in block.scopes:
            own, place = marginals[place], place + 1
            if block.own is None or scope[-1] not in wanted:
                continue
            share = own.sum([*range(own.ndim - 1)]).double()
            if wanted[scope[-1]] is None:
                total += share
            else:
                total[wanted[scope[-1]]] += share[-1]
    return total


def _propose(
    chosen: Exchangeable, model: Model, state: Params, usage: Tensor, generator: torch.Generator
) -> dict[str, Tensor]:
    """Merge two places that are alike, and split another between itself and the one that is free."""
    profile = _profiles(chosen, state)
    distance = torch.cdist(profile, profile)
    first, second = torch.triu_indices(chosen.size, chosen.size, 1)
    # What is hardly used is merged with anything at no loss.
    cost = distance[first, second].square() * torch.minimum(usage[first], usage[second])
    passed = int(torch.empty(()).geometric_(0.3, generator=generator)) - 1
    pair = int(cost.argsort()[min(passed, len(cost) - 1)])
    one, other = int(first[pair]), int(second[pair])
    odds = usage.clone().clamp(min=1e-9)
    odds[[one, other]] = 0
    divided = int(torch.multinomial(odds, 1, generator=generator))
    share = usage[[one, other]] / usage[[one, other]].sum().clamp(min=1e-9)
    found = dict(state)
    for site, axes in chosen.sites.items():
        simplex = model.supports[site] is constraints.simplex
        for axis in axes:
            value = found[site].movedim(axis, 0).clone()
            if simplex and axis == found[site].ndim - 1:
                value[one] += value[other]
                value[other] = value[divided] / 2
                value[divided] = value[divided] / 2
            else:
                value[one] = share[0] * value[one] + share[1] * value[other]
                value[other] = value[divided]
            found[site] = value.movedim(0, axis)
        found[site] = _apart(model, site, found[site], axes, (divided, other), generator)
    return found


def _bear(
    chosen: Exchangeable, engine: Engine[Any, Any], model: Model, rows: Bound, state: Params, place: int,
    generator: torch.Generator,
) -> Params:  # fmt: skip
    """Free a place, and let it be born again from half of the rows that are explained worst without it."""
    without = solve(state, rows, held=_hold(chosen, rows, place, torch.zeros(len(rows), dtype=torch.bool)))
    number = max(2, len(rows) // (2 * chosen.size))
    worst = without.bound.argsort()[: 2 * number]
    own = torch.zeros(len(rows), dtype=torch.bool)
    own[worst[torch.randperm(len(worst), generator=generator)[:number]]] = True
    found = dict(state)
    for site, axes in chosen.sites.items():
        for axis in axes:
            value = found[site].movedim(axis, 0).clone()
            value[place] = (value.sum(0) - value[place]) / (chosen.size - 1)
            if model.supports[site] is constraints.simplex and axis == found[site].ndim - 1:
                value = value / value.sum(0)
            found[site] = value.movedim(0, axis)
    return engine.m_step(model, found, solve(found, rows, held=_hold(chosen, rows, place, own)), rows)


def _hold(chosen: Exchangeable, rows: Bound, place: int, own: Tensor) -> dict[int, Tensor]:
    """Log weights of the values of variables by which a place is taken by some rows alone, and always by these."""
    takes = {v: torch.arange(chosen.size) == place for v in chosen.choices}
    takes |= {group[place]: torch.arange(rows.plan.sizes[group[place]]) > 0 for group in chosen.bits}
    return {v: _HELD * (own[:, None] != one).to(rows.like) for v, one in takes.items()}


def _profiles(chosen: Exchangeable, state: Params) -> Tensor:
    """The values (K, M) of every place, on scales on which differences are alike."""
    parts = []
    for site, axes in chosen.sites.items():
        value = state[site].double().movedim(axes[0], 0).reshape(chosen.size, -1)
        parts.append(scale_alike(value))
    return torch.cat(parts, 1)


def _apart(
    model: Model, site: str, value: Tensor, axes: tuple[int, ...], places: tuple[int, int], generator: torch.Generator
) -> Tensor:
    """Move the values of two places apart, in random directions that are opposite."""
    support, first = model.supports[site], axes[0]
    moved = value.movedim(first, 0).clone()
    noise = _APART * torch.randn(moved[0].shape, generator=generator, dtype=torch.float64).to(value)
    if support is constraints.simplex and len(axes) == 1 and first == value.ndim - 1:
        return value
    for place, sign in zip(places, (1.0, -1.0), strict=True):
        own = moved[place]
        if support is constraints.unit_interval:
            moved[place] = torch.sigmoid(torch.logit(own.clamp(1e-3, 1 - 1e-3)) + sign * noise)
        elif support is constraints.simplex:
            moved[place] = torch.softmax(torch.log(own.clamp(min=1e-6)) + sign * noise, -1)
        elif support is constraints.positive:
            moved[place] = own * torch.exp(sign * noise)
        elif support is constraints.real:
            moved[place] = own + sign * noise * (moved.std() if moved.numel() > 1 else 1.0)
    return moved.movedim(0, first)
