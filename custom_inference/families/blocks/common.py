"""Variational inference for the blocks of a graph's nodes: what point estimates and posteriors of globals share.

q(z) = prod_i Cat(phi_i) (Daudin, Picard & Robin, *A mixture model for random graphs*, Statistics and Computing 18,
2008). With E the expectation over the globals (their values, at points), m and n of ``_sbm_rows``, A and B of
``_sbm_families``,

    log p(x) >= sum_ab [m_ab A_ab + n_ab B_ab] + sum_i d_i E[log theta_i] - sum log x_ij!
                + sum_ia phi_ia E[log pi_a] - sum_ia phi_ia log phi_ia - KL(globals),

the sum over a <= b if undirected. The shares phi are part of the steps' parameters, so that a start is a division of
the nodes: the values of the globals alone do not say which of many optima is meant.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from custom_inference.core.engine import Engine, EStep, Params
from custom_inference.core.posteriors import CodePosterior
from custom_inference.families.blocks.likelihoods import Family, family_of
from custom_inference.families.blocks.nodes import Alike, Meetings, nodes_of
from custom_inference.families.blocks.rows import Counts, Floats, SbmRows
from custom_inference.families.blocks.sweep import (
    Expected,
    bound_at,
    cold_start,
    sweep,
)
from custom_inference.families.common.dirichlet import dirichlet_prior
from ppl_models import Data, DegreeCorrectedSBM, MethodError, Model

#: The name under which the shares are kept among the parameters and the locals.
SHARE = "responsibility"
#: Sweeps over the nodes in one E step, at most.
SWEEPS = 5
#: Updates of propensities before a start's first E step.
_FIRST = 5


@dataclass(frozen=True, kw_only=True)
class SbmSteps(Engine):
    """The E step over the nodes. model: set by :meth:`for_model`."""

    model: Any = None
    additive: ClassVar[bool] = False
    shares: ClassVar[str | None] = None

    def for_model(self, model: Model) -> Self:
        return replace(self, model=model)

    @property
    def family(self) -> Family:
        if self.model is None:
            raise MethodError(f"{type(self).__name__} belongs to one model: use engine_for(model, name) or for_model")
        return family_of(self.model)

    @property
    def nodes(self) -> Alike:
        return nodes_of(self.model, integrated=self.integrates_globals)

    @property
    def likelihood(self) -> str:
        """Its name among those that divisions of the nodes are scored by."""
        return "degree_corrected" if isinstance(self.model, DegreeCorrectedSBM) else self.family.kind

    @abc.abstractmethod
    def expected(self, params: Params, rows: SbmRows) -> Expected:
        """The expectations that an E step needs."""

    @abc.abstractmethod
    def best(self, model: Model, nodes: Params, counts: Counts) -> Params:
        """Parameters of proportions and block matrix at their best; those of the propensities are taken over."""

    @abc.abstractmethod
    def block_means(self, params: Params) -> Floats:
        """E[eta], (K, K)."""

    @property
    @abc.abstractmethod
    def power(self) -> Tensor:
        """The power of eta that the prior brings to the objective in which scales are chosen, (K, K)."""

    def rows(self, data: Data) -> SbmRows:
        return SbmRows.of(self.family.model, data)

    def check(self, model: Model, rows: SbmRows) -> None:
        """Raises MethodError for priors that are not conjugate."""
        dirichlet_prior(model, "block_proportion", rows.like)
        self.family.prior()
        self.nodes.check()

    # ----- the E step -------------------------------------------------------------------------------------

    def e_step(
        self,
        params: Params,
        rows: SbmRows,
        locals_: dict[str, Tensor] | None = None,
        *,
        temperature: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> EStep:
        """Sweeps over the nodes, from where the parameters' shares are; without any, from the best of some starts."""
        at = self.expected(params, rows)
        known = locals_ if locals_ else params
        if SHARE in known:
            share = known[SHARE].double().numpy().copy()
        else:
            share = cold_start(at, rows, generator)
        sweep(at, rows, share, SWEEPS, temperature)
        counts = rows.counts(share, at.nodes.weights)
        bound = bound_at(at, rows, share, counts, temperature)
        statistics = {name: torch.as_tensor(value) for name, value in counts._asdict().items()}
        found = {SHARE: torch.as_tensor(share).to(rows.like)}
        return EStep(statistics, found, torch.tensor([bound], dtype=torch.float64))

    def bound(self, params: Params, rows: SbmRows, share: Tensor) -> Tensor:
        """The bound at any shares (N, K), (1,)."""
        at, found = self.expected(params, rows), share.detach().double().numpy()
        counts = rows.counts(found, at.nodes.weights)
        return torch.tensor([bound_at(at, rows, found, counts)], dtype=torch.float64)

    def posterior(self, params: Params, rows: SbmRows, step: EStep) -> CodePosterior:
        """The K one-hot codes and the probability of each for every node."""
        share = step.locals[SHARE]
        return CodePosterior(torch.eye(share.shape[1]).to(share), torch.log(share.clamp(min=_tiny(share))))

    # ----- the M step -------------------------------------------------------------------------------------

    def m_step(self, model: Model, params: Params, step: EStep, rows: SbmRows) -> Params:
        """Proportions and block matrix; then propensities, and the other two again."""
        share = step.locals[SHARE]
        found = share.double().numpy()
        counts = Counts(*(step.statistics[name].numpy() for name in Counts._fields))
        best = self.best(model, params, counts)
        nodes = self.nodes.update(best, rows, self._meetings_of(found, rows, best))
        if nodes:
            best = self._rescaled(model, self._refitted(model, nodes, found, rows), found, rows)
        return self._cast(best, share, rows)

    def from_shares(self, model: Model, share: Tensor, rows: SbmRows) -> Params:
        """Parameters that suit a division of the nodes, (N, K)."""
        found = share.double().numpy()
        nodes = self.nodes.start(rows, found)
        params = self._refitted(model, nodes, found, rows)
        for _ in range(_FIRST if nodes else 0):
            nodes = self.nodes.update(params, rows, self._meetings_of(found, rows, params))
            params = self._rescaled(model, self._refitted(model, nodes, found, rows), found, rows)
        return self._cast(params, share, rows)

    def _meetings_of(self, share: Floats, rows: SbmRows, params: Params) -> Meetings:
        matrix = self.block_means(params)

        def partners(mean: Floats, outgoing: bool) -> Floats:
            return rows.partners(share, matrix, mean, outgoing=outgoing)

        return Meetings(partners, rows.loop_seen * (share @ matrix.diagonal()))

    def _refitted(self, model: Model, nodes: Params, share: Floats, rows: SbmRows) -> Params:
        return self.best(model, nodes, rows.counts(share, self.nodes.terms(nodes, rows).weights))

    def _rescaled(self, model: Model, params: Params, share: Floats, rows: SbmRows) -> Params:
        """The same in another scale of the propensities, where that is better."""
        once = torch.ones(self.family.shape) if rows.directed else torch.ones(self.family.shape).triu()
        prior = (once * self.power).numpy(), (once * self.family.prior()[1]).numpy()
        nodes = self.nodes.rescaled(params, rows, share, self.block_means(params), prior)
        if nodes is None:
            return params
        other = self._refitted(model, nodes, share, rows)
        values = [self.objective(model, p, self.bound(p, rows, torch.as_tensor(share))) for p in (params, other)]
        return other if values[1] > values[0] else params

    def _cast(self, params: Params, share: Tensor, rows: SbmRows) -> Params:
        return {name: value.to(rows.like) for name, value in {**params, SHARE: share}.items()}

    # ----- starts -----------------------------------------------------------------------------------------

    def initial(self, model: Model, rows: SbmRows, generator: torch.Generator) -> Params:
        """Every node in a random block."""
        blocks = self.family.shape[0]
        label = torch.randint(blocks, (len(rows),), generator=generator)
        return self.from_shares(model, torch.nn.functional.one_hot(label, blocks).double(), rows)


def _tiny(share: Tensor) -> float:
    return torch.finfo(share.dtype).tiny
