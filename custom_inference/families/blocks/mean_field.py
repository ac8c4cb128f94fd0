"""Variational EM of block models: the blocks of the nodes by mean field, the globals as points."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from custom_inference.core.engine import Params
from custom_inference.core.posteriors import ContinuousPosterior
from custom_inference.families.blocks.common import SHARE, SbmSteps
from custom_inference.families.blocks.rows import Counts, Floats, SbmRows
from custom_inference.families.blocks.sweep import Expected
from custom_inference.families.common.dirichlet import dirichlet_prior, log_prior_density, softmax_or_simplex
from ppl_models import Model

#: Proportions are kept this far from 0.
FLOOR = 1e-6


@dataclass(frozen=True, kw_only=True)
class SbmMeanField(SbmSteps):
    """q(z) = prod_i Cat(phi_i) at points of the globals: maximum likelihood, or a posteriori under informative priors.

    The M step sets the block matrix to its best, then the propensities to better ones (``_sbm_nodes``).
    """

    name = "mean_field"

    def check(self, model: Model, rows: SbmRows) -> None:
        """Raises MethodError for priors that are not conjugate, and for those without a mode."""
        super().check(model, rows)
        self.family.check_mode()

    def expected(self, params: Params, rows: SbmRows) -> Expected:
        lift, base = self.family.natural(params[self.family.site].detach().double())
        proportion = params["block_proportion"].detach().double()
        log = torch.log(proportion.clamp(min=torch.finfo(proportion.dtype).tiny))
        return Expected(log.numpy(), lift.numpy(), base.numpy(), self.nodes.terms(params, rows), self.likelihood)

    def best(self, model: Model, nodes: Params, counts: Counts) -> Params:
        size = torch.as_tensor(counts.size)
        concentration = dirichlet_prior(model, "block_proportion", size)
        return {
            **{site: nodes[site] for site in self.nodes.names},
            "block_proportion": softmax_or_simplex(size, concentration, floor=FLOOR),
            self.family.site: self.family.mode(torch.as_tensor(counts.edges), torch.as_tensor(counts.exposure)),
        }

    def block_means(self, params: Params) -> Floats:
        return params[self.family.site].double().numpy()

    @property
    def power(self) -> Tensor:
        """One less than the shape, as in the maximum: see ``_gamma``."""
        shape, _ = self.family.prior()
        return shape - (0.0 if bool((shape < 1).any()) else 1.0)

    def objective(self, model: Model, params: Params, bound: Tensor) -> float:
        proportion = params["block_proportion"].double()
        prior = log_prior_density(proportion, dirichlet_prior(model, "block_proportion", proportion))
        matrix = self.family.log_prior(params[self.family.site].double())
        return float(bound.sum() + prior + matrix) + self.nodes.prior_term(params)

    def starting(self, model: Model, params: Params, rows: SbmRows) -> Params:
        """The given values with the shares that suit them."""
        step = self.e_step(params, rows)
        return {**params, SHARE: step.locals[SHARE]}

    def reported(self, model: Model, params: Params) -> tuple[Params, Mapping[str, ContinuousPosterior]]:
        return {name: value for name, value in params.items() if name != SHARE}, {}
