"""One fit by EM: where it starts, how it climbs, and what is kept of it on the way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from custom_inference.core.ended import Ended
from custom_inference.core.engine import Engine, Params
from custom_inference.core.process_group import ALONE, Pool
from custom_inference.core.progress import Progress
from custom_inference.core.registry import proposals_for
from custom_inference.core.stages import Stage
from custom_inference.core.states import State
from custom_inference.core.unbounded import warn_of_unbounded
from custom_inference.em.checkpoint import Keeper
from custom_inference.em.loop import Run, run_em
from custom_inference.em.rows import FitRows
from custom_inference.em.search import Found, find_start
from custom_inference.em.steps import EMStep, Position
from custom_inference.em.stepwise import Rates, run_stepwise
from custom_inference.em.unbounded import find_unbounded
from ppl_models import Model
from ppl_models.core.errors import warn_caller


@dataclass
class Fitting:
    """One fit by EM.

    method: the settings (``VariationalEM``). rows: with several processes, this one's. find: gives the start where
    there is no ``init``; by default a search on the rows. ended: the run, once it has been made.
    """

    method: Any
    model: Model
    engine: Engine
    rows: FitRows
    generator: torch.Generator
    bar: Progress
    keeper: Keeper | None = None
    find: Callable[[], Found] | None = None
    processes: Pool = ALONE
    details: dict[str, Any] = field(default_factory=dict)
    ended: Run | None = None
    stages: tuple[Stage, ...] = ()

    def run(self, given: Params | None) -> Run:
        """Climb from ``given`` values of the globals, from a checkpoint, or from the best start of a search."""
        method, model, engine, found = self.method, self.model, self.engine, None
        if given is None and method.search is not None:
            engine = engine.wrap(proposals_for(model, engine).finishing())
        at = None if self.keeper is None else self.keeper.resume(self.engine, self.rows.like)
        if at is None and given is not None:
            at = Position.at(EMStep(engine, model, self.rows, self.processes).from_point(given))
        try:
            if at is None:
                if self.find is not None:
                    found = self.find()
                else:
                    found = find_start(method, self.engine, model, self.rows, self.generator, self.bar)
                self.stages = found.stages
                at = self._begin(engine, found)
            if found is not None:
                found.locals = None  # the run's to keep, as long as it needs them
            settings = self._settings(engine)
            if self._stepwise:
                self.ended = run_stepwise(engine, model, self.rows.held, at, **settings)
            else:
                self.ended = run_em(engine, model, self.rows, at, **settings)
                require_ascent(engine, self.ended, 0.0 if found is None else found.fell)
                self._tell_unbounded(engine, self.ended)
        except KeyboardInterrupt:  # before or in the first iteration: what the search found is still there
            if found is None or not (found.scores or found.interrupted):
                raise
            self.ended = self._interrupt(found)
        return self.finish(self.ended)

    def finish(self, run: Run) -> Run:
        """Return the run with what the search found; of blocks, with the locals and bounds of the first, as those of a
        fit."""
        details = dict(self.details)
        run.outcome += details.pop("agreement", "")
        run.details = {**details, **run.details}
        if self.rows.streamed:
            run.step = self.rows.finish(self.engine, run.state, run.step, self.generator)
            run.details.setdefault("rows", len(self.rows))
            run.outcome += f"; Fit.data are the first block's {len(self.rows.first_rows)} rows"
        return run

    def _tell_unbounded(self, engine: Engine, run: Run) -> None:
        """Say in how a run ended that its objective has no maximum where it went, if so."""
        unbounded = find_unbounded(engine, self.model, self.rows, self.processes, run)
        if unbounded:
            run.outcome = f"ended after {len(run.trace)} iterations{warn_of_unbounded(unbounded)}"
            run.ended = Ended.UNBOUNDED

    def _begin(self, engine: Engine, found: Found) -> Position:
        """Return where the climb begins from what a search found, and keep it."""
        if found.interrupted:
            raise KeyboardInterrupt
        at = Position((found.state, None if self.rows.streamed else found.locals))
        if found.scores:
            agreeing = {"agreeing_starts": found.agreeing, "agreement": f"; {found.agreement}"}
            self.details |= {"start_scores": found.scores, **agreeing}
            if self._stepwise:
                at = Position((found.state, self._statistics(engine, found.state)))
        if self.keeper is not None:
            self.keeper.details.update(self.details)
            self.keeper.keep(at)
        return at

    def _interrupt(self, found: Found) -> Run:
        """Return the best start that was found as a run that Ctrl-C ended."""
        self.details = {"start_scores": found.scores} if found.scores else {}
        settings: Any = {"generator": self.generator, "processes": self.processes}
        run = run_em(self.engine, self.model, self.rows, found.state, max_iterations=1, tolerance=1.0, **settings)
        number = len(found.scores)
        best = f"after {number} starts; this is the best of them"
        run.outcome = f"interrupted {best if number else 'in the first start; this is a random state'}"
        run.ended = Ended.INTERRUPTED
        return run

    def _statistics(self, engine: Engine, state: State | Params) -> dict[str, Tensor]:
        """Return what averages go on from, of as many rows as there are in all: a single minibatch would forget most
        of it."""
        rows = self.rows.search_rows
        found = engine.e_step(self.model, state, rows, generator=self.generator).statistics
        return {name: value * (len(self.rows) / len(rows)) for name, value in found.items()}

    @property
    def _stepwise(self) -> bool:
        size = self.method.batch_size
        return size is not None and (size < len(self.rows) or self.rows.streamed)

    def _settings(self, engine: Engine) -> dict[str, Any]:
        """Return what ``run_em`` or ``run_stepwise`` is told beside engine, model, rows and start."""
        method = self.method
        suggested = engine.plain.suggest_tolerance(self.model, len(self.rows))
        if self._stepwise:  # between passes of minibatches smaller gains are noise
            suggested = max(suggested, Engine.suggest_tolerance(engine, self.model, len(self.rows)))
        tolerance = method.tolerance or suggested
        settings: dict[str, Any] = {"max_iterations": method.max_iterations, "tolerance": tolerance}
        settings |= {"generator": self.generator, "progress": self.bar}
        if self.keeper is not None:
            self.details.update(self.keeper.details)
            settings["watcher"] = self.keeper.watch
        if self._stepwise:
            rates = Rates(delay=method.delay, forgetting=method.forgetting)
            return settings | {"batch_size": method.batch_size, "rates": rates, "shuffle": method.shuffle}
        accelerate = engine.accelerate if method.accelerate == "default" else method.accelerate
        if self.rows.streamed and engine.extrapolated:
            accelerate = None  # locals on disk are not extrapolated
        return settings | {"accelerate": accelerate, "processes": self.processes}


def require_ascent(engine: Engine, run: Run, fell: float) -> None:
    """Warn of an engine whose steps lowered the objective, in the run or in the search before it, and say so in how the
    run ended: that the objective stands still then tells of no maximum."""
    fell = max(fell, run.fell)
    if not fell or run.interrupted or not engine.plain.ascends:
        return
    found = f"a step of the engine {type(engine.plain).__name__} lowered the objective by {fell:.3g}"
    warn_caller(f"{found}, which no step of EM does; expected an m_step that raises what its e_step bounds")
    run.outcome = f"ended after {len(run.trace)} iterations, no maximum: {found}"
    run.ended = Ended.FAILED
