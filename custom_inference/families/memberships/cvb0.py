"""The mixed-membership block model by collapsed variational Bayes to zeroth order (CVB0): small graphs.

As for LDA (Asuncion, Welling, Smyth & Teh, UAI 2009): memberships, eta and rho are integrated out, every observed dyad
has a table t_ij(a, b) of the blocks of its ends, and each is the collapsed Gibbs conditional at the expected counts of
all OTHER dyads, which a superscript - marks. With n_ia the times that node i takes block a, l_ab and m_ab the edges and
zeros with blocks (a, b) (in either order if undirected), and z that the zero is of the background (Murphy 2012, eq.
27.79):

    t_ij(a, b) ~ P(z = 0) (n_ia^- + alpha_a) / (n_i^- + sum alpha) (n_jb^- + alpha_b) / (n_j^- + sum alpha)
                 (l_ab^- + a_ab)^x (m_ab^- + b_ab)^(1 - x) / (l_ab^- + m_ab^- + a_ab + b_ab),
    t_ij(z = 1) ~ P(z = 1) (1 - x),

where P(z = 1) = rho, or (c + background^-) / (c + d + all dyads but one). All tables are refreshed at once. What the
right hand side sums to is the predictive probability of the dyad given all others at their expected counts; the sum of
its logarithms, the objective, is no bound on log p(x).

Variational Bayes is too sure of memberships: a Dirichlet whose counts are taken as known leaves a node in the corner of
the simplex that its first dyads push it to. On Sampson's 18 monks the two disagree about the most mixed of them, and
the posterior (collapsed Gibbs sampling) sides with this one. It keeps a table for every dyad: N^2 K^2 numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from custom_inference.core.capacity import memory_limit, require
from custom_inference.core.engine import EStep, InitialStep, Objective, Params, Warm
from custom_inference.core.posteriors import DirichletPosterior
from custom_inference.core.states import State, move_state
from custom_inference.core.threads import count_shards, cut_evenly, map_in_threads
from custom_inference.families.memberships.common import ExpectedCounts, MmsbEngine, beta_prior, membership_prior
from custom_inference.families.memberships.dyads import Dyads, either_order, list_observed_dyads
from custom_inference.families.memberships.variational import MmsbDirichlet
from ppl_models import MMSB, Data

#: Numbers in all tables up to which this is the default.
FEASIBLE_UP_TO = 2**21
#: Refreshes of all tables an E step.
_REFRESHES = 4
#: Numbers in the tables of a part, at least.
_SHARD_NUMBERS = 5e4


class _Listed(NamedTuple):
    """Every observed dyad, or this process's part of them: ends i, j and values x (E,)."""

    i: Tensor
    j: Tensor
    x: Tensor
    directed: bool

    @classmethod
    def of(cls, dyads: Dyads) -> _Listed:
        i, j, x = (torch.as_tensor(part, device=dyads.like.device) for part in list_observed_dyads(dyads.graph))
        i, j, x = (dyads.processes.shard(part) for part in (i, j, x.to(dyads.like)))
        return cls(i, j, x, dyads.directed)


