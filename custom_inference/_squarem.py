"""SQUAREM: squared extrapolation of any EM-like map, from two of its steps (Varadhan & Roland 2008).

With theta_1 = F(theta_0), theta_2 = F(theta_1), r = theta_1 - theta_0 and v = (theta_2 - theta_1) - r, scheme S3
leaps to

    theta' = theta_0 + 2 t r + t^2 v,      t = |r| / |v|      (alpha = -t in the R package SQUAREM)

t = 1 gives theta_2. The driver takes theta' only where the objective there is no lower than at theta_1, and else goes
on from theta_2, so that the objective never falls. An accepted leap costs no evaluation of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.distributions import constraints

from custom_inference.steps._beta import FLOOR
from custom_inference.steps._protocol import Params, Steps
from ppl_models import Model

#: What one iteration maps: parameters, and the locals that warm-start the next E step.
State = tuple[Params, dict[str, Tensor]]
#: The longest leap allowed at first; it grows and shrinks by this factor as leaps succeed and fail.
_FACTOR = 4.0


@dataclass
class Squarem:
    """Leaps for one run. Locals other than ``Steps.extrapolated`` are carried over from theta_2 as they are."""

    steps: Steps
    model: Model
    longest: float = _FACTOR
    leaps: int = 0
    rejected: int = 0
    _points: list[State] = field(default_factory=list)
    _reached: bool = False

    def leap(self, current: tuple[Params, dict[str, Tensor] | None], following: State) -> State | None:
        """theta' once there are two steps to extrapolate: ``following`` is the map's value at ``current``."""
        params, locals_ = current
        if locals_ is None and self.steps.extrapolated:
            return None  # the very first E step had no locals to start from
        self._points.append((params, locals_ or {}))
        if len(self._points) < 2:
            return None
        first, second = self._points
        self._points = []
        length = self._length(first, second, following)
        if not length > 1:
            return None
        self._reached = length >= self.longest
        length = min(length, self.longest)
        self.leaps += 1
        moved = [
            {**at_2, **{name: _leap(at_0[name], at_1[name], at_2[name], length) for name in names}}
            for at_0, at_1, at_2, names in zip(first, second, following, self._names(following), strict=True)
        ]
        return self.steps.project(into_support(self.model, moved[0], following[0]), moved[1])

    def judge(self, accepted: bool) -> None:
        """Tell how the last leap went."""
        if accepted and self._reached:
            self.longest *= _FACTOR
        if not accepted:
            self.rejected += 1
            self.longest = max(_FACTOR, self.longest / _FACTOR)

    def _names(self, state: State) -> tuple[list[str], list[str]]:
        return list(state[0]), [name for name in self.steps.extrapolated if name in state[1]]

    def _length(self, first: State, second: State, third: State) -> float:
        change, bend = 0.0, 0.0
        for at_0, at_1, at_2, names in zip(first, second, third, self._names(third), strict=True):
            for name in names:
                r = at_1[name] - at_0[name]
                change += float(r.square().sum())
                bend += float((at_2[name] - at_1[name] - r).square().sum())
        return (change / bend) ** 0.5 if bend > 0 else 0.0


def _leap(at_0: Tensor, at_1: Tensor, at_2: Tensor, length: float) -> Tensor:
    r = at_1 - at_0
    return at_0 + 2 * length * r + length**2 * (at_2 - at_1 - r)


def into_support(model: Model, params: Params, reached: Params) -> Params:
    """Globals back inside the support of their priors: clamped into intervals, renormalised onto simplices.

    No closer to the edge than steps with closed forms keep their probabilities, ``FLOOR``, or than the map itself came
    in ``reached``.
    """
    return {site: _inside(model.priors[site], value, reached[site]) for site, value in params.items()}


def _inside(prior: Any, value: Tensor, reached: Tensor) -> Tensor:
    support = getattr(prior, "support", None)
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    if support is constraints.simplex:
        inside = torch.maximum(value, reached.clamp(max=FLOOR))
        return inside / inside.sum(-1, keepdim=True)
    lower, upper = getattr(support, "lower_bound", None), getattr(support, "upper_bound", None)
    if lower is not None:
        value = torch.maximum(value, reached.clamp(max=torch.as_tensor(lower).to(value) + FLOOR))
    if upper is not None:
        value = torch.minimum(value, reached.clamp(min=torch.as_tensor(upper).to(value) - FLOOR))
    return value
