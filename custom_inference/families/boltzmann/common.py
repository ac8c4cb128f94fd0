"""Rows of a harmonium as the engines read them: their statistics, and the two phases of log p(x).

    log p(x_n) = log r(x_n) + b't_n + log Z(clamped) - log Z(free)      t_n, r of the observed units alone

clamped: the units of row n that were not observed, with hidden biases c + W t_n: nothing but the hidden units where all
were. free: all units that the row has. (Murphy 2012, eqs. 27.114-27.118 with the logarithm and the sign, and 27.112's
phases.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from custom_inference.core.engine import Params
from custom_inference.families.rows.base import Rows
from ppl_models import Data, MethodError, Model
from ppl_models.core.answer_models import ABSENT
from ppl_models.distributions import Energy
from ppl_models.rbm import HarmoniumModel

SITES = ("weight", "visible_bias", "hidden_bias")


@dataclass(frozen=True)
class HarmoniumRows(Rows):
    """statistic: t (N, M), 0 of units that were not observed, those of real ones in the model's unit. base: log r (N,),
    of those observed, a density of x as it is. times: how often
    each unit is there, (N, D) or (N, 1); None: once. missing: 1 of units that are there and were not observed; None:
    none. copies: how many rows of the data are like each, (N,); None: one.
    """

    statistic: Tensor
    base: Tensor
    times: Tensor | None = None
    missing: Tensor | None = None
    copies: Tensor | None = None

    @classmethod
    def of(cls, model: HarmoniumModel, data: Data) -> Self:
        dense = data.dense()
        (centre, unit), mask = model.units, dense.mask
        x = dense.x if (centre, unit) == (0.0, 1.0) else (dense.x - centre) / unit
        if mask is not None:
            x = torch.where(mask, x, torch.zeros_like(x))
        times = model.times(x, mask)
        if times is not None and times.shape[1] == 1 and times.shape != x.shape:  # tokens of one softmax unit
            return cls(x, torch.zeros_like(x[:, 0]), times)
        kind = model.likelihood
        statistic, base = kind.statistic(x), kind.log_base(x) - math.log(unit)
        if mask is not None:
            statistic = statistic * (mask.unsqueeze(-1) if kind.is_vector else mask)
            base = base * mask
        statistic = statistic.flatten(1)
        missing = (~mask).to(x) if mask is not None and times is None else None
        return cls(statistic, base.sum(-1), times, missing)

    @cached_property
    def distinct(self) -> HarmoniumRows:
        """Every row once, with the number of its copies."""
        parts = [self.statistic, *(part for part in (self.times, self.missing) if part is not None)]
        _, place, copies = torch.unique(torch.cat(parts, 1), dim=0, return_inverse=True, return_counts=True)
        if len(copies) == len(self):
            return self
        first = torch.full_like(copies, len(self)).scatter_reduce(
            0, place, torch.arange(len(self), device=place.device), "amin"
        )
        return replace(self.select(first), copies=copies.to(self.base))

    @cached_property
    def lengths(self) -> tuple[Tensor, Tensor]:
        """The different values of ``times``, (R, D), and which of them each row has, (N,)."""
        assert self.times is not None
        return torch.unique(self.times, dim=0, return_inverse=True)


def require_machine(model: Model, problem: str | None = None) -> HarmoniumModel:
    """Return the model. Raises MethodError for others than machines, with what the problem is."""
    if not isinstance(model, HarmoniumModel):
        expected = "has no partition function; RBM and ReplicatedSoftmax have"
        raise MethodError(problem or f"{type(model).__name__} {expected}")
    return model


def free_energy_of(model: HarmoniumModel, params: Params, rows: HarmoniumRows) -> Energy:
    """The exponent of the units that the rows have; of all of them alike without rows."""
    return model.energy_of_rows(params, rows.times)


def clamp_to_rows(free: Energy, rows: HarmoniumRows) -> Energy:
    """Return the energy of what is unknown given the rows: the hidden units, and the units that were not observed."""
    assert rows.missing is not None
    return free.of_rows(free.zeta(rows.statistic), rows.missing)


def negative_free_energy(free: Energy, rows: HarmoniumRows) -> Tensor:
    """Compute -F(x_n) of the rows, (..., N): log p(x_n) + log Z."""
    if rows.missing is None:
        return free.log_weight_of_visible(rows.statistic) + rows.base
    linear = (rows.statistic @ free.visible_bias.unsqueeze(-1)).squeeze(-1)
    return linear + clamp_to_rows(free, rows).log_partition() + rows.base


def log_partition_of(model: HarmoniumModel, params: Params, rows: HarmoniumRows) -> Tensor:
    """log Z of the rows, (..., N) or (..., 1), exact: once for rows whose units are the same."""
    if rows.times is None:
        return model.energy(params).log_partition().unsqueeze(-1)
    distinct, place = rows.lengths
    return model.energy_of_rows(params, distinct).log_partition()[..., place]


def log_likelihood(model: HarmoniumModel, params: Params, rows: HarmoniumRows) -> Tensor:
    """log p(x_n), (..., N), exact."""
    return negative_free_energy(free_energy_of(model, params, rows), rows) - log_partition_of(model, params, rows)


def column_naturals(model: HarmoniumModel, rows: HarmoniumRows) -> Tensor:
    """Natural parameters of the columns' means, in the shape of the visible biases; of categories that a unit lacks as
    far below all others as the machine's."""
    kind, shape = model.likelihood, model.shapes["visible_bias"]
    total = rows.statistic.sum(0).view(shape)
    if kind.is_vector:
        find = getattr(model, "present", None)
        present = None if find is None else find(total)
        share = total + 0.5 if present is None else torch.where(present, total + 0.5, 0.0)
        logs = (share / share.sum(-1, keepdim=True)).log()
        return logs if present is None else torch.where(present, logs, ABSENT)
    there = rows.times if rows.missing is None else 1 - rows.missing
    count = torch.full_like(total, len(rows)) if there is None else there.sum(0)
    return torch.logit((total + 0.5) / (count + 1)) if kind.kind == "binary" else total / count.clamp(min=1)


