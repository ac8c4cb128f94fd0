"""One run of EM, whatever the model: E step, bound, convergence, M step, and interrupts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from custom_inference.core import capabilities
from custom_inference.core.engine import Engine, EStep, Params, Warm
from custom_inference.core.process_group import ALONE, Pool
from custom_inference.core.progress import Progress
from custom_inference.em.accelerate import Accelerator, accelerator
from custom_inference.em.streaming import StreamedRows
from custom_inference.em.weights import WeightedRows
from ppl_models import Model

#: The likelihood's exponent in an iteration.
Schedule = Callable[[int], float]
#: How often an M step that lowers the objective is taken again, shorter each time, before the run stays where it is.
_SHORTER = 12
#: How the outcome of a run begins that converged, and of one that did not.
CONVERGED, AT_LIMIT = "converged", "stopped at the limit"


def divides_rows(engine: Engine) -> bool:
    """Whether several processes divide the rows between them."""
    return not isinstance(engine, capabilities.OneProcess | capabilities.SharedWork)


@dataclass
class Run:
    """The outcome of a run: the engine's state, the E step taken at it, and the objective of every iteration.

    evaluations: E steps taken, which are more than iterations where extrapolations had to be taken back.
    details: what else the run has to report (JSON-able).
    """

    state: Any
    step: EStep
    trace: list[float] = field(default_factory=list)
    outcome: str = ""
    interrupted: bool = False
    evaluations: int = 0
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def objective(self) -> float:
        return self.trace[-1]

    def cut(self) -> Run:
        """Return the run as Ctrl-C leaves it."""
        self.outcome = f"interrupted after {len(self.trace)} iterations; this is the best state so far"
        self.interrupted = True
        return self


#: Where an iteration starts: the engine's state, and the locals that warm-start its E step.
Start = tuple[Any, Warm]


@dataclass
class Position:
    """The position of a run between two iterations: all that it needs to go on, beside the data.

    start: the start of the next iteration; fallback: the start to use instead, if that is an extrapolation that lowers
    the objective. trace: the objectives so far. stalled: successive E steps that gained next to nothing. before: the
    E step that the last M step was taken from, where M steps may have to be taken back.
    acceleration: the state of the acceleration (``Accelerator.state``).
    """

    start: Start
    fallback: Start | None = None
    trace: list[float] = field(default_factory=list)
    stalled: int = 0
    evaluations: int = 0
    acceleration: dict[str, Tensor] = field(default_factory=dict)
    before: Any = None

    @classmethod
    def at(cls, given: Any) -> Position:
        """Return a position unchanged, or the beginning of a run from a state."""
        return given if isinstance(given, Position) else cls((given, None))


#: Is shown every position that a run comes to.
Watcher = Callable[[Position], None]


class _Taken(NamedTuple):
    """An E step: its start, its statistics on this process's rows and on all rows, and the objective."""

    start: Start
    step: EStep
    whole: EStep
    value: float


@dataclass(frozen=True)
class Driver(capabilities.AllRows):
    """An engine at work on the rows of one fit, in memory or read block by block, in one process or in several.

    rows: those of this process. All processes return the same, but for locals and bounds of rows. M steps that read the
    rows take them from here. Extrapolations are taken back where they lowered the objective.
    """

    engine: Engine
    model: Model
    rows: Any
    processes: Pool = ALONE
    generator: torch.Generator | None = None
    accelerator: Accelerator | None = None

    def e_step(self, state: Any, warm: Warm = None, temperature: float = 1.0) -> EStep:
        """Take the E step of this process's rows."""
        settings: dict[str, Any] = {"temperature": temperature, "generator": self.generator}
        if isinstance(self.rows, StreamedRows):
            return self.rows.e_step(self.engine, state, warm, self.processes, **settings)
        if isinstance(self.rows, WeightedRows):
            return self.rows.e_step(self.engine, self.model, state, warm, **settings)
        return self.engine.e_step(self.model, state, self.rows, warm, **settings)

    def gather(self, step: EStep) -> EStep:
        """Sum the statistics of an E step over all processes, and replace the bounds by their sum (1,), weighted if the
        rows have weights."""
        if isinstance(self.rows, WeightedRows):
            return step._replace(bound=self.rows.bound(step))
        if self.processes.size == 1 or not divides_rows(self.engine):
            return step
        total = step.bound.double().sum().reshape(1)
        *sums, bound = self.processes.total(*step.statistics.values(), total)
        return EStep(dict(zip(step.statistics, sums, strict=True)), step.locals, bound)

    def m_step(self, state: Any, step: EStep) -> Any:
        rows = self if isinstance(self.engine, capabilities.ReadsRows) else self._held
        return self.engine.m_step(self.model, state, step, rows)

    @property
    def _held(self) -> Any:
        return self.rows.rows if isinstance(self.rows, WeightedRows) else self.rows

    @property
    def weights(self) -> Tensor | None:
        return self.rows.weights if isinstance(self.rows, WeightedRows) else None

    def pieces(self, warm: Params) -> Iterable[tuple[Any, Params]]:
        return self.rows.pieces(self.engine, warm) if isinstance(self.rows, StreamedRows) else [(self._held, warm)]

    def total(self, *values: Tensor) -> tuple[Tensor, ...]:
        return self.processes.total(*values)

    def from_point(self, params: Params) -> Any:
        """Make the engine's state from values of the globals, if need be by an E step of all rows at these."""
        params = {site: value.to(self.rows.like) for site, value in params.items()}
        if not isinstance(self.engine, capabilities.OwnState):
            return params
        local = Driver(capabilities.local_engine(self.engine), self.model, self.rows, self.processes)
        return self.engine.from_point(self.model, params, self._held, lambda: local.gather(local.e_step(params)))

    def evaluate(self, at: Position, temperature: float) -> _Taken:
        """Take the E step at a position, or at its fallback, the plain step, if extrapolating lowered the objective."""
        taken = self._at(at, at.start, temperature)
        if self.accelerator is not None and at.fallback is not None:
            accepted = taken.value >= at.trace[-1]
            self.accelerator.learn(accepted=accepted)
            taken = taken if accepted else self._at(at, at.fallback, temperature)
        if isinstance(self.engine, capabilities.Tightened) and temperature == 1:
            taken = self._shorten_until_ascent(self.engine, at, taken)
        return taken

    def _shorten_until_ascent(self, engine: capabilities.Tightened, at: Position, taken: _Taken) -> _Taken:
        """Shorten the last M step until it does not lower the objective, and return the E step after it."""
        before, at.before = at.before, taken
        if before is None:
            return taken
        least = before.value - 1e-12 * abs(before.value)
        for _ in range(_SHORTER):
            if taken.value >= least:
                engine.tighten(0.25)
                break
            engine.tighten(16.0)
            taken = self._at(at, (self.m_step(before.start[0], before.whole), before.step.locals), 1.0)
        at.before = taken if taken.value >= least else before
        return at.before

    def _at(self, at: Position, start: Start, temperature: float) -> _Taken:
        step = self.e_step(*start, temperature)
        whole = self.gather(step)
        at.evaluations += 1
        value = capabilities.objective_at(self.engine, self.model, start[0], whole.bound)
        return _Taken(start, step, whole, value)

    def following(self, taken: _Taken, temperature: float) -> tuple[Start, Start | None]:
        """Return the start of the next iteration, and the plain step as its fallback if it is extrapolated."""
        plain = self.m_step(taken.start[0], taken.whole), taken.step.locals
        if self.accelerator is None or temperature != 1:
            return plain, None
        extrapolated = self.accelerator.extrapolate(taken.start, plain)
        return (plain, None) if extrapolated is None else (extrapolated, plain)


