"""Variational Bayes of block models (Latouche, Birmele & Ambroise, *Variational Bayesian inference and complexity
control for stochastic block models*, Statistical Modelling 12, 2012): posteriors of the globals too.

    q(z) q(pi) q(eta) [prod_i q(theta_i)]:   Categoricals, Dirichlet, Betas or Gammas, Gammas

A lower bound on log p(x) with everything integrated out, which is what choosing K goes by.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from custom_inference.core.engine import Params
from custom_inference.core.posteriors import ContinuousPosterior, DirichletPosterior
from custom_inference.families.blocks.common import SHARE, SbmSteps
from custom_inference.families.blocks.likelihoods import Pair
from custom_inference.families.blocks.mean_field import SbmMeanField
from custom_inference.families.blocks.rows import Counts, Floats, SbmRows
from custom_inference.families.blocks.sweep import Expected
from custom_inference.families.common.dirichlet import dirichlet_divergence, dirichlet_prior, expected_log
from ppl_models import MethodError, Model


@dataclass(frozen=True, kw_only=True)
class SbmVB(SbmSteps):
    """Posteriors of all globals. ``params`` holds their parameters and the shares, not values of the globals."""

    name = "vb"
    integrates_globals = True

    def local(self) -> SbmMeanField:
        """The blocks at given values of the globals."""
        return SbmMeanField(model=self.model)

    def check(self, model: Model, rows: SbmRows) -> None:
        """Raises MethodError for priors that are not conjugate or improper."""
        super().check(model, rows)
        if any(not bool((part > 0).all()) for part in self.family.prior()):
            raise MethodError(f"the prior of '{self.family.site}' is improper, so nothing bounds log p(x); use a Gamma")

    def expected(self, params: Params, rows: SbmRows) -> Expected:
        lift, base = self.family.expected(self._pair(params))
        log = expected_log(params["block_proportion"].double())
        return Expected(log.numpy(), lift.numpy(), base.numpy(), self.nodes.terms(params, rows), self.likelihood)

    def _pair(self, params: Params) -> Pair:
        return params[f"{self.family.site}_first"].double(), params[f"{self.family.site}_second"].double()

    def block_means(self, params: Params) -> Floats:
        return self.family.posterior(self._pair(params)).mean.numpy()

    @property
    def power(self) -> Tensor:
        return self.family.prior()[0]

    def best(self, model: Model, nodes: Params, counts: Counts) -> Params:
        size = torch.as_tensor(counts.size)
        first, second = self.family.update(torch.as_tensor(counts.edges), torch.as_tensor(counts.exposure))
        return {
            **{name: nodes[name] for name in self.nodes.names},
            "block_proportion": size + dirichlet_prior(model, "block_proportion", size),
            f"{self.family.site}_first": first,
            f"{self.family.site}_second": second,
        }

    def objective(self, model: Model, params: Params, bound: Tensor) -> float:
        proportion = params["block_proportion"].double()
        apart = dirichlet_divergence(proportion, dirichlet_prior(model, "block_proportion", proportion))
        return float(bound.sum() - apart - self.family.divergence(self._pair(params))) + self.nodes.prior_term(params)

    def starting(self, model: Model, params: Params, rows: SbmRows) -> Params:
        """The posteriors that suit the blocks found at given values of the globals."""
        step = self.local().e_step(params, rows)
        return self.from_shares(model, step.locals[SHARE], rows)

    def reported(self, model: Model, params: Params) -> tuple[Params, Mapping[str, ContinuousPosterior]]:
        """The posterior means, and the posteriors."""
        names = [f"{self.family.site}_{part}" for part in ("first", "second")]
        found: dict[str, ContinuousPosterior] = {
            "block_proportion": DirichletPosterior(params["block_proportion"]),
            self.family.site: self.family.posterior((params[names[0]], params[names[1]])),
        }
        values, posteriors = self.nodes.reported(params)
        return {site: posterior.mean for site, posterior in found.items()} | values, found | posteriors
