"""Variational inference for the blocks of a graph's nodes: what point estimates and posteriors of globals share.

q(z) = prod_i Cat(phi_i) (Daudin, Picard & Robin, *A mixture model for random graphs*, Statistics and Computing 18,
2008). With E the expectation over the globals (their values, at points), m and n of ``_sbm_rows``, A and B of
``_sbm_families``,

    log p(x) >= sum_ab [m_ab A_ab + n_ab B_ab] + sum_i d_i E[log theta_i] - sum log x_ij!
                + sum_ia phi_ia E[log pi_a] - sum_ia phi_ia log phi_ia - KL(globals),

the sum over a <= b if undirected. The responsibilities phi are part of the state, so that a start is a division of the
nodes: the values of the globals alone do not say which of many optima is meant.
"""

from __future__ import annotations

import abc
from typing import Any

import torch
from torch import Tensor

from custom_inference.core.capabilities import (
    Checked,
    NeedsRows,
    OneProcess,
    PriorTerm,
    integrates_globals,
    objective_at,
)
from custom_inference.core.engine import Engine, EStep, Params, Warm
from custom_inference.core.posteriors import CodePosterior
from custom_inference.core.states import moved
from custom_inference.families.blocks.likelihoods import likelihood_of
from custom_inference.families.blocks.nodes import Exposures, Plain, nodes_of
from custom_inference.families.blocks.rows import Counts, Floats, SbmRows
from custom_inference.families.blocks.sweep import Expected, bound_at, cold_start, sweep
from custom_inference.families.common.dirichlet import dirichlet_prior
from ppl_models import Data, DegreeCorrectedSBM, Model

#: The name under which these are kept among the locals.
RESPONSIBILITY = "responsibility"
#: Sweeps over the nodes in one E step, at most.
SWEEPS = 5
#: Updates of propensities before a start's first E step.
_FIRST = 5


