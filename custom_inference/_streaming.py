"""Stepwise EM on rows that are read from a source block by block, with one block in memory at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from custom_inference._loop import Run
from custom_inference._progress import Progress
from custom_inference._search import Search, search
from custom_inference._stepwise import Rates, Stepwise, require_additive
from custom_inference.steps import Steps
from ppl_models import Data, DataError, Model
from ppl_models._row_blocks import RowBlocks


class BlockReader:
    """A source, block by block as data and as rows of the steps; counts what it reads."""

    def __init__(self, steps: Steps, model: Model, source: RowBlocks, *, dtype: Any, device: Any):
        self.steps, self.model, self.source = steps, model, source
        self._settings = {"dtype": dtype, "device": device}

    def data(self) -> Iterator[Data]:
        """The blocks of one pass. Raises DataError where they are not as many rows as the source says."""
        found = 0
        for block in self.source:
            data = self._prepared(block)
            del block  # before the next one is read
            found += len(data)
            yield data
            del data
        if found != self.source.num_rows:
            problem = f"the blocks of a pass have {found} rows together"
            raise DataError(problem, axis=self.model.row_axis, expected=f"{self.source.num_rows}, as num_rows says")

    def _prepared(self, block: Any) -> Data:
        if not self.source.coords:
            return self.model.prepare(block, **self._settings)
        like = Data(x=torch.zeros(0, len(self.source.coords["feature"])), coords=self.source.coords)
        return self.model.prepare_new(block, like, **self._settings)

    def batches(self, batch_size: int) -> Iterator[Any]:
        """Minibatches in the order of the source; none crosses from a block into the next."""
        for data in self.data():
            rows = self.steps.rows(data)
            del data
            for start in range(0, len(rows), batch_size):
                yield rows if batch_size >= len(rows) else rows.select(slice(start, start + batch_size))
            del rows


def run_streaming(
    reader: BlockReader,
    start: dict[str, Tensor] | None,
    settings: Search | None,
    *,
    batch_size: int,
    max_iterations: int,
    tolerance: float,
    rates: Rates,
    generator: torch.Generator,
    progress: Progress,
) -> tuple[Run, Data, Any]:
    """The run, the first block, and its rows. Starts are searched for on the first block; the last pass only looks."""
    steps, model, total = reader.steps, reader.model, reader.source.num_rows
    require_additive(steps)
    first = next(iter(reader.data()))
    rows = steps.rows(first)
    steps.check(model, rows)
    params, statistics, agreement = _start(steps, model, rows, start, settings, generator, progress)
    scaled = {name: value * (total / len(rows)) for name, value in statistics.items()}
    online = Stepwise(steps, model, total, params, rates, generator, scaled, progress)
    online.climb(lambda: reader.batches(batch_size), max_iterations=max_iterations, tolerance=tolerance)
    trace = list(online.trace)
    if not online.interrupted:
        trace += _judged(online, reader, batch_size)
    step = steps.e_step(online.params, rows, generator=generator)
    outcome = f"streamed {len(online.trace)} passes of {total} rows in minibatches of {batch_size}"
    if online.interrupted:
        outcome = f"interrupted after {len(online.trace)} passes of {total} rows; this is the state at that point"
    outcome += f"{agreement}; Fit.data are the first block's {len(rows)} rows"
    details = {**online.details, "rows": total}
    return Run(online.params, step, trace, outcome, interrupted=online.interrupted, details=details), first, rows


def _judged(online: Stepwise, reader: BlockReader, batch_size: int) -> list[float]:
    """The objective at the final parameters, by one more pass; nothing where that is interrupted."""
    try:
        each = [
            online.steps.e_step(online.params, batch, generator=online.generator).bound.double().sum()
            for batch in reader.batches(batch_size)
        ]
    except KeyboardInterrupt:
        return []
    return [online.steps.objective(online.model, online.params, torch.stack(each))]


def _start(
    steps: Steps,
    model: Model,
    rows: Any,
    start: dict[str, Tensor] | None,
    settings: Search | None,
    generator: torch.Generator,
    progress: Progress,
) -> tuple[dict[str, Tensor], dict[str, Tensor], str]:
    """Parameters, the statistics of the first block that they come with, and how the starts agreed."""
    if start is not None:
        given = {site: value.to(rows.like) for site, value in start.items()}
        return steps.starting(model, given, rows), {}, ""
    if settings is None:
        return steps.initial(model, rows, generator), {}, ""
    found = search(steps, model, rows, settings, generator, progress)
    statistics = steps.e_step(found.params, rows, generator=generator).statistics
    return found.params, statistics, f"; {found.agreement} on the first block"
