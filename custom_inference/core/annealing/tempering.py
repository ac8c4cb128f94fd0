"""Chains along a path of densities f_b ~ base^(1 - b) joint^b, 0 <= b <= 1, of every row.

Forwards (Neal, *Annealed importance sampling*, 2001) a chain begins at a draw from the base, and its weight
w = prod_t (joint / base)(s_t)^(b_{t+1} - b_t) has the mean p(x_n). Backwards from a draw from the posterior it has the
mean 1 / p(x_n): -log of the mean of such weights is above log p(x_n) on average, as log of the mean of the others is
below (Grosse, Ghahramani & Adams, *Sandwiching the marginal likelihood*, 2015).
"""

from __future__ import annotations

import math
import time
from typing import NamedTuple

import torch
from torch import Tensor

from custom_inference.core.annealing.chains import Chains, State, Tuning

#: The effective proportion of chains after a step of the path that is being laid out.
_KEPT = 0.9
#: Steps of that path at most, and moves at each of them.
_MOST, _MOVES, _HASTY = 400, 2, 4
#: The acceptance that lengths of steps are adapted to, how fast, and the first one.
_ACCEPTED, _RATE, _FIRST = 0.75, 0.5, 0.5


class Path(NamedTuple):
    """powers (T + 1, N), from 0 to 1; the tuning of moves at each but the first; the final state; log_evidence (N,) by
    the chains that laid it out, with resampling; hasty: whether it was ended by the seconds."""

    powers: Tensor
    tunings: list[Tuning]
    state: State
    log_evidence: Tensor
    hasty: bool

    def rows(self, index: Tensor) -> Path:
        tunings = [one.rows(index) for one in self.tunings]
        return Path(self.powers[:, index], tunings, self.state.rows(index), self.log_evidence[index], self.hasty)


def lay_out_path(chains: Chains, number: int, generator: torch.Generator, seconds: float = math.inf) -> Path:
    """Choose temperatures row by row so that ``_KEPT`` of the chains are effective after each step, moving ``number``
    chains that are resampled (sequential Monte Carlo). After so many seconds what is left is gone in ``_HASTY``
    steps."""
    state, begin, hasty = chains.begin(number, generator), time.perf_counter(), 0
    power = torch.zeros(len(chains)).to(state.joint)
    total, powers, tunings = power.clone(), [power], []
    step = torch.full_like(power, _FIRST)
    while bool((power < 1).any()) and len(tunings) < _MOST:
        gain = state.gain
        step_size = _next_step(gain, 1 - power)
        if time.perf_counter() - begin > seconds or len(tunings) >= _MOST - _HASTY:
            step_size = torch.maximum(step_size, (1 - power) / (_HASTY - hasty))
            hasty += 1
        new = (power + step_size).clamp_max(1.0)
        (state, grown), power = _reweigh(state, new - power, generator), new
        total = total + grown
        tuning = Tuning(step, _measure_spread(state.reals))
        for _ in range(_MOVES):
            state, accepted = chains.move(state, power, tuning, generator)
            step = (step * torch.exp(_RATE * (accepted - _ACCEPTED))).clamp(1e-4, 2.0)
            tuning = tuning._replace(step=step)
        powers.append(power)
        tunings.append(tuning)
    return Path(torch.stack(powers), tunings, state, total, hasty > 0)


def _reweigh(state: State, power: Tensor, generator: torch.Generator) -> tuple[State, Tensor]:
    """Resample the chains by their gain to a power (N,); return them, and the log of the mean weight (N,)."""
    weight = _scale(state.gain, power)
    return state.gather(resample(weight, generator)), weight.logsumexp(0) - math.log(len(weight))


def _scale(gain: Tensor, power: Tensor) -> Tensor:
    """Multiply log weights by a power; what is impossible stays so."""
    impossible = torch.where(power > 0, -torch.inf, 0.0).to(gain)
    return torch.where(gain > -torch.inf, power * gain, impossible)


