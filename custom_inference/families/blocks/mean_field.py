"""Variational inference for the blocks of a graph's nodes; with point estimates of the globals it is variational EM.

q(z) = prod_i Cat(phi_i) (Daudin, Picard & Robin, *A mixture model for random graphs*, Statistics and Computing 18,
2008). With E the expectation over the globals (their values, at points), m and n of ``rows``, A and B of
``likelihoods``,

    log p(x) >= sum_ab [m_ab A_ab + n_ab B_ab] + sum_i d_i E[log theta_i] - sum log x_ij!
                + sum_ia phi_ia E[log pi_a] - sum_ia phi_ia log phi_ia - KL(globals),

the sum over a <= b if undirected. The responsibilities phi are part of the state, so that a start is a division of the
nodes: the values of the globals alone do not say which of many optima is meant.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from custom_inference.core.engine import Engine, EStep, InitialStep, Params, Warm
from custom_inference.core.posteriors import CodePosterior
from custom_inference.core.states import PointsWithLocals, State, move_state, tensors_of, values_of
from custom_inference.families.blocks.likelihoods import likelihood_of, partition_likelihood
from custom_inference.families.blocks.nodes import Exposures, Propensities
from custom_inference.families.blocks.rows import BlockCounts, Floats, NodeWeights, SbmRows
from custom_inference.families.blocks.sweep import BlockExpectations, bound_at, cold_start, sweep
from custom_inference.families.conjugate.dirichlet import Dirichlet
from ppl_models import Data
from ppl_models.block_models import BlockModel

#: The name under which responsibilities are kept among the locals.
RESPONSIBILITY = "responsibility"
#: Sweeps over the nodes in one E step, at most.
SWEEPS = 5
#: Updates of propensities before a start's first E step.
_FIRST = 5
#: Proportions are kept this far from 0.
FLOOR = 1e-6


class BlockEngine(Engine):
    """Base of the engines of block models, with the E step over the nodes."""

    additive = False
    one_process = True

    def nodes(self, model: BlockModel) -> Propensities:
        """Return the propensities of the nodes."""
        return Propensities(model, self.integrates_globals)

    @abc.abstractmethod
    def compute_expectations(self, model: BlockModel, state: State | Params, rows: SbmRows) -> BlockExpectations:
        """Compute the expectations that an E step needs."""

    @abc.abstractmethod
    def best(self, model: BlockModel, nodes: Params, counts: BlockCounts, responsibility: Tensor) -> Any:
        """Return the state with proportions and block matrix at their best given the parameters of the propensities."""

    @abc.abstractmethod
    def node_params(self, model: BlockModel, state: State | Params) -> Params:
        """Return a dictionary with the parameters of the propensities, among others."""

    def block_means(self, model: BlockModel, state: State | Params) -> Floats:
        """Return E[eta], (K, K)."""
        return values_of(model, state)[likelihood_of(model).site].double().numpy()

    def rows(self, model: BlockModel, data: Data) -> SbmRows:
        return SbmRows.of(model, data)

    def check(self, model: BlockModel, rows: SbmRows) -> None:
        """Raises MethodError for priors that are not conjugate."""
        Dirichlet.of(model, "block_proportion", rows.like)
        likelihood_of(model).prior()
        self.nodes(model).check()

    def e_step(
        self, model: BlockModel, state: State | Params, rows: SbmRows, warm: Warm = None, *,
        temperature: float = 1.0, generator: torch.Generator | None = None,
    ) -> EStep:  # fmt: skip
        """Sweep over the nodes from the state's responsibilities; without any, from the best of some divisions."""
        at = self.compute_expectations(model, state, rows)
        known = warm[RESPONSIBILITY] if warm else division_of(state)
        phi = cold_start(at, rows, generator) if known is None else known.double().numpy().copy()
        sweep(at, rows, phi, SWEEPS, temperature)
        counts = rows.counts(phi, at.weights)
        bound = bound_at(at, rows, phi, counts, temperature)
        statistics = {name: torch.as_tensor(value) for name, value in counts._asdict().items()}
        found = {RESPONSIBILITY: torch.as_tensor(phi).to(rows.like)}
        return EStep(statistics, found, torch.tensor([bound], dtype=torch.float64))

    def bound(self, model: BlockModel, state: State | Params, rows: SbmRows, responsibility: Tensor) -> Tensor:
        """Compute the bound at any responsibilities (N, K), (1,)."""
        at, phi = self.compute_expectations(model, state, rows), responsibility.detach().double().numpy()
        return torch.tensor([bound_at(at, rows, phi, rows.counts(phi, at.weights))], dtype=torch.float64)

    def posterior(self, model: BlockModel, state: State | Params, rows: SbmRows, step: EStep) -> CodePosterior:
        return code_posterior(step)

    def m_step(self, model: BlockModel, state: State | Params, step: EStep, rows: SbmRows) -> Any:
        """Update proportions and block matrix; then propensities, and the other two again."""
        responsibility = step.locals[RESPONSIBILITY]
        counts = BlockCounts(*(step.statistics[name].numpy() for name in BlockCounts._fields))
        best = self.best(model, self.node_params(model, state), counts, responsibility)
        if self.nodes(model).sites:
            best = self._with_propensities(model, best, responsibility.double().numpy(), rows, counts.edges)
        return move_state(best, rows.like)

    def from_responsibilities(self, model: BlockModel, responsibility: Tensor, rows: SbmRows) -> Any:
        """Return a state that suits a division of the nodes, (N, K)."""
        phi, nodes = responsibility.double().numpy(), self.nodes(model)
        state = self._refit(model, nodes.start(rows, phi), phi, rows)
        for _ in range(_FIRST if nodes.sites else 0):
            state = self._with_propensities(model, state, phi, rows)
        return move_state(state, rows.like)

    def _with_propensities(
        self, model: BlockModel, state: State | Params, phi: Floats, rows: SbmRows, edges: Floats | None = None
    ) -> Any:
        """Improve the propensities, in the better one of two scales, and set the rest to its best given them.

        edges (K, K): between blocks, where they are not those of independent nodes.
        """
        matrix, once = self.block_means(model, state), torch.ones(model.num_blocks, model.num_blocks)

        def partners(mean: Floats, outgoing: bool) -> Floats:
            return rows.partners(phi, matrix, mean, outgoing=outgoing)

        exposures = Exposures(partners, rows.loop_seen * (phi @ matrix.diagonal()))
        nodes = self.nodes(model).update(self.node_params(model, state), rows, exposures)
        state, once = self._refit(model, nodes, phi, rows, edges), once if rows.directed else once.triu()
        shape, rate = likelihood_of(model).prior()
        prior = (once * self.nodes(model).power(shape)).numpy(), (once * rate).numpy()
        params = self.node_params(model, state)
        nodes = self.nodes(model).rescale(params, rows, phi, self.block_means(model, state), prior)
        other = self._refit(model, nodes, phi, rows, edges)
        values = [self._value(model, one, phi, rows, edges) for one in (state, other)]
        return other if values[1] > values[0] else state

    def _refit(self, model: BlockModel, nodes: Params, phi: Floats, rows: SbmRows, edges: Floats | None = None) -> Any:
        counts = _counts(rows, phi, self.nodes(model).weights(nodes, rows), edges)
        return self.best(model, nodes, counts, torch.as_tensor(phi))

    def _value(
        self, model: BlockModel, state: State | Params, phi: Floats, rows: SbmRows, edges: Floats | None
    ) -> float:
        """Compute the objective at given beliefs, up to what the globals do not change."""
        at = self.compute_expectations(model, state, rows)
        bound = bound_at(at, rows, phi, _counts(rows, phi, at.weights, edges))
        return self.objective_at(model, state, torch.tensor([bound], dtype=torch.float64))

    def initial(self, model: BlockModel, rows: SbmRows, generator: torch.Generator) -> Any:
        """Put every node into a random block."""
        label = torch.randint(model.num_blocks, (len(rows),), generator=generator)
        return self.from_responsibilities(model, one_hot(label, model.num_blocks).double(), rows)


