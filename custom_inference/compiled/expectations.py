"""E steps of compiled programs, by elimination: the bound of every row, and the expected statistics of all blocks."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from custom_inference.compiled.elimination import Plan
from custom_inference.compiled.structure import Bound, flatten, keys_of
from custom_inference.core.engine import EStep, Params
from custom_inference.core.threads import map_in_threads


def solve(
    state: Params, rows: Bound, weights: Tensor | None = None, temperature: float = 1.0,
    held: Mapping[int, Tensor] | None = None,
) -> EStep:  # fmt: skip
    """Take an E step at values of the globals. held: of some variables log weights (N, S) of their values, beside the
    program's own."""
    return solve_at(rows.naturals(flatten(rows, state)), rows, weights, temperature, held)


def solve_at(
    naturals: list[Tensor], rows: Bound, weights: Tensor | None = None, temperature: float = 1.0,
    held: Mapping[int, Tensor] | None = None,
) -> EStep:  # fmt: skip
    """Take an E step at natural parameters of every block."""
    held = held or {}
    plan = rows.plan if not held else Plan.of([*rows.scopes, *((v,) for v in held)], rows.plan.sizes)

    def take(part: tuple[Bound, Tensor | None, tuple[Tensor, ...]]) -> tuple[Tensor, list[Tensor]]:
        own, weight, beside = part
        bound, marginals = plan.marginals([*own.tables(naturals, temperature), *beside], weight)
        return bound.expand(len(own)) + temperature * own.offset, own.gather(marginals)

    parts = rows.cut()
    sizes = [len(part) for part in parts]
    weighed = [None] * len(parts) if weights is None else weights.split(sizes)
    beside = zip(*(one.split(sizes) for one in held.values()), strict=True) if held else [()] * len(parts)
    found = map_in_threads(take, zip(parts, weighed, beside, strict=True))
    statistics = {}
    for place, key in enumerate(keys_of(rows)):
        each = [counted[place] for _, counted in found]
        statistics[key] = torch.cat(each, 1) if rows.blocks[place].is_direct else sum(each[1:], each[0])
    number = rows.like.new_tensor(float(len(rows)) if weights is None else float(weights.sum()))
    return EStep({**statistics, "rows": number}, {}, torch.cat([bound for bound, _ in found]))
