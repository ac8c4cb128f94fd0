"""Random numbers and log-gamma functions of compiled loops. Import inside functions only: it loads the compiler.

Numbers are SplitMix64 (Steele, Lea & Flood, *Fast splittable pseudorandom number generators*, OOPSLA 2014): a counter
and a hash, so that a chain is a function of its seed alone. The state is a number that is handed on, or stands in an
array (1,).
"""

from __future__ import annotations

import math

import numpy as np

from custom_inference.families.common.compiled import Reals, Words, inlined, inner


@inlined
def _mix(state: np.uint64):
    """Return 64 random bits of a state."""
    z = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@inlined
def draw_uniform(state: np.uint64):
    """Return the next number in [0, 1), of 53 bits, and the next state."""
    state += np.uint64(0x9E3779B97F4A7C15)
    return np.float64(_mix(state) >> np.uint64(11)) * (1.0 / 9007199254740992.0), state


@inlined
def draw_single(state: np.uint64):
    """Return the next number in [0, 1), of 24 bits in single precision, and the next state."""
    state += np.uint64(0x9E3779B97F4A7C15)
    return np.float32(np.int32(_mix(state) >> np.uint64(40))) * np.float32(1 / (1 << 24)), state


@inlined
def find_place(cumulative: Reals, size: int, state: np.uint64):
    """Draw one of ``size`` places by the cumulative sums of their weights; return it and the next state."""
    uniform, state = draw_single(state)  # pyright: ignore[reportGeneralTypeIssues]
    left, place = uniform * cumulative[size - 1], 0
    while place < size - 1 and cumulative[place] <= left:
        place += 1
    return place, state


@inlined
def draw_next(rng: Words):
    """Return the next number in [0, 1), of a state that stands in an array (1,)."""
    uniform, rng[0] = draw_uniform(rng[0])  # pyright: ignore[reportGeneralTypeIssues]
    return uniform


@inlined
def draw_place(mass: Reals, size: int, total: float, rng: Words):
    """Draw one of the first ``size`` places with probability proportional to ``mass``, which has this sum; rng (1,)."""
    left, place = draw_next(rng) * total, 0
    while place < size - 1 and left >= mass[place]:
        left -= mass[place]
        place += 1
    return place


@inner
def draw_class(score: Reals, probability: Reals, number: int, state: np.uint64):
    """Draw one of the first ``number`` classes in proportion to exp(score), leaving all probabilities in
    ``probability``; return it and the next random state."""
    highest, total = score[0], 0.0
    for k in range(1, number):  # a loop: numpy's maximum of an array compiles for longer than all the rest
        highest = max(highest, score[k])
    for k in range(number):
        probability[k] = math.exp(score[k] - highest)
        total += probability[k]
    uniform, state = draw_uniform(state)  # pyright: ignore[reportGeneralTypeIssues]
    left, chosen, last = uniform * total, -1, 0
    for k in range(number):
        if chosen < 0 and left < probability[k]:
            chosen = k
        last = k if probability[k] > 0 else last
        left -= probability[k]
        probability[k] /= total
    return (chosen if chosen >= 0 else last), state  # rounding may leave more than there is


@inner
def log_gamma(x: float):
    """Compute log Gamma by Stirling's series from 8 on, with an error below 1e-13, and by the recurrence below."""
    product = 1.0
    while x < 8:
        product *= x
        x += 1
    y = 1 / (x * x)
    series = 1 / 1260 - y * (1 / 1680 - y * (1 / 1188 - y * (691 / 360360 - y / 156)))
    series = (1 / 12 - y * (1 / 360 - y * series)) / x
    found = (x - 0.5) * math.log(x) - x + 0.9189385332046728 + series
    return found if product == 1 else found - math.log(product)
