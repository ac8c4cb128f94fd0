"""Variational Bayes of a compiled program: posteriors over its globals, exact ones of the latents of every row.

    q = prod over sites q(site) prod_n q(latents of row n),
    log p(x) >= sum_n log sum over latents exp(E[log factors]) - sum over sites KL(q(site) || p(site)).

Latents are summed out by elimination as in exact EM, with expected natural parameters in place of those at values
(``moments``); the statistics are the same, and give every site its best posterior (``beliefs``). Linear predictors of
normals have one normal a site. Sites that are neither of these have no steps here (Attias, UAI 1999; Winn & Bishop,
*Variational message passing*, JMLR 6, 2005).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import Normal, constraints

from custom_inference.compiled.beliefs import diverge
from custom_inference.compiled.engine import CompiledExact
from custom_inference.compiled.expectations import solve_at
from custom_inference.compiled.global_beliefs import GlobalBeliefs, moments_of, roles_of
from custom_inference.compiled.moments import expect_natural
from custom_inference.compiled.open_beliefs import OPEN, entropy_of, expect_log_prior
from custom_inference.compiled.posterior import FactorPosterior
from custom_inference.compiled.steps import steps_of
from custom_inference.compiled.structure import Bound, flatten
from custom_inference.compiled.updates import Updates
from custom_inference.core.engine import EStep, InitialStep, Objective, Params, Warm
from custom_inference.core.posteriors import LocalPosterior, NormalPosterior
from custom_inference.core.posteriors.entries import MappedNormalPosterior
from custom_inference.core.states import State
from custom_inference.em.rows import FitRows
from ppl_models import MethodError, Model, PriorError
from ppl_models.core.priors import is_flat

#: Iterations of exact EM before variational Bayes: the expected logarithms of what a value has not yet seen are so low
#: that few rows move.
_EXACT_FIRST = 15


@dataclass(frozen=True, kw_only=True)
class CompiledVB(CompiledExact):
    """Variational Bayes over the globals, exact sums over latents."""

    integrates_globals = True
    name = "vb"
    objective: ClassVar[Objective] = "bound"
    accelerate = None
    state: ClassVar[type[State]] = GlobalBeliefs

    def local(self) -> CompiledExact:
        """Return the exact engine at given values of the globals."""
        return CompiledExact()

    def rows(self, model: Model, data: Any) -> Bound:
        """Read the rows. Raises NotCompiled where the program is no product of factors; MethodError for sites without
        steps; PriorError for improper priors."""
        rows = super().rows(model, data)
        self.check(model, rows)
        return rows

    def check(self, model: Model, rows: Bound) -> None:
        name, roles = type(model).__name__, roles_of(model, steps_of(model, rows))
        for site, role in roles.items():
            if role == "open" and model.sites[site].support not in OPEN:
                raise MethodError(
                    f"variational Bayes has no steps for '{site}' of {name}, which is in {model.sites[site].support} "
                    "and has no counts under a conjugate prior; expected method='gibbs' or 'nuts', or a value of it"
                )
            bounded = model.sites[site].support in (constraints.unit_interval, constraints.simplex)
            if is_flat(model.priors[site]) and not bounded:
                found = f"the prior of '{site}' of {name} is improper (Flat)"
                raise PriorError(f"{found}; expected a proper one, or use EM")

    def e_step(
        self, model: Model, state: Any, rows: Bound, warm: Warm = None, *, temperature: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> EStep:  # fmt: skip
        return solve_at(self._naturals(model, state, rows), rows, None, temperature)

    def e_step_weighted(
        self, model: Model, state: Any, rows: Bound, weights: Tensor, warm: Warm = None, *, temperature: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> EStep:  # fmt: skip
        return solve_at(self._naturals(model, state, rows), rows, weights, temperature)

    def _naturals(self, model: Model, state: GlobalBeliefs, rows: Bound) -> list[Tensor]:
        moments = moments_of(model, rows.structure.entries, state, steps_of(model, rows), rows.like)
        return [expect_natural(block, moments) for block in rows.blocks]

    def m_step(self, model: Model, state: Any, step: EStep, rows: Bound | FitRows) -> Any:
        own: Any = getattr(rows, "first_rows", rows)  # of blocks the first, which is as all are
        counted = self.counted(own, step)
        updates = Updates(model, own, counted)
        return updates.advance(state)

    def from_point(self, model: Model, params: Params, rows: Any, e_step: InitialStep) -> GlobalBeliefs:
        """Return the posteriors of the globals after one exact E step at their given values."""
        own: Any = getattr(rows, "first_rows", rows)
        return Updates(model, own, self.counted(own, e_step())).begin(params)

    def prior_term(self, model: Model, state: Any) -> Tensor:
        terms = []
        for site, one in state.posteriors(model).items():
            by_draws = isinstance(one, MappedNormalPosterior) or (
                isinstance(one, NormalPosterior) and not isinstance(model.priors[site], Normal)
            )
            terms.append(_prior_term_by_draws(model, site, one) if by_draws else -diverge(model, site, one))
        return torch.stack([term.double() for term in terms]).sum()

    def canonical(self, model: Model, params: Any, locals_: Params) -> tuple[Any, Params]:
        return params, locals_

    def suggest_tolerance(self, model: Model, num_rows: int) -> float:
        return 1e-6

    def posterior(self, model: Model, state: Any, rows: Bound, step: EStep | None = None) -> LocalPosterior:
        flat = flatten(rows, state.values(model))
        return FactorPosterior.of(rows, flat, self._naturals(model, state, rows))

    def log_evidence(self, model: Model, params: Params, rows: Bound) -> Tensor:
        return CompiledExact().log_evidence(model, params, rows)

    def initial(self, model: Model, rows: Bound, generator: torch.Generator) -> Any:
        return self.start_from(model, self.local().initial(model, rows, generator), rows)

    def propose(self, model: Model, rows: Bound, generator: torch.Generator, attempt: int) -> Any:
        """Start with some iterations of the exact engine."""
        exact = self.local()
        params = exact.propose(model, rows, generator, attempt)
        for _ in range(_EXACT_FIRST):
            params = exact.m_step(model, params, exact.e_step(model, params, rows), rows)
        return self.start_from(model, params, rows)

    def refine(self, model: Model, rows: Bound, params: Any, generator: torch.Generator, agreed: bool) -> Any:
        """Move places of the exact engine's solution; go back where that does not help."""
        moved = self.local().refine(model, rows, params.values(model), generator, agreed)
        other = self.start_from(model, moved, rows)
        for _ in range(_EXACT_FIRST):
            other = self.m_step(model, other, self.e_step(model, other, rows), rows)
        before, after = (self.objective_at(model, one, self.e_step(model, one, rows).bound) for one in (params, other))
        return other if after > before else params

    def same_solution(self, model: Model, first: Any, second: Any) -> bool:
        return super().same_solution(model, first.values(model), second.values(model))


def _prior_term_by_draws(model: Model, site: str, posterior: Any) -> Tensor:
    """Return minus the divergence from the prior of a site without counts, by its fixed draws."""
    location, scale = posterior.location.double(), posterior.scale.double()
    return expect_log_prior(model, site, location, scale) + entropy_of(scale)