def _counts(rows: SbmRows, phi: Floats, weights: NodeWeights, edges: Floats | None) -> BlockCounts:
    found = rows.counts(phi, weights)
    return found if edges is None else found._replace(edges=edges)


def natural_globals(model: BlockModel, params: Params) -> tuple[Floats, Floats, Floats]:
    """Return log pi (K,), A and B (K, K) at given globals."""
    matrix = likelihood_of(model)
    proportion, value = (params[site].detach().cpu().double() for site in ("block_proportion", matrix.site))
    lift, base = matrix.natural(value.contiguous())
    return safe_log(proportion).numpy(), lift.numpy(), base.numpy()


class PointBlocks(BlockEngine):
    """Points of the globals: maximum likelihood, or a posteriori under informative priors."""

    def check(self, model: BlockModel, rows: SbmRows) -> None:
        """Raises MethodError for priors that are not conjugate, and for those without a mode."""
        super().check(model, rows)
        likelihood_of(model).check_mode()

    def compute_expectations(
        self, model: BlockModel, state: PointsWithLocals | Params, rows: SbmRows
    ) -> BlockExpectations:
        params = values_of(model, state)
        weights = self.nodes(model).weights(params, rows)
        return BlockExpectations(*natural_globals(model, params), weights, partition_likelihood(model))

    def best_sites(self, model: BlockModel, nodes: Params, counts: BlockCounts) -> Params:
        """Return proportions and block matrix at their best given the propensities."""
        size, matrix = torch.as_tensor(counts.size), likelihood_of(model)
        return {
            **{site: nodes[site] for site in self.nodes(model).names},
            "block_proportion": Dirichlet.of(model, "block_proportion", size).mode(size, floor=FLOOR),
            matrix.site: matrix.mode(torch.as_tensor(counts.edges), torch.as_tensor(counts.exposure)),
        }

    def node_params(self, model: BlockModel, state: PointsWithLocals | Params) -> Params:
        return values_of(model, state)

    def prior_term(self, model: BlockModel, state: PointsWithLocals | Params) -> Tensor:
        params, matrix = values_of(model, state), likelihood_of(model)
        proportion = params["block_proportion"].double()
        prior = Dirichlet.of(model, "block_proportion", proportion).log_density(proportion)
        return prior + matrix.log_prior(params[matrix.site].double()) + self.nodes(model).prior_term(params)


