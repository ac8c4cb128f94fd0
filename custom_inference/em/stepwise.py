"""Stepwise (online) EM: minibatches, with running averages of the expected statistics (Cappe & Moulines 2009).

For LDA under variational Bayes it is online VB (Murphy 2012, algorithm 27.2; Hoffman, Blei & Bach, NIPS 2010): its b~
is the prior plus the statistics, so that averages of the statistics are averages of b~.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from custom_inference.core.ended import Ended
from custom_inference.core.engine import Engine, EStep
from custom_inference.core.progress import Progress
from custom_inference.core.settings import require_between, require_positive
from custom_inference.em.loop import Run, Watcher, run_em
from custom_inference.em.steps import Position
from custom_inference.em.streaming import StreamedRows, minibatches
from ppl_models import MethodError, Model

#: One pass: the minibatches, as the engine reads rows.
Pass = Callable[[], Iterator[Any]]


def require_additive(engine: Engine) -> None:
    """Raise MethodError for engines whose statistics do not determine the M step."""
    if not engine.additive:
        raise MethodError(f"the {engine.name} M step needs every row at once; use batch_size=None")


def require_blocks(engine: Engine) -> None:
    """Raise MethodError for engines that cannot take rows block by block."""
    if not (engine.additive or engine.reads_rows):
        raise MethodError(f"the {engine.name} M step needs every row at once, in memory")


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Step sizes rho_t = (t + delay)^-forgetting, at most 1, at minibatch t = 0, 1, ... (tau_0 and kappa in 27.2)."""

    delay: float = 2.0
    forgetting: float = 0.6

    def __post_init__(self) -> None:
        require_positive("delay", self.delay)
        require_between("forgetting", self.forgetting, "[0, 1]", why="; above 0.5 the averages converge")

    def at(self, count: int) -> float:
        return min(1.0, (count + self.delay) ** -self.forgetting)


@dataclass
class Stepwise:
    """Passes over minibatches: s <- (1 - rho_t) s + rho_t (N / B) s_batch.

    num_rows: N. statistics: the initial s, of N rows; without it the first minibatch gives it, as with rho = 1.
    Afterwards ``state`` is the latest, ``trace`` the objectives of the passes by the sum of their minibatch
    bounds, ``seen`` the number of rows seen after each minibatch, and ``bounds`` each minibatch's mean bound a row
    before it was learned from.
    """

    engine: Engine
    model: Model
    num_rows: int
    state: Any
    rates: Rates
    generator: torch.Generator
    statistics: dict[str, Tensor] = field(default_factory=dict)
    progress: Progress | None = None
    trace: list[float] = field(default_factory=list)
    seen: list[int] = field(default_factory=list)
    bounds: list[float] = field(default_factory=list)
    interrupted: bool = False
    ended: Ended = Ended.COMPLETE

    @property
    def position(self) -> Position:
        """The position of the passes: ``start`` holds state and statistics, ``acceleration`` what has been seen."""
        learned = {"seen": torch.tensor(self.seen), "bounds": torch.tensor(self.bounds, dtype=torch.float64)}
        return Position((self.state, self.statistics), trace=list(self.trace), acceleration=learned)

    def climb(self, one_pass: Pass, *, max_iterations: int, tolerance: float, watcher: Watcher | None = None) -> None:
        """Make passes until one gains less than ``tolerance`` per row, at most ``max_iterations``; Ctrl-C ends them."""
        try:
            while len(self.trace) < max_iterations:
                total = torch.stack([self._learn(batch) for batch in one_pass()])
                self.trace.append(self.engine.objective_at(self.model, self.state, total))
                if self.progress is not None:
                    self.progress.advance(self.trace[-1] / self.num_rows)
                if len(self.trace) > 1 and abs(self.trace[-1] - self.trace[-2]) <= tolerance * self.num_rows:
                    self.ended = Ended.CONVERGED
                    break
                if watcher is not None:
                    watcher(self.position)
        except KeyboardInterrupt:
            self.interrupted = True

    def _learn(self, batch: Any) -> Tensor:
        """Learn from one minibatch; return the sum of its bounds before that, in double precision."""
        step = self.engine.e_step(self.model, self.state, batch, generator=self.generator)
        rate = self.rates.at(len(self.seen)) if self.statistics else 1.0
        scaled = {k: v * (self.num_rows / len(batch)) for k, v in step.statistics.items()}
        self.statistics = {k: (1 - rate) * self.statistics.get(k, v) + rate * v for k, v in scaled.items()}
        self.state = self.engine.m_step(self.model, self.state, EStep(self.statistics, {}, step.bound), batch)
        total = step.bound.double().sum()
        self.seen.append(len(batch) + (self.seen[-1] if self.seen else 0))
        self.bounds.append(float(total) / len(batch))
        return total


