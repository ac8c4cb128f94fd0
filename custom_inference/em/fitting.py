"""One fit by the settings of ``VariationalEM``: where it starts, how it climbs, and what is kept of it on the way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from custom_inference.core.capabilities import acceleration_of, extrapolated_of
from custom_inference.core.engine import Engine, Params
from custom_inference.core.process_group import ALONE, Pool
from custom_inference.core.progress import Progress
from custom_inference.core.registry import proposals_for
from custom_inference.em.checkpoint import Keeper
from custom_inference.em.driver import Driver
from custom_inference.em.loop import Position, Run, run_em
from custom_inference.em.search import Found, search
from custom_inference.em.stepwise import run_stepwise
from custom_inference.em.streaming import StreamedRows, run_streaming
from ppl_models import Model


@dataclass
class Fitting:
    """method: the settings (:class:`VariationalEM`). rows: in memory, or read block by block; with several processes,
    this one's. find: gives the start where there is no ``init``; by default a search on the rows."""

    method: Any
    model: Model
    engine: Engine
    rows: Any
    generator: torch.Generator
    bar: Progress
    keeper: Keeper | None = None
    find: Callable[[], Found] | None = None
    processes: Pool = ALONE
    details: dict[str, Any] = field(default_factory=dict)

    def run(self, given: Params | None) -> Run:
        """From ``given`` values of the globals, from a checkpoint, or from the best start of a search."""
        at = None if self.keeper is None else self.keeper.resumed(self.engine, self.rows.like)
        if at is not None:
            run = self._climb(self._finishing(given), at)
        elif given is not None:
            start = Driver(self.engine, self.model, self.rows, self.processes).from_point(given)
            run = self._climb(self.engine, Position((start, None)))
        else:
            run = self._from_search(self._found())
        run.outcome += self.details.pop("agreement", "")
        run.details = {**self.details, **run.details}
        return run

    def _found(self) -> Found:
        if self.find is not None:
            return self.find()
        rows = self.rows
        if isinstance(rows, StreamedRows):
            if self.method.shuffle:
                rows.draw(self.generator)
            rows = rows.search_rows
        if self.method.search is None:
            return Found(self.engine.initial(self.model, rows, self.generator))
        proposals = proposals_for(self.model, self.engine)
        found = search(proposals, self.model, rows, self.method.search, self.generator, self.bar)
        return found if rows is self.rows else replace(found, locals=None)

    def _finishing(self, given: Params | None) -> Engine:
        if given is not None or self.method.search is None:
            return self.engine
        return proposals_for(self.model, self.engine).finishing()

    def _from_search(self, found: Found) -> Run:
        engine = self._finishing(None)
        if found.scores:
            self.details |= {"start_scores": found.scores}
        if found.interrupted:
            return self._best_start(found)
        if found.scores:
            self.details |= {"agreement": f"; {found.agreement}"}
        at = Position((found.state, found.locals))
        if self._stepwise and found.scores:
            # The averages go on from the start's own statistics: a single minibatch would forget most of it.
            at = Position((found.state, self._statistics(engine, found.state)))
        if self.keeper is not None:
            self.keeper.details.update(self.details)
            self.keeper.keep(at)
        try:
            return self._climb(engine, at)
        except KeyboardInterrupt:  # in the first iteration: what the search found is still there
            if not found.scores:
                raise
            self.details.pop("agreement", None)
            return self._best_start(found)

    def _best_start(self, found: Found) -> Run:
        settings: dict[str, Any] = {"max_iterations": 1, "tolerance": 1.0, "generator": self.generator}
        settings["processes"] = self.processes
        run = run_em(self.engine, self.model, self.rows, found.state, **settings)
        run.outcome, run.interrupted = f"interrupted after {len(found.scores)} starts; this is the best of them", True
        return run

    def _statistics(self, engine: Engine, state: Any) -> dict[str, Tensor]:
        if isinstance(self.rows, StreamedRows):
            return self.rows.scaled_statistics(engine, state, self.generator)
        return engine.e_step(self.model, state, self.rows, generator=self.generator).statistics

    @property
    def _stepwise(self) -> bool:
        size = self.method.batch_size
        return size is not None and (size < len(self.rows) or isinstance(self.rows, StreamedRows))

    def _climb(self, engine: Engine, at: Position) -> Run:
        method, settings = self.method, {"generator": self.generator, "progress": self.bar}
        settings |= {"max_iterations": method.max_iterations, "tolerance": method.tolerance}
        if self.keeper is not None:
            self.details.update(self.keeper.details)
            settings["watcher"] = self.keeper.watch
        streamed = isinstance(self.rows, StreamedRows)
        if self._stepwise:
            settings |= {"batch_size": method.batch_size, "rates": method.rates, "shuffle": method.shuffle}
            if streamed:
                return run_streaming(engine, self.model, self.rows, at, **settings)
            return run_stepwise(engine, self.model, self.rows, at.start[0], position=at, **settings)
        accelerate = acceleration_of(engine) if method.accelerate == "default" else method.accelerate
        if streamed and extrapolated_of(engine):
            accelerate = None  # locals on disk are not extrapolated
        settings |= {"accelerate": accelerate, "processes": self.processes}
        return run_em(engine, self.model, self.rows, at.start[0], position=at, **settings)
