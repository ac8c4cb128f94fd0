"""Variational EM of block models: the blocks of the nodes by mean field, the globals as points."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from custom_inference.core.capabilities import Looks, OwnState
from custom_inference.core.engine import Params
from custom_inference.core.states import PointsWithLocals, State, values_of
from custom_inference.families.blocks.common import RESPONSIBILITY, BlockEngine, safe_log
from custom_inference.families.blocks.likelihoods import likelihood_of, partition_likelihood
from custom_inference.families.blocks.rows import Counts, Floats, SbmRows
from custom_inference.families.blocks.sweep import Expected
from custom_inference.families.common.dirichlet import dirichlet_prior, log_prior_density, softmax_or_simplex
from ppl_models import Model

#: Proportions are kept this far from 0.
FLOOR = 1e-6


def natural_globals(model: Model, params: Params) -> tuple[Floats, Floats, Floats]:
    """log pi (K,), A and B (K, K) at given globals."""
    matrix = likelihood_of(model)
    proportion, value = (params[site].detach().cpu().double() for site in ("block_proportion", matrix.site))
    lift, base = matrix.natural(value.contiguous())
    return safe_log(proportion).numpy(), lift.numpy(), base.numpy()


class PointBlocks(BlockEngine):
    """Points of the globals: maximum likelihood, or a posteriori under informative priors."""

    def check(self, model: Any, rows: SbmRows) -> None:
        """Raises MethodError for priors that are not conjugate, and for those without a mode."""
        super().check(model, rows)
        likelihood_of(model).check_mode()

    def expected(self, model: Any, state: PointsWithLocals | Params, rows: SbmRows) -> Expected:
        params = values_of(model, state)
        weights = self.nodes(model).weights(params, rows)
        return Expected(*natural_globals(model, params), weights, partition_likelihood(model))

    def best_sites(self, model: Any, nodes: Params, counts: Counts) -> Params:
        """Proportions and block matrix at their best given the propensities."""
        size, matrix = torch.as_tensor(counts.size), likelihood_of(model)
        concentration = dirichlet_prior(model, "block_proportion", size)
        return {
            **{site: nodes[site] for site in self.nodes(model).names},
            "block_proportion": softmax_or_simplex(size, concentration, floor=FLOOR),
            matrix.site: matrix.mode(torch.as_tensor(counts.edges), torch.as_tensor(counts.exposure)),
        }

    def node_params(self, model: Any, state: PointsWithLocals | Params) -> Params:
        params = values_of(model, state)
        return {site: params[site] for site in self.nodes(model).names}

    def block_means(self, model: Any, state: PointsWithLocals | Params) -> Floats:
        return values_of(model, state)[likelihood_of(model).site].double().numpy()

    def power(self, model: Any) -> Tensor:
        """One less than the shape, as in the maximum: see ``common.gamma``."""
        shape, _ = likelihood_of(model).prior()
        return shape - (0.0 if bool((shape < 1).any()) else 1.0)

    def prior_term(self, model: Any, state: PointsWithLocals | Params) -> Tensor:
        params, matrix = values_of(model, state), likelihood_of(model)
        proportion = params["block_proportion"].double()
        prior = log_prior_density(proportion, dirichlet_prior(model, "block_proportion", proportion))
        return prior + matrix.log_prior(params[matrix.site].double()) + self.nodes(model).prior_term(params)


@dataclass(frozen=True, kw_only=True)
class SbmMeanField(OwnState, PointBlocks):
    """q(z) = prod_i Cat(phi_i). The M step sets the block matrix to its best, then the propensities to better ones
    (``nodes``). The state is the globals, with a division of the nodes where one is known.
    """

    name = "mean_field"
    state: ClassVar[type[State]] = PointsWithLocals

    def best(self, model: Any, nodes: Params, counts: Counts, responsibility: Tensor) -> Any:
        return PointsWithLocals(self.best_sites(model, nodes, counts), {RESPONSIBILITY: responsibility})

    def division(self, state: PointsWithLocals | Params) -> Tensor | None:
        return PointsWithLocals.from_any(state).locals.get(RESPONSIBILITY)

    def from_point(self, model: Any, params: Params, rows: SbmRows, e_step: Looks) -> Any:
        """The given values with the division that suits them."""
        return PointsWithLocals(params, {RESPONSIBILITY: e_step().locals[RESPONSIBILITY]})
