"""Stochastic variational Bayes of the mixed-membership block model: steps on some nodes' dyads, for large graphs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from custom_inference._isolation import keeps_modes
from custom_inference._loop import run_em
from custom_inference._progress import Progress
from custom_inference._stepwise import Rates
from custom_inference.engines import steps_for
from custom_inference.fit import Fit, check_init
from custom_inference.guides import VariationalBayes
from custom_inference.steps._mmsb_dyads import Dyads
from custom_inference.steps._mmsb_sampled import sampled_statistics, sides_of
from custom_inference.steps._protocol import EStep, Params
from custom_inference.vem import VariationalEM
from ppl_models import MMSB, MethodError, Model


@dataclass(frozen=True, kw_only=True)
class StochasticMMSB:
    """Natural gradient steps on the bound of ``guide="vb"`` (Hoffman et al., JMLR 14, 2013; Gopalan & Blei, 2013).

    Each step takes ``batch_size`` nodes, all their edges and ``zeros`` of their other dyads in each direction (None:
    all), and moves those nodes' gamma and the posteriors of eta and rho a share rho_t of the way to where the estimates
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

    @keeps_modes
    def fit(
        self,
        model: Model,
        data: Any,
        *,
        mask: Any = None,
        seed: int = 0,
        device: Any = None,
        dtype: torch.dtype = torch.float64,
        init: Fit | Mapping[str, Tensor] | None = None,
        progress: bool = True,
    ) -> Fit:
        """Fit the model; with ``init`` it starts at the memberships found at those globals. Ctrl-C ends the steps.

        Raises
        ------
        MethodError: another model than MMSB; self loops, whose dyads have one end.
        """
        if not isinstance(model, MMSB) or model.self_loops:
            raise MethodError("StochasticMMSB is for MMSB without self loops; use VariationalEM")
        checked = model.prepare(data, mask=mask, dtype=dtype, device=device)
        model.check_for_fitting(checked)
        method = VariationalEM(guide=VariationalBayes())
        steps: Any = steps_for(model, "vb")
        rows = steps.rows(checked)
        steps.check(model, rows)
        begin, generator = time.perf_counter(), torch.Generator().manual_seed(seed)
        with Progress(None, self.name, enabled=progress) as bar, torch.no_grad():
            start = check_init(model, init)
            if start is not None:
                params = steps.starting(model, {site: value.to(rows.like) for site, value in start.items()}, rows)
            else:
                params = steps.propose(model, rows, generator, 0)
            outcome, done = f"made {self.steps} steps", 0
            try:
                for reached in self.walk(steps, model, rows, params, generator, bar):
                    params, done = reached, done + 1
            except KeyboardInterrupt:
                if not done:
                    raise
                outcome = f"interrupted after {done} of {self.steps} steps"
            run = run_em(steps, model, rows, params, max_iterations=2, tolerance=1e-9, generator=generator)
        run.outcome = f"{outcome} of {min(self.batch_size, len(rows))} nodes each"
        run.details["seconds"] = round(time.perf_counter() - begin, 3)
        fit = method._result(model, checked, steps, rows, run, seed)
        return replace(fit, method=self.name)

    def climb(
        self, steps: Any, model: Model, rows: Dyads, params: Params, generator: torch.Generator, bar: Progress | None
    ) -> Params:
        """Where all the steps lead to, from given parameters."""
        for reached in self.walk(steps, model, rows, params, generator, bar):
            params = reached
        return params

    def walk(
        self, steps: Any, model: Model, rows: Dyads, params: Params, generator: torch.Generator, bar: Progress | None
    ) -> Iterator[Params]:
        """The parameters after each of the steps, from given ones."""
        sides, size = sides_of(rows), len(rows)
        visits = torch.zeros(size, dtype=rows.like.dtype, device=rows.like.device)
        rates = Rates(delay=self.delay, forgetting=self.forgetting)
        for t in range(self.steps):
            nodes = torch.randperm(size, generator=generator)[: self.batch_size].to(rows.like.device)
            params = self.step(steps, model, rows, params, nodes, sides, visits, rates.at(t), generator)
            if bar is not None:
                bar.advance(float(t + 1))
            yield params

    def step(
        self, steps: Any, model: Model, rows: Dyads, params: Params, nodes: Tensor, sides: Any, visits: Tensor,
        rate: float, generator: torch.Generator,
    ) -> Params:  # fmt: skip
        """One step on ``nodes``, whose ``visits`` it counts."""
        found = sampled_statistics(rows, sides, steps.factors(params), nodes, self.zeros, generator)
        members = torch.zeros_like(params["concentration"])
        members[nodes] = found["members"]
        aim = steps.m_step(model, params, EStep({**found, "members": members}, {}, rows.like.reshape(1)), rows)
        own = (visits[nodes] + self.delay).pow(-self.forgetting).clamp(max=1.0)[:, None]
        visits[nodes] += 1
        moved = {name: value + rate * (aim[name] - value) for name, value in params.items() if name != "concentration"}
        gamma = params["concentration"].clone()
        gamma[nodes] += own * (aim["concentration"][nodes] - gamma[nodes])
        return {**moved, "concentration": gamma}