def _next_step(gain: Tensor, most: Tensor) -> Tensor:
    """The largest step (N,), at most ``most``, that keeps ``_KEPT`` of the possible chains effective."""
    possible = (gain > -torch.inf).to(gain).mean(0)

    def effective(step: Tensor) -> Tensor:
        share = torch.softmax(_scale(gain, step).nan_to_num(neginf=-1e300), 0)
        return 1 / (share.square().sum(0) * len(gain))

    low, high = torch.zeros_like(most), most.clone()
    enough = effective(high) >= _KEPT * possible
    for _ in range(40):
        middle = torch.where(low > 0, (low.clamp_min(1e-12) * high).sqrt(), high / 16)
        good = effective(middle) >= _KEPT * possible
        low, high = torch.where(good, middle, low), torch.where(good, high, middle)
    return torch.where(enough | (possible == 0), most, low.clamp_min(1e-12))


def resample(weight: Tensor, generator: torch.Generator) -> Tensor:
    """Places of chains (M, N) by systematic resampling of log weights (M, N)."""
    number, rows = weight.shape
    none = ~(weight > -torch.inf).any(0)
    share = torch.softmax(torch.where(none, torch.zeros_like(weight), weight), 0)
    point = (torch.arange(number)[:, None] + torch.rand(1, rows, generator=generator, dtype=torch.float64)) / number
    return torch.searchsorted(share.cumsum(0).T.contiguous(), point.T.to(share).contiguous()).T.clamp_max(number - 1)


def _measure_spread(reals: Tensor) -> Tensor:
    """The standard deviation (N, R) of the chains, shrunk a little to that of all rows, and never 0."""
    if not reals.shape[-1]:
        return reals[0]
    own = reals.var(0, unbiased=False)
    found = (own + 0.01 * own.mean(0)).sqrt()
    return torch.where(found > 0, found, torch.ones_like(found))


def refine(path: Path, parts: int) -> tuple[Tensor, list[Tuning]]:
    """Powers (T parts + 1, N) with every step of a path cut into as many, and the tuning at each."""
    share = torch.arange(1, parts + 1).to(path.powers) / parts
    begin, end = path.powers[:-1, None], path.powers[1:, None]
    powers = (begin + (end - begin) * share[:, None]).flatten(0, 1)
    return torch.cat([path.powers[:1], powers]), [tuning for tuning in path.tunings for _ in range(parts)]


def anneal(
    chains: Chains, powers: Tensor, tunings: list[Tuning], number: int, generator: torch.Generator
) -> tuple[State, Tensor]:
    """Run ``number`` chains forwards along a path; the last states and the log weights (M, N)."""
    state = chains.begin(number, generator)
    weight = torch.zeros_like(state.joint)
    for before, after, tuning in zip(powers[:-1], powers[1:], tunings, strict=True):
        weight = weight + _scale(state.gain, after - before)
        state, _ = chains.move(state, after, tuning, generator)
    return state, weight


def follow_path(chains: Chains, path: Path, number: int, generator: torch.Generator) -> tuple[State, Tensor]:
    """Run ``number`` chains along a path, resampled after each of its steps; the last states and log p(x_n) (N,)."""
    state = chains.begin(number, generator)
    total = torch.zeros_like(path.log_evidence)
    for before, after, tuning in zip(path.powers[:-1], path.powers[1:], path.tunings, strict=True):
        state, grown = _reweigh(state, after - before, generator)
        total = total + grown
        for _ in range(_MOVES):
            state, _ = chains.move(state, after, tuning, generator)
    return state, total


def anneal_back(
    chains: Chains, state: State, powers: Tensor, tunings: list[Tuning], generator: torch.Generator
) -> Tensor:
    """Run chains backwards from draws from the posterior; minus their log weights (M, N), for 1 / p(x_n)."""
    weight = torch.zeros_like(state.joint)
    for before, after, tuning in zip(reversed(powers[:-1]), reversed(powers[1:]), reversed(tunings), strict=True):
        state, _ = chains.move(state, after, tuning, generator)
        weight = weight + _scale(state.gain, after - before)
    return weight
