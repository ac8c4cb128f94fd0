"""Mixtures by variational Bayes (Attias, UAI 1999), of every likelihood with its conjugate prior:

    q(z) = prod_n Cat(r_n),   q(pi) = Dirichlet(a),   q(b_k) Dirichlets, q(p_kj) Betas or q(lambda_kj) Gammas,
    r_nk proportional to exp(E[log pi_k] + E[log p(x_n | class k)])

climbs sum_n log sum_k exp(E[log pi_k] + E[log p(x_n | class k)]) - KL(q(pi) || p) - KL(q(components) || p), which is a
lower bound on log p(x) with everything integrated out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from custom_inference.core.engine import EStep, Params
from custom_inference.core.posteriors import ContinuousPosterior, DirichletPosterior
from custom_inference.families.common.dirichlet import dirichlet_divergence, dirichlet_prior, expected_log
from custom_inference.families.mixtures.common import same_classes
from custom_inference.families.mixtures.density import Conjugate
from custom_inference.families.mixtures.exact import MixtureExact, statistics
from custom_inference.families.mixtures.rows import MixtureRows
from ppl_models import Model

#: Iterations of EM before variational Bayes.
_EXACT_FIRST = 15


@dataclass(frozen=True, kw_only=True)
class MixtureVB(MixtureExact):
    """Posteriors of proportions and components too. ``params`` holds their parameters, not values of the globals."""

    name = "vb"
    accelerate = None
    integrates_globals = True

    def local(self) -> MixtureExact:
        """The exact steps at given values of the globals."""
        return MixtureExact(classes=self.classes)

    def log_joint(self, params: Params, rows: MixtureRows, temperature: float = 1.0) -> Tensor:
        """E[log p(z_n = k)] + temperature E[log p(x_n | z_n = k)], (N, K)."""
        expected = self.density.expected(self._parameters(params))
        return expected_log(params["mixing_proportion"]) + temperature * rows.table(*expected)

    def m_step(self, model: Model, params: Params, step: EStep, rows: MixtureRows) -> Params:
        size, counts = step.statistics["rows"], step.statistics["counts"]
        components = self.density.update(self.density.prior(model, counts), *statistics(step))
        proportion = size + dirichlet_prior(model, "mixing_proportion", size)
        return {"mixing_proportion": proportion, **dict(zip(self.density.names, components, strict=True))}

    def objective(self, model: Model, params: Params, bound: Tensor) -> float:
        proportion, components = params["mixing_proportion"], self._parameters(params)
        apart = dirichlet_divergence(proportion, dirichlet_prior(model, "mixing_proportion", proportion))
        prior = self.density.prior(model, components[0])
        return float(bound.double().sum() - apart - self.density.divergence(components, prior))

    def starting(self, model: Model, params: Params, rows: MixtureRows) -> Params:
        """The posteriors of the globals after one exact E step at their given values."""
        return self.m_step(model, params, self.looked(params, rows), rows)

    def initial(self, model: Model, rows: MixtureRows, generator: torch.Generator) -> Params:
        return self.starting(model, super().initial(model, rows, generator), rows)

    def propose(self, model: Model, rows: MixtureRows, generator: torch.Generator, attempt: int) -> Params:
        """Where some iterations of the exact steps lead from their start.

        The expected logarithms of what a class has not yet seen are so low that variational Bayes moves few rows.
        """
        exact = self.local()
        params = exact.propose(model, rows, generator, attempt)
        for _ in range(_EXACT_FIRST):
            params = exact.m_step(model, params, exact.e_step(params, rows), rows)
        return self.starting(model, params, rows)

    def reported(self, model: Model, params: Params) -> tuple[Params, Mapping[str, ContinuousPosterior]]:
        """The posterior means, and the posteriors."""
        found = self._posteriors(params)
        return {site: posterior.mean for site, posterior in found.items()}, found

    def same_solution(self, first: Params, second: Params) -> bool:
        means = [{site: q.mean for site, q in self._posteriors(p).items()} for p in (first, second)]
        return same_classes(*((m[self.density.site], m["mixing_proportion"]) for m in means))

    def _parameters(self, params: Params) -> Conjugate:
        return tuple(params[name] for name in self.density.names)

    def _posteriors(self, params: Params) -> dict[str, ContinuousPosterior]:
        proportion = DirichletPosterior(params["mixing_proportion"])
        return {"mixing_proportion": proportion, self.density.site: self.density.posterior(self._parameters(params))}
