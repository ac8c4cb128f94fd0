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
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from custom_inference.core.capacity import memory_limit, require
from custom_inference.core.engine import EStep, InitialStep, Objective, Params, Warm
from custom_inference.core.posteriors import DirichletPosterior
from custom_inference.core.states import State, move_state
from custom_inference.families.memberships.common import ExpectedCounts, MmsbEngine, beta_prior, membership_prior
from custom_inference.families.memberships.dyads import Dyads, either_order, list_observed_dyads
from custom_inference.families.memberships.variational import MmsbDirichlet
from ppl_models import MMSB

#: Numbers in all tables up to which this is the default.
FEASIBLE_UP_TO = 2**21
#: Refreshes of all tables an E step.
_REFRESHES = 4


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

    def counts(self, table: Tensor, size: int) -> ExpectedCounts:
        """Compute the expected counts of tables (E, K, K)."""
        members = table.new_zeros(size, table.shape[1])
        members.index_add_(0, self.i, table.sum(2)).index_add_(0, self.j, table.sum(1))
        links, every = torch.einsum("e,eab->ab", self.x, table), table.sum(0)
        links, every = (either_order(one, self.directed) for one in (links, every))
        foreground = table.sum()
        away = len(self.i) - foreground
        split = torch.stack([away.clamp(min=0), foreground])
        return ExpectedCounts(members, links, (every - links).clamp(min=0), split)


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

    def e_step(
        self, model: MMSB, state: ExpectedCounts, rows: Dyads, warm: Warm = None, *,
        temperature: float = 1.0, generator: torch.Generator | None = None,
    ) -> EStep:  # fmt: skip
        listed, counts = _Listed.of(rows), move_state(state, rows.like)
        table = None if not warm else warm["table"].to(rows.like)
        bound = rows.like.new_zeros(1)
        for _ in range(_REFRESHES):
            table, bound = self._refresh_tables(model, rows, listed, counts, table, temperature)
            *sums, bound = rows.processes.total(*listed.counts(table, len(rows)).tensors().values(), bound)
            counts = ExpectedCounts(*sums)
        assert table is not None
        return EStep(counts.tensors(), {"table": table}, bound)

    def _refresh_tables(
        self,
        model: MMSB,
        rows: Dyads,
        listed: _Listed,
        counts: ExpectedCounts,
        table: Tensor | None,
        temperature: float,
    ) -> tuple[Tensor, Tensor]:
        """Update all tables at the counts of the others; return them and the sum of the log predictive probabilities
        (1,). Without tables the counts are taken as they are."""
        own = counts.links.new_zeros(1, 1, 1) if table is None else table
        x = listed.x
        senders, receivers = self._ends(model, rows, listed, counts, own)
        first, second = beta_prior(model, "edge_probability", rows.like)
        mine = either_order(own, listed.directed)
        linked = (first + counts.links - x[:, None, None] * mine).clamp(min=0)
        free = (second + counts.gaps - (1 - x)[:, None, None] * mine).clamp(min=0)
        chance = torch.where(x[:, None, None] > 0, linked, free) / (linked + free)
        far, near = self._background(model, rows, counts, own, table is None)
        weight = near[:, None, None] * senders[:, :, None] * receivers[:, None, :]
        weight = weight * (chance if temperature == 1 else chance**temperature)
        total = weight.sum((1, 2)) + (1 - x) * far
        return weight / total[:, None, None], total.log().sum().reshape(1)

    def _ends(
        self, model: MMSB, rows: Dyads, listed: _Listed, counts: ExpectedCounts, own: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Compute the predictive probabilities of the blocks of both ends (E, K). The ends of a self loop are left out
        together."""
        alpha, members = membership_prior(model, rows.like), counts.members
        loop = (listed.i == listed.j)[:, None]
        sent, received = own.sum(2), own.sum(1)
        either = torch.where(loop, sent + received, 0.0)
        found = []
        for end, one in ((listed.i, sent), (listed.j, received)):
            rest = (members[end] - torch.where(loop, either, one)).clamp(min=0) + alpha
            found.append(rest / rest.sum(-1, keepdim=True))
        return found[0], found[1]

    def _background(
        self, model: MMSB, rows: Dyads, counts: ExpectedCounts, own: Tensor, afresh: bool
    ) -> tuple[Tensor, Tensor]:
        """Compute P(z = 1) and P(z = 0) of every dyad."""
        if model.sparsity is not None:
            far = rows.like.new_tensor([float(model.sparsity)])
            return far, 1 - far
        prior = torch.stack([*beta_prior(model, "sparsity", rows.like)])
        near = own.sum((1, 2)) if not afresh else rows.like.new_zeros(1)
        left = counts.background[:, None] - (torch.stack([1 - near, near]) if not afresh else 0.0)
        weight = left.clamp(min=0) + prior[:, None]
        return weight[0] / weight.sum(0), weight[1] / weight.sum(0)

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
