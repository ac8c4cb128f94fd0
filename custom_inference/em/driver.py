"""An engine at work on the rows of one fit: rows in memory or read block by block, in one process or in several."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from custom_inference.core.capabilities import (
    AllRows,
    OneProcess,
    OwnState,
    ReadsRows,
    SharedWork,
    local_engine,
    objective_at,
)
from custom_inference.core.engine import Engine, EStep, Params
from custom_inference.core.process_group import ALONE, Pool
from ppl_models import Model


class ReadRows(abc.ABC):
    """Rows that are read anew for every E step. Has ``len`` and ``like``, as rows in memory have."""

    @abc.abstractmethod
    def e_step(self, driver: Driver, state: Any, warm: Params | None, **settings: Any) -> EStep:
        """The statistics of all rows, and the sum of their bounds (1,)."""

    @abc.abstractmethod
    def pieces(self, driver: Driver, warm: Params) -> Iterator[tuple[Any, Params]]:
        """The rows block by block, each with its locals of the E step that gave ``warm``."""


def divides_rows(engine: Engine) -> bool:
    """Whether each of several processes has rows of its own."""
    return not isinstance(engine, OneProcess | SharedWork)


@dataclass(frozen=True)
class Driver:
    """rows: this process's. What the methods return is the same in all processes, but for locals and bounds of rows."""

    engine: Engine
    model: Model
    rows: Any
    processes: Pool = ALONE
    generator: torch.Generator | None = None

    @property
    def num_rows(self) -> int:
        """The rows of all processes."""
        return round(self.processes.count(len(self.rows))) if divides_rows(self.engine) else len(self.rows)

    def e_step(self, state: Any, warm: Params | None = None, temperature: float = 1.0) -> EStep:
        """Of this process's rows."""
        settings: dict[str, Any] = {"temperature": temperature, "generator": self.generator}
        if isinstance(self.rows, ReadRows):
            return self.rows.e_step(self, state, warm, **settings)
        return self.engine.e_step(self.model, state, self.rows, warm, **settings)

    def gathered(self, step: EStep) -> EStep:
        """An E step with the statistics of all processes, and the sum of all bounds (1,) in place of the bounds."""
        if self.processes.size == 1 or not divides_rows(self.engine):
            return step
        total = step.bound.double().sum().reshape(1)
        *sums, bound = self.processes.total(*step.statistics.values(), total)
        return EStep(dict(zip(step.statistics, sums, strict=True)), step.locals, bound)

    def m_step(self, state: Any, step: EStep) -> Any:
        rows = _DriversRows(self) if isinstance(self.engine, ReadsRows) else self.rows
        return self.engine.m_step(self.model, state, step, rows)

    def objective(self, state: Any, bound: Tensor) -> float:
        return objective_at(self.engine, self.model, state, bound)

    def from_point(self, params: Params) -> Any:
        """The state from values of the globals: by an E step of all rows there, where the engine's is another."""
        params = {site: value.to(self.rows.like) for site, value in params.items()}
        if not isinstance(self.engine, OwnState):
            return params
        local = Driver(local_engine(self.engine), self.model, self.rows, self.processes)
        return self.engine.from_point(self.model, params, self.rows, lambda: local.gathered(local.e_step(params)))


class _DriversRows(AllRows):
    def __init__(self, driver: Driver):
        super().__init__(driver.rows)
        self.driver = driver

    def pieces(self, warm: Params) -> Iterable[tuple[Any, Params]]:
        return self.rows.pieces(self.driver, warm) if isinstance(self.rows, ReadRows) else super().pieces(warm)

    def total(self, *values: Tensor) -> tuple[Tensor, ...]:
        return self.driver.processes.total(*values)
