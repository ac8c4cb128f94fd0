"""Variational EM of block models: the blocks of the nodes by mean field, the globals as points."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from custom_inference.posterior import ContinuousPosterior
from custom_inference.steps._dirichlet import dirichlet_prior, log_prior_density, softmax_or_simplex
from custom_inference.steps._protocol import EStep, Params
from custom_inference.steps._sbm_rows import Floats, SbmRows
from custom_inference.steps.sbm_common import SHARE, Expected, SbmSteps
from ppl_models import Model

#: Proportions are kept this far from 0.
FLOOR = 1e-6


@dataclass(frozen=True, kw_only=True)
class SbmMeanField(SbmSteps):
    """q(z) = prod_i Cat(phi_i) at points of the globals: maximum likelihood, or a posteriori under informative priors.

    The M step sets the block matrix to its best, then the propensities to better ones (``_sbm_nodes``).
    """

    bound_name = "mean_field"

    def check(self, model: Model, rows: SbmRows) -> None:
        """Raises MethodError for priors that are not conjugate, and for those without a mode."""
        super().check(model, rows)
        self.family.check_mode()

    def expected(self, params: Params, rows: SbmRows) -> Expected:
        lift, base = self.family.natural(params[self.family.site].detach().double())
        proportion = params["block_proportion"].detach().double()
        log = torch.log(proportion.clamp(min=torch.finfo(proportion.dtype).tiny))
        return Expected(log.numpy(), lift.numpy(), base.numpy(), self.nodes.terms(params, rows))

    def from_shares(self, model: Model, share: Tensor, rows: SbmRows) -> Params:
        found = share.double().numpy()
        nodes = self.nodes.start(rows, found)
        for _ in range(5 if nodes else 1):
            params = self._best(model, nodes, found, rows)
            nodes = self.nodes.update(params, rows, found, params[self.family.site].numpy())
        return self._cast(self._best(model, nodes, found, rows), share, rows)

    def m_step(self, model: Model, params: Params, step: EStep, rows: SbmRows) -> Params:
        share = step.locals[SHARE].double().numpy()
        best = self._best(model, params, share, rows)
        nodes = self.nodes.update(best, rows, share, best[self.family.site].numpy())
        if nodes:
            best = self._rescaled(model, self._best(model, nodes, share, rows), share, rows)
        return self._cast(best, step.locals[SHARE], rows)

    def _best(self, model: Model, nodes: Params, share: Floats, rows: SbmRows) -> Params:
        """Proportions and block matrix at their best, given the shares and the nodes' own parameters."""
        counts = rows.counts(share, self.nodes.terms(nodes, rows).weights)
        size = torch.as_tensor(counts.size)
        concentration = dirichlet_prior(model, "block_proportion", size)
        return {
            **{site: nodes[site] for site in getattr(self.nodes, "sites", ())},
            "block_proportion": softmax_or_simplex(size, concentration, floor=FLOOR),
            self.family.site: self.family.mode(torch.as_tensor(counts.edges), torch.as_tensor(counts.exposure)),
        }

    def _rescaled(self, model: Model, params: Params, share: Floats, rows: SbmRows) -> Params:
        """The same in another scale of the propensities, where that is better."""
        shape, rate = (part.numpy() for part in self.family.prior())
        power = shape - (0.0 if bool((shape < 1).any()) else 1.0)
        upper = np.ones_like(power) if rows.directed else np.triu(np.ones_like(power))
        matrix = params[self.family.site].numpy()
        nodes = self.nodes.rescaled(params, rows, share, matrix, (upper * power, upper * rate))
        if nodes is None:
            return params
        other = self._best(model, nodes, share, rows)
        values = [self.objective(model, p, self.bound(p, rows, torch.as_tensor(share))) for p in (params, other)]
        return other if values[1] > values[0] else params

    def _cast(self, params: Params, share: Tensor, rows: SbmRows) -> Params:
        return {name: value.to(rows.like) for name, value in {**params, SHARE: share}.items()}

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