@dataclass(frozen=True, kw_only=True)
class SbmMeanField(PointBlocks):
    """q(z) = prod_i Cat(phi_i). The M step sets the block matrix to its best, then the propensities to better ones
    (``nodes``). The state is the globals, with a division of the nodes where one is known.
    """

    name = "mean_field"
    state: ClassVar[type[State]] = PointsWithLocals

    def best(self, model: BlockModel, nodes: Params, counts: BlockCounts, responsibility: Tensor) -> Any:
        return PointsWithLocals(self.best_sites(model, nodes, counts), {RESPONSIBILITY: responsibility})

    def from_point(self, model: BlockModel, params: Params, rows: SbmRows, e_step: InitialStep) -> Any:
        """Return the given values with the division that suits them."""
        return PointsWithLocals(params, {RESPONSIBILITY: e_step().locals[RESPONSIBILITY]})


def division_of(state: State | Params) -> Tensor | None:
    """Return the responsibilities (N, K) of a state, where it has them."""
    tensors = tensors_of(state)
    return tensors.get(RESPONSIBILITY, tensors.get(f"locals/{RESPONSIBILITY}"))


def code_posterior(step: EStep) -> CodePosterior:
    """Return the K one-hot codes and the probability of each for every node."""
    phi = step.locals[RESPONSIBILITY]
    return CodePosterior(torch.eye(phi.shape[1]).to(phi), safe_log(phi))


def safe_log(value: Tensor) -> Tensor:
    """Compute the logarithm, that of the smallest normal number for 0."""
    return torch.log(value.clamp(min=torch.finfo(value.dtype).tiny))
