"""EM and variational EM: settings, and the fit that the driver makes of them."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from custom_inference.compiled.programs import engines_of_program
from custom_inference.core.engine import Engine, EStep, Params
from custom_inference.core.fit import Fit
from custom_inference.core.guide import Guide, engine_of
from custom_inference.core.latent_values import is_own_of_rows
from custom_inference.core.local_inference import Local, LocalSolver, local_of
from custom_inference.core.method import Call, Method, to_ask_with
from custom_inference.core.process_group import ALONE, Pool
from custom_inference.core.progress import Progress
from custom_inference.core.settings import require_positive, require_whole
from custom_inference.core.stages import Stages
from custom_inference.core.states import State, values_of
from custom_inference.em.accelerate import ACCELERATIONS
from custom_inference.em.any_prior import describe_priors, with_any_prior
from custom_inference.em.checkpoint import Checkpoint, Keeper, checksum_of, describe_model, describe_values, fingerprint
from custom_inference.em.fitting import Fitting
from custom_inference.em.known import fit_at_known, has_points, with_usual_priors
from custom_inference.em.loop import Run
from custom_inference.em.rows import FitRows
from custom_inference.em.search import Search
from custom_inference.em.stepwise import Rates, require_additive, require_blocks
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
    max_iterations, tolerance: stop when the objective gains less than ``tolerance`` per row; None: what the engine
        suggests, 1e-5 of most.
    search: how good starting values are found (restarts, annealing, over-complete starts and pruning);
        ``None`` runs once from one random start.
    batch_size: rows per step of stepwise (online) EM; ``None`` uses all rows at every step.
    shuffle: form the minibatches of every pass anew from random rows (for ``RowBlocks``, from blocks put together from
        random places, as far as the source allows), and search for starts on such; ``False`` takes rows in order,
        which misleads if they are sorted by anything.
    delay, forgetting: step sizes of stepwise EM, rho_t = (t + delay)^-forgetting (tau_0, kappa in Murphy, alg. 27.2).
    checkpoint: a path, or a :class:`Checkpoint`: the state is saved there, and the same call goes on from it.
    accelerate: "squarem" or "anderson" extrapolate EM's steps, safeguarded; ``None`` does not; "default" leaves it to
        the engine.
    """

    guide: str | Guide = "factorized"
    max_iterations: int = 300
    tolerance: float | None = None
    search: Search | None = field(default_factory=Search)
    batch_size: int | None = None
    shuffle: bool = True
    accelerate: str | None = "default"
    delay: float = 2.0
    forgetting: float = 0.6
    checkpoint: str | Path | Checkpoint | None = None

    def __post_init__(self) -> None:
        require_whole("max_iterations", self.max_iterations)
        if self.tolerance is not None:
            require_positive("tolerance", self.tolerance, why=", or None")
        if self.batch_size is not None:
            require_whole("batch_size", self.batch_size, why=", or None")
        if type(self.search) not in (Search, type(None)):
            raise MethodError(f"search = {self.search!r}, expected Search() with settings, or None")
        if self.accelerate not in (None, "default", *ACCELERATIONS):
            raise MethodError(unknown_name("acceleration", self.accelerate, ("default", *ACCELERATIONS)))
        Rates(delay=self.delay, forgetting=self.forgetting)  # refuses what is out of range

    @property
    def name(self) -> str:
        return f"VariationalEM({self.guide})"

    def engine(self, model: Model) -> Engine:
        """Return the engine that the driver runs. Raises MethodError if the model has no such engine."""
        found = self._find_engine(model)
        return found if is_own_of_rows(model) else with_any_prior(found, model)

    def _find_engine(self, model: Model) -> Engine:
        """Return the engine of the guide; of a program without engines the one that is compiled from it."""
        compiled = engines_of_program(model).get(str(self.guide))
        return engine_of(self.guide, model) if compiled is None else compiled()

    def engine_name(self, model: Model) -> str | None:
        return self._find_engine(model).name

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
        engine = None if model.unknown_sites else self._find_engine(model)
        return None if engine is None or has_points(engine) else engine

    def has_global_posterior(self, model: Model) -> bool:
        return self._at_known(model) is None and self.engine(model).integrates_globals

    def ask(self, model: Model) -> None:
        super().ask(model)
        if self._at_known(model) is not None:
            return
        engine = self.engine(model)
        example = None if is_own_of_rows(model) else to_ask_with(model)  # compiled engines take any prior
        if example is not None:
            with contextlib.suppress(CapacityError):  # of which the example's size says nothing
                engine.check(model, engine.rows(*example))

    def _fit(self, model: Model, data: Data, call: Call, blocks: StreamedRows | None = None) -> Fit:
        """Fit by EM; ``init`` skips the search and starts there. At known values of all globals there is one E step,
        to convergence. Ctrl-C after the last iteration leaves the fit that is there.

        blocks: the rows, where they are read block by block; ``data`` are then those of the first block.
        """
        known = self._at_known(model) if blocks is None else None
        if known is not None:
            return fit_at_known(self, model, data, call, known)
        engine = self.engine(model) if blocks is None else blocks.engine
        rows = FitRows(engine.rows(model, data)) if blocks is None else blocks
        engine.check(model, rows.first_rows)
        if self.batch_size is not None:
            require_additive(engine)  # before the search, not after it
        if call.weights is not None:
            rows = WeightedRows(rows.held, call.weights)
        start, generator = call.start(model), torch.Generator().manual_seed(call.seed)
        bar = Progress(None, self.name, enabled=call.progress)
        keeper = self._keeper(model, rows if blocks is not None else data, call.seed, start, generator)
        fitting = Fitting(self, model, engine, rows, generator, bar, keeper)
        try:
            with bar, torch.no_grad():
                run = fitting.run(start)
            fit = self._result(model, data, engine, rows.first_rows, run, call.seed, call.weights)
        except KeyboardInterrupt:
            if fitting.ended is None:
                raise
            with torch.no_grad():
                run = fitting.finish(fitting.ended.cut())
            fit = self._result(model, data, engine, rows.first_rows, run, call.seed, call.weights)
        fit.stages = Stages(fitting.stages)
        return fit

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
        with torch.no_grad(), StreamedRows(engine, model, source, self._folder(), **settings) as rows:
            return VariationalEM._fit(self, model, rows.first, call, rows)

    def without_files(self) -> Method:
        return replace(self, checkpoint=None)

    def _folder(self) -> Path | None:
        """Return the folder beside the checkpoint that keeps the locals of blocks; None without a checkpoint."""
        settings = Checkpoint.of(self.checkpoint)
        return None if settings is None else Path(f"{settings.path}.locals")

    def _keeper(
        self, model: Model, data: Any, seed: int, init: Params | None, generator: torch.Generator, pool: Pool = ALONE
    ) -> Keeper | None:
        """Make the keeper of the checkpoints of this very problem; ``StreamedRows`` are all read once for it."""
        settings = Checkpoint.of(self.checkpoint)
        if settings is None:
            return None
        # A longer fit may go on from a shorter one.
        method = fingerprint(repr(replace(self, checkpoint=None, max_iterations=1, tolerance=1.0)))
        streamed = isinstance(data, StreamedRows)
        dtype, rows = str((data.first if streamed else data).x.dtype), "blocks" if streamed else "in memory"
        problem = {"model": describe_model(model), "method": method, "seed": seed, "init": describe_values(init)}
        problem |= {"dtype": dtype, "rows": rows}
        total = checksum_of(data.data() if streamed else [data], pool.rank << 40)
        if streamed:
            data.settle_masks(pool)  # as all blocks were seen: a fit that goes on reads them as this one does
        return Keeper(settings, problem, total, generator, pool, pin=data.pin if streamed else None)

    def _result(
        self, model: Model, data: Data, engine: Engine, rows: Any, run: Run, seed: int, weights: Tensor | None = None
    ) -> Fit:
        state, step = run.state, run.step
        prior_term = engine.prior_term_at(model, state)
        state, locals_ = engine.canonical(model, state, step.locals)
        step = step._replace(locals=locals_)
        own, summed = isinstance(state, State), engine.name == "exact" and is_own_of_rows(model)
        fitted = state.with_fitted_priors(model) if own else model
        values = values_of(model, state)
        known = {site: value.to(values[site]) for site, value in model.known.items()}  # steps may have rounded them
        return Fit(
            model=fitted,
            params=values | known | engine.point_locals(step),
            global_posterior=dict(state.posteriors(model)) if own else {},
            elbo=torch.tensor(run.trace, dtype=torch.float64),
            bound_name=engine.name,
            objective=engine.objective,
            prior_term=prior_term,
            ended=run.ended,
            status=run.outcome
            + describe_priors(engine, self.guide, model)
            + _warn_of_floors(engine, model, values, step),
            method=self,
            data=data,
            seed=seed,
            weights=weights,
            local=local_of(engine, model, state, rows, step),
            solver=None if summed else LocalSolver(engine=self.engine(fitted)),
            details=run.details,
        )

    def local_posterior(self, model: Model, params: dict[str, Tensor], data: Data, *, seed: int = 0) -> Local:
        """Return the family's posterior at given globals (which ``compare`` compares)."""
        known = self._at_known(model)
        model = model if known is None else with_usual_priors(model)
        with torch.no_grad():
            return LocalSolver(engine=known or self.engine(model)).solve(model, params, data, seed=seed)


def _warn_of_floors(engine: Engine, model: Model, values: Params, step: EStep) -> str:
    """What a fit's status says of scales at their floor under a flat prior, where its objective is no maximum: that of
    the likelihood is infinite, and AIC and BIC say nothing. A DataWarning says so too."""
    said = ""
    for site, floor in engine.floors(model, step).items():
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
    """Exact EM: the E step sums over all codes, so the bound is the evidence. For up to about 14 bits; of ``NOCA`` for
    any number of sources where rows have few ones."""

    guide: str | Guide = "exact"

    @property
    def name(self) -> str:
        return "EM"
