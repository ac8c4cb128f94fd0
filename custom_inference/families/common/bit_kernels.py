"""Compiled flips of bits whose effects on the features add up. Import inside functions only: it loads the compiler."""

from __future__ import annotations

import math

from custom_inference.families.common.compiled import Ints, Reals, Words, bare, inlined
from custom_inference.families.common.intrinsics import larger
from custom_inference.families.common.random import draw_uniform

#: Products of so many ratios are put into one logarithm, of noisy-or and of odds.
_TOGETHER, _FEW = 8, 4
#: Kinds of features: noisy-or, normal, logistic; odds, logistic ones below ``MOST_ODDS``, products of which are numbers
#: still: multiplied in a tenth of the time of exponentials; quadratic, where the features are the bits themselves, each
#: with what the others add to its log odds.
KINDS, MOST_ODDS = ("noisy_or", "normal", "logistic", "odds", "quadratic"), 1e75


@inlined
def _softplus(value: float):
    return value + math.log1p(math.exp(-value)) if value > 0 else math.log1p(math.exp(value))


@inlined
def _term(kind: int, level: float, target: float):
    """Return what a feature at this level adds to the log joint."""
    if kind == 0:
        return math.log(larger(1.0 - level, 1e-300))
    if kind == 3:
        return -math.log1p(level)
    return -0.5 * (target - level) * (target - level) if kind == 1 else -_softplus(level)


@inlined
def _begin(kind: int, bits: Ints, weight: Reals, offset: Reals, shift: Reals, target: Reals, level: Reals):
    """Set the level of every feature; return the log joint, but for what is constant."""
    total, size = 0.0, level.shape[0]
    for j in range(size):
        level[j] = offset[j]
    for k in range(bits.shape[0]):
        if bits[k]:
            total += shift[k]
            for j in range(size):
                if kind == 0 or kind == 3:
                    level[j] *= weight[k, j]
                else:
                    level[j] += weight[k, j]
    for j in range(size):
        if kind < 4:
            total += _term(kind, level[j], target[j])
        elif bits[j]:
            total += 0.5 * (level[j] - weight[j, j])
    return total


@inlined
def _change(kind: int, k: int, on: int, weight: Reals, level: Reals, target: Reals):
    """Return what a flip of bit k that is ``on`` adds to the log joint, but for the shift."""
    total = 0.0
    if kind == 4:
        return weight[k] - level[k] if on else level[k]
    if kind == 0:
        ratio = 1.0
        for j in range(level.shape[0]):
            other = level[j] / weight[j] if on else level[j] * weight[j]
            ratio *= larger(1.0 - other, 1e-300) / larger(1.0 - level[j], 1e-300)
            if j % _TOGETHER == _TOGETHER - 1:
                total += math.log(larger(ratio, 1e-300))
                ratio = 1.0
        return total + math.log(larger(ratio, 1e-300))
    if kind == 3:
        above, below = 1.0, 1.0
        for j in range(level.shape[0]):
            above *= 1.0 + level[j]
            below *= 1.0 + (level[j] / weight[j] if on else level[j] * weight[j])
            if j % _FEW == _FEW - 1:
                total += math.log(above / below)
                above, below = 1.0, 1.0
        return total + math.log(above / below)
    if kind == 1:
        for j in range(level.shape[0]):
            moved = -weight[j] if on else weight[j]
            total += moved * (target[j] - level[j] - 0.5 * moved)
        return total
    for j in range(level.shape[0]):
        moved = -weight[j] if on else weight[j]
        total += _softplus(level[j]) - _softplus(level[j] + moved)
    return total


@inlined
def _gather(entry: Ints, weight: Reals, offset: Reals, base: Reals, some: Reals):
    """Put what belongs to the features that count in a row beside each other."""
    for at in range(entry.shape[0]):
        base[at] = offset[entry[at]]
        for k in range(weight.shape[0]):
            some[k, at] = weight[k, entry[at]]


@bare
def log_joints(
    kind: int, bits: Ints, start: Ints, entry: Ints, target: Reals, weight: Reals, offset: Reals, shift: Reals,
    constant: Reals, own: Reals, base: Reals, level: Reals, some: Reals, joint: Reals,
):  # fmt: skip
    """Set ``joint`` (N, M) at ``bits`` (N, M, K); the arguments are those of :func:`flip`."""
    for n in range(bits.shape[0]):
        begin, size = start[n], start[n + 1] - start[n]
        _gather(entry[begin : begin + size], weight, offset, base, some)
        goal = target[begin : begin + size]
        for m in range(bits.shape[1]):
            found = _begin(kind, bits[n, m], some[:, :size], base[:size], shift[n], goal, level[:size])
            joint[n, m] = constant[n] + found


@bare
def flip(
    kind: int, bits: Ints, start: Ints, entry: Ints, target: Reals, weight: Reals, offset: Reals, shift: Reals,
    constant: Reals, own: Reals, base: Reals, level: Reals, some: Reals, joint: Reals, begun: Reals, power: Reals,
    rng: Words,
):  # fmt: skip
    """Propose a flip of every bit in turn, in place, accepted by begun^(1 - power) joint^power (Metropolis).

    bits: (N, M, K). start (N + 1,), entry, target (E,): the features that count in every row, and their values. weight
    (K, D), offset (D,): what a bit does to the level of a feature, and where that begins: a factor of P(off) where the
    kind is noisy-or, and of the odds of that kind, a sum else, in units of the noise where it is normal. shift (N, K):
    what a bit adds to the log joint by itself; constant (N,). own (N, K): log odds of the bits where paths begin. base,
    level (D,), some (K, D): room. joint, begun (N, M): both log densities, kept up to date. power: (N,).
    """
    state = rng[0]
    for n in range(bits.shape[0]):
        begin, size = start[n], start[n + 1] - start[n]
        _gather(entry[begin : begin + size], weight, offset, base, some)
        goal, heat = target[begin : begin + size], power[n]
        for m in range(bits.shape[1]):
            row = bits[n, m]
            joint[n, m] = constant[n] + _begin(kind, row, some[:, :size], base[:size], shift[n], goal, level[:size])
            for k in range(weight.shape[0]):
                on = row[k]
                sign = -1.0 if on else 1.0
                gain = sign * shift[n, k] + _change(kind, k, on, some[k, :size], level[:size], goal)
                ratio = (1.0 - heat) * sign * own[n, k] + heat * gain
                uniform, state = draw_uniform(state)
                if math.log(larger(uniform, 1e-300)) < ratio:
                    row[k] = 1 - on
                    joint[n, m] += gain
                    begun[n, m] += sign * own[n, k]
                    for j in range(size):
                        if kind == 0 or kind == 3:
                            level[j] = level[j] / some[k, j] if on else level[j] * some[k, j]
                        else:
                            level[j] += sign * some[k, j]
    rng[0] = state
