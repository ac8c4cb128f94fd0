"""One of several starts of a search: proposed, settled by some EM iterations, judged on all rows."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from custom_inference.core.capabilities import acceleration_of, extrapolated_of, objective_at
from custom_inference.core.engine import Engine
from custom_inference.core.progress import Progress
from custom_inference.core.proposals import Proposals
from custom_inference.core.settings import require_whole
from custom_inference.em.loop import Run, linear_schedule, run_em
from ppl_models import MethodError, Model

#: Iterations on all rows in single precision, at most.
CLIMB = 50


@dataclass(frozen=True, kw_only=True)
class Search:
    """How starting values are found.

    restarts: at most this many starts; None: as many as the engine suggests.
    agree: stop once this many of at least three starts found the best one's components.
    rows: how many random rows each start uses; None: the engine's suggestion.
    settle: EM iterations of each start before it is judged.
    temperature: the likelihood's exponent at the first of these iterations, rising to 1 over half of them (1: no
        annealing, which the proposals here do not need).
    prune: shut off sources that are not worth their price on all rows, where the engine can tell (models of many
        components); False keeps whatever the starts found.
    informed: False draws every start at random (``Engine.initial``), as a baseline.
    processes: make the starts in so many processes at once, each start with random numbers of its own, so that what is
        found does not depend on how many processes there are; None: one after the other, here, from one stream. It pays
        for searches that take longer than processes take to start (``benchmarks/results/distributed.md``).
    """

    restarts: int | None = None
    agree: int = 2
    rows: int | None = None
    settle: int = 10
    temperature: float = 1.0
    prune: bool = True
    informed: bool = True
    processes: int | None = None

    def __post_init__(self) -> None:
        for name in ("restarts", "agree", "rows", "settle", "processes"):
            if getattr(self, name) is not None:
                require_whole(name, getattr(self, name))
        if not 0 < self.temperature <= 1:
            raise MethodError(f"temperature = {self.temperature}, expected in (0, 1]")


class Start(NamedTuple):
    """A start that has settled, and its bound a row on all rows."""

    run: Run
    score: float


Starts = Generator[Start, None, None]


@dataclass(frozen=True)
class Task:
    """What a start is made from; ``rows`` are in single precision, and ``size`` of them are used."""

    engine: Engine
    proposals: Proposals
    model: Model
    rows: Any
    settings: Search
    size: int
    restarts: int

    @property
    def carried(self) -> bool:
        """Whether locals belong to the solution, and go on with it."""
        return self.size == len(self.rows) and bool(extrapolated_of(self.engine))

    @property
    def alone(self) -> bool:
        """A single start of such an engine is not interrupted to be judged, which would cost it what its acceleration
        has learned."""
        return self.carried and self.restarts == 1

    def start(self, attempt: int, generator: torch.Generator, bar: Progress | None = None) -> Start:
        """Propose, settle, judge."""
        rows = self.rows
        index = torch.randperm(len(rows), generator=generator)[: self.size]
        part = rows if self.size == len(rows) else rows.select(index.to(rows.like.device))
        more = CLIMB if self.alone else 0
        run = self._settled(part, generator, attempt, bar, more)
        bound = run.step.bound
        if not self.carried:
            bound = self.engine.e_step(self.model, run.state, rows, generator=generator).bound
        return Start(run, objective_at(self.engine, self.model, run.state, bound) / len(rows))

    def _settled(self, part: Any, generator: torch.Generator, attempt: int, bar: Progress | None, more: int) -> Run:
        """One start and its first EM iterations, and ``more`` of them."""
        settings, temperature = self.settings, self.settings.temperature
        if settings.informed:
            state = self.proposals.propose(self.model, part, generator, attempt)
        else:
            state = self.engine.initial(self.model, part, generator)
        return run_em(
            self.engine,
            self.model,
            part,
            state,
            max_iterations=settings.settle + more,
            tolerance=1e-4 if more else 1e-5,
            schedule=linear_schedule(temperature, settings.settle // 2) if temperature < 1 else None,
            accelerate=acceleration_of(self.engine),
            generator=generator,
            progress=bar,
        )
