"""The mixed-membership block model by variational Bayes: memberships, block matrix and sparsity all have posteriors.

q(pi_i) = Dirichlet(gamma_i), q(eta_ab) = Beta(l_ab, m_ab) (a <= b if undirected), q(rho) = Beta where rho is learned,
and the tables of ``mmsb_common`` with L1 = psi(l) - psi(l + m), L0 = psi(m) - psi(l + m). One iteration takes the
tables at their optimum, then

    gamma_i = alpha + members_i,     l = a + links,     m = b + gaps,     rho: c + background, d + foreground

which are the optima at given tables and independent of each other: the bound on log p(x),

    F = (bound of mmsb_common) - sum_ab KL(q(eta_ab) || Beta(a, b)) - KL(q(rho) || Beta(c, d)),

never falls. Most of a node's ends are zeros that say little: their tables repeat what gamma says, which makes plain
iterations slow, as EM with much missing information is. SQUAREM shortens that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from custom_inference.core.engine import EStep, Params
from custom_inference.core.posteriors import BetaPosterior, DirichletPosterior, SymmetricBetaPosterior
from custom_inference.families.common.dirichlet import dirichlet_divergence, expected_log
from custom_inference.families.memberships.common import Factors, MmsbSteps, beta_divergence, beta_prior
from custom_inference.families.memberships.dirichlet import MmsbDirichlet
from custom_inference.families.memberships.dyads import Dyads
from custom_inference.families.memberships.initialisation import (
    pair_totals,
    random_membership,
)
from ppl_models import Model


@dataclass(frozen=True, kw_only=True)
class MmsbVB(MmsbSteps):
    """params: "concentration" gamma (N, K); "links" l and "gaps" m (K, K); where rho is learned, "background" (2,)."""

    name: ClassVar[str] = "vb"
    integrates_globals: ClassVar[bool] = True
    accelerate: ClassVar[str | None] = "squarem"

    def local(self) -> MmsbDirichlet:
        """Memberships at given globals."""
        return MmsbDirichlet(zeros=self.zeros, model=self.model)

    def factors(self, params: Params) -> Factors:
        links, gaps = params["links"], params["gaps"]
        total = torch.digamma(links + gaps)
        if "background" in params:
            background, foreground = expected_log(params["background"])
        else:
            background, foreground = self.log_rho(params, links)
        share = expected_log(params["concentration"])
        return Factors(share, torch.digamma(links) - total, torch.digamma(gaps) - total, background, foreground)

    def e_step(
        self,
        params: Params,
        rows: Dyads,
        locals_: dict[str, Tensor] | None = None,
        *,
        temperature: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> EStep:
        del generator
        gamma = params["concentration"]
        found = self.collect(rows, self.factors(params), (locals_ or {}).get("role"), temperature)
        bound = found.total - dirichlet_divergence(gamma, self.alpha(gamma)).sum(dtype=torch.float64)
        split = torch.stack([found.background, found.foreground]).to(gamma)
        statistics = {"members": found.members, "links": found.links, "gaps": found.gaps, "background": split}
        return EStep(statistics, {} if found.role is None else {"role": found.role}, bound.reshape(1).to(gamma))

    def m_step(self, model: Model, params: Params, step: EStep, rows: Dyads) -> Params:
        first, second = beta_prior(model, "edge_probability", rows.like)
        seen = step.statistics
        learned = {
            "concentration": self.alpha(rows.like) + seen["members"],
            "links": first + seen["links"],
            "gaps": second + seen["gaps"],
        }
        if "background" in params:
            learned["background"] = torch.stack(beta_prior(model, "sparsity", rows.like)) + seen["background"]
        return learned

    def objective(self, model: Model, params: Params, bound: Tensor) -> float:
        prior = beta_prior(model, "edge_probability", params["links"])
        each = beta_divergence(params["links"], params["gaps"], prior).double()
        divergence = each.sum() if self.model.directed else each.triu().sum()
        if "background" in params:
            prior = beta_prior(model, "sparsity", params["links"])
            first, second = params["background"]
            divergence = divergence + beta_divergence(first, second, prior).double()
        return float(bound.double().sum() - divergence)

    def posterior(self, params: Params, rows: Dyads, step: EStep) -> DirichletPosterior:
        return DirichletPosterior(params["concentration"])

    def reported(self, model: Model, params: Params) -> tuple[Params, dict[str, Any]]:
        """Posterior means, and the posteriors."""
        kind = BetaPosterior if self.model.directed else SymmetricBetaPosterior
        found: dict[str, Any] = {"edge_probability": kind(params["links"], params["gaps"])}
        if "background" in params:
            found["sparsity"] = BetaPosterior(params["background"][0], params["background"][1])
        return {site: posterior.mean for site, posterior in found.items()}, found

    def project(self, params: Params, locals_: dict[str, Tensor]) -> tuple[Params, dict[str, Tensor]]:
        """No iteration leads below the prior's concentrations."""
        like = params["links"]
        least = {"concentration": self.alpha(like)}
        least["links"], least["gaps"] = beta_prior(self.model, "edge_probability", like)
        if "background" in params:
            least["background"] = torch.stack(beta_prior(self.model, "sparsity", like))
        return {name: torch.maximum(value, least[name]) for name, value in params.items()}, locals_

    # ----- starts -------------------------------------------------------------------------------------------------

    def from_membership(self, model: Model, rows: Dyads, membership: Tensor) -> Params:
        """Params at which nodes divide their dyads as ``membership`` (N, K) says, the two ends independently."""
        links, gaps = pair_totals(rows, membership)
        first, second = beta_prior(model, "edge_probability", rows.like)
        params = {
            "concentration": self.concentration_of(rows, membership),
            "links": first + links,
            "gaps": second + gaps,
        }
        if self.model.sparsity is None:
            params["background"] = torch.stack(beta_prior(model, "sparsity", rows.like))
        return params

    def initial(self, model: Model, rows: Dyads, generator: torch.Generator) -> Params:
        return self.from_membership(model, rows, random_membership(rows, self.model.num_blocks, generator))

    def starting(self, model: Model, params: Params, rows: Dyads) -> Params:
        """The posterior that goes with the memberships found at these globals."""
        step = self.looked(params, rows)
        learned = {"concentration": step.locals["concentration"]}
        if self.model.sparsity is None:
            learned["background"] = torch.stack(beta_prior(model, "sparsity", rows.like))
        return self.m_step(model, learned, step, rows)
