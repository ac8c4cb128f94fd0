"""Exact EM of programs with Gaussian latents: an engine of the driver."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from custom_inference.compiled.engine import EverySite, warn_of_narrow
from custom_inference.compiled.gaussian.binding import bind_gaussian
from custom_inference.compiled.gaussian.groups import start_at_groups
from custom_inference.compiled.gaussian.rows import GaussianRows
from custom_inference.compiled.gaussian.starts import start_at_components, start_at_random
from custom_inference.compiled.gaussian.steps import gaussian_steps_if_known, gaussian_steps_of
from custom_inference.compiled.starts import race
from custom_inference.core.engine import EStep, ExactEngine, Params, Warm
from custom_inference.core.posteriors import LocalPosterior
from custom_inference.core.proposals import Proposals
from custom_inference.em.rows import FitRows
from ppl_models import Data, MethodError, Model

#: Rows that starts are looked for on, and how many there are.
_ROWS, _STARTS = 2000, 3


@dataclass(frozen=True, kw_only=True)
class CompiledGaussian(Proposals, ExactEngine[GaussianRows, Params]):
    """The exact E step of Gaussian latents, M steps by least squares, in closed form, or by climbing."""

    weighs_rows = True
    accelerate = "squarem"
    any_prior_of = EverySite()

    #: Itself: its proposals are its own.
    engine = property(lambda self: self)  # pyright: ignore[reportIncompatibleVariableOverride]

    def rows(self, model: Model, data: Data) -> GaussianRows:
        """Read the rows. Raises NotCompiled where the program has other latents or laws."""
        rows = bind_gaussian(model, model.as_read(data).dense())
        gaussian_steps_of(model, rows)
        return rows

    def initial(self, model: Model, rows: GaussianRows, generator: torch.Generator) -> Params:
        """Start at the columns' means and spreads, with random slopes."""
        return start_at_random(model, rows, generator)

    def propose(self, model: Model, rows: GaussianRows, generator: torch.Generator, attempt: int) -> Params:
        """Start with the principal components of what is observed as latents; later attempts are random. Beside finite
        latents groups of alike rows race against random starts."""
        if rows.finite is not None:
            groups = [start_at_groups(model, rows, generator, whitened=whitened) for whitened in (False, True)]
            return race(self, model, rows, [*groups, *(start_at_random(model, rows, generator) for _ in range(2))])
        state = start_at_random(model, rows, generator)
        return state if attempt > 0 else start_at_components(model, rows, state)

    def at_random(self, attempt: int, num_rows: int) -> bool:
        return attempt > 0

    def search_size(self, model: Model, num_rows: int) -> tuple[int, int]:
        return _STARTS, _ROWS

    def random_starts(self, model: Model, num_rows: int) -> int:
        """Return 0: all but the first of the starts are random."""
        return 0

    def e_step(
        self, model: Model, state: Params, rows: GaussianRows, warm: Warm = None, *, temperature: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> EStep:  # fmt: skip
        return _take_step(state, rows, None, temperature)

    def e_step_weighted(
        self, model: Model, state: Params, rows: GaussianRows, weights: Tensor, warm: Warm = None, *,
        temperature: float = 1.0, generator: torch.Generator | None = None,
    ) -> EStep:  # fmt: skip
        return _take_step(state, rows, weights, temperature)

    def m_step(self, model: Model, state: Params, step: EStep, rows: GaussianRows | FitRows) -> Params:
        own: Any = getattr(rows, "first_rows", rows)  # of blocks the first, which is as all are
        keys = own.keys
        if len(step.statistics) != len(keys) + 1 or not set(keys) <= set(step.statistics):
            raise MethodError(
                f"rows of {type(own.structure.model).__name__} in parts: what rows are given differs in each; expected "
                "all rows in memory, without batch_size"
            )
        counted = [step.statistics[key] for key in keys]
        return gaussian_steps_of(model, own).advance(state, counted, float(step.statistics["rows"]), own.all_parts)

    def prior_term(self, model: Model, state: Params) -> Tensor:
        known = gaussian_steps_if_known(model)
        return model.log_prior(state) if known is None else known.log_prior(state)

    def suggest_tolerance(self, model: Model, num_rows: int) -> float:
        """Return a tenth of the usual one: iterations are cheap, and what is reported is the maximum."""
        return 1e-6

    def canonical(self, model: Model, params: Params, locals_: Params) -> tuple[Params, Params]:
        """Return the values as they are; warn of standard deviations that would be smaller if they might."""
        warn_of_narrow(model, gaussian_steps_if_known(model))
        return params, locals_

    def posterior(self, model: Model, state: Params, rows: GaussianRows, step: EStep | None = None) -> LocalPosterior:
        return rows.posterior(_flatten(rows, state))

    def log_evidence(self, model: Model, params: Params, rows: GaussianRows) -> Tensor:
        return rows.log_evidence(_flatten(rows, params))


def _flatten(rows: GaussianRows, state: Params) -> Tensor:
    """Return the entries of all globals as one vector, in double precision."""
    return rows.structure.entries.flatten({site: value.double() for site, value in state.items()})


def _take_step(state: Params, rows: GaussianRows, weights: Tensor | None, temperature: float) -> EStep:
    moments, bound = rows.expect(_flatten(rows, state), weights, temperature)
    number = rows.like.new_tensor(float(len(rows)) if weights is None else float(weights.sum()))
    return EStep({**dict(zip(rows.keys, moments, strict=True)), "rows": number}, {}, bound)
