"""Stochastic variational Bayes of the mixed-membership block model: steps on some nodes' dyads, for large graphs.

For every node of a sample S all edges are taken, and of its other dyads n0 at random: edges are few, and say most
(stratified, in the manner of Gopalan & Blei, PNAS 110, 2013). The zeros' draws are uniform over the M = N - 1 dyads
that the node could have (in each direction), those that turn out to be edges or hidden counting nothing, so that

    members_i  ~  sum over i's edges of q(i takes a)  +  (M / n0) sum over the draws that are zeros of q(i takes a)

has the right expectation for every i in S, and, each dyad having two ends, N / (2 |S|) times the sum of the tables over
all that was taken has the expectation of the sum over all dyads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from custom_inference.core.ended import Ended
from custom_inference.core.engine import EStep
from custom_inference.core.fit import Fit
from custom_inference.core.method import Call, Method
from custom_inference.core.progress import Progress
from custom_inference.core.registry import engines_of
from custom_inference.core.settings import require_whole
from custom_inference.em.guides import VariationalBayes
from custom_inference.em.loop import run_em
from custom_inference.em.method import VariationalEM
from custom_inference.em.steps import EMStep
from custom_inference.em.stepwise import Rates
from custom_inference.families.memberships.common import MembershipFactors, MembershipPosteriors, exp_with_floor
from custom_inference.families.memberships.dyads import Dyads, either_order
from custom_inference.families.memberships.initialisation import MembershipProposals
from custom_inference.families.memberships.variational import MmsbVB
from ppl_models import MMSB, Data, MethodError


@dataclass(frozen=True, kw_only=True)
class StochasticMMSB(Method):
    """Natural gradient steps on the bound of ``guide="vb"`` (Hoffman et al., JMLR 14, 2013; Gopalan & Blei, 2013).

    Each step takes ``batch_size`` nodes, all their edges and ``zeros`` of their other dyads in each direction (None:
    all), and moves those nodes' gamma and the posteriors of eta and rho by rho_t of the way to where the estimates
    would have them: unbiased natural gradients. A step costs batch_size (degree + zeros) K^2 at most.

    steps: how many. delay, forgetting: rho_t = (t + delay)^-forgetting; for a node t counts the steps it was in. Starts
    are found as for ``VariationalEM``, the first proposal being taken. The bound is taken at the end, of all dyads.
    """

    batch_size: int = 100
    zeros: int | None = 50
    steps: int = 200
    delay: float = 1.0
    forgetting: float = 0.6

    def __post_init__(self) -> None:
        for name in ("batch_size", "steps", *(["zeros"] if self.zeros is not None else [])):
            require_whole(name, getattr(self, name))
        Rates(delay=self.delay, forgetting=self.forgetting)  # refuses what is out of range

    @property
    def name(self) -> str:
        return "StochasticMMSB"

    def check(self, model: MMSB) -> None:
        """Raises MethodError for another model than MMSB, and for self loops, whose dyads have one end."""
        if engines_of(model).get("vb") is not MmsbVB or model.self_loops:
            raise MethodError("StochasticMMSB is for MMSB without self loops; use VariationalEM")

    def _fit(self, model: MMSB, data: Data, call: Call) -> Fit:
        """Fit by stochastic steps; with ``init`` from the memberships found at those globals. Ctrl-C ends the steps."""
        method = VariationalEM(guide=VariationalBayes())
        engine = MmsbVB()
        rows = engine.rows(model, data)
        engine.check(model, rows)
        generator = torch.Generator().manual_seed(call.seed)
        with Progress(None, self.name, enabled=call.progress) as bar, torch.no_grad():
            start, done, stopped = call.start(model), 0, False
            if start is not None:
                state: Any = EMStep(engine, model, rows).from_point(start)
            else:
                state = MembershipProposals(engine).propose(model, rows, generator, 0)
            try:
                for reached in self.walk(engine, model, rows, state, generator):
                    state, done = reached, done + 1
                    bar.advance(float(done))
            except KeyboardInterrupt:
                if not done:
                    raise
                stopped = True
            run = run_em(engine, model, rows, state, max_iterations=2, tolerance=1e-9, generator=generator)
        stopped = stopped or run.interrupted
        run.ended = Ended.INTERRUPTED if stopped else Ended.COMPLETE
        made = f"interrupted after {done} of {self.steps} steps" if stopped else f"made {self.steps} steps"
        run.outcome = f"{made} of {min(self.batch_size, len(rows))} nodes each"
        return replace(method._result(model, data, engine, rows, run, call.seed), method=self, method_name=self.name)

    def walk(
        self, engine: MmsbVB, model: MMSB, rows: Dyads, state: MembershipPosteriors, generator: torch.Generator
    ) -> Iterator[MembershipPosteriors]:
        """Yield the state after each of the steps, from a given one."""
        sides, size = sides_of(rows), len(rows)
        visits = torch.zeros(size, dtype=rows.like.dtype, device=rows.like.device)
        rates = Rates(delay=self.delay, forgetting=self.forgetting)
        for t in range(self.steps):
            nodes = torch.randperm(size, generator=generator)[: self.batch_size].to(rows.like.device)
            state = self.step(engine, model, rows, state, nodes, sides, visits, rates.at(t), generator)
            yield state

    def step(
        self, engine: MmsbVB, model: MMSB, rows: Dyads, state: MembershipPosteriors, nodes: Tensor, sides: list[Ends],
        visits: Tensor, rate: float, generator: torch.Generator,
    ) -> MembershipPosteriors:  # fmt: skip
        """Take one step on ``nodes``, whose ``visits`` it counts."""
        found = estimate_statistics(rows, sides, engine.factors(model, state), nodes, self.zeros, generator)
        members = torch.zeros_like(state.concentration)
        members[nodes] = found["members"]
        step = EStep({**found, "members": members}, {}, rows.like.reshape(1))
        aim = engine.m_step(model, state, step, rows).tensors()
        own = (visits[nodes] + self.delay).pow(-self.forgetting).clamp(max=1.0)[:, None]
        visits[nodes] += 1
        moved = {name: value + rate * (aim[name] - value) for name, value in state.tensors().items()}
        gamma = state.concentration.clone()
        gamma[nodes] += own * (aim["concentration"][nodes] - gamma[nodes])
        return MembershipPosteriors.of({**moved, "concentration": gamma})


@dataclass(frozen=True)
class Ends:
    """The edges of all nodes: those of node i are ``index[start[i] : start[i + 1]]``; taken: sorted numbers i N + j of
    what is no zero, -1 first."""

    start: Tensor
    index: Tensor
    taken: Tensor

    def neighbours(self, nodes: Tensor) -> tuple[Tensor, Tensor]:
        """Return (place in ``nodes``, neighbour) of all their edges."""
        first, count = self.start[nodes], self.start[nodes + 1] - self.start[nodes]
        place = torch.repeat_interleave(torch.arange(len(nodes), device=nodes.device), count)
        within = torch.arange(len(place), device=nodes.device) - (count.cumsum(0) - count)[place]
        return place, self.index[first[place] + within]

    def is_zero(self, node: Tensor, other: Tensor, size: int) -> Tensor:
        """Tell whether the dyads were observed without an edge."""
        number = node * size + other
        at = torch.searchsorted(self.taken, number).clamp(max=len(self.taken) - 1)
        return self.taken[at] != number


def sides_of(dyads: Dyads) -> list[Ends]:
    """Return the lists of receivers and, in directed graphs, of senders."""
    graph, size, found = dyads.graph, len(dyads), []
    for edges, hidden in ((graph.outgoing, graph.hidden_out), (graph.incoming, graph.hidden_in))[: 1 + graph.directed]:
        every = [np.repeat(np.arange(size), np.diff(one.start)) * size + one.index for one in (edges, hidden)]
        parts = edges.start, edges.index, np.sort(np.concatenate([[-1], *every]))
        found.append(Ends(*(torch.as_tensor(part, device=dyads.like.device) for part in parts)))
    return found


def estimate_statistics(
    dyads: Dyads,
    sides: list[Ends],
    factors: MembershipFactors,
    nodes: Tensor,
    zeros: int | None,
    generator: torch.Generator,
) -> dict[str, Tensor]:
    """Estimate members (|S|, K), links, gaps (K, K) and background (2,); without ``zeros`` all of a node's count."""
    size, blocks = factors.share.shape
    share = exp_with_floor(factors.share)
    near, far = factors.foreground.exp(), factors.background.exp()
    members = share.new_zeros(len(nodes), blocks)
    found = {"links": share.new_zeros(blocks, blocks), "gaps": share.new_zeros(blocks, blocks)}
    split = share.new_zeros(2)
    half = size / (2 * len(nodes))
    for received, side in enumerate(sides):
        place, other = side.neighbours(nodes)
        table, every = near * exp_with_floor(factors.link), share.new_ones(len(place))
        edges = ("links", table, far.new_zeros(()), place, other, every)
        place, other = _others(nodes, size, zeros, generator)
        weight = side.is_zero(nodes[place], other, size).to(share)
        if zeros is not None:
            weight = weight * ((size - 1) / zeros)
        gaps = ("gaps", near * exp_with_floor(factors.gap), far, place, other, weight)
        for name, table, rest, at, j, w in (edges, gaps):
            table = table.mT if received else table
            mine, theirs = share[nodes[at]], share[j]
            passed = theirs @ table.mT
            z = (mine * passed).sum(-1) + rest
            ratio = (w / z)[:, None]
            members.index_add_(0, at, ratio * mine * passed)
            cells = table * (mine.mT @ (ratio * theirs))
            found[name] = found[name] + half * (cells.mT if received else cells)
            away = half * (w * rest / z).sum()
            split = split + torch.stack([away, half * w.sum() - away])
    found = {name: either_order(one, dyads.directed) for name, one in found.items()}
    return {"members": members, **found, "background": split}


def _others(nodes: Tensor, size: int, zeros: int | None, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return (place, other node): all others of each node, or so many at random."""
    many = size - 1 if zeros is None else zeros
    place = torch.arange(len(nodes), device=nodes.device).repeat_interleave(many)
    if zeros is None:
        other = torch.arange(size - 1, device=nodes.device).repeat(len(nodes))
    else:
        other = torch.randint(size - 1, (len(place),), generator=generator).to(nodes.device)
    return place, other + (other >= nodes[place])
