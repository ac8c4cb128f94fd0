"""The mixed-membership block model by variational Bayes: memberships, block matrix and sparsity all have posteriors.

q(pi_i) = Dirichlet(gamma_i), q(eta_ab) = Beta(l_ab, m_ab) (a <= b if undirected), q(rho) = Beta where rho is learned,
and the tables of ``common`` with L1 = psi(l) - psi(l + m), L0 = psi(m) - psi(l + m). One iteration takes the
tables at their optimum, then

    gamma_i = alpha + members_i,     l = a + links,     m = b + gaps,     rho: c + background, d + foreground

which are the optima at given tables and independent of each other: the bound on log p(x),

    F = (bound of ``common``) - sum_ab KL(q(eta_ab) || Beta(a, b)) - KL(q(rho) || Beta(c, d)),

never falls. Most of a node's ends are zeros that say little: their tables repeat what gamma says, which makes plain
iterations slow, as EM with much missing information is. SQUAREM shortens that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from custom_inference.core.capabilities import Accelerated, GlobalPosterior, LocalEngine, Looks, PriorTerm
from custom_inference.core.engine import EStep, Params, Warm
from custom_inference.core.posteriors import DirichletPosterior
from custom_inference.core.states import State
from custom_inference.families.common.beta import beta_divergence
from custom_inference.families.common.dirichlet import expected_log
from custom_inference.families.memberships.common import Factors, MmsbEngine
from custom_inference.families.memberships.dirichlet import MmsbDirichlet
from custom_inference.families.memberships.dyads import Dyads
from custom_inference.families.memberships.states import ExpectedCounts, MembershipPosteriors, beta_prior


@dataclass(frozen=True, kw_only=True)
class MmsbVB(LocalEngine, GlobalPosterior, Accelerated, PriorTerm, MmsbEngine):
    """The state is :class:`MembershipPosteriors`."""

    name: ClassVar[str] = "vb"
    accelerate: ClassVar[str | None] = "squarem"
    state: ClassVar[type[State]] = MembershipPosteriors

    def local(self) -> MmsbDirichlet:
        """Memberships at given globals."""
        return MmsbDirichlet(zeros=self.zeros)

    def factors(self, model: Any, state: MembershipPosteriors) -> Factors:
        links, gaps = state.links, state.gaps
        total = torch.digamma(links + gaps)
        if state.background is None:
            background, foreground = self.log_rho(model, {}, links)
        else:
            background, foreground = expected_log(state.background)
        share = expected_log(state.concentration)
        return Factors(share, torch.digamma(links) - total, torch.digamma(gaps) - total, background, foreground)

    def e_step(
        self, model: Any, state: Any, rows: Dyads, warm: Warm = None, *, temperature=1.0, generator=None
    ) -> EStep:
        gamma = state.concentration
        found = self.collect(model, rows, self.factors(model, state), (warm or {}).get("role"), temperature)
        bound = self.bound(model, gamma, found).reshape(1).to(gamma)
        return EStep(found.counts().tensors(), found.roles(), bound)

    def m_step(self, model: Any, state: Any, step: EStep, rows: Dyads) -> MembershipPosteriors:
        return ExpectedCounts.of(step.statistics).added_to_priors(model)

    def prior_term(self, model: Any, state: MembershipPosteriors) -> Tensor:
        each = beta_divergence((state.links, state.gaps), beta_prior(model, "edge_probability", state.links)).double()
        divergence = each.sum() if model.directed else each.triu().sum()
        if state.background is not None:
            first, second = state.background
            prior = beta_prior(model, "sparsity", state.links)
            divergence = divergence + beta_divergence((first, second), prior).double()
        return -divergence

    def posterior(self, model: Any, state: MembershipPosteriors, rows: Dyads, step: EStep) -> DirichletPosterior:
        return DirichletPosterior(state.concentration)

    def project(self, model: Any, state: MembershipPosteriors, locals_: Params) -> tuple[MembershipPosteriors, Params]:
        """No iteration leads below the prior's concentrations."""
        nothing = state.links.new_zeros(())
        least = ExpectedCounts(nothing, nothing, nothing, nothing).added_to_priors(model).tensors()
        inside = {name: torch.maximum(value, least[name]) for name, value in state.tensors().items()}
        return MembershipPosteriors.of(inside), locals_

    # ----- starts -------------------------------------------------------------------------------------------------

    def from_membership(self, model: Any, rows: Dyads, membership: Tensor) -> MembershipPosteriors:
        return self.counts_of(rows, membership).added_to_priors(model)

    def from_point(self, model: Any, params: Params, rows: Dyads, e_step: Looks) -> MembershipPosteriors:
        """The posterior that goes with the memberships found at these globals."""
        return self.m_step(model, None, e_step(), rows)
