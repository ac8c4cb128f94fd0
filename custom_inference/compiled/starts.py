"""Starts of compiled programs, from the data: their columns' means with noise, rows as centres, tempering; and moves of
what may change places."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import Any

import torch
from torch import Tensor
from torch.distributions import biject_to

from custom_inference.compiled.derive import structure_if_known
from custom_inference.compiled.moves import find_exchangeable, is_same, move_places
from custom_inference.compiled.probes import Probe
from custom_inference.compiled.steps import Steps, steps_if_known, steps_of
from custom_inference.compiled.structure import Bound, keys_of
from custom_inference.core.engine import Engine, EStep, Params
from custom_inference.core.proposals import Proposals
from custom_inference.families.common.distances import distant_rows, squared_distances
from ppl_models import Model


def draw_noise(steps: Steps, statistics: Sequence[Tensor], generator: torch.Generator) -> dict[str, Tensor]:
    """Draw noise for what normals' means and other linear predictors are made of, of such a size that predictors
    move as much as what they predict varies, whatever the units of covariates and of the data."""
    found = dict[str, Tensor]()
    deviation = _find_deviation(steps, statistics)
    newton = [] if steps.newton is None else [one.matrix for one in steps.newton.predictors]
    linear = [one.matrix for one in steps.predictors.values()]
    for sites, matrices, size in ((steps.sites_in("linear"), linear, deviation), (steps.climbing, newton, 1.5)):
        if matrices:
            gram = sum((one.T @ one for one in matrices[1:]), matrices[0].T @ matrices[0])
            gram = gram / sum(map(len, matrices))
            root = torch.linalg.cholesky(gram + torch.diag(1e-9 * gram.diagonal() + 1e-300))
            drawn = torch.randn(len(gram), 1, generator=generator, dtype=torch.float64)
            moved = torch.linalg.solve_triangular(root.T, drawn, upper=True)[:, 0] * size / len(gram) ** 0.5
            shapes = [steps.entries.shapes[site] for site in sites]
            parts = moved.split([torch.Size(shape).numel() for shape in shapes])
            found |= {site: p.reshape(s) for site, p, s in zip(sites, parts, shapes, strict=True)}
    for site in steps.sites_in("place"):
        shape = steps.entries.shapes[site]
        found[site] = deviation * torch.randn(shape, generator=generator, dtype=torch.float64)
    return found


def _find_deviation(steps: Steps, statistics: Sequence[Tensor]) -> float:
    """Return the standard deviation of what normals are observed to be, all of it together; 1 without such."""
    every = [s.double().sum((0, 1, 2)) for b, s in zip(steps.blocks, statistics, strict=True) if b.law.by_value]
    spread = [float(squares / number - (sums / number) ** 2) for squares, sums, number in every if number > 0]
    return max(max(spread, default=1.0), 1e-300) ** 0.5


#: How far entries are moved on unconstrained scales, in the starts at the means of columns.
_NOISE = 0.7
#: The part of a centre that is its own row's, and iterations while the likelihood is tempered from the first exponent.
_OWN, _TEMPERED, _EXPONENT = 0.5, 8, 0.2
#: Starts of a race, twice as many of sources and of so few rows, and iterations before half of them are left out, at
#: first.
_RACED, _FEW, _LAP = 2, 1000, 6
#: Rows that starts are raced on, and of programs whose rows have many latents each.
_ROWS, _DEEP_ROWS = 2000, 400
#: One random start beside the races at so many rows, by which power more at fewer, and how many at most.
_RANDOM_ROWS, _FEWER, _MOST = 1000, 1.4, 60
#: A start stands still where it gains less than this a row.
_STILL = 1e-4


class Starts(Proposals):
    """What a search does for a compiled program."""

    def search_size(self, model: Model, num_rows: int) -> tuple[int, int]:
        """Return three races of starts, up to six where rows have many latents and races disagree, on rows enough for
        every value of a latent to be seen."""
        known = structure_if_known(model)
        return (6, _DEEP_ROWS) if known is not None and known.is_deep else (3, _ROWS)

    def draw_start(self, model: Model, rows: Bound, generator: torch.Generator) -> Params:
        """Start at the means of the columns, with noise that tells alike entries apart."""
        uniform = self._step_at(rows, self._uniform(rows), float(len(rows)))
        state = self.engine.m_step(model, self._typical(model, rows, generator), uniform, rows)
        return _perturb(model, rows, state, uniform, generator, _NOISE)

    def propose(self, model: Model, rows: Bound, generator: torch.Generator, attempt: int) -> Params:
        """Race starts at the means of the columns against starts with rows as centres: the better half goes on."""
        deep, field = rows.structure.is_deep, list[Params]()
        # Of few rows, and of sources, several of which a row may have, more optima are poor.
        hard = len(rows) < _FEW or any(one.bits for one in find_exchangeable(rows.structure))
        for number in range(2 * _RACED if hard and not deep else _RACED):
            if number % 2:
                state = self._centres(model, rows, generator)
            else:  # along chains tempering leads all states to one
                state = (self.draw_start if deep else self._anneal)(model, rows, generator)
            field.append(state)
        return race(self.engine, model, rows, field, _LAP * (2 if deep else 1))

    def random_starts(self, model: Model, num_rows: int) -> int:
        """Return many where rows are few and M steps are cheap: optima are many there. Races have others among them."""
        known = steps_if_known(model)
        return 0 if known is None or known.climbing else min(_MOST, int((_RANDOM_ROWS / num_rows) ** _FEWER))

    def _anneal(self, model: Model, rows: Bound, generator: torch.Generator) -> Params:
        """Start at the means of the columns, with a few iterations in which the likelihood is tempered."""
        state = self.draw_start(model, rows, generator)
        for number in range(_TEMPERED):
            temperature = _EXPONENT ** (1 - number / _TEMPERED)
            state = self.engine.m_step(
                model, state, self.engine.e_step(model, state, rows, temperature=temperature), rows
            )
        return state

    def same_solution(self, model: Model, first: Params, second: Params) -> bool:
        """Tell whether two states are the same but for the places of what may change places."""
        return is_same(model, first, second)

    def refine(self, model: Model, rows: Bound, params: Params, generator: torch.Generator, agreed: bool) -> Params:
        """Merge and split what may change places, less often where starts agreed; on some rows where these are many."""
        sizes = [one.size for one in find_exchangeable(rows.structure)]
        if not sizes or len(rows) < 3:
            return params
        patience, some = (-(-max(sizes) // 2) if agreed else 3 * max(sizes)), self.search_size(model, len(rows))[1]
        if len(rows) < 2 * some:
            return move_places(self.engine, model, rows, params, patience, generator)
        part = rows.select(torch.randperm(len(rows), generator=generator)[:some])
        moved = move_places(self.engine, model, part, params, patience, generator)
        before, after = (
            self.engine.objective_at(model, one, self.engine.e_step(model, one, rows).bound) for one in (params, moved)
        )
        return moved if after > before else params

    def _centres(self, model: Model, rows: Bound, generator: torch.Generator) -> Params:
        """Start with a few rows, whose latents have values of their own, beside the means of all."""
        variables = rows.structure.variables
        number = min(len(rows), max(variables.sizes))
        index = _distant_rows(rows, number, generator)
        some = rows.select(index)
        chosen = torch.stack(
            [torch.randperm(size, generator=generator).repeat(-(-number // size))[:number] for size in variables.sizes],
            1,
        )
        mean = self._uniform(rows)
        own = [
            torch.zeros_like(other).index_copy(1, index, one) if block.is_direct else one  # which is kept by row
            for block, one, other in zip(rows.blocks, some.gather(one_hot_marginals(some, chosen)), mean, strict=True)
        ]
        scale = len(rows) / number
        mixed = [scale * _OWN * one + (1 - _OWN) * other for one, other in zip(own, mean, strict=True)]
        step = self._step_at(rows, mixed, float(len(rows)))
        state = self.engine.m_step(model, self._typical(model, rows, generator), step, rows)
        return _perturb(model, rows, state, step, generator, 0.1)

    def _typical(self, model: Model, rows: Bound, generator: torch.Generator) -> Params:
        """Draw values of the globals from nowhere in particular."""
        seed = int(torch.randint(2**31, (), generator=generator))
        own = rows.structure.probe
        probe = Probe(model, own.data, own.variables, seed=seed, spreads=own.spreads)
        return {site: value.to(rows.like) for site, value in probe.draw_globals().items()}

    def _uniform(self, rows: Bound) -> list[Tensor]:
        """The expected features where all values of all latents have the same probability."""
        shares = []
        for block, part in zip(rows.blocks, rows.parts, strict=True):
            size = torch.Size(block.sizes).numel()
            number = 1 if part is None else len(rows)
            weight = (len(rows) if part is None else 1) / size
            shares += [rows.like.new_full((number, *block.sizes), weight)] * len(block.scopes)
        return rows.gather(shares)

    @staticmethod
    def _step_at(rows: Bound, counted: Sequence[Tensor], number: float) -> EStep:
        """An E step that found these expected features."""
        statistics = dict(zip(keys_of(rows), counted, strict=True))
        return EStep({**statistics, "rows": rows.like.new_tensor(number)}, {}, rows.like)


def race(engine: Engine[Any, Any], model: Model, rows: Sized, field: Sequence[Params], length: int = _LAP) -> Params:
    """Return the best of some states: all take so many iterations, the better half twice as many, and so on."""
    while len(field) > 1:
        ended = [_run(engine, model, rows, state, length) for state in field]
        field = [state for _, state in sorted(ended, key=lambda pair: -pair[0])[: len(field) // 2]]
        length *= 2
    return field[0]


def _run(engine: Engine[Any, Any], model: Model, rows: Sized, state: Params, length: int) -> tuple[float, Params]:
    """Take some iterations; return the objective before the last of them, and the state."""
    value = -torch.inf
    for _ in range(length):
        step, before = engine.e_step(model, state, rows), value
        value = engine.objective_at(model, state, step.bound)
        if value - before < _STILL * len(rows):
            break
        state = engine.m_step(model, state, step, rows)
    return value, state


def one_hot_marginals(rows: Bound, chosen: Tensor) -> list[Tensor]:
    """Marginals of all factors where the variables have the numbers (N, V) of values."""
    found = []
    for block, part in zip(rows.blocks, rows.parts, strict=True):
        for scope in block.scopes:
            share = rows.like.new_zeros(len(rows), *block.sizes)
            share[(torch.arange(len(rows)), *(chosen[:, v] for v in scope))] = 1.0
            found.append(share.sum(0, keepdim=True) if part is None else share)
    return found


def _distant_rows(rows: Bound, number: int, generator: torch.Generator) -> Tensor:
    """Choose rows far from each other, by what was observed of them (greedy k-means++)."""
    features = [p.features.transpose(0, 1).flatten(1) for p in rows.parts if p is not None and p.features is not None]
    if not features:
        return torch.randperm(len(rows), generator=generator)[:number]
    return distant_rows(squared_distances(torch.cat(features, 1)), rows.like.new_ones(len(rows)), number, generator)


def _perturb(model: Model, rows: Bound, state: Params, step: EStep, generator: torch.Generator, noise: float) -> Params:
    """Move all entries a little on unconstrained scales, those of linear predictors in the units of what varies."""
    found, counted = dict(state), [step.statistics[key] for key in keys_of(rows)]
    shaken = draw_noise(steps_of(model, rows), counted, generator)
    for site in model.unknown_sites:
        prior: Any = model.prior(site, values={name: value.double() for name, value in found.items()})
        transform: Any = biject_to(prior.support)
        free = transform.inv(found[site].double())
        drawn = shaken.get(site)
        if drawn is None:
            drawn = torch.randn(free.shape, generator=generator, dtype=torch.float64)
            drawn = drawn * rows.structure.probe.unit_of(site)
        found[site] = transform(free + noise * drawn).to(state[site])
    return found
