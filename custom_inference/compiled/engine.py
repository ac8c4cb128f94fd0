"""Exact EM of a compiled program: an engine of the driver, made of its factors."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from custom_inference.compiled.posterior import FactorPosterior
from custom_inference.compiled.starts import Starts
from custom_inference.compiled.steps import Steps
from custom_inference.compiled.structure import Bound, Structure, structure_of
from custom_inference.core.engine import EStep, ExactEngine, Params, Warm
from ppl_models import Data, Model

#: Numbers of tables that an E step makes at once, at most.
_ENTRIES = 2**22


class EverySite(tuple[str, ...]):
    """The sites of a program, whatever they are called."""

    def __contains__(self, site: object) -> bool:
        return True


@dataclass(frozen=True, kw_only=True)
class CompiledExact(Starts, ExactEngine):
    """The exact E step by elimination, M steps in closed form or by climbing."""

    weighs_rows = True
    accelerate = "squarem"
    any_prior_of = EverySite()

    #: Itself: its proposals are its own.
    engine = property(lambda self: self)  # pyright: ignore[reportIncompatibleVariableOverride]

    def rows(self, model: Model, data: Data) -> Bound:
        """Read the rows. Raises NotCompiled where the program is no product of factors."""
        dense = model.as_read(data).dense()
        rows = structure_of(model, dense).bind(dense).to(data.x.dtype)
        steps_of(model, rows)
        return rows

    def initial(self, model: Model, rows: Bound, generator: torch.Generator) -> Params:
        return self.draw_start(model, rows, generator)

    def e_step(
        self, model: Model, state: Params, rows: Bound, warm: Warm = None, *, temperature: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> EStep:  # fmt: skip
        return self._e_step(state, rows, None, temperature)

    def e_step_weighted(
        self, model: Any, state: Params, rows: Bound, weights: Tensor, warm: Warm = None, *, temperature: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> EStep:  # fmt: skip
        return self._e_step(state, rows, weights, temperature)

    def _e_step(self, state: Params, rows: Bound, weights: Tensor | None, temperature: float) -> EStep:
        flat = flatten(rows, state)
        naturals = rows.naturals(flat)
        size, bounds = max(1, int(_ENTRIES / max(1.0, rows.entries_of_row))), list[Tensor]()
        total: list[Tensor] = []
        for start in range(0, len(rows), size):
            part = rows if size >= len(rows) else rows.select(slice(start, start + size))
            weight = None if weights is None else weights[start : start + size]
            tables = part.tables(naturals, temperature)
            bound, marginals = part.plan.marginals(tables, weight)
            counted = part.gather(marginals)
            total = counted if not total else [one + other for one, other in zip(total, counted, strict=True)]
            bounds.append(bound.expand(len(part)) + temperature * part.offset)
        number = flat.new_tensor(float(len(rows)) if weights is None else float(weights.sum()))
        statistics = {str(place): value for place, value in enumerate(total)}
        return EStep({**statistics, "rows": number}, {}, torch.cat(bounds))

    def m_step(self, model: Model, state: Params, step: EStep, rows: Bound) -> Params:
        counted = [step.statistics[str(place)] for place in range(len(rows.blocks))]
        return steps_of(model, rows).advance(state, counted, float(step.statistics["rows"]))

    def prior_term(self, model: Model, state: Params) -> Tensor:
        known = _STEPS.get(model)
        return model.log_prior(state) if known is None else known.log_prior(state)

    def posterior(self, model: Model, state: Params, rows: Bound, step: EStep | None = None) -> Any:
        return FactorPosterior.of(rows, flatten(rows, state))

    def log_evidence(self, model: Model, params: Params, rows: Bound) -> Tensor:
        return rows.log_evidence(flatten(rows, params))


#: Model -> its M step on the rows that were read last.
_STEPS: weakref.WeakKeyDictionary[Model, Steps] = weakref.WeakKeyDictionary()


def steps_of(model: Model, rows: Bound) -> Steps:
    """Return the M step of a program on rows, found once."""
    if model not in rows.steps:
        rows.steps[model] = Steps.of(model, rows.structure.entries, rows.blocks)
    _STEPS[model] = rows.steps[model]
    return _STEPS[model]


def flatten(rows: Bound, values: Mapping[str, Tensor]) -> Tensor:
    """Return the entries of all globals as one vector, in the numbers of the rows."""
    return rows.structure.entries.flatten({site: values[site].to(rows.like) for site in rows.structure.entries.shapes})
