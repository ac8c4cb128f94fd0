"""EM and variational EM: settings, and the fit that the driver makes of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from custom_inference.core import capabilities
from custom_inference.core.engine import Engine, EStep, Params
from custom_inference.core.fit import Fit
from custom_inference.core.guide import Guide, engine_of
from custom_inference.core.local_inference import Local, LocalSolver, local_of
from custom_inference.core.method import Call, Method, to_ask_with
from custom_inference.core.process_group import ALONE, Pool
from custom_inference.core.progress import Progress
from custom_inference.core.registry import proposals_for
from custom_inference.core.states import State, values_of
from custom_inference.em.accelerate import ACCELERATIONS
from custom_inference.em.any_prior import complete_state, describe_priors, for_starts, with_any_prior
from custom_inference.em.checkpoint import Checkpoint, Keeper, checksum_of, describe_input, fingerprint
from custom_inference.em.known import fit_at_known, has_points, with_usual_priors
from custom_inference.em.loop import Driver, Position, Run, run_em
from custom_inference.em.search import Found, Search, search
from custom_inference.em.stepwise import Rates, require_additive, require_blocks, run_stepwise
from custom_inference.em.streaming import BlockReader, StreamedRows, require_readable
from custom_inference.em.weights import WeightedRows, require_weighable
from ppl_models import CapacityError, Data, MethodError, Model
from ppl_models.core.errors import about, unknown_name, warn_of_data
from ppl_models.core.priors import is_flat
from ppl_models.core.units import summary_of
from ppl_models.data.row_blocks import RowBlocks


@dataclass(frozen=True, kw_only=True)
class VariationalEM(Method):
    """Variational EM with closed-form steps: E step over the local latents, M step over the globals.

    guide: the family of local posteriors: "factorized", "mean_field", "truncated", or a guide with settings.
    max_iterations, tolerance: stop when the objective gains less than ``tolerance`` per row.
    search: how good starting values are found (restarts, annealing, over-complete starts and pruning);
        ``None`` runs once from one random start.
    batch_size: rows per step of stepwise (online) EM; ``None`` uses all rows at every step.
    shuffle: form the minibatches of every pass anew from random rows (for ``RowBlocks``, from blocks put together from
        random places, as far as the source allows), and search for starts on such; ``False`` takes rows in order,
        which misleads if they are sorted by anything.
    delay, forgetting: step sizes of stepwise EM, rho_t = (t + delay)^-forgetting (tau_0 and kappa in 002, alg. 27.2).
    checkpoint: a path, or a :class:`Checkpoint`: the state is saved there, and the same call goes on from it.
    accelerate: "squarem" or "anderson" extrapolate EM's steps, safeguarded; ``None`` does not; "default" leaves it to
        the engine.
    """

    guide: str | Guide = "factorized"
    max_iterations: int = 300
    tolerance: float = 1e-5
    search: Search | None = field(default_factory=Search)
    batch_size: int | None = None
    shuffle: bool = True
    accelerate: str | None = "default"
    delay: float = 2.0
    forgetting: float = 0.6
    checkpoint: str | Path | Checkpoint | None = None

    def __post_init__(self) -> None:
        if self.max_iterations < 1 or self.tolerance <= 0:
            raise MethodError("max_iterations must be at least 1 and tolerance positive")
        if self.batch_size is not None and self.batch_size < 1:
            raise MethodError(f"batch_size = {self.batch_size}, expected at least 1")
        if self.accelerate not in (None, "default", *ACCELERATIONS):
            raise MethodError(unknown_name("acceleration", self.accelerate, ("default", *ACCELERATIONS)))
        Rates(delay=self.delay, forgetting=self.forgetting)  # refuses what is out of range

    @property
    def name(self) -> str:
        return f"VariationalEM({self.guide.name if isinstance(self.guide, Guide) else self.guide})"

    def engine(self, model: Model) -> Engine:
        """Return the engine that the driver runs. Raises MethodError if the model has no such engine."""
        return with_any_prior(engine_of(self.guide, model), model)

    def check_weights(self, model: Model) -> None:
        name, rows = type(model).__name__, "weights of rows"
        if type(self)._fit is not VariationalEM._fit:  # which does not go by them
            super().check_weights(model)
        if not model.rows_are_independent:
            raise MethodError(f"{rows} of {name}, whose rows are not independent; expected no weights")
        if not model.unknown_sites:
            raise MethodError(f"{rows} of {name}, all of whose globals are known: they change nothing")
        if self.batch_size is not None or self.checkpoint is not None:
            setting = "batch_size" if self.batch_size is not None else "checkpoint"
            raise MethodError(f"{rows} beside {setting}, with which they are not taken; expected {setting}=None")
        require_weighable(self.engine(model))

    def _at_known(self, model: Model) -> Engine | None:
        """Return the engine that infers the locals if all globals are known; None if not, or if locals are points."""
        engine = None if model.unknown_sites else engine_of(self.guide, model)
        return None if engine is None or has_points(engine) else engine

    def has_global_posterior(self, model: Model) -> bool:
        return self._at_known(model) is None and capabilities.integrates_globals(self.engine(model))

    def ask(self, model: Model) -> None:
        super().ask(model)
        if self._at_known(model) is not None:
            return
        engine, example = self.engine(model), to_ask_with(model)
        if example is not None:
            with contextlib.suppress(CapacityError):  # of which the example's size says nothing
                capabilities.check(engine, model, engine.rows(*example))

    def _fit(self, model: Model, data: Data, call: Call) -> Fit:
        """Fit by EM; ``init`` skips the search and starts there. At known values of all globals there is one E step,
        to convergence."""
        known = self._at_known(model)
        if known is not None:
            return fit_at_known(self.name, model, data, call, known)
        engine = self.engine(model)
        rows = engine.rows(model, data)
        capabilities.check(engine, model, rows)
        if self.batch_size is not None:
            require_additive(engine)  # before the search, not after it
        if call.weights is not None:
            rows = WeightedRows(rows, call.weights)
        return self._run(model, data, engine, rows, call)

    def _fit_blocks(self, model: Model, source: RowBlocks, mask: Any, call: Call) -> Fit:
        """Fit ``RowBlocks``, with one block in memory at a time.

        Starts are searched for on as many rows as the first block has, drawn from all blocks (``shuffle=False``: on the
        first block). ``Fit.data``, ``Fit.local`` and ``Fit.evidence`` are those of the first block. Without
        ``batch_size`` every iteration reads all blocks, and the result is that of the same rows in memory from the same
        start.
        """
        engine = self.engine(model)
        require_readable(model, mask)
        (require_blocks if self.batch_size is None else require_additive)(engine)
        settings: dict[str, Any] = {"dtype": call.dtype, "device": call.device}
        reader = BlockReader(engine, model, source, **settings)
        if type(model).on_scale_of is not Model.on_scale_of and model.on_scale_of(next(reader.data())) is not model:
            model = model.on_scale_of(summary_of(reader.data()))
        read = StreamedRows(engine, model, source, self._folder(), **settings)
        with torch.no_grad(), read as rows:
            capabilities.check(engine, model, rows.first_rows)
            return self._run(model, rows.first, engine, rows, call)

    def _run(self, model: Model, data: Data, engine: Engine, rows: Any, call: Call) -> Fit:
        """Run the iterations and build the fit; Ctrl-C after the last iteration leaves the complete fit."""
        start, generator = call.start(model), torch.Generator().manual_seed(call.seed)
        streamed, bar = isinstance(rows, StreamedRows), Progress(None, self.name, enabled=call.progress)
        keeper = self._keeper(model, rows if streamed else data, call.seed, start, generator)
        fitting = Fitting(self, model, engine, rows, generator, bar, keeper)
        weighted = isinstance(rows, WeightedRows)
        held = rows.first_rows if streamed else rows.rows if weighted else rows
        try:
            with bar, torch.no_grad():
                run = fitting.run(start)
            return self._result(model, data, engine, held, run, call.seed, call.weights)
        except KeyboardInterrupt:
            if fitting.ended is None:
                raise
            with torch.no_grad():
                run = fitting.finish(fitting.ended.cut())
        return self._result(model, data, engine, held, run, call.seed, call.weights)

    def _folder(self) -> Path | None:
        """Return the folder beside the checkpoint that keeps the locals of blocks; None without a checkpoint."""
        settings = Checkpoint.of(self.checkpoint)
        return None if settings is None else Path(f"{settings.path}.locals")

    def _keeper(
        self, model: Model, data: Any, seed: int, init: Any, generator: torch.Generator, pool: Pool = ALONE
    ) -> Keeper | None:
        """Make the keeper of the checkpoints of this very problem; ``StreamedRows`` are all read once for it."""
        settings = Checkpoint.of(self.checkpoint)
        if settings is None:
            return None
        # A longer fit may go on from a shorter one.
        method = fingerprint(repr(replace(self, checkpoint=None, max_iterations=1, tolerance=1.0)))
        streamed = isinstance(data, StreamedRows)
        dtype, rows = str((data.first if streamed else data).x.dtype), "blocks" if streamed else "in memory"
        problem = {"model": describe_input(model), "method": method, "seed": seed, "init": describe_input(init)}
        problem |= {"dtype": dtype, "rows": rows}
        total = checksum_of(data.data() if streamed else [data], pool.rank << 40)
        if streamed:
            data.settle_masks(pool)  # as all blocks were seen: a fit that goes on reads them as this one does
        return Keeper(settings, problem, total, generator, pool, pin=data.pin if streamed else None)

    def _result(
        self, model: Model, data: Data, engine: Engine, rows: Any, run: Run, seed: int, weights: Tensor | None = None
    ) -> Fit:
        state, step = run.state, run.step
        prior_term = capabilities.prior_term_at(engine, model, state)
        if isinstance(engine, capabilities.Canonical):
            state, locals_ = engine.canonical(model, state, step.locals)
            step = step._replace(locals=locals_)
        own = isinstance(state, State)
        fitted = state.with_fitted_priors(model) if own else model
        points = engine.point_locals(step) if isinstance(engine, capabilities.PointLocals) else {}
        values = values_of(model, state)
        known = {site: value.to(values[site]) for site, value in model.known.items()}  # steps may have rounded them
        return Fit(
            model=fitted,
            params=values | known | points,
            global_posterior=dict(state.posteriors(model)) if own else {},
            elbo=torch.tensor(run.trace, dtype=torch.float64),
            bound_name=engine.name,
            objective=engine.objective,
            prior_term=prior_term,
            status=run.outcome
            + describe_priors(engine, self.guide, model)
            + _warn_of_floors(engine, model, values, step),
            method=self.name,
            data=data,
            seed=seed,
            weights=weights,
            local=local_of(engine, model, state, rows, step),
            solver=LocalSolver(engine=self.engine(fitted)),
            details=run.details,
        )

    def local_posterior(self, model: Model, params: dict[str, Tensor], data: Data, *, seed: int = 0) -> Local:
        """Return the family's posterior at given globals (which ``compare`` compares)."""
        known = self._at_known(model)
        model = model if known is None else with_usual_priors(model)
        with torch.no_grad():
            return LocalSolver(engine=known or self.engine(model)).solve(model, params, data, seed=seed)


