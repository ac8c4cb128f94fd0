"""The mixed-membership block model by variational Bayes: at given block matrix and sparsity, or with their posteriors.

q(pi_i) = Dirichlet(gamma_i), and the tables of ``common``. At given globals L1 = log eta and L0 = log(1 - eta); every E
step makes rounds of tables and gamma, each two of them followed by an extrapolation (SQUAREM) that is kept only where
it raises the bound. As engine of its own the M step takes the modes of eta and rho given the expected counts.

With q(eta_ab) = Beta(l_ab, m_ab) (a <= b if undirected) and q(rho) = Beta where rho is learned, L1 = psi(l) - psi(l +
m), L0 = psi(m) - psi(l + m). One iteration takes the tables at their optimum, then

    gamma_i = alpha + members_i,     l = a + links,     m = b + gaps,     rho: c + background, d + foreground

which are the optima at given tables and independent of each other: the bound on log p(x),

    F = (bound of ``common``) - sum_ab KL(q(eta_ab) || Beta(a, b)) - KL(q(rho) || Beta(c, d)),

never falls. Most of a node's ends are zeros that say little: their tables repeat what gamma says, which makes plain
iterations slow, as EM with much missing information is. SQUAREM shortens that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from custom_inference.core.engine import EStep, InitialStep, Params, Warm
from custom_inference.core.posteriors import DirichletPosterior
from custom_inference.core.states import PointsWithLocals, State
from custom_inference.families.conjugate.beta import Beta, interior
from custom_inference.families.conjugate.dirichlet import Dirichlet
from custom_inference.families.memberships.common import (
    Collected,
    ExpectedCounts,
    MembershipFactors,
    MembershipPosteriors,
    MmsbEngine,
    beta_prior,
    membership_prior,
    modes,
)
from custom_inference.families.memberships.dyads import Dyads
from custom_inference.families.memberships.initialisation import match_membership, propose_membership, random_membership
from ppl_models import MMSB

#: Starts that are tried where nothing is known of the memberships, and rounds of each.
_COLD_STARTS, _COLD_ROUNDS = 4, 10
#: Extrapolations are at most this long.
_LONGEST = 64.0

#: gamma -> (what the tables add up to, the bound) there.
Round = Callable[[Tensor, Tensor | None], tuple[Collected, Tensor]]


@dataclass(frozen=True, kw_only=True)
class MmsbDirichlet(MmsbEngine):
    """The state is the globals, and "concentration" gamma (N, K) where a start has it. Locals: "concentration", and
    "role" phi where zeros share it.

    cycles: extrapolations an E step.
    """

    cycles: int = 1

    name: ClassVar[str] = "dirichlet"
    state: ClassVar[type[State]] = PointsWithLocals

    def factors(self, model: MMSB, params: Params, gamma: Tensor) -> MembershipFactors:
        eta = interior(params["edge_probability"])
        return MembershipFactors(
            Dirichlet(gamma).expected(), torch.log(eta), torch.log1p(-eta), *self.log_rho(model, params, gamma)
        )

    def e_step(
        self, model: MMSB, state: PointsWithLocals | Params, rows: Dyads, warm: Warm = None, *,
        temperature: float = 1.0, generator: torch.Generator | None = None,
    ) -> EStep:  # fmt: skip
        alpha, at = membership_prior(model, rows.like), PointsWithLocals.from_any(state)

        def one(gamma: Tensor, role: Tensor | None) -> tuple[Collected, Tensor]:
            found = self.collect(model, rows, self.factors(model, at.sites, gamma), role, temperature)
            return found, self.table_bound(model, gamma, found)

        known = {**at.locals, **(warm or {})}
        gamma = known["concentration"] if known else self.cold_start(model, at.sites, rows, one, generator)
        found, bound = extrapolate(one, gamma, alpha, known.get("role"), self.cycles)
        reached = {"concentration": alpha + found.members, **found.roles()}
        return EStep(found.counts().tensors(), reached, bound.reshape(1).to(rows.like))

    def cold_start(
        self, model: MMSB, params: Params, rows: Dyads, one: Round, generator: torch.Generator | None
    ) -> Tensor:
        """Return the best gamma of several starts: proposals whose blocks are matched to those of eta, and random
        ones."""
        generator = generator or torch.Generator().manual_seed(0)
        alpha, eta = membership_prior(model, rows.like), interior(params["edge_probability"])
        reached: list[tuple[float, Tensor]] = []
        for attempt in range(_COLD_STARTS):
            if attempt % 2:
                membership = random_membership(rows, model.num_blocks, generator)
            else:
                proposal = propose_membership(rows, model, generator, attempt // 2)
                membership = match_membership(rows, proposal, eta)
            gamma = alpha + rows.ends[:, None] * membership
            found, bound = one(gamma, None)
            for _ in range(_COLD_ROUNDS):
                gamma = alpha + found.members
                found, bound = one(gamma, found.role)
            reached.append((float(bound), gamma))
        return max(reached, key=lambda one: one[0])[1]

    def m_step(self, model: MMSB, state: PointsWithLocals, step: EStep, rows: Dyads) -> PointsWithLocals:
        links, gaps, background = (step.statistics[name] for name in ("links", "gaps", "background"))
        return PointsWithLocals(modes(model, rows.like, links, gaps, background))

    def check(self, model: MMSB, rows: Dyads) -> None:
        super().check(model, rows)
        Beta.with_mode(model, "edge_probability", rows.like.expand(1, 1))

    def posterior(self, model: MMSB, state: PointsWithLocals, rows: Dyads, step: EStep) -> DirichletPosterior:
        return DirichletPosterior(step.locals["concentration"])

    def from_point(self, model: MMSB, params: Params, rows: Dyads, e_step: InitialStep) -> PointsWithLocals:
        return PointsWithLocals(params)

    def from_membership(self, model: MMSB, rows: Dyads, membership: Tensor) -> PointsWithLocals:
        counts = self.counts_of(rows, membership)
        sites = modes(model, rows.like, counts.links, counts.gaps, counts.background)
        if model.sparsity is None:
            sites["sparsity"] = rows.like.new_tensor(0.1)
        return PointsWithLocals(sites, {"concentration": membership_prior(model, rows.like) + counts.members})


def extrapolate(one: Round, gamma: Tensor, alpha: Tensor, role: Tensor | None, cycles: int) -> tuple[Collected, Tensor]:
    """Run cycles of two rounds and an extrapolation from them, taken back where it lowers the bound.

    Returns the last round's sums and its bound.
    """
    found, bound = one(gamma, role)
    for _ in range(cycles):
        first = alpha + found.members
        found, reached = one(first, found.role)
        second = alpha + found.members
        step = first - gamma
        bend = second - first - step
        length = min(float(step.norm()) / max(float(bend.norm()), 1e-300), _LONGEST)
        if length > 1:
            trial = torch.maximum(gamma + 2 * length * step + length**2 * bend, torch.minimum(alpha, second))
            leapt, value = one(trial, found.role)
            if value >= reached:
                gamma, found, bound = trial, leapt, value
                continue
        gamma = second
        found, bound = one(second, found.role)
    return found, bound


@dataclass(frozen=True, kw_only=True)
class MmsbVB(MmsbEngine):
    """The state is :class:`MembershipPosteriors`."""

    integrates_globals = True

    name: ClassVar[str] = "vb"
    accelerate: ClassVar[str | None] = "squarem"
    state: ClassVar[type[State]] = MembershipPosteriors

    def local(self) -> MmsbDirichlet:
        return MmsbDirichlet(zeros=self.zeros)

    def factors(self, model: MMSB, state: MembershipPosteriors) -> MembershipFactors:
        link, gap = Beta(state.links, state.gaps).expected()
        if state.background is None:
            background = self.log_rho(model, {}, state.links)
        else:
            background = Dirichlet(state.background).expected()
        return MembershipFactors(Dirichlet(state.concentration).expected(), link, gap, *background)

    def e_step(
        self, model: MMSB, state: MembershipPosteriors, rows: Dyads, warm: Warm = None, *,
        temperature: float = 1.0, generator: torch.Generator | None = None,
    ) -> EStep:  # fmt: skip
        gamma = state.concentration
        found = self.collect(model, rows, self.factors(model, state), (warm or {}).get("role"), temperature)
        bound = self.table_bound(model, gamma, found).reshape(1).to(gamma)
        return EStep(found.counts().tensors(), found.roles(), bound)

    def m_step(self, model: MMSB, state: MembershipPosteriors | None, step: EStep, rows: Dyads) -> MembershipPosteriors:
        return ExpectedCounts.of(step.statistics).add_to_priors(model)

    def prior_term(self, model: MMSB, state: MembershipPosteriors) -> Tensor:
        each = Beta(state.links, state.gaps).kl(beta_prior(model, "edge_probability", state.links)).double()
        divergence = each.sum() if model.directed else each.triu().sum()
        if state.background is not None:
            prior = beta_prior(model, "sparsity", state.links)
            divergence = divergence + Beta(*state.background).kl(prior).double()
        return -divergence

    def posterior(self, model: MMSB, state: MembershipPosteriors, rows: Dyads, step: EStep) -> DirichletPosterior:
        return DirichletPosterior(state.concentration)

    def project(self, model: MMSB, state: MembershipPosteriors, locals_: Params) -> tuple[MembershipPosteriors, Params]:
        """Keep the concentrations at least at the prior's: no iteration leads below these."""
        nothing = state.links.new_zeros(())
        least = ExpectedCounts(nothing, nothing, nothing, nothing).add_to_priors(model).tensors()
        inside = {name: torch.maximum(value, least[name]) for name, value in state.tensors().items()}
        return MembershipPosteriors.of(inside), locals_

    def from_membership(self, model: MMSB, rows: Dyads, membership: Tensor) -> MembershipPosteriors:
        return self.counts_of(rows, membership).add_to_priors(model)

    def from_point(self, model: MMSB, params: Params, rows: Dyads, e_step: InitialStep) -> MembershipPosteriors:
        """Return the posterior that goes with the memberships found at these globals."""
        return self.m_step(model, None, e_step(), rows)