def run_em(
    engine: Engine,
    model: Model,
    rows: Any,
    start: Any,
    *,
    max_iterations: int,
    tolerance: float,
    schedule: Schedule | None = None,
    accelerate: str | None = None,
    generator: torch.Generator | None = None,
    progress: Progress | None = None,
    watcher: Watcher | None = None,
    processes: Pool = ALONE,
) -> Run:
    """Iterate until the objective gains less than ``tolerance`` per row, at temperature 1.

    start: a state, or the :class:`Position` of an earlier run to go on from. watcher: is called with every position.
    accelerate: "squarem" or "anderson" extrapolate the iterations where that does not lower the objective (see
        ``accelerate``); None takes plain steps. There is no extrapolation during annealing.

    The returned state is that of the last completed E step, so that bound, locals and state belong together. Ctrl-C
    ends the run with its present state. Several processes run in step: rows, locals and bounds are this process's,
    states and objectives are common to all.
    """
    if max_iterations < 1:
        raise ValueError("max_iterations must be at least 1")
    extrapolating = accelerator(accelerate, engine, model, processes)
    driver, at = Driver(engine, model, rows, processes, generator, extrapolating), Position.at(start)
    size: float = round(processes.count(len(rows))) if divides_rows(engine) else len(rows)
    size = rows.total if isinstance(rows, WeightedRows) else size
    patience = capabilities.patience_of(engine)
    if extrapolating is not None and at.acceleration:
        extrapolating.restore(at.acceleration)
    cycle = 1 if extrapolating is None else 3  # an iteration between two extrapolations may gain next to nothing
    run: Run | None = None
    try:
        while True:
            iteration = len(at.trace)
            temperature = schedule(iteration) if schedule else 1.0
            taken = driver.evaluate(at, temperature)
            at.trace.append(taken.value)
            run = Run(taken.start[0], taken.step, list(at.trace), evaluations=at.evaluations)
            if progress is not None:
                progress.advance(taken.value / size)
            stalls = _stalls(at.trace, cycle, schedule, tolerance * size, taken.step.bound)
            at.stalled = at.stalled + 1 if stalls else 0
            if at.stalled >= patience:
                run.outcome = f"{CONVERGED} after {len(at.trace)} iterations (gain below {tolerance:g} a row)"
                return run
            if iteration + 1 >= max_iterations:
                run.outcome = f"{AT_LIMIT} of {max_iterations} iterations"
                if len(run.trace) > 1:
                    run.outcome += f" (last gain {(run.trace[-1] - run.trace[-2]) / size:.2g} a row)"
                return run
            at.start, at.fallback = driver.following(taken, temperature)
            if watcher is not None:
                at.acceleration = {} if extrapolating is None else extrapolating.state()
                watcher(at)
    except KeyboardInterrupt:
        if run is None:
            raise
        return run.cut()


def _stalls(trace: list[float], cycle: int, schedule: Schedule | None, least: float, bound: Tensor) -> bool:
    """Whether the last ``cycle`` iterations, all at temperature 1, gained less than ``least``."""
    before = len(trace) - 1 - cycle
    if before < 0 or (schedule and schedule(before) != 1.0):
        return False
    # Gains below the rounding of the terms cannot be told from none.
    return abs(trace[-1] - trace[before]) <= max(least, torch.finfo(bound.dtype).eps * abs(trace[-1]))
