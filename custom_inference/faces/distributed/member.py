"""One process of a group: its part of the rows, the start that all share, and the run that all make."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from numpy.typing import ArrayLike
from safetensors import safe_open
from torch import Tensor

from custom_inference.core.engine import Engine
from custom_inference.core.fit import Fit, check_init
from custom_inference.core.method import Method
from custom_inference.core.process_group import Pool
from custom_inference.core.progress import Progress
from custom_inference.core.states import move_state
from custom_inference.core.tensor_files import write_tensors
from custom_inference.em.fitting import Fitting
from custom_inference.em.loop import Run
from custom_inference.em.method import VariationalEM
from custom_inference.em.rows import FitRows
from custom_inference.em.search import Found, find_start
from custom_inference.em.steps import divides_rows
from custom_inference.em.stepwise import require_blocks
from custom_inference.em.streaming import BlockReader, StreamedRows, require_readable
from ppl_models import Data, GraphData, MethodError, Model, RowBlocks
from ppl_models.data import sparse
from ppl_models.data.answers import ANSWERS


@dataclass(frozen=True)
class Filed:
    """Rows that another process wrote (:meth:`of`), taken as those of ``Data``: each process reads its own."""

    path: Path
    num_rows: int

    @classmethod
    def of(cls, data: Data, path: Path) -> Filed:
        x = data.x
        if sparse.is_sparse(x):
            tensors = {"crow": x.crow_indices(), "column": x.col_indices(), "values": x.values()}
        else:
            tensors = {"x": x} | ({} if data.mask is None else {"mask": data.mask})
        known = {"coords": data.coords, "recipe": data.recipe}
        header = {"known": json.dumps(known, default=str), "width": str(x.shape[1])}
        if data.container == "graph":
            graph = cast(GraphData, data)
            tensors |= {} if graph.hidden is None else {"hidden": graph.hidden}
            header["graph"] = json.dumps({"directed": graph.directed, "self_loops": graph.self_loops})
        write_tensors(path, tensors, header)
        return cls(path, len(data))

    def __len__(self) -> int:
        return self.num_rows

    def rows(self, at: slice) -> Data:
        with safe_open(self.path, framework="pt") as archive:
            header: dict[str, Any] = archive.metadata()
            known = json.loads(header["known"])
            coords = known["coords"]
            coords |= {"row": coords["row"][at]} if "row" in coords else {}
            coords |= {ANSWERS: list(map(tuple, coords[ANSWERS]))} if ANSWERS in coords else {}
            names = set(archive.keys())
            if "crow" not in names:
                mask = archive.get_slice("mask")[at] if "mask" in names else None
                return Data(x=archive.get_slice("x")[at], mask=mask, **known)
            crow: Tensor = archive.get_slice("crow")[at.start : at.stop + 1]
            first, last = int(crow[0]), int(crow[-1])
            column, values = (archive.get_slice(name)[first:last] for name in ("column", "values"))
            x = sparse.tensor(crow - first, column, values, size=(len(crow) - 1, int(header["width"])))
            if "graph" not in header:
                return Data(x=x, **known)
            hidden = archive.get_tensor("hidden") if "hidden" in names else None
            return GraphData(x=x, hidden=hidden, **known, **json.loads(header["graph"]))


@dataclass(frozen=True, kw_only=True)
class Problem:
    """The problem to be fitted, and how: the same in every process.

    source: all rows, of which each process takes its part; or blocks, of which each reads its part.
    """

    model: Model
    method: VariationalEM
    source: Data | Filed | RowBlocks
    seed: int = 0
    init: dict[str, Tensor] | None = None
    dtype: torch.dtype = torch.float64
    device: str | None = None
    progress: bool = True

    @property
    def settings(self) -> dict[str, Any]:
        return {"dtype": self.dtype, "device": self.device}

    @property
    def blocks(self) -> RowBlocks | None:
        """The blocks that rows are read in; None of rows in memory."""
        return self.source if isinstance(self.source, RowBlocks) else None

    def whole(self) -> Data:
        """All rows, where they are in memory, in the type and on the device of the fit."""
        source: Any = self.source
        return (source if isinstance(source, Data) else source.rows(slice(0, len(source)))).to(**self.settings)


def ran(problem: Problem, pool: Pool) -> Run:
    """The run, the same in every process: its last E step has the locals and bounds of all rows."""
    method = problem.method
    engine = method.engine(problem.model)
    _check(problem, engine, pool)
    begin = time.perf_counter()
    with torch.no_grad(), Progress(None, method.name, enabled=problem.progress and pool.rank == 0) as bar:
        if problem.blocks is None:
            run = _in_memory(problem, engine, pool, bar)
        else:
            run = _fit_streamed(problem, problem.blocks, engine, pool, bar)
    run.details |= {"processes": pool.size, "seconds": round(time.perf_counter() - begin, 3), **pool.report()}
    return run


def fit_of(problem: Problem, run: Run) -> Fit:
    """The fit that a run ends in: of all rows, or of the first block of blocks."""
    engine = problem.method.engine(problem.model)
    if problem.blocks is None:
        data = problem.whole()
    else:
        data = next(iter(BlockReader(engine, problem.model, problem.blocks, **problem.settings).data()))
    with torch.no_grad():
        return problem.method._result(problem.model, data, engine, engine.rows(problem.model, data), run, problem.seed)


def _check(problem: Problem, engine: Engine, pool: Pool) -> None:
    method = problem.method
    if pool.size == 1:
        return
    if len(problem.source) < pool.size:
        raise MethodError(f"{len(problem.source)} rows for {pool.size} processes; each needs at least one")
    if engine.one_process:
        raise MethodError(f"the {engine.name} engine of this model is for one process")
    if method.batch_size is not None:
        raise MethodError("minibatches are for one process; several take all rows at once, so leave batch_size out")


def _in_memory(problem: Problem, engine: Engine, pool: Pool, bar: Progress) -> Run:
    """Each process has its own rows, the first one all of them too, to look for a start; of graphs each has all."""
    model, divided, source = problem.model, divides_rows(engine) and pool.size > 1, cast(Data | Filed, problem.source)
    whole = problem.whole() if pool.rank == 0 or not divided else None
    own = source.rows(pool.split(len(source))).to(**problem.settings) if divided else whole
    assert own is not None
    rows = engine.rows(model, own)
    every = rows if whole is own else None if whole is None else engine.rows(model, whole)
    rows = engine.divide_rows(rows, pool)
    pool.from_first(lambda: engine.check(model, rows if engine.shares_work else every))
    engine = engine.configure(rows, pool.total)
    generator = torch.Generator().manual_seed(problem.seed)
    keeper = problem.method._keeper(model, own, problem.seed, problem.init, generator, pool)

    def find() -> Found:
        found = _on(_start(problem, lambda: FitRows(every), pool, generator, bar), rows.like.device)
        if found.locals is None or not divided:
            return found
        at = pool.split(len(source))
        return replace(found, locals={name: value[at] for name, value in found.locals.items()})

    fitting = Fitting(problem.method, model, engine, FitRows(rows), generator, bar, keeper, find, pool)
    run = _uncut(fitting.run(problem.init), pool)
    if divided:
        run.step = _gather(run, pool)
    return run


def _fit_streamed(problem: Problem, source: RowBlocks, engine: Engine, pool: Pool, bar: Progress) -> Run:
    """Each process reads its part of the blocks; the first block of all is the first one's."""
    method, model = problem.method, problem.model
    require_blocks(engine)
    generator = torch.Generator().manual_seed(problem.seed)
    own, folder = source, method._folder()
    if pool.size > 1:
        own = source.part(pool.rank, pool.size)
        folder = None if folder is None else folder.with_name(f"{folder.name}.{pool.rank}")
    with StreamedRows(engine, model, own, folder, **problem.settings) as rows:
        engine.check(model, rows.first_rows)
        keeper = method._keeper(model, rows, problem.seed, problem.init, generator, pool)

        def find() -> Found:
            found = _start(problem, lambda: rows, pool, generator, bar)
            return replace(_on(found, rows.like.device), locals=None)

        fitting = Fitting(method, model, engine, rows, generator, bar, keeper, find, pool)
        run = _uncut(fitting.run(problem.init), pool)
    run.step = pool.from_first(lambda: run.step)
    run.details["rows"] = len(source)
    return run


