"""Variational Bayes of a compiled program: posteriors over its globals, exact ones of the latents of every row.

    q = prod over sites q(site) prod_n q(latents of row n),
    log p(x) >= sum_n log sum over latents exp(E[log factors]) - sum over sites KL(q(site) || p(site)).

Latents are summed out by elimination as in exact EM, with expected natural parameters in place of those at values
(``moments``); the statistics are the same, and give every site its best posterior (``beliefs``). The sites of
linear predictors of normals have one normal together, in closed form, and those without counts another, by fixed draws
(``open_beliefs``); q is a product but for these. Sites of other supports that have no counts have no steps here
(Attias, UAI 1999; Winn & Bishop, *Variational message passing*, JMLR 6, 2005).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import constraints

from custom_inference.compiled.bayes.beliefs import diverge
from custom_inference.compiled.bayes.global_beliefs import GlobalBeliefs, moments_of
from custom_inference.compiled.bayes.moments import expect_natural
from custom_inference.compiled.bayes.open_beliefs import OPEN, entropy_of, expect_log_prior
from custom_inference.compiled.bayes.updates import Updates
from custom_inference.compiled.engine import CompiledExact, EverySite, features_of, warn_of_narrow
from custom_inference.compiled.expectations import solve_at
from custom_inference.compiled.moves import is_same
from custom_inference.compiled.posterior import FactorPosterior
from custom_inference.compiled.steps import steps_if_known, steps_of
from custom_inference.compiled.structure import Bound, flatten
from custom_inference.core.engine import Engine, EStep, InitialStep, Objective, Params, Warm
from custom_inference.core.posteriors import LocalPosterior
from custom_inference.core.proposals import Proposals
from custom_inference.core.states import State
from custom_inference.em.rows import FitRows
from ppl_models import Data, MethodError, Model, PriorError
from ppl_models.core.priors import is_flat

#: Iterations of exact EM before variational Bayes: the expected logarithms of what a value has not yet seen are so low
#: that few rows move.
_EXACT_FIRST = 15
#: Up to so many times the least standard deviation of exact EM one counts as that.
_NARROW = 10.0


@dataclass(frozen=True, kw_only=True)
class CompiledVB(Proposals, Engine[Bound, GlobalBeliefs]):
    """Variational Bayes over the globals, exact sums over latents."""

    name: ClassVar[str] = "vb"
    objective: ClassVar[Objective] = "bound"
    integrates_globals: ClassVar[bool] = True
    weighs_rows: ClassVar[bool] = True
    solves_at_once: ClassVar[bool] = True
    any_prior_of: ClassVar[tuple[str, ...]] = EverySite()
    state: ClassVar[type[State] | None] = GlobalBeliefs

    #: Itself: its proposals are its own.
    engine = property(lambda self: self)  # pyright: ignore[reportIncompatibleVariableOverride,reportAssignmentType]

    def local(self) -> Engine:
        """Return the exact engine at given values of the globals."""
        return CompiledExact()

    def rows(self, model: Model, data: Data) -> Bound:
        """Read the rows. Raises NotCompiled where the program is no product of factors; MethodError for sites without
        steps; PriorError for improper priors."""
        rows = CompiledExact().rows(model, data)
        self.check(model, rows)
        return rows

    def check(self, model: Model, rows: Bound) -> None:
        name, roles = type(model).__name__, steps_of(model, rows).belief_roles
        for site, role in roles.items():
            if role == "open" and model.supports[site] not in OPEN:
                raise MethodError(
                    f"variational Bayes has no steps for '{site}' of {name}, which is in {model.supports[site]} "
                    "and has no counts under a conjugate prior; expected method='gibbs' or 'nuts', or a value of it"
                )
            bounded = model.supports[site] in (constraints.unit_interval, constraints.simplex)
            if is_flat(model.priors[site]) and not bounded:
                found = f"the prior of '{site}' of {name} is improper (Flat)"
                raise PriorError(f"{found}; expected a proper one, or use EM")

    def e_step(
        self, model: Model, state: GlobalBeliefs, rows: Bound, warm: Warm = None, *, temperature: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> EStep:  # fmt: skip
        return solve_at(self._naturals(model, state, rows), rows, None, temperature)

    def e_step_weighted(
        self, model: Model, state: GlobalBeliefs, rows: Bound, weights: Tensor, warm: Warm = None, *,
        temperature: float = 1.0, generator: torch.Generator | None = None,
    ) -> EStep:  # fmt: skip
        return solve_at(self._naturals(model, state, rows), rows, weights, temperature)

    def _naturals(self, model: Model, state: GlobalBeliefs, rows: Bound) -> list[Tensor]:
        moments = moments_of(model, rows.structure.entries, state, steps_of(model, rows), rows.like)
        return [expect_natural(block, moments) for block in rows.blocks]

    def m_step(self, model: Model, state: GlobalBeliefs, step: EStep, rows: Bound | FitRows) -> GlobalBeliefs:
        return _updates(model, rows, step).advance(state)

    def from_point(self, model: Model, params: Params, rows: Bound | FitRows, e_step: InitialStep) -> GlobalBeliefs:
        """Return the posteriors of the globals after one exact E step at their given values."""
        return _updates(model, rows, e_step()).begin(params)

    def prior_term(self, model: Model, state: GlobalBeliefs) -> Tensor:
        posteriors: dict[str, Any] = dict(state.posteriors(model))
        roots = {
            site: one.root if one.drawn_together else one.scale.reshape(-1)
            for site, one in posteriors.items()
            if hasattr(one, "location")
        }
        terms = [-diverge(one, model, site).double() for site, one in posteriors.items() if site not in roots]
        for site, root in roots.items():
            terms.append(expect_log_prior(model, site, posteriors[site].location.double().reshape(-1), root.double()))
        apart = [root for root in roots.values() if root.ndim == 1]
        together = [root for root in roots.values() if root.ndim == 2]
        terms += [entropy_of(torch.cat(kind).double()) for kind in (apart, together) if kind]
        return torch.stack(terms).sum()

    def canonical(self, model: Model, params: GlobalBeliefs, locals_: Params) -> tuple[GlobalBeliefs, Params]:
        """Return the posteriors as they are; warn of standard deviations that end at the least of exact EM: their
        posterior may have no end at 0."""
        known, values = steps_if_known(model), params.values(model)
        narrow = {} if known is None else known.narrowest
        if any(least and float(values[site].min()) < _NARROW * least for site, least in narrow.items()):
            warn_of_narrow(model, known)
        return params, locals_

    def suggest_tolerance(self, model: Model, num_rows: int) -> float:
        """Return that of exact EM."""
        return CompiledExact().suggest_tolerance(model, num_rows)

    def posterior(self, model: Model, state: GlobalBeliefs, rows: Bound, step: EStep | None = None) -> LocalPosterior:
        flat = flatten(rows, state.values(model))
        return FactorPosterior.of(rows, flat, self._naturals(model, state, rows))

    def initial(self, model: Model, rows: Bound, generator: torch.Generator) -> GlobalBeliefs:
        return self.start_from(model, CompiledExact().initial(model, rows, generator), rows)

    def search_size(self, model: Model, num_rows: int) -> tuple[int, int]:
        """Return that of exact EM, which starts are made by."""
        return CompiledExact().search_size(model, num_rows)

    def random_starts(self, model: Model, num_rows: int) -> int:
        """Return none: races of exact EM have random ones among them."""
        del model, num_rows
        return 0

    def propose(self, model: Model, rows: Bound, generator: torch.Generator, attempt: int) -> Any:
        """Start with some iterations of exact EM."""
        exact = CompiledExact()
        params = exact.propose(model, rows, generator, attempt)
        for _ in range(_EXACT_FIRST):
            params = exact.m_step(model, params, exact.e_step(model, params, rows), rows)
        return self.start_from(model, params, rows)

    def refine(self, model: Model, rows: Bound, params: Params, generator: torch.Generator, agreed: bool) -> Any:
        """Move places of the solution of exact EM; go back where that does not help."""
        state: Any = params
        moved = CompiledExact().refine(model, rows, state.values(model), generator, agreed)
        other = self.start_from(model, moved, rows)
        for _ in range(_EXACT_FIRST):
            other = self.m_step(model, other, self.e_step(model, other, rows), rows)
        before, after = (self.objective_at(model, one, self.e_step(model, one, rows).bound) for one in (state, other))
        return other if after > before else state

    def same_solution(self, model: Model, first: GlobalBeliefs, second: GlobalBeliefs) -> bool:
        """Tell whether the means are the same but for the places of what may change places."""
        return is_same(model, first.values(model), second.values(model))


def _updates(model: Model, rows: Bound | FitRows, step: EStep) -> Updates:
    """Return the updates by an E step."""
    own: Any = getattr(rows, "first_rows", rows)  # of blocks the first, which is as all are
    return Updates(model, own, features_of(own, step))
