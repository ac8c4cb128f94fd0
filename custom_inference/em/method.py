"""EM and variational EM: settings, and the fit that the driver makes of them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from custom_inference.core.capabilities import Canonical, PointLocals, check, integrates_globals
from custom_inference.core.engine import Engine
from custom_inference.core.fit import Fit
from custom_inference.core.guide import Guide, engine_of
from custom_inference.core.local_inference import Local, LocalSolver, local_of
from custom_inference.core.method import Call, Method
from custom_inference.core.process_group import ALONE, Pool
from custom_inference.core.progress import Progress
from custom_inference.core.states import State, values_of
from custom_inference.em.accelerate import ACCELERATIONS
from custom_inference.em.checkpoint import Checkpoint, Keeper, checksum_of, described, fingerprint
from custom_inference.em.fitting import Fitting
from custom_inference.em.loop import Run
from custom_inference.em.restarts import Search
from custom_inference.em.stepwise import Rates, require_additive, require_blocks
from custom_inference.em.streaming import BlockReader, StreamedRows, require_readable
from ppl_models import Data, MethodError, Model
from ppl_models.core.errors import unknown_name
from ppl_models.data.row_blocks import RowBlocks


@dataclass(frozen=True, kw_only=True)
class VariationalEM(Method):
    """Variational EM with closed-form steps: E step over the local latents, M step over the globals.

    guide: the family of local posteriors: "factorized", "mean_field", "truncated", or a guide with settings.
    max_iterations, tolerance: stop when the objective gains less than ``tolerance`` per row.
    search: how good starting values are found (restarts, annealing, over-complete starts and pruning);
        ``None`` runs once from one random start.
    batch_size: rows per step of stepwise (online) EM; ``None`` uses all rows at every step.
    shuffle: make the minibatches of every pass of other rows (of ``RowBlocks``: of blocks that are put together from
        random places, as far as the source can be read there), and search for starts on such; ``False`` takes rows as
        they come, which misleads where they are sorted by anything.
    delay, forgetting: of stepwise EM's averages, rho_t = (t + delay)^-forgetting (tau_0 and kappa in 002, alg. 27.2).
    checkpoint: a path, or a :class:`Checkpoint`: the state is kept there, and the same call goes on from it.
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
    def rates(self) -> Rates:
        return Rates(delay=self.delay, forgetting=self.forgetting)

    @property
    def name(self) -> str:
        return f"VariationalEM({self.guide.name if isinstance(self.guide, Guide) else self.guide})"

    def engine(self, model: Model) -> Engine:
        """What the driver runs. Raises MethodError where the model has no such engine."""
        return engine_of(self.guide, model)

    def has_global_posterior(self, model: Model) -> bool:
        """Whether fits hold draws, or a posterior, of the globals rather than points."""
        return integrates_globals(self.engine(model))

    def _fit(self, model: Model, data: Data, call: Call) -> Fit:
        """With ``init`` the search is skipped and EM starts there."""
        engine, start = self.engine(model), call.start(model)
        rows = engine.rows(model, data)
        check(engine, model, rows)
        if self.batch_size is not None:
            require_additive(engine)  # before the search, not after it
        generator = torch.Generator().manual_seed(call.seed)
        keeper = self._keeper(model, data, call.seed, start, generator)
        with Progress(None, self.name, enabled=call.progress) as bar, torch.no_grad():
            run = Fitting(self, model, engine, rows, generator, bar, keeper).run(start)
        return self._result(model, data, engine, rows, run, call.seed)

    def _fit_blocks(self, model: Model, source: RowBlocks, mask: Any, call: Call) -> Fit:
        """Of ``RowBlocks`` one block is in memory at a time: starts are searched for on as many rows as the first has,
        from all over (``shuffle=False``: on the first), and ``Fit.data``, ``Fit.local`` and ``Fit.evidence`` are those
        of the first. Without ``batch_size`` every iteration reads all blocks, and what is found is what the same rows
        would give in memory from that start.
        """
        engine, start = self.engine(model), call.start(model)
        require_readable(model, mask)
        (require_blocks if self.batch_size is None else require_additive)(engine)
        generator, bar = torch.Generator().manual_seed(call.seed), Progress(None, self.name, enabled=call.progress)
        reader = BlockReader(engine, model, source, dtype=call.dtype, device=call.device)
        with bar, torch.no_grad(), StreamedRows(reader, self._folder()) as rows:
            check(engine, model, rows.first_rows)
            keeper = self._keeper(model, rows, call.seed, start, generator)
            if keeper is not None:
                keeper.kept = rows.pin
            run = Fitting(self, model, engine, rows, generator, bar, keeper).run(start)
            run = rows.finished(engine, run, generator)
        return self._result(model, rows.first, engine, rows.first_rows, run, call.seed)

    def _folder(self) -> Path | None:
        """Where what E steps keep of blocks stays beside a checkpoint."""
        settings = Checkpoint.of(self.checkpoint)
        return None if settings is None else Path(f"{settings.path}.locals")

    def _keeper(
        self, model: Model, data: Any, seed: int, init: Any, generator: torch.Generator, pool: Pool = ALONE
    ) -> Keeper | None:
        """What writes and reads the checkpoints of this very problem; data: in memory, or ``StreamedRows``, all of
        which are read once for it."""
        settings = Checkpoint.of(self.checkpoint)
        if settings is None:
            return None
        # A longer fit may go on from a shorter one.
        method = fingerprint(repr(replace(self, checkpoint=None, max_iterations=1, tolerance=1.0)))
        problem = {"model": described(model), "method": method, "seed": seed, "init": described(init)}
        streamed = isinstance(data, StreamedRows)
        dtype = str((data.first if streamed else data).x.dtype)
        problem |= {"dtype": dtype, "rows": "blocks" if streamed else "in memory"}
        total = checksum_of(data.reader.data() if streamed else [data], pool.rank << 40)
        if streamed:
            data.settle_masks(pool)  # as all blocks were seen: a fit that goes on reads them as this one does
        return Keeper(settings, problem, total, generator, pool)

    def _result(self, model: Model, data: Data, engine: Engine, rows: Any, run: Run, seed: int) -> Fit:
        state, step = run.state, run.step
        if isinstance(engine, Canonical):
            state, locals_ = engine.canonical(model, state, step.locals)
            step = step._replace(locals=locals_)
        own = isinstance(state, State)
        fitted = state.fitted_model(model) if own else model
        points = engine.point_locals(step) if isinstance(engine, PointLocals) else {}
        return Fit(
            model=fitted,
            params=values_of(model, state) | points,
            global_posterior=dict(state.posteriors(model)) if own else {},
            elbo=torch.tensor(run.trace, dtype=torch.float64),
            bound_name=engine.name,
            status=run.outcome,
            method=self.name,
            data=data,
            seed=seed,
            local=local_of(engine, model, state, rows, step),
            solver=LocalSolver(engine=self.engine(fitted)),
            details=run.details,
        )

    def local_posterior(self, model: Model, params: dict[str, Tensor], data: Data, *, seed: int = 0) -> Local:
        """The family's posterior at given globals (what ``compare`` compares)."""
        with torch.no_grad():
            return LocalSolver(engine=self.engine(model)).solve(model, params, data, seed=seed)


@dataclass(frozen=True, kw_only=True)
class EM(VariationalEM):
    """Exact EM: the E step sums over all codes, so the bound is the evidence. For up to about 14 bits."""

    guide: str | Guide = "exact"

    @property
    def name(self) -> str:
        return "EM"