def run_stepwise(
    engine: Engine,
    model: Model,
    rows: Any,
    start: Any,
    *,
    batch_size: int,
    max_iterations: int,
    tolerance: float,
    generator: torch.Generator,
    progress: Progress | None = None,
    rates: Rates | None = None,
    shuffle: bool = True,
    watcher: Watcher | None = None,
) -> Run:
    """Run stepwise EM on minibatches, from a state or from the position of an earlier run; see :class:`Stepwise`.

    rows: in memory, or read block by block; shuffled as far as the source can be. At the end bound, locals and a state
    that belong together are found by two full iterations, or on the first block.
    """
    require_additive(engine)
    at, order = Position.at(start), generator if shuffle else None
    state, statistics = at.start
    learned: Any = {name: value.tolist() for name, value in at.acceleration.items()}
    online = Stepwise(
        engine, model, len(rows), state, rates or Rates(), generator, dict(statistics or {}), progress,
        trace=list(at.trace), **learned,
    )  # fmt: skip

    one_pass = functools.partial(minibatches, rows, batch_size, order)
    online.climb(one_pass, max_iterations=max_iterations, tolerance=tolerance, watcher=watcher)
    if isinstance(rows, StreamedRows):
        run = _close_on_blocks(online, rows, batch_size)
    else:
        run = _close(online, rows, batch_size, tolerance)
    run.details |= {"rows_seen": online.seen, "minibatch_bounds": online.bounds}
    return run


def _close(online: Stepwise, rows: Any, batch_size: int, tolerance: float) -> Run:
    """Finish with two full iterations."""
    passes, settings = len(online.trace), {"tolerance": tolerance, "generator": online.generator}
    try:
        run = run_em(online.engine, online.model, rows, online.state, max_iterations=2, **settings)
    except KeyboardInterrupt:  # in its first E step: the passes are not to be lost for it
        if not passes:
            raise
        run = run_em(online.engine, online.model, rows, online.state, max_iterations=1, **settings)
        run.ended = Ended.INTERRUPTED
    interrupted = run.interrupted or online.interrupted
    run.ended = Ended.INTERRUPTED if interrupted else online.ended
    run.outcome = f"stepwise EM made {passes} passes of minibatches of {batch_size}"
    if interrupted:
        run.outcome = f"interrupted after {passes} passes of minibatches; this is the state at that point"
    run.trace = online.trace + run.trace
    return run


def _close_on_blocks(online: Stepwise, rows: StreamedRows, batch_size: int) -> Run:
    """Finish with the objective at the final state, which takes one more pass, and an E step of the first block."""
    engine, model, state, generator = online.engine, online.model, online.state, online.generator
    trace, interrupted = list(online.trace), online.interrupted
    try:
        if not interrupted:
            batches = minibatches(rows, batch_size)
            each = [engine.e_step(model, state, one, generator=generator).bound.double().sum() for one in batches]
            trace.append(engine.objective_at(model, state, torch.stack(each)))
    except KeyboardInterrupt:
        interrupted = True
    step, passes = engine.e_step(model, state, rows.first_rows, generator=generator), len(online.trace)
    outcome = f"streamed {passes} passes of {len(rows)} rows in minibatches of {batch_size}"
    if interrupted:
        outcome = f"interrupted after {passes} passes of {len(rows)} rows; this is the state at that point"
    ended = Ended.INTERRUPTED if interrupted else online.ended
    return Run(state, step, trace, outcome, ended, details={"rows": len(rows)})
