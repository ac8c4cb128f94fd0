"""Rows that count more than once, or less than once: EM with a weight of every row.

The objective is sum_n w_n log p(x_n | globals) + log p(globals), or a bound on it: a row's weight multiplies its part
of the statistics, which add up over rows, and its bound. Whole weights are repeated rows; other uses are sampling
weights of surveys, numbers of equal rows, and draws of a bootstrap.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from custom_inference.core.engine import Engine, EStep, Warm
from custom_inference.core.process_group import Pool
from custom_inference.core.states import Params, State
from custom_inference.em.rows import FitRows
from ppl_models import MethodError, Model

#: Different weights up to which rows are grouped by them, and binary digits of the others, from the largest downwards.
_GROUPS, _DIGITS = 24, 30
#: How many times as many rows, or how many at least, searches for starts take of rows with whole weights.
_REPEATED = (4, 2000)


def require_weighable(engine: Engine) -> None:
    """Raise MethodError for engines whose M steps need rows, or whose E steps take them in turn."""
    if not engine.additive:
        raise MethodError(f"weights of rows: the {engine.name} M step reads every row; expected no weights")
    if engine.sequential:
        raise MethodError(f"weights of rows: the {engine.name} E step takes rows in turn; expected no weights")


class WeightedRows(FitRows):
    """Rows as an engine reads them, and their weights (N,) in double precision, at least 0 and not all of them 0."""

    def __init__(self, held: Any, weights: Tensor):
        super().__init__(held)
        self._weights = weights

    @property
    def weights(self) -> Tensor:
        return self._weights

    @property
    def total(self) -> float:
        """The sum of the weights: how many rows they count for."""
        return float(self.weights.sum())

    @cached_property
    def _parts(self) -> list[tuple[float, Tensor]]:
        """Split the weights into (number, rows) that add up to them: rows of equal weight, or binary digits."""
        values, place = torch.unique(self.weights, return_inverse=True)
        if len(values) <= _GROUPS:
            return [(float(value), (place == i).nonzero()[:, 0]) for i, value in enumerate(values) if value > 0]
        _, exponent = torch.frexp(self.weights.max())
        unit = 2.0 ** (int(exponent) - _DIGITS)
        number = (self.weights / unit).round().long()
        digits = (((number >> place) & 1).nonzero()[:, 0] for place in range(_DIGITS + 1))
        return [(unit * 2.0**place, index) for place, index in enumerate(digits) if len(index)]

    def e_step(
        self, engine: Engine, model: Model, state: State | Params, warm: Warm, processes: Pool, **settings: Any
    ) -> EStep:
        """Take an E step with weighted statistics; locals and bounds are the rows' own."""
        del processes
        if engine.weighs_rows:
            return engine.e_step_weighted(model, state, self.held, self.weights.to(self.like), warm, **settings)
        whole = engine.e_step(model, state, self.held, warm, **settings)
        if any(len(value) != len(self) for value in whole.locals.values()):
            raise MethodError(f"weights of rows: the {engine.name} E step keeps more of a row than one; expected none")
        total: dict[str, Tensor] = {name: torch.zeros_like(value) for name, value in whole.statistics.items()}
        for number, index in self._parts:
            index = index.to(self.like.device)
            part = whole
            if len(index) < len(self):
                begun = None if warm is None else {name: value[index] for name, value in warm.items()}
                part = engine.e_step(model, state, self.held.select(index), begun, **settings)
            total = {name: value + number * part.statistics[name] for name, value in total.items()}
        return whole._replace(statistics=total)

    def bound(self, step: EStep) -> Tensor:
        """Return the weighted sum of the bounds, (1,)."""
        weights = self.weights.to(step.bound.device)
        counted = torch.where(weights > 0, step.bound.double(), 0.0)  # of no weight may be what is impossible
        return (weights * counted).sum().reshape(1)

    def choose_for_search(self, generator: torch.Generator, *, shuffle: bool) -> Any:
        """Return the rows that starts are searched for on: of whole weights repeated rows, where these are not too
        many; else as many as there are, each as often as its weight says but for rounding."""
        del generator, shuffle
        weights, number = self.weights, len(self)
        whole = bool((weights == weights.round()).all())
        if whole and self.total <= max(_REPEATED[0] * number, _REPEATED[1]):
            index = torch.arange(number, device=weights.device).repeat_interleave(weights.long())
        else:
            at = (torch.arange(number, dtype=torch.float64, device=weights.device) + 0.5) * (self.total / number)
            index = torch.searchsorted(weights.cumsum(0), at).clamp(max=number - 1)
        return self.held.select(index.to(self.like.device))
