"""Variational Bayes of block models (Latouche, Birmele & Ambroise, *Variational Bayesian inference and complexity
control for stochastic block models*, Statistical Modelling 12, 2012): posteriors of the globals too.

    q(z) q(pi) q(eta) [prod_i q(theta_i)]:   Categoricals, Dirichlet, Betas or Gammas, Gammas

A lower bound on log p(x) with everything integrated out, which is what choosing K goes by.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from custom_inference.core.engine import InitialStep, Params
from custom_inference.core.posteriors import ContinuousPosterior, DirichletPosterior
from custom_inference.core.states import State
from custom_inference.families.blocks.likelihoods import likelihood_of, partition_likelihood
from custom_inference.families.blocks.mean_field import RESPONSIBILITY, BlockEngine, SbmMeanField
from custom_inference.families.blocks.nodes import Propensities
from custom_inference.families.blocks.rows import BlockCounts, SbmRows
from custom_inference.families.blocks.sweep import BlockExpectations
from custom_inference.families.conjugate.dirichlet import Dirichlet
from ppl_models import PriorError
from ppl_models.block_models import BlockModel


@dataclass(frozen=True)
class BlockPosteriors(State):
    """proportion (K,): concentrations; first, second (K, K): of the block matrix' Betas or Gammas; responsibility
    (N, K): the division of the nodes that it goes with; propensities: parameters of theirs, where nodes have them."""

    proportion: Tensor
    first: Tensor
    second: Tensor
    responsibility: Tensor
    propensities: Params = field(default_factory=dict)

    def matrix(self, model: BlockModel) -> Any:
        """The posterior of the block matrix, in double precision."""
        return likelihood_of(model).pair(self.first.double(), self.second.double())

    def posteriors(self, model: BlockModel) -> Mapping[str, ContinuousPosterior]:
        matrix = likelihood_of(model)
        return {
            "block_proportion": DirichletPosterior(self.proportion),
            matrix.site: matrix.posterior((self.first, self.second)),
            **Propensities(model, integrated=True).posteriors(self.propensities),
        }


@dataclass(frozen=True, kw_only=True)
class SbmVB(BlockEngine):
    """Posteriors of all globals."""

    integrates_globals = True

    name = "vb"
    state: ClassVar[type[State]] = BlockPosteriors

    def local(self) -> SbmMeanField:
        return SbmMeanField()

    def check(self, model: BlockModel, rows: SbmRows) -> None:
        """Raises MethodError for priors that are not conjugate or improper."""
        super().check(model, rows)
        matrix = likelihood_of(model)
        if any(not bool((part > 0).all()) for part in matrix.prior()):
            raise PriorError(f"the prior of '{matrix.site}' is improper, so nothing bounds log p(x); use a Gamma")

    def compute_expectations(self, model: BlockModel, state: BlockPosteriors, rows: SbmRows) -> BlockExpectations:
        lift, base = likelihood_of(model).mean_natural(state.matrix(model))
        log = Dirichlet(state.proportion.double()).expected()
        weights = self.nodes(model).weights(state.propensities, rows)
        return BlockExpectations(log.numpy(), lift.numpy(), base.numpy(), weights, partition_likelihood(model))

    def node_params(self, model: BlockModel, state: BlockPosteriors) -> Params:
        return state.propensities

    def best(self, model: BlockModel, nodes: Params, counts: BlockCounts, responsibility: Tensor) -> BlockPosteriors:
        size, matrix = torch.as_tensor(counts.size), likelihood_of(model)
        statistics = torch.as_tensor(counts.edges), torch.as_tensor(counts.exposure)
        proportion = Dirichlet.of(model, "block_proportion", size).update(size).concentration
        first, second = matrix.prior().update(*statistics)
        return BlockPosteriors(proportion, first, second, responsibility, nodes)

    def prior_term(self, model: BlockModel, state: BlockPosteriors) -> Tensor:
        proportion = state.proportion.double()
        apart = Dirichlet(proportion).kl(Dirichlet.of(model, "block_proportion", proportion))
        matrix = likelihood_of(model)
        apart = apart + matrix.free(state.matrix(model).kl(matrix.prior())).sum()
        return self.nodes(model).prior_term(state.propensities) - apart

    def from_point(self, model: BlockModel, params: Params, rows: SbmRows, e_step: InitialStep) -> BlockPosteriors:
        """Return the posteriors that suit the blocks found at given values of the globals."""
        return self.from_responsibilities(model, e_step().locals[RESPONSIBILITY], rows)
