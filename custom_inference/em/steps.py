"""One iteration of EM, and what is wrapped around it: extrapolations, and M steps that are taken back.

A step evaluates a position (E step, and the objective there) and advances from it (M step). The loop knows no more.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from custom_inference.core.all_rows import AllRows
from custom_inference.core.engine import Engine, EStep, Params, Warm
from custom_inference.core.process_group import ALONE, Pool
from custom_inference.core.states import State, values_of
from custom_inference.em.accelerate import Accelerator, accelerator
from custom_inference.em.rows import FitRows
from ppl_models import MethodError, Model

#: How often an M step that lowers the objective is taken again, shorter each time, before the run stays where it is.
_SHORTER = 12

#: Where an iteration starts: the engine's state, and the locals that warm-start its E step.
Start = tuple[Any, Warm]


class Taken(NamedTuple):
    """An E step that was taken: from where, what it found on this process's rows and on all, and the objective."""

    start: Start
    step: EStep
    whole: EStep
    value: float


@dataclass
class Position:
    """Where a run is between two iterations: all that it needs to go on, beside the data.

    start: where the next iteration starts; fallback: where instead, if that is an extrapolation that lowers the
    objective. trace: the objectives so far. stalled: E steps in a row that gained next to nothing. before: the E step
    that the last M step was taken from, where M steps may have to be taken back.
    acceleration: what the acceleration knows (``Accelerator.state``).
    """

    start: Start
    fallback: Start | None = None
    trace: list[float] = field(default_factory=list)
    stalled: int = 0
    evaluations: int = 0
    acceleration: dict[str, Tensor] = field(default_factory=dict)
    before: Taken | None = None

    @classmethod
    def at(cls, given: Any) -> Position:
        """Return a position as it is, or the beginning of a run from a state."""
        return given if isinstance(given, Position) else cls((given, None))


def divides_rows(engine: Engine) -> bool:
    """Whether each of several processes has rows of its own."""
    return not (engine.one_process or engine.shares_work)


def require_sites(engine: Engine, model: Model, state: State | Params, method: str) -> None:
    """Raise MethodError for values that a method of an engine returned without all of the sites that are global."""
    if engine.state is not None:
        return
    values = values_of(model, state)
    lacking = [site for site in model.global_sites if site not in values]
    if lacking:
        found = f"the '{lacking[0]}' of {type(model).__name__} is not in what {method} returned ({', '.join(values)})"
        raise MethodError(f"{type(engine.plain).__name__}.{method}: {found}; expected a value of every global site")


class EMStep(AllRows):
    """A plain iteration of an engine on the rows of one fit, in memory or not, in one process or in several.

    rows: this process's. What the methods return is the same in all processes, but for locals and bounds of rows.
    M steps that read the rows take them from here.
    """

    #: How many iterations a gain is looked for in.
    cycle: int = 1

    def __init__(
        self, engine: Engine, model: Model, rows: Any, processes: Pool = ALONE, generator: torch.Generator | None = None
    ):
        self.engine, self.model, self.processes, self.generator = engine, model, processes, generator
        self.rows = FitRows.of(rows)

    @property
    def plain(self) -> EMStep:
        """The step without wrappers: itself."""
        return self

    @property
    def size(self) -> float:
        """How many rows the objective is of, in all processes."""
        return self.processes.count(self.rows.total) if divides_rows(self.engine) else self.rows.total

    def e_step(self, state: State | Params, warm: Warm = None, temperature: float = 1.0) -> EStep:
        """Take an E step of this process's rows."""
        return self.rows.e_step(
            self.engine, self.model, state, warm, self.processes, temperature=temperature, generator=self.generator
        )

    def gather(self, step: EStep) -> EStep:
        """Return an E step with the statistics of all processes. Of several processes, and of rows that have weights,
        the sum of all bounds (1,) stands in place of the bounds."""
        step = step._replace(bound=self.rows.bound(step))
        if self.processes.size == 1 or not divides_rows(self.engine):
            return step
        total = step.bound.double().sum().reshape(1)
        *sums, bound = self.processes.total(*step.statistics.values(), total)
        return EStep(dict(zip(step.statistics, sums, strict=True)), step.locals, bound)

    def take(self, at: Position, start: Start, temperature: float) -> Taken:
        """Take the E step at a start, with the objective there."""
        step = self.e_step(*start, temperature)
        each = self.model.rows_are_independent and not self.rows.streamed
        if step.bound.ndim != 1 or (each and len(step.bound) != len(self.rows)):
            found = f"a bound of shape {tuple(step.bound.shape)}"
            raise MethodError(f"{type(self.engine.plain).__name__}.e_step: {found}; expected (N,), one of every row")
        whole = self.gather(step)
        at.evaluations += 1
        return Taken(start, step, whole, self.engine.objective_at(self.model, start[0], whole.bound))

    def evaluate(self, at: Position, temperature: float) -> Taken:
        """Take the E step at a position."""
        return self.take(at, at.start, temperature)

    def advance(self, taken: Taken, temperature: float) -> tuple[Start, Start | None]:
        """Return where the next iteration starts: at the M step. And its fallback, where that is extrapolated."""
        del temperature
        rows = self if self.engine.reads_rows else self.rows.held
        state = self.engine.m_step(self.model, taken.start[0], taken.whole, rows)
        require_sites(self.engine, self.model, state, "m_step")
        return (state, taken.step.locals), None

    def remember(self) -> dict[str, Tensor]:
        """Return what was learned of the run, for ``restore`` to go on from."""
        return {}

    def restore(self, learned: dict[str, Tensor]) -> None:
        """Go on from what ``remember`` gave."""
        del learned

    def from_point(self, params: Params) -> Any:
        """Return the state from values of the globals: by an E step of all rows there, where one is needed."""
        params = {site: value.to(self.rows.like) for site, value in params.items()}
        local = EMStep(self.engine.local(), self.model, self.rows, self.processes)
        return self.engine.from_point(self.model, params, self.rows.held, lambda: local.gather(local.e_step(params)))

    @property
    def weights(self) -> Tensor | None:
        return self.rows.weights

    def pieces(self, warm: Params) -> Iterable[tuple[Any, Params]]:
        return self.rows.pieces(self.engine, warm)

    def total(self, *values: Tensor) -> tuple[Tensor, ...]:
        return self.processes.total(*values)


