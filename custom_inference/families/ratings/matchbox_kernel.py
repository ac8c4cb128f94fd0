"""Assumed-density filtering and expectation propagation through sigmoid(s't), compiled: import inside functions only.

The mathematics is in :mod:`custom_inference.families.ratings.matchbox`.
"""

from __future__ import annotations

import math

from custom_inference.families.common.compiled import Ints, Reals, entry, inner
from custom_inference.families.common.intrinsics import allocate, larger, smaller

#: Steps to the mode of the tilted density, and of the product's factors; the change at which the latter end.
_NEWTON, _INNER, _SETTLED = 12, 12, 1e-6
#: Of the trapezoidal rule: the largest step, its share of the standard deviation, and how many of these it reaches.
_STEP, _SHARE, _REACH = 1.2, 0.8, 7.0
_ROOT = math.sqrt(2.0 * math.pi)


@inner
def _log_sigmoid(r: float):
    return r - math.log1p(math.exp(r)) if r < 0.0 else -math.log1p(math.exp(-r))


@entry
def moments_of_tilted(mean: float, variance: float, sign: float):
    """Compute log Z, mean and variance of N(r; mean, variance) sigmoid(sign r) / Z, by the trapezoidal rule.

    The integrand is analytic but for poles at a distance pi of the real line, and falls at least as a normal density:
    with steps h the error is of the order exp(-2 pi^2 / h) + exp(-2 pi^2 variance / h^2).
    """
    sd = math.sqrt(variance)
    at = mean
    for _ in range(_NEWTON):
        chance = 1.0 / (1.0 + math.exp(sign * at))
        step = ((mean - at) / variance + sign * chance) / (1.0 / variance + chance * (1.0 - chance))
        at += step
        if abs(step) < 0.01 * sd:
            break
    width = smaller(_STEP, _SHARE * sd)
    top = -0.5 * (at - mean) ** 2 / variance + _log_sigmoid(sign * at)
    zero, one, two = 0.0, 0.0, 0.0
    reach = int(_REACH * sd / width) + 1
    for q in range(-reach, reach + 1):
        r = q * width
        weight = math.exp(-0.5 * (at + r - mean) ** 2 / variance + _log_sigmoid(sign * (at + r)) - top)
        zero += weight
        one += weight * r
        two += weight * r * r
    one, two = one / zero, two / zero
    return top + math.log(zero * width / (sd * _ROOT)), at + one, two - one * one


@inner
def _project(
    pointer: Ints,
    index: Ints,
    value: Reals,
    row: int,
    precision: Reals,
    shift: Reals,
    lam: Reals,
    eta: Reals,
    at: int,
    mean: Reals,
    variance: Reals,
):
    """Compute the cavity moments of every entry of W'x, x the features of ``row``."""
    for k in range(precision.shape[1]):
        mean[k], variance[k] = 0.0, 0.0
        for place in range(pointer[row], pointer[row + 1]):
            p, own = index[place], at + place - pointer[row]
            rest = precision[p, k] - lam[own, k]
            mean[k] += value[place] * (shift[p, k] - eta[own, k]) / rest
            variance[k] += value[place] ** 2 / rest


@inner
def _send_messages(
    pointer: Ints,
    index: Ints,
    value: Reals,
    row: int,
    precision: Reals,
    shift: Reals,
    lam: Reals,
    eta: Reals,
    at: int,
    mean: Reals,
    variance: Reals,
    info: Reals,
    pull: Reals,
    keep: bool,
):
    """Multiply q by the messages of a factor N(info, pull) of W'x to the weights, in place of the old ones."""
    for k in range(precision.shape[1]):
        for place in range(pointer[row], pointer[row + 1]):
            p, own, w = index[place], at + place - pointer[row], value[place]
            rest = precision[p, k] - lam[own, k]
            left = shift[p, k] - eta[own, k]
            scale = 1.0 + info[k] * larger(variance[k] - w * w / rest, 0.0)
            new_lam = w * w * info[k] / scale
            new_eta = w * (pull[k] - info[k] * (mean[k] - w * left / rest)) / scale
            precision[p, k], shift[p, k] = rest + new_lam, left + new_eta
            if keep:
                lam[own, k], eta[own, k] = new_lam, new_eta


@inner
def _factors(ms: float, vs: float, mt: float, vt: float, info: float, pull: float):
    """Messages (info, pull) to s and t from N(s t), their prior moments given: variational, to the fixed point."""
    b, second = mt, mt * mt + vt
    a, first = ms, ms * ms + vs
    for _ in range(_INNER):
        p = 1.0 / vs + info * second
        a = (ms / vs + pull * b) / p
        first = a * a + 1.0 / p
        p = 1.0 / vt + info * first
        moved = (mt / vt + pull * a) / p - b
        b += moved
        second = b * b + 1.0 / p
        if abs(moved) < _SETTLED * (1.0 + abs(b)):
            break
    return info * second, pull * b, info * first, pull * a


@entry
def pass_over(
    order: Ints,
    user: Ints,
    item: Ints,
    sign: Reals,
    features: tuple[tuple[Ints, Ints, Reals], ...],
    users: tuple[Reals, Reals],
    items: tuple[Reals, Reals],
    messages: tuple[Ints, Reals, Reals],
    keep: bool,
    log_chance: Reals,
):
    """Observations in ``order``, one after the other, in place; ``log_chance`` (M,) gets log p(x_m) before each.

    features: of users and of items, (pointer, index, value) of the CSR rows. users, items: (precision, precision times
    mean), (P, K).
    messages: (start (M,), lam, eta), a row of the latter two for every feature of an observation, the user's first.
    keep: whether messages are replaced, or (a single pass) forgotten.
    """
    (xu, xv), qu, qv = features, users, items
    start, lam, eta = messages
    size = qu[0].shape[1]
    ms, vs, mt, vt = allocate(size), allocate(size), allocate(size), allocate(size)
    su, pu, sv, pv = allocate(size), allocate(size), allocate(size), allocate(size)
    for m in order:
        i, j = user[m], item[m]
        at = start[m]
        there = at + xu[0][i + 1] - xu[0][i] if keep else at
        _project(xu[0], xu[1], xu[2], i, qu[0], qu[1], lam, eta, at, ms, vs)
        _project(xv[0], xv[1], xv[2], j, qv[0], qv[1], lam, eta, there, mt, vt)
        mean, variance = 0.0, 0.0
        for k in range(size):
            mean += ms[k] * mt[k]
            variance += ms[k] ** 2 * vt[k] + mt[k] ** 2 * vs[k] + vs[k] * vt[k]
        log_chance[m], new_mean, new_variance = moments_of_tilted(mean, variance, sign[m])
        info = larger(1.0 / new_variance - 1.0 / variance, 0.0)
        pull = new_mean / new_variance - mean / variance
        for k in range(size):
            own = ms[k] ** 2 * vt[k] + mt[k] ** 2 * vs[k] + vs[k] * vt[k]
            scale = 1.0 + info * larger(variance - own, 0.0)
            one, other = info / scale, (pull - info * (mean - ms[k] * mt[k])) / scale
            su[k], pu[k], sv[k], pv[k] = _factors(ms[k], vs[k], mt[k], vt[k], one, other)
        _send_messages(xu[0], xu[1], xu[2], i, qu[0], qu[1], lam, eta, at, ms, vs, su, pu, keep)
        _send_messages(xv[0], xv[1], xv[2], j, qv[0], qv[1], lam, eta, there, mt, vt, sv, pv, keep)
