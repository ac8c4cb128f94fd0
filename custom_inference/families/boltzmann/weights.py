"""All weights of a harmonium as one vector, and steps up a slope."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from custom_inference.core.engine import Params
from custom_inference.families.boltzmann.common import SITES


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