def _warn_of_floors(engine: Engine, model: Model, values: Params, step: EStep) -> str:
    """Warn of scales at their floor under a flat prior, and say so in the fit's status: the likelihood is unbounded
    there, so the objective is no maximum, and AIC and BIC are meaningless."""
    plain = getattr(engine, "plain", engine)
    if not isinstance(plain, capabilities.Floored):
        return ""
    said = ""
    for site, floor in plain.floors(model, step).items():
        at = int((values[site] <= 1.01 * floor.to(values[site])).sum())
        if not at or site in model.known or not is_flat(model.priors[site]):
            continue
        found = f"{at} of {values[site].numel()} values at their floor, {float(floor):.2g}"
        with about(site):
            expected = f"fewer components, rows that are not explained without error, or a proper prior of '{site}'"
            warn_of_data(f"{found}: the likelihood has no upper bound as it goes to 0; expected {expected}")
        said += f"; '{site}' has {found}, where the likelihood has no upper bound"
    return said


@dataclass(frozen=True, kw_only=True)
class EM(VariationalEM):
    """Exact EM: the E step sums over all codes, so the bound is the evidence. For up to about 14 bits."""

    guide: str | Guide = "exact"

    @property
    def name(self) -> str:
        return "EM"


def search_start(
    method: VariationalEM, engine: Engine, model: Model, rows: Any, generator: torch.Generator, bar: Progress
) -> Found:
    """Find the start of a fit of rows in memory by the method's search."""
    if method.search is None:
        return Found(engine.initial(model, rows, generator))
    plain = for_starts(engine, model)
    found = search(proposals_for(model, engine), plain, rows, method.search, generator, bar)
    return found if plain is model else replace(found, state=complete_state(engine, model, found.state))


