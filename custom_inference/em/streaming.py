"""Rows that are read from a source block by block, with one block in memory at a time."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from custom_inference.core.engine import Engine, EStep, Params, Warm
from custom_inference.core.process_group import Pool
from custom_inference.core.states import State
from custom_inference.em.rows import FitRows
from ppl_models import Data, DataError, FileFormatError, MethodError, Model
from ppl_models.data.row_blocks import RowBlocks
from ppl_models.data.several import concatenate


def require_readable(model: Model, mask: Any) -> None:
    """Raise MethodError for models that do not take ``RowBlocks``, and for a mask with them."""
    if not model.rows_are_independent:
        raise MethodError("RowBlocks for a model of graphs, whose nodes are no independent rows")
    if mask is not None:
        raise MethodError("RowBlocks are read as they are; mark missing entries in the blocks, as NaN")


class BlockReader:
    """Reads a source block by block, as data and as rows of the engine, and counts what it reads.

    has_missing: whether some block that was read has missing entries. masks: give every block a mask, even without
    missing entries, as rows in memory have it: statistics of blocks with and without one cannot be added up.
    """

    def __init__(
        self, engine: Engine, model: Model, source: RowBlocks, *, dtype: torch.dtype, device: torch.device | str | None
    ):
        self.engine, self.model, self.source = engine, model, source
        self._settings = {"dtype": dtype, "device": device}
        self.has_missing, self.masks = False, False

    def data(self, generator: torch.Generator | None = None) -> Iterator[Data]:
        """Yield the blocks of one pass; with a generator, shuffled ones (``RowBlocks.shuffled``).

        Raises DataError if they do not have as many rows as the source says.
        """
        found = 0
        for parts in map(lambda block: [block], self.source) if generator is None else self.source.shuffled(generator):
            data = [self._prepare(parts.pop(0)) for _ in range(len(parts))]  # none twice in memory
            data = data[0] if len(data) == 1 else concatenate(data)
            self.has_missing |= data.mask is not None
            if self.masks and data.mask is None and data.x.layout == torch.strided:
                data = replace(data, mask=torch.ones_like(data.x, dtype=torch.bool))
            found += len(data)
            yield data
            del data
        if found != self.source.num_rows:
            problem = f"the blocks of a pass have {found} rows together"
            raise DataError(problem, axis=self.model.row_axis, expected=f"{self.source.num_rows}, as num_rows says")

    def _prepare(self, block: Any) -> Data:
        labels = self.source.coords.get("feature")
        if labels is None:
            return self.model.prepare(block, **self._settings)
        like = Data(x=torch.zeros(0, len(labels)), coords=self.source.coords)
        data = self.model.prepare_new(block, like, **self._settings)
        return replace(data, coords={"feature": labels, **data.coords})


class StreamedRows(BlockReader, FitRows):
    """The rows of a source, one block in memory at a time; what an E step goes on from of each block is kept on disk.

    folder: keeps these files, for checkpoints; by default they are removed when the fit ends. The driver's locals are
    ``{"generation": g, "files": n}``: the n files that the g-th E step wrote.
    """

    streamed: ClassVar[bool] = True

    def __init__(self, engine: Engine, model: Model, source: RowBlocks, folder: Path | None = None, **settings: Any):
        super().__init__(engine, model, source, **settings)
        self.first = next(iter(self.data()))
        self._first_rows = engine.rows(model, self.first)
        self._search_rows = self._first_rows
        self._temporary = contextlib.ExitStack()
        self._folder = folder or Path(self._temporary.enter_context(tempfile.TemporaryDirectory(prefix="ppl-locals-")))
        self._folder.mkdir(parents=True, exist_ok=True)
        self._generations = max(self._files().values(), default=0)
        self._before: dict[str, Tensor] | None = None
        self._pinned: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._temporary.close()

    def pin(self, warm: Warm) -> None:
        """Keep the files of the locals that a checkpoint names."""
        self._pinned = int(warm["generation"]) if warm and "generation" in warm else None

    @property
    def held(self) -> Any:
        """How many rows there are, and what they are like, of which M steps read no more."""
        return self

    @property
    def first_rows(self) -> Any:
        return self._first_rows

    @property
    def like(self) -> Tensor:
        return self._first_rows.like

    def __len__(self) -> int:
        return self.source.num_rows

    def e_step(
        self, engine: Engine, model: Model, state: State | Params, warm: Warm, processes: Pool, **settings: Any
    ) -> EStep:
        """Take the E step of all rows: their statistics, and the sum of their bounds (1,)."""
        del model  # the one that the blocks are read for
        self._generations += 1
        before = warm or None
        step = self._pass(engine, state, before, settings)
        if self.settle_masks(processes):
            step = self._pass(engine, state, before, settings)
        self._before = before
        needed = {self._generations, self._pinned, None if before is None else int(before["generation"])}
        for path, generation in self._files().items():
            if generation not in needed:
                path.unlink()
        return step

    def settle_masks(self, pool: Pool) -> bool:
        """Decide, after all blocks were read, whether every block of every process gets a mask from now on; return
        whether this is new."""
        if self.masks or not pool.count(float(self.has_missing)):
            return False
        self.masks = True
        return True

    def _pass(self, engine: Engine, state: State | Params, before: Warm, settings: dict[str, Any]) -> EStep:
        total: dict[str, Tensor] = {}
        bounds, files = [], 0
        for number, data in enumerate(self.data()):
            if number and self.has_missing and not self.masks:
                break  # to be read again with masks
            rows = engine.rows(self.model, data)
            step = engine.e_step(self.model, state, rows, self._load_locals(before, number), **settings)
            del data, rows
            if step.locals:
                plain = {name: value.cpu().contiguous() for name, value in step.locals.items()}
                save_file(plain, self._file(self._generations, number))
                files += 1
            total = {k: total[k] + v if k in total else v for k, v in step.statistics.items()}
            bounds.append(step.bound.double().sum())
        written = {"generation": torch.tensor(self._generations), "files": torch.tensor(files)}
        return EStep(total, written, torch.stack(bounds).sum().reshape(1))

    def pieces(self, engine: Engine, warm: Params) -> Iterator[tuple[Any, Params]]:
        """Yield the rows block by block, each with its locals of the E step that gave ``warm``."""
        for number, data in enumerate(self.data()):
            yield engine.rows(self.model, data), self._load_locals(warm, number) or {}

    @property
    def search_rows(self) -> Any:
        return self._search_rows

    def choose_for_search(self, generator: torch.Generator, *, shuffle: bool) -> Any:
        """Return the rows of a shuffled block: the first may be all of one kind where the rows are sorted."""
        if shuffle and len(self) > len(self.first_rows):
            self._search_rows = self.engine.rows(self.model, next(self.data(generator)))
        return self._search_rows

    def _files(self) -> dict[Path, int]:
        """Return the files that E steps wrote, with the number of the E step; others in the folder are left alone."""
        first = {path: path.name.split("-")[0] for path in self._folder.glob("*-*.safetensors")}
        return {path: int(number) for path, number in first.items() if number.isdecimal()}

    def _file(self, generation: int, block: int) -> Path:
        return self._folder / f"{generation}-{block}.safetensors"

    def _load_locals(self, locals_: dict[str, Tensor] | None, block: int) -> dict[str, Tensor] | None:
        """Load the locals that an E step wrote for a block; None for engines that write nothing.

        Raises FileFormatError for a file that is missing or damaged.
        """
        if locals_ is None or not int(locals_["files"]):
            return None
        path = self._file(int(locals_["generation"]), block)
        try:
            return {name: value.to(self.like.device) for name, value in load_file(path).items()}
        except FileNotFoundError:
            problem = f"{path} is not there: what the E step wrote of block {block}, which the checkpoint goes on from"
            raise FileFormatError(f"{problem}; without it, remove the checkpoint and start over") from None
        except (SafetensorError, OSError) as error:
            raise FileFormatError(f"{path}: not readable: {str(error).splitlines()[0]}") from None

    def finish(self, engine: Engine, state: State | Params, step: EStep, generator: torch.Generator) -> EStep:
        """Repeat the last E step on the first block, for the locals and bounds of the fit."""
        if "generation" not in step.locals:
            return step
        warm = self._load_locals(self._before, 0)
        return engine.e_step(self.model, state, self.first_rows, warm, generator=generator)


def minibatches(rows: Any, batch_size: int, generator: torch.Generator | None = None) -> Iterator[Any]:
    """Yield ``batch_size`` rows at a time: in order or, with a generator, in random order.

    No minibatch crosses from one block into the next.
    """
    if isinstance(rows, StreamedRows):
        for data in rows.data(generator):
            block = rows.engine.rows(rows.model, data)
            del data
            yield from minibatches(block, batch_size, generator)
            del block
        return
    order = None if generator is None else torch.randperm(len(rows), generator=generator)
    for start in range(0, len(rows), batch_size):
        chosen = slice(start, start + batch_size)
        if batch_size >= len(rows):
            yield rows  # whose order does not matter
        else:
            yield rows.select(chosen if order is None else order[chosen].to(rows.like.device))
