"""Hamiltonian Monte Carlo of many particles at once, at one temperature."""

from __future__ import annotations

import torch
from torch import Tensor

from custom_inference.checks.evidence.likelihood import Points, Target

#: Leapfrog steps of a trajectory; its step is drawn so far about the given one, that no orbit closes.
_STEPS, _JITTER = 6, 0.2


class Hamiltonian:
    """Particles that move by trajectories; the law prop. to q(u) e^(t l(u)) stays as it is.

    In coordinates u / unit the mass is 1 (Neal, *MCMC using Hamiltonian dynamics*, Handbook of MCMC, 2011).
    """

    def __init__(
        self, target: Target, points: Points, temperature: float, unit: Tensor | None, generator: torch.Generator
    ) -> None:
        """unit: (d,); by default 1 / sqrt E[slope^2], the standard deviation of a normal law. Of modes far from each
        other it is that within them, which the spread of the particles is not."""
        self.target, self.temperature, self.generator = target, temperature, generator
        self.points, self.slope = target.gradient(points.u, temperature)
        self.unit = self.slope.square().mean(0).clamp(min=1e-12).rsqrt() if unit is None else unit

    def move(self, step: float) -> float:
        """Propose the end of a trajectory for every particle; return the mean probability of acceptance."""
        kind = {"dtype": self.slope.dtype, "generator": self.generator}
        momentum = torch.randn(self.slope.shape, **kind)
        jitter = 1 + _JITTER * (2 * torch.rand(len(momentum), 1, **kind) - 1)
        length = step * jitter * self.unit
        before = self.points.at(self.temperature) - momentum.square().sum(1) / 2
        points, slope = self.points, self.slope
        for _ in range(_STEPS):
            momentum = momentum + length / 2 * slope
            points, slope = self.target.gradient(points.u + length * momentum, self.temperature)
            momentum = momentum + length / 2 * slope
        gain = points.at(self.temperature) - momentum.square().sum(1) / 2 - before
        chance = torch.where(torch.isnan(gain), -torch.inf, gain).clamp(max=0).exp()
        taken = torch.rand(len(chance), **kind) < chance
        self.points = self.points.where(taken, points)
        self.slope = torch.where(taken.unsqueeze(1), slope, self.slope)
        return float(chance.mean())