@dataclass
class Fitting:
    """One fit by the settings of a method: its start, its iterations and its checkpoints.

    rows: in memory, or read block by block; with several processes, this one's. find: returns the start if there is no
    ``init``; by default a search on the rows. ended: the run, once it has ended.
    """

    method: VariationalEM
    model: Model
    engine: Engine
    rows: Any
    generator: torch.Generator
    bar: Progress
    keeper: Keeper | None = None
    find: Callable[[], Found] | None = None
    processes: Pool = ALONE
    details: dict[str, Any] = field(default_factory=dict)
    ended: Run | None = None

    def run(self, given: Params | None) -> Run:
        """Run from ``given`` values of the globals, from a checkpoint, or from the best start of a search."""
        self.ended = self._run(given)
        return self.finish(self.ended)

    def finish(self, run: Run) -> Run:
        """Add the results of the search to a run, and for blocks the locals and bounds of the first block."""
        details = dict(self.details)
        run.outcome += details.pop("agreement", "")
        run.details = {**details, **run.details}
        if isinstance(self.rows, StreamedRows):
            if "generation" in run.step.locals:
                run.step = self.rows.first_step(self.engine, run.state, self.generator)
                run.details["rows"] = len(self.rows)
            run.outcome += f"; Fit.data are the first block's {len(self.rows.first_rows)} rows"
        return run

    def _run(self, given: Params | None) -> Run:
        engine = self.engine
        if given is None and self.method.search is not None:
            engine = proposals_for(self.model, engine).finishing()
        at = None if self.keeper is None else self.keeper.resume(self.engine, self.rows.like)
        if at is None and given is not None:
            at = Position.at(Driver(engine, self.model, self.rows, self.processes).from_point(given))
        return self._from_search(engine) if at is None else self._climb(engine, at)

    def _find_start(self) -> Found:
        rows = self.rows
        if isinstance(rows, StreamedRows):
            if self.method.shuffle:
                rows.draw(self.generator)
            rows = rows.search_rows
        if isinstance(rows, WeightedRows):
            found = search_start(self.method, self.engine, self.model, rows.rows_to_search(), self.generator, self.bar)
            return replace(found, locals=None)  # of other rows
        return search_start(self.method, self.engine, self.model, rows, self.generator, self.bar)

    def _from_search(self, engine: Engine) -> Run:
        found = None
        try:
            found = self.find() if self.find is not None else self._find_start()
            if found.interrupted:
                raise KeyboardInterrupt
            at = Position((found.state, None if isinstance(self.rows, StreamedRows) else found.locals))
            if found.scores:
                self.details |= {"start_scores": found.scores, "agreement": f"; {found.agreement}"}
                if self._stepwise:
                    at = Position((found.state, self._statistics(engine, found.state)))
            if self.keeper is not None:
                self.keeper.details.update(self.details)
                self.keeper.keep(at)
            return self._climb(engine, at)
        except KeyboardInterrupt:  # before or in the first iteration: what the search found is still there
            if found is None or not (found.scores or found.interrupted):
                raise
        self.details = {"start_scores": found.scores} if found.scores else {}
        settings: Any = {"generator": self.generator, "processes": self.processes}
        run = run_em(self.engine, self.model, self.rows, found.state, max_iterations=1, tolerance=1.0, **settings)
        run.outcome, run.interrupted = f"interrupted after {len(found.scores)} starts; this is the best of them", True
        return run

    def _statistics(self, engine: Engine, state: Any) -> dict[str, Tensor]:
        """Return the statistics that running averages start from, of all rows: a single minibatch would forget most."""
        rows = self.rows.search_rows if isinstance(self.rows, StreamedRows) else self.rows
        found = engine.e_step(self.model, state, rows, generator=self.generator).statistics
        return {name: value * (len(self.rows) / len(rows)) for name, value in found.items()}

    @property
    def _stepwise(self) -> bool:
        size = self.method.batch_size
        return size is not None and (size < len(self.rows) or isinstance(self.rows, StreamedRows))

    def _climb(self, engine: Engine, at: Position) -> Run:
        method = self.method
        settings: Any = {"max_iterations": method.max_iterations, "tolerance": method.tolerance}
        settings |= {"generator": self.generator, "progress": self.bar}
        if self.keeper is not None:
            self.details.update(self.keeper.details)
            settings["watcher"] = self.keeper.watch
        if self._stepwise:
            rates = Rates(delay=method.delay, forgetting=method.forgetting)
            settings |= {"batch_size": method.batch_size, "rates": rates, "shuffle": method.shuffle}
            return run_stepwise(engine, self.model, self.rows, at, **settings)
        accelerate = capabilities.acceleration_of(engine) if method.accelerate == "default" else method.accelerate
        if isinstance(self.rows, StreamedRows) and capabilities.locals_to_extrapolate(engine):
            accelerate = None  # locals on disk are not extrapolated
        settings |= {"accelerate": accelerate, "processes": self.processes}
        return run_em(engine, self.model, self.rows, at, **settings)
