"""The starts of a search: how many and how (``Search``), and what each is made from: proposed, settled, scored."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from custom_inference.core.ended import Ended
from custom_inference.core.engine import Warm
from custom_inference.core.progress import Progress
from custom_inference.core.proposals import Proposals
from custom_inference.core.settings import require_between, require_whole
from custom_inference.core.states import Params, State
from custom_inference.em.loop import Run, run_em
from custom_inference.em.steps import EMStep, Position
from ppl_models import Model

#: Rows up to which searches keep the precision of the data: half of little time is less than compiling for both takes.
_FEW_ROWS = 500
#: A start has settled where it gains less than this a row.
_SETTLED = 1e-5
#: Products of an iteration of a start, at least, for which starts are made in threads.
_LONG = 2**22


@dataclass(frozen=True, kw_only=True)
class Search:
    """How starting values are found.

    restarts: at most this many starts; None: as many as the engine suggests.
    agree: stop once this many of at least three starts found the best one's components.
    rows: how many random rows each start uses; None: the engine's suggestion.
    settle: EM iterations of each start before it is scored.
    climb: at most so many further ones of the best start on all rows, before the fit goes on.
    temperature: the likelihood's exponent at the first of these iterations, rising to 1 over half of them (1: no
        annealing, which the proposals here do not need).
    refine: improve the best start by other means than EM, where the family has some: shut off sources that are not
        worth their price on all rows (models of many components), split and merge classes (mixtures); False keeps
        whatever the starts found.
    informed: False draws every start at random (``Engine.initial``), as a baseline.
    random: so many random starts beside the informed ones, which may all lead to the same wrong optimum; None: as many
        as the engine suggests (few rows: many), less those of ``restarts`` that are random already; none where
        ``restarts`` says how many starts there are.
    processes: make the starts in so many processes at once; None: here, in threads where fits of the model divide their
        work among these and starts are long, one after the other from one stream of random numbers where not. In
        threads and processes each start has random numbers of its own, so that what is found depends on the number of
        neither. Processes pay for searches that take longer than they take to start
        (``benchmarks/results/distributed.md``).
    """

    restarts: int | None = None
    agree: int = 2
    rows: int | None = None
    settle: int = 10
    climb: int = 50
    temperature: float = 1.0
    refine: bool = True
    informed: bool = True
    random: int | None = None
    processes: int | None = None

    def __post_init__(self) -> None:
        for name in ("restarts", "agree", "rows", "settle", "processes"):
            if getattr(self, name) is not None:
                require_whole(name, getattr(self, name))
        require_whole("climb", self.climb, 0)
        if self.random is not None:
            require_whole("random", self.random, 0)
        require_between("temperature", self.temperature, "(0, 1]")

    def annealing(self, iteration: int) -> float:
        """Return the likelihood's exponent at an iteration."""
        hot, start = self.settle // 2, self.temperature
        return 1.0 if iteration >= hot else start + (1 - start) * iteration / hot


class Start(NamedTuple):
    """A start after its iterations: the score by which starts are compared, and the objective per row of all rows."""

    run: Run
    score: float
    objective: float

    def without_locals(self) -> Start:
        """Return the start without what takes its memory."""
        return self._replace(run=replace(self.run, step=self.run.step._replace(locals={})))