class BlockEngine(PriorTerm, NeedsRows, OneProcess, Checked, Engine):
    """The E step over the nodes."""

    def nodes(self, model: Model) -> Plain:
        """What the nodes bring besides their block."""
        return nodes_of(model, integrated=integrates_globals(self))

    @abc.abstractmethod
    def expected(self, model: Any, state: Any, rows: SbmRows) -> Expected:
        """The expectations that an E step needs."""

    @abc.abstractmethod
    def best(self, model: Any, nodes: Params, counts: Counts, responsibility: Tensor) -> Any:
        """The state with proportions and block matrix at their best given what the nodes bring."""

    @abc.abstractmethod
    def node_params(self, model: Any, state: Any) -> Params:
        """The parameters of what the nodes bring."""

    @abc.abstractmethod
    def block_means(self, model: Any, state: Any) -> Floats:
        """E[eta], (K, K)."""

    @abc.abstractmethod
    def power(self, model: Any) -> Tensor:
        """The power of eta that the prior brings to the objective in which scales are chosen, (K, K)."""

    def rows(self, model: Any, data: Data) -> SbmRows:
        return SbmRows.of(model, data)

    def check(self, model: Any, rows: SbmRows) -> None:
        """Raises MethodError for priors that are not conjugate."""
        dirichlet_prior(model, "block_proportion", rows.like)
        likelihood_of(model).prior()
        self.nodes(model).check()

    # ----- the E step -------------------------------------------------------------------------------------

    def e_step(
        self, model: Any, state: Any, rows: SbmRows, warm: Warm = None, *, temperature=1.0, generator=None
    ) -> EStep:
        """Sweeps over the nodes, from where the state's responsibilities are; without any, from the best of some."""
        at = self.expected(model, state, rows)
        known = warm[RESPONSIBILITY] if warm else self.division(state)
        share = cold_start(at, rows, generator) if known is None else known.double().numpy().copy()
        sweep(at, rows, share, SWEEPS, temperature)
        counts = rows.counts(share, at.nodes.weights)
        bound = bound_at(at, rows, share, counts, temperature)
        statistics = {name: torch.as_tensor(value) for name, value in counts._asdict().items()}
        found = {RESPONSIBILITY: torch.as_tensor(share).to(rows.like)}
        return EStep(statistics, found, torch.tensor([bound], dtype=torch.float64))

    @abc.abstractmethod
    def division(self, state: Any) -> Tensor | None:
        """The responsibilities (N, K) of a state, where it has them."""

    def bound(self, model: Any, state: Any, rows: SbmRows, responsibility: Tensor) -> Tensor:
        """The bound at any responsibilities (N, K), (1,)."""
        at, found = self.expected(model, state, rows), responsibility.detach().double().numpy()
        counts = rows.counts(found, at.nodes.weights)
        return torch.tensor([bound_at(at, rows, found, counts)], dtype=torch.float64)

    def posterior(self, model: Any, state: Any, rows: SbmRows, step: EStep) -> CodePosterior:
        """The K one-hot codes and the probability of each for every node."""
        found = step.locals[RESPONSIBILITY]
        return CodePosterior(torch.eye(found.shape[1]).to(found), torch.log(found.clamp(min=_tiny(found))))

    # ----- the M step -------------------------------------------------------------------------------------

    def m_step(self, model: Any, state: Any, step: EStep, rows: SbmRows) -> Any:
        """Proportions and block matrix; then propensities, and the other two again."""
        responsibility = step.locals[RESPONSIBILITY]
        found = responsibility.double().numpy()
        counts = Counts(*(step.statistics[name].numpy() for name in Counts._fields))
        best = self.best(model, self.node_params(model, state), counts, responsibility)
        nodes = self._updated(model, best, found, rows)
        if nodes:
            best = self._rescaled(model, self._refitted(model, nodes, found, rows), found, rows)
        return moved(best, rows.like)

    def from_responsibilities(self, model: Any, responsibility: Tensor, rows: SbmRows) -> Any:
        """A state that suits a division of the nodes, (N, K)."""
        found = responsibility.double().numpy()
        nodes = self.nodes(model).start(rows, found)
        state = self._refitted(model, nodes, found, rows)
        for _ in range(_FIRST if nodes else 0):
            nodes = self._updated(model, state, found, rows)
            state = self._rescaled(model, self._refitted(model, nodes, found, rows), found, rows)
        return moved(state, rows.like)

    def _updated(self, model: Any, state: Any, share: Floats, rows: SbmRows) -> Params:
        """Better parameters of what the nodes bring."""
        matrix = self.block_means(model, state)

        def partners(mean: Floats, outgoing: bool) -> Floats:
            return rows.partners(share, matrix, mean, outgoing=outgoing)

        exposures = Exposures(partners, rows.loop_seen * (share @ matrix.diagonal()))
        return self.nodes(model).update(self.node_params(model, state), rows, exposures)

    def _refitted(self, model: Any, nodes: Params, share: Floats, rows: SbmRows) -> Any:
        counts = rows.counts(share, self.nodes(model).terms(nodes, rows).weights)
        return self.best(model, nodes, counts, torch.as_tensor(share))

    def _rescaled(self, model: Any, state: Any, share: Floats, rows: SbmRows) -> Any:
        """The same in another scale of the propensities, where that is better."""
        matrix = likelihood_of(model)
        once = torch.ones(matrix.shape) if rows.directed else torch.ones(matrix.shape).triu()
        prior = (once * self.power(model)).numpy(), (once * matrix.prior()[1]).numpy()
        params = self.node_params(model, state)
        nodes = self.nodes(model).rescaled(params, rows, share, self.block_means(model, state), prior)
        if nodes is None:
            return state
        other, at = self._refitted(model, nodes, share, rows), torch.as_tensor(share)
        values = [objective_at(self, model, one, self.bound(model, one, rows, at)) for one in (state, other)]
        return other if values[1] > values[0] else state

    # ----- starts -----------------------------------------------------------------------------------------

    def initial(self, model: Any, rows: SbmRows, generator: torch.Generator) -> Any:
        """Every node in a random block."""
        blocks = model.num_blocks
        label = torch.randint(blocks, (len(rows),), generator=generator)
        return self.from_responsibilities(model, torch.nn.functional.one_hot(label, blocks).double(), rows)


def partition_likelihood(model: Model) -> str:
    """The name of the model's likelihood among those that divisions of the nodes are scored by."""
    return "degree_corrected" if isinstance(model, DegreeCorrectedSBM) else likelihood_of(model).kind


def _tiny(share: Tensor) -> float:
    return torch.finfo(share.dtype).tiny
