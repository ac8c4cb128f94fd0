"""Stochastic variational Bayes of the mixed-membership block model: steps on some nodes' dyads, for large graphs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from custom_inference.core.engine import EStep
from custom_inference.core.fit import Fit
from custom_inference.core.method import Call, Method
from custom_inference.core.progress import Progress
from custom_inference.em.driver import Driver
from custom_inference.em.guides import VariationalBayes
from custom_inference.em.loop import run_em
from custom_inference.em.method import VariationalEM
from custom_inference.em.stepwise import Rates
from custom_inference.families.memberships.dyads import Dyads
from custom_inference.families.memberships.propose import MembershipProposals
from custom_inference.families.memberships.sampled import sampled_statistics, sides_of
from custom_inference.families.memberships.states import MembershipPosteriors
from custom_inference.families.memberships.vb import MmsbVB
from ppl_models import MMSB, Data, MethodError, Model


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
        if self.batch_size < 1 or self.steps < 1 or (self.zeros is not None and self.zeros < 1):
            raise MethodError("batch_size, steps and zeros must be at least 1")
        Rates(delay=self.delay, forgetting=self.forgetting)  # refuses what is out of range

    @property
    def name(self) -> str:
        return "StochasticMMSB"

    def check(self, model: Model) -> None:
        """Raises MethodError for another model than MMSB, and for self loops, whose dyads have one end."""
        if not isinstance(model, MMSB) or model.self_loops:
            raise MethodError("StochasticMMSB is for MMSB without self loops; use VariationalEM")

    def _fit(self, model: Model, data: Data, call: Call) -> Fit:
        """With ``init`` it starts at the memberships found at those globals. Ctrl-C ends the steps."""
        method = VariationalEM(guide=VariationalBayes())
        engine = MmsbVB()
        rows = engine.rows(model, data)
        engine.check(model, rows)
        generator = torch.Generator().manual_seed(call.seed)
        with Progress(None, self.name, enabled=call.progress) as bar, torch.no_grad():
            start = call.start(model)
            if start is not None:
                state: Any = Driver(engine, model, rows).from_point(start)
            else:
                state = MembershipProposals(engine).propose(model, rows, generator, 0)
            outcome, done = f"made {self.steps} steps", 0
            try:
                for reached in self.walk(engine, model, rows, state, generator, bar):
                    state, done = reached, done + 1
            except KeyboardInterrupt:
                if not done:
                    raise
                outcome = f"interrupted after {done} of {self.steps} steps"
            run = run_em(engine, model, rows, state, max_iterations=2, tolerance=1e-9, generator=generator)
        if run.interrupted:
            outcome = f"interrupted after {done} of {self.steps} steps"
        run.outcome = f"{outcome} of {min(self.batch_size, len(rows))} nodes each"
        fit = method._result(model, data, engine, rows, run, call.seed)
        return replace(fit, method=self.name)

    def walk(
        self, engine: MmsbVB, model: Model, rows: Dyads, state: MembershipPosteriors, generator: torch.Generator,
        bar: Progress | None,
    ) -> Iterator[MembershipPosteriors]:  # fmt: skip
        """The state after each of the steps, from a given one."""
        sides, size = sides_of(rows), len(rows)
        visits = torch.zeros(size, dtype=rows.like.dtype, device=rows.like.device)
        rates = Rates(delay=self.delay, forgetting=self.forgetting)
        for t in range(self.steps):
            nodes = torch.randperm(size, generator=generator)[: self.batch_size].to(rows.like.device)
            state = self.step(engine, model, rows, state, nodes, sides, visits, rates.at(t), generator)
            if bar is not None:
                bar.advance(float(t + 1))
            yield state

    def step(
        self, engine: MmsbVB, model: Model, rows: Dyads, state: MembershipPosteriors, nodes: Tensor, sides: Any,
        visits: Tensor, rate: float, generator: torch.Generator,
    ) -> MembershipPosteriors:  # fmt: skip
        """One step on ``nodes``, whose ``visits`` it counts."""
        found = sampled_statistics(rows, sides, engine.factors(model, state), nodes, self.zeros, generator)
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