@dataclass(frozen=True)
class Task:
    """What a start is made from; ``rows`` are in the search's precision, and ``size`` of them are used.

    guarded: whether M steps of the fit's engine may lower the objective. divided: whether fits by it divide their work
    among threads. stages: what the family's record calls the making of starts, and the refinement of the best."""

    proposals: Proposals
    model: Model
    rows: Any
    settings: Search
    size: int
    restarts: int
    guarded: bool
    divided: bool
    stages: tuple[str, ...]

    @classmethod
    def of(cls, proposals: Proposals, model: Model, rows: Any, settings: Search, **others: Any) -> Task:
        """Return the task on these rows: of as many starts and rows as the settings say, or the family suggests."""
        restarts, size = proposals.search_size(model, len(rows))
        used = rows if len(rows) <= _FEW_ROWS else rows.to(torch.float32)
        size = min(settings.rows or size, len(rows))
        return cls(proposals, model, used, settings, size, settings.restarts or restarts, **others)

    @property
    def solves_locals(self) -> bool:
        """Whether locals belong to the solution."""
        engine = self.proposals.engine
        return bool(engine.extrapolated) or engine.hands_on_locals

    @property
    def carried(self) -> bool:
        """Whether locals belong to the solution, and those of a start are of all rows and kept with it."""
        return self.size == len(self.rows) and self.solves_locals

    @property
    def alone(self) -> bool:
        """Whether there is a single start, which is not scored, as scoring would discard its acceleration."""
        return self.carried and self.restarts == 1

    def at_random(self, attempt: int) -> bool:
        """Whether the start of this attempt is drawn at random."""
        return not self.settings.informed or self.proposals.at_random(attempt, self.size)

    def num_random(self, made: int) -> int:
        """Return how many random starts are made beside ``made`` others."""
        settings = self.settings
        if settings.random is not None:
            return settings.random
        if settings.restarts is not None or not settings.informed:
            return 0
        return max(0, self.proposals.random_starts(self.model, len(self.rows)) - sum(map(self.at_random, range(made))))

    @property
    def long(self) -> bool:
        """Whether starts take long enough to be made in threads, by fits that divide their work among these."""
        work = self.size * sum(map(math.prod, self.model.shapes.values()))
        return self.divided and work >= _LONG

    def start(self, attempt: int, generator: torch.Generator, bar: Progress | None = None) -> Start:
        """Propose a start, run it and score it."""
        part, settings = self._part(generator), self.settings
        if settings.informed:
            state = self.proposals.propose(self.model, part, generator, attempt)
        else:
            state = self.proposals.engine.initial(self.model, part, generator)
        most = settings.settle + (settings.climb if self.alone else 0)
        tolerance = self.proposals.tolerance if self.alone else _SETTLED
        settings = self._settings(most, tolerance, generator, bar)
        return self.score(run_em(self.proposals.engine, self.model, part, state, **settings), generator)

    def random_start(self, generator: torch.Generator) -> Start:
        """Run a random start, without watching the objective if no iteration may lower it."""
        part, engine, settle = self._part(generator), self.proposals.engine, self.settings.settle
        state = self.proposals.draw(self.model, part, generator)
        if self.guarded:
            settings = self._settings(settle, _SETTLED, generator, None)
            return self.score(run_em(engine, self.model, part, state, **settings), generator)
        step, rows = None, EMStep(engine, self.model, part) if engine.reads_rows else part
        for _ in range(settle - 1):
            step = engine.e_step(self.model, state, part, step and step.locals, generator=generator)
            state = engine.m_step(self.model, state, step, rows)
        step = engine.e_step(self.model, state, part, step and step.locals, generator=generator)
        return self.score(Run(state, step), generator)

    def race(self, start: Start, level: float, generator: torch.Generator, bar: Progress) -> Start:
        """Continue a start on all rows for as many iterations as the best had, while it may still reach its objective
        per row, ``level``."""
        run, done, most = start.run, 0, self.settings.climb
        if self.size < len(self.rows):
            return start
        more = min(self.settings.settle, most)
        while more:
            settings = {**self._settings(more, self.proposals.tolerance, generator, bar), "schedule": None}
            at = Position((run.state, run.step.locals))
            run = run_em(self.proposals.engine, self.model, self.rows, at, **settings)
            done += more
            gains = [after - before for before, after in zip(run.trace[-4:], run.trace[-3:], strict=False)]
            over = len(gains) < 3 or run.interrupted or run.ended is Ended.CONVERGED
            if over or level * len(self.rows) - run.objective > max(gains) * (most - done):
                break
            more = min(done, most - done)
        return start if run is start.run else self.score(run, generator)

    def score(self, run: Run, generator: torch.Generator) -> Start:
        """Score a run by its objective on all rows."""
        engine, rows = self.proposals.engine, self.rows
        bound = run.step.bound
        if not self.carried:
            bound = engine.e_step(self.model, run.state, rows, generator=generator).bound
        objective = float(engine.objective_at(self.model, run.state, bound))
        score = self.proposals.weigh(self.model, run.state, rows, objective)
        return Start(run, score / len(rows), objective / len(rows))

    def level_of(self, state: State | Params, locals_: Warm, generator: torch.Generator) -> Start:
        """Score a state on all rows, with its locals if they belong to the solution: others have to exceed it."""
        step = self.proposals.engine.e_step(self.model, state, self.rows, locals_, generator=generator)
        objective = float(self.proposals.engine.objective_at(self.model, state, step.bound))
        score = self.proposals.weigh(self.model, state, self.rows, objective)
        return Start(Run(state, step, [objective]), score / len(self.rows), objective / len(self.rows))

    def _part(self, generator: torch.Generator) -> Any:
        """Choose the rows that a start uses."""
        index = torch.randperm(len(self.rows), generator=generator)[: self.size]
        return self.rows if self.size == len(self.rows) else self.rows.select(index.to(self.rows.like.device))

    def _settings(
        self, most: int, tolerance: float, generator: torch.Generator, bar: Progress | None
    ) -> dict[str, Any]:
        """Return how a start climbs, as ``run_em`` is told."""
        return {
            "max_iterations": most, "tolerance": tolerance, "generator": generator, "progress": bar,
            "schedule": self.settings.annealing if self.settings.temperature < 1 else None,
            "accelerate": self.proposals.engine.accelerate,
        }  # fmt: skip
