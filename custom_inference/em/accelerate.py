"""Accelerations of any EM-like map F: extrapolations that the driver takes back where they lower the objective.

SQUAREM (Varadhan & Roland, Scandinavian J. of Statistics 35, 2008): with theta_1 = F(theta_0), theta_2 = F(theta_1),
r = theta_1 - theta_0 and v = (theta_2 - theta_1) - r, scheme S3 goes after every second step to

    theta' = theta_0 + 2 t r + t^2 v,      t = |r| / |v|         (alpha = -t in the R package SQUAREM; t = 1 is theta_2)

Anderson (J. ACM 12, 1965; as a quasi-Newton method in Zhou, Alexander & Lange, Statistics and Computing 21, 2011): from
the last few steps f_i = F(theta_i) - theta_i goes after every step to F(theta) - dF gamma, where gamma is the least
squares solution of df gamma = f, and df and dF hold the differences of successive f_i and F(theta_i).

The driver accepts an extrapolation only where the objective there is no lower than at the point before, and else goes
on from the plain step, so that the objective never falls. An accepted one costs no evaluation of its own.
"""

from __future__ import annotations

import abc
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import constraints

from custom_inference.core.engine import Engine, Params, Warm
from custom_inference.core.process_group import ALONE, Pool
from custom_inference.core.states import PointsWithLocals, State, tensors_of, with_tensors
from custom_inference.families.conjugate.beta import FLOOR
from ppl_models import MethodError, Model
from ppl_models.core.errors import unknown_name
from ppl_models.core.priors import support_of

#: What one iteration maps: the engine's state, and the locals that warm-start the next E step.
Iterate = tuple[Any, dict[str, Tensor]]


@dataclass
class Accelerator(abc.ABC):
    """Extrapolations of one run. Locals other than ``Accelerated.extrapolated`` are those of the plain step."""

    engine: Engine
    model: Model
    processes: Pool = ALONE
    _common: int = 0

    @abc.abstractmethod
    def state(self) -> dict[str, Tensor]:
        """Return what was learned in the run so far, for :meth:`restore` to go on from."""

    @abc.abstractmethod
    def restore(self, state: dict[str, Tensor]) -> None:
        """Go on from what :meth:`state` gave."""

    def extrapolate(self, current: tuple[Any, Warm], following: Iterate) -> Iterate | None:
        """Extrapolate beyond ``following``, the map's value at ``current``; None while too few iterates are known."""
        state, locals_ = current
        if locals_ is None and self.engine.extrapolated:
            return None  # the very first E step had no locals to start from
        self._common = sum(value.numel() for value in tensors_of(state).values())
        moved = self._extrapolate(self._flat((state, locals_ or {})), self._flat(following))
        if moved is None or self.processes.count(float((~torch.isfinite(moved)).sum())):
            return None
        state, locals_ = self._unflatten(moved, following)
        if isinstance(state, PointsWithLocals):
            state = replace(state, sites=into_support(self.model, state.sites, following[0].sites))
        elif not isinstance(state, State):
            state = into_support(self.model, state, following[0])
        return self.engine.project(self.model, state, locals_)

    @abc.abstractmethod
    def learn(self, accepted: bool) -> None:
        """Learn whether the last extrapolation was accepted."""

    @abc.abstractmethod
    def _extrapolate(self, current: Tensor, following: Tensor) -> Tensor | None:
        """Extrapolate from flat iterates; None while too few are known."""

    def _products(self, left: Tensor, right: Tensor) -> Tensor:
        """Return left' right of flat states, of which each process holds all parameters and its own rows' locals."""
        left, common = left.movedim(0, -1), self._common
        if self.processes.size == 1:
            return left @ right
        return left[..., :common] @ right[:common] + self.processes.total(left[..., common:] @ right[common:])[0]

    def _norm(self, flat: Tensor) -> float:
        return float(flat.norm() if self.processes.size == 1 else self._products(flat, flat).sqrt())

    def _flat(self, iterate: Iterate) -> Tensor:
        locals_ = [iterate[1][name] for name in self.engine.extrapolated if name in iterate[1]]
        return torch.cat([part.flatten() for part in (*tensors_of(iterate[0]).values(), *locals_)])

    def _unflatten(self, flat: Tensor, like: Iterate) -> Iterate:
        state, locals_ = dict(tensors_of(like[0])), dict(like[1])
        parts = [(state, name) for name in state] + [
            (locals_, name) for name in self.engine.extrapolated if name in locals_
        ]
        values = flat.split([part[name].numel() for part, name in parts])
        for (part, name), value in zip(parts, values, strict=True):
            part[name] = value.view_as(part[name])
        return with_tensors(like[0], state), locals_


