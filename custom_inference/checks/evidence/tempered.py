"""Tempered sequential Monte Carlo over the globals of a model: p(x) and its standard error.

Particles u go from the prior q(u) to the posterior through q(u) e^(t l(u)), 0 = t_0 < ... < t_M = 1, l the log
likelihood. Between t and t' each has the weight w = e^((t' - t) l(u)); they are resampled by these and moved by
Hamiltonian Monte Carlo that leaves the law at t' as it is. The product of the mean weights is an unbiased estimate of
p(x) (Del Moral, Doucet & Jasra, *Sequential Monte Carlo samplers*, J. Royal Statistical Society B 68, 2006).

A pilot run chooses what is free: the next temperature, at which the weights are worth a given share of the particles;
step lengths, by how many proposals are accepted; units of the coordinates, by the slope of the log density; and how
often they are moved, until they have forgotten where they were (Buchholz, Chopin & Jacob, *Adaptive tuning of
Hamiltonian Monte Carlo within sequential Monte Carlo*, Bayesian Analysis 16, 2021). Independent runs with these
settings as they are follow: each is unbiased, and their spread is the error. The prior of a model does not know the
components' labels, so that all K! of them count.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from custom_inference.checks.evidence.likelihood import OutOfTime, Points, Target
from custom_inference.checks.evidence.result import Array
from custom_inference.core.diagnostics import r_hat
from custom_inference.core.isolation import seed_of
from custom_inference.core.progress import Progress
from ppl_models import MethodError

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


#: Particles of a run at least and at most, those of the pilot run, and the share that weights are worth at each step.
_LEAST, PARTICLES, _OF_PILOT, _WORTH = 16, 512, 128, 0.75
#: At most so many trajectories at a temperature, and the acceptance that is aimed at.
_MOST_MOVES, _ACCEPTED = 12, 0.8
#: Particles have been moved enough where log prior and log likelihood have no larger correlation with what they were.
_FORGOTTEN = 0.2
#: Independent runs at a time and at most, and the error that is small enough to stop at.
FEWEST, MOST, SMALL = 4, 40, 0.015


class Stage(NamedTuple):
    """A temperature, and how particles move there: the step, the units (d,) of the coordinates, and how often."""

    temperature: float
    step: float
    unit: Tensor
    moves: int


class Runs(NamedTuple):
    """log_estimates (R,) of independent runs; log_likelihood (R, S): of their particles under the posterior."""

    log_estimates: Array
    log_likelihood: Array

    def effective_size(self) -> float:
        """How many independent draws the particles of all runs are worth in the mean of the log likelihood."""
        if len(self.log_likelihood) < 2:
            return math.nan
        between = self.log_likelihood.mean(1).var(ddof=1)
        within = self.log_likelihood.var(1).mean()
        return (
            float(min(self.log_likelihood.size, len(self.log_likelihood) * within / between)) if between else math.nan
        )

    def r_hat(self) -> float:
        """Whether the runs agree in the log likelihood."""
        return float(r_hat(self.log_likelihood)) if len(self.log_likelihood) > 1 else math.nan


class Halted(Exception):
    """The seconds ended in the pilot run, at this temperature."""

    def __init__(self, temperature: float):
        super().__init__(temperature)
        self.temperature = temperature


def sample(
    target: Target, *, seed: int, deadline: float, progress: bool, enough: Callable[[Array], bool]
) -> tuple[Runs, bool]:
    """Run the pilot, then independent runs until there is ``enough`` or the deadline; whether Ctrl-C ended them.

    Raises Halted where the deadline comes before the pilot has ended; MethodError for a likelihood that is no number.
    """
    begin = time.perf_counter()
    generator = torch.Generator().manual_seed(seed)
    target.deadline = deadline
    with Progress(None, "evidence: pilot run", enabled=progress) as bar, torch.no_grad():
        stages = _pilot(target, seed, generator, bar)
    once = (time.perf_counter() - begin) / _OF_PILOT  # of a particle, at most: many cost less than in proportion
    size = int(min(PARTICLES, 0.8 * (deadline - time.perf_counter()) / (FEWEST * once)))
    logs: list[Array] = []
    clouds: list[Array] = []
    interrupted = False
    with Progress(MOST, "evidence: runs", enabled=progress) as bar, torch.no_grad():
        try:
            while size >= _LEAST and len(logs) < MOST and not (len(logs) >= FEWEST and enough(np.array(logs))):
                found = _replay(target, stages, seed + 1 + len(logs), FEWEST, size)
                logs.extend(found.log_estimates)
                clouds.extend(found.log_likelihood)
                bar.advance(count=FEWEST)
        except OutOfTime:
            pass
        except KeyboardInterrupt:
            if not logs:
                raise
            interrupted = True
    return Runs(np.array(logs), np.array(clouds)), interrupted


def _start(target: Target, count: int, seed: int) -> Points:
    """Draw from the prior. Raises MethodError where the likelihood is no number there, or 0 everywhere."""
    found = target.evaluate(target.globals.draw(count, seed))
    name = type(target.globals.model).__name__
    wrong = int(torch.isnan(found.likelihood).sum() + (found.likelihood == torch.inf).sum())
    if wrong:
        raise MethodError(
            f"log p(x | globals) of {name} is no finite number at {wrong} of {count} draws from its priors"
        )
    if bool((found.likelihood == -torch.inf).all()):
        raise MethodError(
            f"p(x | globals) of {name} is 0 at all {count} draws from its priors; expected priors that suit x"
        )
    return found


def _pilot(target: Target, seed: int, generator: torch.Generator, bar: Progress) -> list[Stage]:
    temperature, step, stages = 0.0, 0.3, []
    try:
        particles = _start(target, _OF_PILOT, seed)
        while temperature < 1:
            particles, stage = _advance(target, particles, temperature, step, generator)
            temperature, step = stage.temperature, stage.step
            stages.append(stage)
            bar.advance()
    except OutOfTime:
        raise Halted(temperature) from None
    return stages


def _advance(
    target: Target, particles: Points, temperature: float, step: float, generator: torch.Generator
) -> tuple[Points, Stage]:
    """Bring particles to the next temperature; return them there, and the settings with which they moved."""
    following = _next_temperature(particles.likelihood, temperature)
    _, particles = _reweight(particles, following - temperature, 1, generator)
    sampler, moves = Hamiltonian(target, particles, following, None, generator), 0
    while moves < _MOST_MOVES:
        accepted = sampler.move(step)
        step, moves = step * math.exp(accepted - _ACCEPTED), moves + 1
        if _correlation(particles, sampler.points) < _FORGOTTEN:
            break
    return sampler.points, Stage(following, step, sampler.unit, moves)


def _replay(target: Target, stages: list[Stage], seed: int, runs: int, size: int) -> Runs:
    """Make independent runs at once, with settings that do not depend on them."""
    generator = torch.Generator().manual_seed(seed_of(seed, "moves"))
    particles, before = _start(target, runs * size, seed), 0.0
    total = torch.zeros(runs, dtype=particles.u.dtype)
    for stage in stages:
        gain, particles = _reweight(particles, stage.temperature - before, runs, generator)
        total, before = total + gain, stage.temperature
        sampler = Hamiltonian(target, particles, stage.temperature, stage.unit, generator)
        for _ in range(stage.moves):
            sampler.move(stage.step)
        particles = sampler.points
    return Runs(total.double().numpy(), particles.likelihood.reshape(runs, -1).double().numpy())


def _next_temperature(likelihood: Tensor, temperature: float) -> float:
    """Return the temperature at which the weights are worth a given share of the particles, by bisection."""
    possible = likelihood[likelihood > -torch.inf]
    low, high = 0.0, 1.0 - temperature
    if _effective_size(high * possible) >= _WORTH * len(possible):
        return 1.0
    for _ in range(60):
        middle = (low + high) / 2
        enough = _effective_size(middle * possible) >= _WORTH * len(possible)
        low, high = (middle, high) if enough else (low, middle)
    return temperature + high


def _effective_size(log_weight: Tensor) -> float:
    return float((2 * log_weight.logsumexp(0) - (2 * log_weight).logsumexp(0)).exp())


def _reweight(particles: Points, rise: float, runs: int, generator: torch.Generator) -> tuple[Tensor, Points]:
    """Return the log mean weight of each run (R,), and its particles resampled by their weights, systematically."""
    log_weight = (rise * particles.likelihood).reshape(runs, -1)
    size = log_weight.shape[1]
    gain = log_weight.logsumexp(1) - math.log(size)
    if bool((gain == -torch.inf).any()):
        raise MethodError("no particle of a run has a likelihood above 0; expected priors that suit x")
    edges = torch.softmax(log_weight, 1).cumsum(1)
    offset = torch.rand(runs, 1, generator=generator, dtype=edges.dtype)
    points = (torch.arange(size, dtype=edges.dtype) + offset) / size * edges[:, -1:]
    index = torch.searchsorted(edges, points).clamp(max=size - 1) + size * torch.arange(runs).unsqueeze(1)
    return gain, particles.select(index.flatten())


def _correlation(before: Points, after: Points) -> float:
    """Return the larger correlation of log prior and log likelihood with what they were; which of the posterior's modes
    a particle is in is forgotten late, if at all, and need not be."""
    pairs = ((before.prior, after.prior), (before.likelihood, after.likelihood))
    found = [torch.corrcoef(torch.stack(pair))[0, 1].nan_to_num(0.0) for pair in pairs]
    return float(max(found))