@dataclass(frozen=True, kw_only=True)
class MmsbCvb0(MmsbEngine):
    """The state is :class:`ExpectedCounts`. Locals: "table" (E, K, K), whose counts they are.

    max_bytes: memory allowed for the tables, by default half of what is free.
    """

    integrates_globals = True

    max_bytes: float | None = None

    name: ClassVar[str] = "cvb0"
    objective: ClassVar[Objective] = "estimate"
    state: ClassVar[type[State]] = ExpectedCounts

    def local(self) -> MmsbDirichlet:
        """Return the engine at given globals: the variational Dirichlet posteriors of the memberships."""
        return MmsbDirichlet(zeros=self.zeros)

    def check(self, model: MMSB, rows: Dyads) -> None:
        """Raises CapacityError where the tables of all dyads do not fit."""
        super().check(model, rows)
        needed = 6.0 * rows.like.element_size() * table_size(model, len(rows))
        fits = 'use guide="vb", which keeps no tables'
        require(f"a table for each dyad of {len(rows)} nodes", needed, allowed=memory_limit(self.max_bytes), fits=fits)

    def rows(self, model: MMSB, data: Data) -> Dyads:
        """Read the graph onto the CPU, wherever it is: the refreshes are compiled."""
        return super().rows(model, data.to(device="cpu"))

    def e_step(
        self, model: MMSB, state: ExpectedCounts, rows: Dyads, warm: Warm = None, *,
        temperature: float = 1.0, generator: torch.Generator | None = None,
    ) -> EStep:  # fmt: skip
        listed, counts = _Listed.of(rows), move_state(state, rows.like)
        size, blocks = len(listed.i), model.num_blocks
        # A copy: what was found before stays as it is.
        table = warm["table"].double().clone() if warm else torch.zeros(size, blocks, blocks, dtype=torch.float64)
        bound = rows.like.new_zeros(1)
        for refresh in range(_REFRESHES):
            afresh = not warm and refresh == 0
            found, bound = self._refresh_tables(model, rows, listed, counts, table, temperature, afresh)
            *sums, bound = rows.processes.total(*found.tensors().values(), bound)
            counts = ExpectedCounts(*sums)
        return EStep(counts.tensors(), {"table": table.to(rows.like)}, bound)

    def _refresh_tables(
        self, model: MMSB, rows: Dyads, listed: _Listed, counts: ExpectedCounts, table: Tensor, temperature: float,
        afresh: bool,
    ) -> tuple[ExpectedCounts, Tensor]:  # fmt: skip
        """Update all tables (E, K, K), in place, at the counts of the others; return their counts and the sum of the
        log predictive probabilities (1,). afresh: the counts have nothing of the tables."""
        from custom_inference.families.memberships.kernels import Counts, Totals, refresh_tables

        like, blocks = torch.zeros((), dtype=torch.float64), model.num_blocks
        priors = beta_prior(model, "edge_probability", like)
        known = -1.0 if model.sparsity is None else float(model.sparsity)
        rho = torch.zeros(2) if model.sparsity is not None else torch.stack([*beta_prior(model, "sparsity", like)])
        parts = (*counts.tensors().values(), membership_prior(model, like), *priors, rho)
        arrays: Any = [np.ascontiguousarray(part.double().numpy()) for part in parts]
        at = Counts(*arrays, known=known)
        shapes = (len(rows), blocks), (blocks, blocks), (blocks, blocks), (2,)

        def refresh_part(ends: tuple[int, int]) -> Totals:
            found, own = Totals(*map(np.zeros, shapes)), slice(*ends)
            given: Any = (listed.i.numpy()[own], listed.j.numpy()[own], listed.x.double().numpy()[own])
            settings = listed.directed, afresh, temperature
            refresh_tables(*given, table.numpy()[own], at, found, np.empty((4, blocks)), *settings)
            return found

        size = len(listed.i)
        shards = count_shards(size * blocks**2, len(rows) * blocks, _SHARD_NUMBERS)
        found = map_in_threads(refresh_part, cut_evenly(np.arange(size + 1), shards))
        summed = (torch.as_tensor(np.sum(part, axis=0)) for part in zip(*found, strict=True))
        members, links, every, (log, foreground) = summed
        links, every = (either_order(one, listed.directed) for one in (links, every))
        split = torch.stack([(size - foreground).clamp(min=0), foreground])
        collected = ExpectedCounts(members, links, (every - links).clamp(min=0), split)
        return move_state(collected, rows.like), log.reshape(1).to(rows.like)

    def m_step(self, model: MMSB, state: ExpectedCounts, step: EStep, rows: Dyads) -> ExpectedCounts:
        return ExpectedCounts.of(step.statistics)

    def prior_term(self, model: MMSB, state: ExpectedCounts) -> float:
        return 0.0

    def posterior(self, model: MMSB, state: ExpectedCounts, rows: Dyads, step: EStep) -> DirichletPosterior:
        """Return the posteriors Dirichlet(alpha + n_i)."""
        return DirichletPosterior(membership_prior(model, rows.like) + step.statistics["members"])

    def from_membership(self, model: MMSB, rows: Dyads, membership: Tensor) -> ExpectedCounts:
        return _in_foreground(self.counts_of(rows, membership), rows)

    def from_point(self, model: MMSB, params: Params, rows: Dyads, e_step: InitialStep) -> ExpectedCounts:
        return _in_foreground(ExpectedCounts.of(e_step().statistics), rows)


def _in_foreground(counts: ExpectedCounts, rows: Dyads) -> ExpectedCounts:
    return replace(counts, background=rows.like.new_tensor([0.0, float(rows.num_edges + rows.num_zeros)]))


def table_size(model: MMSB, num_nodes: int) -> float:
    """Return how many numbers the tables of graphs of so many nodes hold, E K^2."""
    return float(model.num_dyads(num_nodes)) * model.num_blocks**2