def first_bias(natural: Tensor) -> Tensor:
    """What visible biases begin at: these natural parameters, and 0 of categories that a unit lacks."""
    return torch.where(natural > ABSENT / 2, natural, 0.0)


class MachineWeights:
    """W, b and c as one vector ``theta``, which steps change in place; ``at`` are views of it by site.

    axes: of several machines in front.
    """

    def __init__(self, start: Params, axes: int = 0):
        self._axes, self._shapes = axes, {site: start[site].shape for site in SITES}
        self.theta = self.join(start)
        self.at = self.parts(self.theta)
        self._first, self._second, self._steps = torch.zeros_like(self.theta), torch.zeros_like(self.theta), 0

    def join(self, parts: Params) -> Tensor:
        """Join values by site to one vector."""
        return torch.cat([parts[site].flatten(self._axes) for site in SITES], -1)

    def parts(self, vector: Tensor) -> Params:
        """A vector of this kind by site, as views."""
        parts = vector.split([shape[self._axes :].numel() for shape in self._shapes.values()], -1)
        return {site: part.view(self._shapes[site]) for site, part in zip(SITES, parts, strict=True)}

    def climb(self, slope: Tensor, rate: float, momentum: float) -> None:
        """A step with momentum."""
        if momentum:
            self.theta += self._first.mul_(momentum).add_(slope, alpha=rate)
        else:
            self.theta.add_(slope, alpha=rate)

    def climb_adam(self, slope: Tensor, rate: float, memory: float = 0.999) -> None:
        """A step of Adam; memory: of squared slopes."""
        self._steps += 1
        self._first.lerp_(slope, 0.1)
        self._second.lerp_(slope.square(), 1 - memory)
        scale = (self._second / (1 - memory**self._steps)).sqrt_().add_(1e-8)
        self.theta.addcdiv_(self._first, scale, value=rate / (1 - 0.9**self._steps))


class Bordered(MachineWeights):
    """The weights of machines of binary units as one matrix (..., 1 + K, 1 + M): W after a row with b and a column with
    c, whose corner is 0."""

    def join(self, parts: Params) -> Tensor:
        inner = torch.cat([parts["hidden_bias"].unsqueeze(-1), parts["weight"]], -1)
        return torch.cat([pad(parts["visible_bias"], (1, 0)).unsqueeze(-2), inner], -2)

    def parts(self, vector: Tensor) -> Params:
        values = vector[..., 1:, 1:], vector[..., 0, 1:], vector[..., 1:, 0]
        return dict(zip(SITES, values, strict=True))