@dataclass
class Squarem(Accelerator):
    """SQUAREM with step length t at most ``longest``, which grows when a step of that length succeeds, else shrinks."""

    _FACTOR: ClassVar[float] = 4.0
    longest: float = _FACTOR
    _reached: bool = False
    _points: list[Tensor] = field(default_factory=list)

    def _extrapolate(self, current: Tensor, following: Tensor) -> Tensor | None:
        self._points.append(current)
        if len(self._points) < 2:
            return None
        (first, second), self._points = self._points, []
        r = second - first
        v = following - second - r
        bend = self._norm(v)
        length = self._norm(r) / bend if bend > 0 else 0.0
        if not length > 1:
            return None
        self._reached = length >= self.longest
        length = min(length, self.longest)
        return first + 2 * length * r + length**2 * v

    def state(self) -> dict[str, Tensor]:
        settings = torch.tensor([self.longest, float(self._reached)], dtype=torch.float64)
        return {"settings": settings, **({"point": self._points[0]} if self._points else {})}

    def restore(self, state: dict[str, Tensor]) -> None:
        self.longest, self._reached = float(state["settings"][0]), bool(state["settings"][1])
        self._points = [state["point"]] if "point" in state else []

    def learn(self, accepted: bool) -> None:
        if accepted and self._reached:
            self.longest *= self._FACTOR
        if not accepted:
            self.longest = max(self._FACTOR, self.longest / self._FACTOR)


@dataclass
class Anderson(Accelerator):
    """Anderson acceleration on the last ``_WINDOW`` differences, or fewer if they exceed ``_MAX_BYTES``."""

    _WINDOW: ClassVar[int] = 6
    _MAX_BYTES: ClassVar[int] = 2**30
    _values: deque[Tensor] = field(default_factory=deque)
    _changes: deque[Tensor] = field(default_factory=deque)

    def _extrapolate(self, current: Tensor, following: Tensor) -> Tensor | None:
        self._values.append(following)
        self._changes.append(following - current)
        rows = self.processes.count(following.numel() - self._common)
        bytes_a_step = int(4 * (self._common + rows) * following.element_size())
        window = max(1, min(self._WINDOW, self._MAX_BYTES // bytes_a_step))
        while len(self._values) > window + 1:
            self._values.popleft()
            self._changes.popleft()
        if len(self._values) < 2:
            return None
        changes = torch.stack(list(self._changes), 1).diff(dim=1)
        values = torch.stack(list(self._values), 1).diff(dim=1)
        # Differences that have become alike are dropped by the ridge, at rounding's scale.
        gram = self._products(changes, changes).double()
        gram.diagonal().add_(torch.finfo(changes.dtype).eps * gram.diagonal().max() + 1e-300)
        gamma = torch.linalg.solve_ex(gram, self._products(changes, self._changes[-1]).double())[0]
        return following - values @ gamma.to(values)

    def state(self) -> dict[str, Tensor]:
        if not self._values:
            return {}
        return {"values": torch.stack(list(self._values)), "changes": torch.stack(list(self._changes))}

    def restore(self, state: dict[str, Tensor]) -> None:
        self._values, self._changes = (deque(state.get(name, ())) for name in ("values", "changes"))

    def learn(self, accepted: bool) -> None:
        if not accepted:
            self._values.clear()
            self._changes.clear()


#: What ``accelerate`` takes, beside None.
ACCELERATIONS: dict[str, type[Accelerator]] = {"squarem": Squarem, "anderson": Anderson}


def accelerator(name: str | None, engine: Engine, model: Model, processes: Pool = ALONE) -> Accelerator | None:
    """Make the named acceleration of one run; None for None."""
    if name is None:
        return None
    if name not in ACCELERATIONS:
        raise MethodError(unknown_name("acceleration", name, ACCELERATIONS))
    return ACCELERATIONS[name](engine, model, processes)


def into_support(model: Model, params: Params, reached: Params) -> Params:
    """Move globals back into the support of their priors: clamp into intervals, renormalise onto simplices.

    They stay as far from the edge as ``FLOOR``, the floor of closed-form steps, or as the map itself came in
    ``reached``.
    """
    inside, sites = {}, model.sites
    for site, value in params.items():
        support, came = support_of(model.priors[site]), reached[site]
        if sites[site].support is constraints.simplex or support is None:
            support = sites[site].support
        lower, upper = getattr(support, "lower_bound", None), getattr(support, "upper_bound", None)
        if support is constraints.simplex:
            value = torch.maximum(value, came.clamp(max=FLOOR))
            value = value / value.sum(-1, keepdim=True)
        if lower is not None:
            value = torch.maximum(value, came.clamp(max=torch.as_tensor(lower).to(value) + FLOOR))
        if upper is not None:
            value = torch.minimum(value, came.clamp(min=torch.as_tensor(upper).to(value) - FLOOR))
        inside[site] = value
    return inside
