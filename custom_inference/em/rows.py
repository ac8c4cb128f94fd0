"""The rows of one fit, as the steps of EM take them, whatever they are: in memory, here; with weights of rows
(``em.weights``); read block by block (``em.streaming``)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor

from custom_inference.core.engine import Engine, EStep, Params, Warm
from custom_inference.core.process_group import Pool
from custom_inference.core.states import State
from ppl_models import Model


class FitRows:
    """Rows in memory, as an engine reads them."""

    #: Whether they are read block by block, so that locals are files rather than tensors.
    streamed: ClassVar[bool] = False

    def __init__(self, held: Any):
        self._held = held

    @property
    def held(self) -> Any:
        """What M steps are given that need no more than the statistics: the rows in memory."""
        return self._held

    @property
    def weights(self) -> Tensor | None:
        """How often each row counts, (N,) in double precision; None: once."""
        return None

    @classmethod
    def of(cls, rows: Any) -> FitRows:
        """Take an engine's rows in memory, or what is such rows already."""
        return rows if isinstance(rows, FitRows) else FitRows(rows)

    def __len__(self) -> int:
        return len(self.held)

    @property
    def like(self) -> Tensor:
        """A tensor with the data's dtype and device."""
        return self.held.like

    @property
    def total(self) -> float:
        """How many rows they count for."""
        return len(self)

    @property
    def first_rows(self) -> Any:
        """The rows that ``Fit.data`` and ``Fit.local`` are of."""
        return self.held

    def e_step(
        self, engine: Engine, model: Model, state: State | Params, warm: Warm, processes: Pool, *, temperature: float,
        generator: torch.Generator | None,
    ) -> EStep:  # fmt: skip
        """Take an E step of this process's rows."""
        del processes
        return engine.e_step(model, state, self.held, warm, temperature=temperature, generator=generator)

    def bound(self, step: EStep) -> Tensor:
        """Return what the rows' bounds add to the objective: (N,), or their sum (1,)."""
        return step.bound

    def pieces(self, engine: Engine, warm: Params) -> Iterable[tuple[Any, Params]]:
        """Return the rows piece by piece, each with its locals of the E step that gave ``warm``."""
        del engine
        return [(self.held, warm)]

    @property
    def search_rows(self) -> Any:
        """The rows in memory that starts were searched for on."""
        return self.held

    def choose_for_search(self, generator: torch.Generator, *, shuffle: bool) -> Any:
        """Return the rows in memory that starts are searched for on."""
        del generator, shuffle
        return self.held

    def finish(self, engine: Engine, state: State | Params, step: EStep, generator: torch.Generator) -> EStep:
        """Return the last E step with locals and bounds of ``first_rows``."""
        del engine, state, generator
        return step
