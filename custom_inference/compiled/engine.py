"""Exact EM of a compiled program: an engine of the driver, made of its factors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from custom_inference.compiled.derive import structure_of
from custom_inference.compiled.expectations import solve
from custom_inference.compiled.posterior import FactorPosterior
from custom_inference.compiled.proof import bind
from custom_inference.compiled.reading import NotCompiled
from custom_inference.compiled.starts import Starts
from custom_inference.compiled.steps import Steps, steps_if_known, steps_of
from custom_inference.compiled.structure import Bound, flatten, keys_of
from custom_inference.core.engine import EStep, ExactEngine, Params, Warm
from custom_inference.em.rows import FitRows
from ppl_models import Data, MethodError, Model
from ppl_models.core.errors import warn_caller

#: Values of a row that a step of the sums of an E step takes at once, at most.
_WIDEST = 2**13


class EverySite(tuple[str, ...]):
    """The sites of a program, whatever they are called."""

    def __contains__(self, site: str) -> bool:  # pyright: ignore[reportIncompatibleMethodOverride]
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
        rows = bind(structure_of(model, dense), dense).to(data.x.dtype)
        if rows.plan.width > _WIDEST:
            width = f"{rows.plan.width:.3g} values of its latents at once, of at most {_WIDEST}"
            raise NotCompiled(f"{type(model).__name__} is not compiled for EM: a step of its sum takes {width}")
        steps_of(model, rows)
        return rows

    def initial(self, model: Model, rows: Bound, generator: torch.Generator) -> Params:
        return self.draw_start(model, rows, generator)

    def e_step(
        self, model: Model, state: Params, rows: Bound, warm: Warm = None, *, temperature: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> EStep:  # fmt: skip
        return solve(state, rows, None, temperature)

    def e_step_weighted(
        self, model: Model, state: Params, rows: Bound, weights: Tensor, warm: Warm = None, *, temperature: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> EStep:  # fmt: skip
        return solve(state, rows, weights, temperature)

    def m_step(self, model: Model, state: Params, step: EStep, rows: Bound | FitRows) -> Params:
        own: Any = getattr(rows, "first_rows", rows)  # of blocks the first, which is as all are
        counted = features_of(own, step)
        return steps_of(model, own).advance(state, counted, float(step.statistics["rows"]), own.parts)

    def prior_term(self, model: Model, state: Params) -> Tensor:
        known = steps_if_known(model)
        return model.log_prior(state) if known is None else known.log_prior(state)

    def suggest_tolerance(self, model: Model, num_rows: int) -> float:
        """Return a tenth of the usual one: iterations are cheap, and what is reported is the maximum."""
        return 1e-6

    def canonical(self, model: Model, params: Params, locals_: Params) -> tuple[Params, Params]:
        """Return the values as they are; warn of standard deviations that would be smaller if they might."""
        warn_of_narrow(model, steps_if_known(model))
        return params, locals_

    def posterior(self, model: Model, state: Params, rows: Bound, step: EStep | None = None) -> Any:
        return FactorPosterior.of(rows, flatten(rows, state))

    def log_evidence(self, model: Model, params: Params, rows: Bound) -> Tensor:
        return rows.log_evidence(flatten(rows, params))


def warn_of_narrow(model: Model, steps: Steps | None) -> None:
    """Warn of standard deviations that ended at the least that they may be."""
    for site, least in ({} if steps is None else steps.narrowest).items():
        if least is not None:
            warn_caller(
                f"'{site}' of {type(model).__name__} ends at the least that it may be, {least:.3g}, a thousandth "
                "of the spread of what it is of (less of a constant): values that are alike, or one alone, would "
                "be the more probable the smaller it is. Expected a prior with little mass near 0, such as "
                "InverseGamma or LogNormal, or fewer classes"
            )


def features_of(rows: Bound, step: EStep) -> list[Tensor]:
    """Return the expected features of every block. Raises MethodError where those of rows in parts do not add up."""
    keys = keys_of(rows)
    if len(step.statistics) != len(keys) + 1 or not set(keys) <= set(step.statistics):
        raise _not_additive(rows)
    return [step.statistics[key] for key in keys]


def _not_additive(rows: Bound) -> MethodError:
    """Return the error for rows in parts under a program whose statistics do not add up over them."""
    laws = sorted({block.law.kind.__name__ for block in rows.blocks if block.is_direct})
    reason = f"under {', '.join(laws)} nothing adds up over rows" if laws else "what rows are given differs in each"
    name = type(rows.structure.model).__name__
    return MethodError(f"rows of {name} in parts: {reason}; expected all rows in memory, without batch_size")