def _start(
    problem: Problem, read: Callable[[], FitRows], pool: Pool, generator: torch.Generator, bar: Progress
) -> Found:
    """What one process alone would start from, by the same random numbers: the first looks, and tells the others."""

    def find() -> tuple[Found, Tensor]:
        alone, rows = problem.method.engine(problem.model), read()
        one = find_start(problem.method, alone, problem.model, rows, generator, bar)
        if one.interrupted and pool.size > 1:
            raise KeyboardInterrupt
        return _on(one, torch.device("cpu")), generator.get_state()

    start, state = pool.from_first(find)
    generator.set_state(state)
    return start


def _on(found: Found, device: torch.device) -> Found:
    locals_ = None if found.locals is None else {name: value.to(device) for name, value in found.locals.items()}
    return replace(found, state=move_state(found.state, device), locals=locals_)


def _uncut(run: Run, pool: Pool) -> Run:
    """A run that all processes made to its end: Ctrl-C comes to each in another iteration, so that it ends the fit."""
    if run.interrupted and pool.size > 1:
        raise KeyboardInterrupt
    return run


def _gather(run: Run, pool: Pool) -> Any:
    """The last E step with the locals and bounds of all rows, in their order."""
    step, device = run.step, run.step.bound.device
    parts = pool.all_of({name: value.cpu() for name, value in {**step.locals, "bound": step.bound}.items()})
    whole = {name: torch.cat([part[name] for part in parts]).to(device) for name in parts[0]}
    return step._replace(bound=whole.pop("bound"), locals=whole)


def problem_of(
    model: Model,
    data: Any,
    method: Method | str | None,
    *,
    mask: ArrayLike | None = None,
    dtype: torch.dtype = torch.float64,
    **settings: Any,
) -> Problem:
    """Everything checked that can be checked before processes start.

    Raises MethodError for methods that are not EM with closed-form steps.
    """
    # Here, so that the processes, which import this module, need not load every method.
    from custom_inference.methods import Default, default_method, resolve_method, with_settings

    rows = None
    if isinstance(data, RowBlocks):
        require_readable(model, mask)
    else:
        data = rows = model.prepare(data, mask=mask, dtype=dtype)
        model.check_for_fitting(rows)
        model = model.on_scale_of(rows)
    chosen = resolve_method(method) if method is not None else Default()
    if isinstance(chosen, Default):
        chosen = with_settings(default_method(model, rows), chosen.settings)
    if not isinstance(chosen, VariationalEM):
        name = type(chosen).__name__
        raise MethodError(f"{name} runs in one process; several fit by EM(), VariationalEM() and the default")
    device, init = settings.get("device"), check_init(model, settings.get("init"))
    settings |= {"device": None if device is None else str(device), "init": init}
    return Problem(model=model, method=chosen, source=data, dtype=dtype, **settings)
