"""Mixtures by variational Bayes (Attias, UAI 1999), of every likelihood with its conjugate prior:

    q(z) = prod_n Cat(r_n),   q(pi) = Dirichlet(a),   q(b_k) Dirichlets, q(p_kj) Betas or q(lambda_kj) Gammas,
    r_nk proportional to exp(E[log pi_k] + E[log p(x_n | class k)])

climbs sum_n log sum_k exp(E[log pi_k] + E[log p(x_n | class k)]) - KL(q(pi) || p) - KL(q(components) || p), which is a
lower bound on log p(x) with everything integrated out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from custom_inference.core.capabilities import GlobalPosterior, LocalEngine, Looks, from_point
from custom_inference.core.engine import EStep, Objective, Params
from custom_inference.core.posteriors import ContinuousPosterior, DirichletPosterior
from custom_inference.core.states import State
from custom_inference.families.common.dirichlet import dirichlet_divergence, dirichlet_prior, expected_log
from custom_inference.families.mixtures.densities import density_of
from custom_inference.families.mixtures.density import Conjugate
from custom_inference.families.mixtures.exact import MixtureExact, statistics
from custom_inference.families.mixtures.rows import MixtureRows
from ppl_models import Model

#: Iterations of EM before variational Bayes.
_EXACT_FIRST = 15


@dataclass(frozen=True)
class MixturePosteriors(State):
    """Of the proportions their concentration (K,), of the components the parameters that the density names."""

    proportion: Tensor
    components: Params

    def values(self, model: Model) -> Params:
        """The posterior means."""
        return {site: posterior.mean for site, posterior in self.posteriors(model).items()}

    def posteriors(self, model: Model) -> dict[str, ContinuousPosterior]:
        density = density_of(model)
        components = density.posterior(tuple(self.components[name] for name in density.names))
        return {"mixing_proportion": DirichletPosterior(self.proportion), density.site: components}


@dataclass(frozen=True, kw_only=True)
class MixtureVB(LocalEngine, GlobalPosterior, MixtureExact):
    """Posteriors of proportions and components too."""

    name = "vb"
    objective: ClassVar[Objective] = "bound"
    accelerate = None
    state: ClassVar[type[State]] = MixturePosteriors

    def local(self) -> MixtureExact:
        """The exact engine at given values of the globals."""
        return MixtureExact()

    def log_joint(self, model: Model, state: MixturePosteriors, rows: MixtureRows, temperature: float = 1.0) -> Tensor:
        """E[log p(z_n = k)] + temperature E[log p(x_n | z_n = k)], (N, K)."""
        expected = density_of(model).expected(_parameters(model, state))
        return expected_log(state.proportion) + temperature * rows.table(*expected)

    def m_step(self, model: Model, state: Any, step: EStep, rows: MixtureRows) -> MixturePosteriors:
        density, size, counts = density_of(model), step.statistics["rows"], step.statistics["counts"]
        components = density.update(density.prior(model, counts), *statistics(step))
        proportion = size + dirichlet_prior(model, "mixing_proportion", size)
        return MixturePosteriors(proportion, dict(zip(density.names, components, strict=True)))

    def prior_term(self, model: Model, state: MixturePosteriors) -> Tensor:
        density, components = density_of(model), _parameters(model, state)
        apart = dirichlet_divergence(state.proportion, dirichlet_prior(model, "mixing_proportion", state.proportion))
        return -apart - density.divergence(components, density.prior(model, components[0]))

    def from_point(self, model: Model, params: Params, rows: MixtureRows, e_step: Looks) -> MixturePosteriors:
        """The posteriors of the globals after one exact E step at their given values."""
        return self.m_step(model, None, e_step(), rows)

    def initial(self, model: Model, rows: MixtureRows, generator: torch.Generator) -> MixturePosteriors:
        return from_point(self, model, super().initial(model, rows, generator), rows)

    def propose(self, model: Model, rows: MixtureRows, generator: torch.Generator, attempt: int) -> MixturePosteriors:
        """Where some iterations of the exact engine lead from their start.

        The expected logarithms of what a class has not yet seen are so low that variational Bayes moves few rows.
        """
        exact = self.local()
        params = exact.propose(model, rows, generator, attempt)
        for _ in range(_EXACT_FIRST):
            params = exact.m_step(model, params, exact.e_step(model, params, rows), rows)
        return from_point(self, model, params, rows)


def _parameters(model: Model, state: MixturePosteriors) -> Conjugate:
    return tuple(state.components[name] for name in density_of(model).names)