class AcceleratedStep:
    """Goes to an extrapolation instead of the M step, and back where that lowered the objective; not while annealing.

    An iteration between two extrapolations may gain next to nothing.
    """

    cycle: int = 3

    def __init__(self, plain: EMStep, accelerator: Accelerator):
        self.plain, self.accelerator, self.size = plain, accelerator, plain.size

    def evaluate(self, at: Position, temperature: float) -> Taken:
        taken = self.plain.evaluate(at, temperature)
        if at.fallback is None:
            return taken
        accepted = taken.value >= at.trace[-1]
        self.accelerator.learn(accepted=accepted)
        return taken if accepted else self.plain.take(at, at.fallback, temperature)

    def advance(self, taken: Taken, temperature: float) -> tuple[Start, Start | None]:
        following, _ = self.plain.advance(taken, temperature)
        reached = following[0], taken.step.locals
        moved = self.accelerator.extrapolate(taken.start, reached) if temperature == 1 else None
        return (following, None) if moved is None else (moved, following)

    def remember(self) -> dict[str, Tensor]:
        return self.accelerator.state()

    def restore(self, learned: dict[str, Tensor]) -> None:
        if learned:
            self.accelerator.restore(learned)


class SafeguardedStep:
    """Takes an M step that lowered the objective back, and again shorter, until it does not; not while annealing."""

    def __init__(self, step: EMStep | AcceleratedStep):
        self.step, self.plain, self.size, self.cycle = step, step.plain, step.size, step.cycle
        self.advance, self.remember, self.restore = step.advance, step.remember, step.restore

    def evaluate(self, at: Position, temperature: float) -> Taken:
        taken = self.step.evaluate(at, temperature)
        if temperature != 1:
            return taken
        before, at.before = at.before, taken
        if before is None:
            return taken
        plain, least = self.plain, before.value - 1e-12 * abs(before.value)
        for _ in range(_SHORTER):
            if taken.value >= least:
                plain.engine.tighten(0.25)
                break
            plain.engine.tighten(16.0)
            shorter, _ = plain.advance(before, temperature)
            taken = plain.take(at, shorter, temperature)
        at.before = taken if taken.value >= least else before
        return at.before


Step = EMStep | AcceleratedStep | SafeguardedStep


def make_step(
    engine: Engine, model: Model, rows: Any, processes: Pool = ALONE, generator: torch.Generator | None = None,
    accelerate: str | None = None,
) -> Step:  # fmt: skip
    """Return an iteration of the engine, with the wrappers that it needs."""
    plain = EMStep(engine, model, rows, processes, generator)
    extrapolating = accelerator(accelerate, engine, model, processes)
    step = plain if extrapolating is None else AcceleratedStep(plain, extrapolating)
    return SafeguardedStep(step) if engine.may_lower else step
