"""EM by hand in plain NumPy, of the models that programs of one's own are timed beside: climbs from several random
starts, with the programs' own priors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from scipy.special import gammaln

from benchmarks.quality._own_data import Array, Rows

State = tuple[Array, ...]
#: Takes a state to log p(x, state), the log-likelihood of every row, and the next state.
Step = Callable[[State], tuple[float, Array, State]]
#: Starts, and the gain of a row below which a climb ends, which is that of the suite, or its iterations.
STARTS, _TOLERANCE, _MOST = 5, 1e-5, 500
_TINY = 1e-12


def best(step: Step, starts: Iterator[State]) -> Array:
    """The log-likelihood of every row at the end of the best climb."""
    return max((_climb(step, one) for one in starts), key=lambda end: end[0])[1]


def _climb(step: Step, state: State) -> tuple[float, Array]:
    value, rows, state = step(state)
    for _ in range(_MOST):
        before = value
        value, rows, state = step(state)
        if value - before < _TOLERANCE * len(rows):
            break
    return value, rows


def _shares(joint: Array) -> tuple[Array, Array]:
    """log sum exp of every row (N, K), and the probabilities."""
    top = joint.max(1, keepdims=True)
    share = np.exp(joint - top)
    total = share.sum(1, keepdims=True)
    return (top + np.log(total))[:, 0], share / total


def _centres(x: Array, number: int, rng: np.random.Generator) -> Array:
    """Halfway between some rows and the mean of all."""
    return 0.5 * x[rng.choice(len(x), number, replace=False)] + 0.5 * x.mean(0)


def _each(seed: int, start: Callable[[np.random.Generator], State]) -> Iterator[State]:
    rng = np.random.default_rng(seed)
    return (start(rng) for _ in range(STARTS))


def zero_inflated(rows: Rows, seed: int) -> Array:
    """weight (3,), rate (3, D) under Gamma(1, .1), gate (D,)."""
    x, base = rows.x, gammaln(rows.x + 1)
    none = (x == 0).astype(float)

    def step(state: State) -> tuple[float, Array, State]:
        weight, rate, gate = state
        empty = gate + (1 - gate) * np.exp(-rate)
        counted = x @ np.log(rate).T - (1 - none) @ rate.T + ((1 - none) * (np.log1p(-gate) - base)).sum(1)[:, None]
        evidence, share = _shares(np.log(weight) + counted + none @ np.log(empty).T)
        idle = share.T @ none * gate / empty
        number = share.sum(0)
        following = share.T @ x / (number[:, None] - idle + 0.1)
        new = (number / len(x), following + _TINY, (idle.sum(0) / len(x)).clip(_TINY, 1 - _TINY))
        return evidence.sum() - 0.1 * rate.sum(), evidence, new

    third = np.full(3, 1 / 3)
    return best(step, _each(seed, lambda rng: (third, _centres(x, 3, rng) + 0.1, np.full(x.shape[1], 0.2))))


def two_level(rows: Rows, seed: int) -> Array:
    """Classes and kinds as one mixture of six: their shares (6,), and p (6, D)."""
    x = rows.x

    def step(state: State) -> tuple[float, Array, State]:
        weight, p = state
        evidence, share = _shares(np.log(weight) + x @ np.log(p).T + (1 - x) @ np.log1p(-p).T)
        number = share.sum(0)
        new = (number / len(x) + _TINY, (share.T @ x / (number[:, None] + _TINY)).clip(_TINY, 1 - _TINY))
        return evidence.sum(), evidence, new

    sixth = np.full(6, 1 / 6)
    return best(step, _each(seed, lambda rng: (sixth, _centres(x, 6, rng).clip(0.02, 0.98))))


def regressions(rows: Rows, seed: int) -> Array:
    """weight (3,), lines (3, D + 1) under N(0, 5^2), noise (3,) under Gamma(2, 2)."""
    x, u = rows.x, np.column_stack([np.ones(len(rows.x)), rows.given["u"]])
    ridge = np.eye(u.shape[1]) / 25

    def step(state: State) -> tuple[float, Array, State]:
        weight, line, noise = state
        off = x[:, None] - u @ line.T
        joint = np.log(weight) - 0.5 * (off / noise) ** 2 - np.log(noise) - 0.5 * np.log(2 * np.pi)
        evidence, share = _shares(joint)
        prior = (np.log(noise) - 2 * noise).sum() - 0.02 * (line**2).sum()
        lines, scales = np.empty_like(line), np.empty_like(noise)
        for k, own in enumerate(share.T):
            weighed = u.T * own
            lines[k] = np.linalg.solve(weighed @ u + noise[k] ** 2 * ridge, weighed @ x)
            # The noise s at which 2 s^3 + (n - 1) s^2 - S = 0, which has one positive root.
            roots = np.roots([2.0, own.sum() - 1, 0.0, -(own @ (x - u @ lines[k]) ** 2)])
            scales[k] = roots[np.abs(roots.imag) < 1e-9].real.max()
        return evidence.sum() + prior, evidence, (share.mean(0), lines, scales)

    def start(rng: np.random.Generator) -> State:
        some = rng.choice(len(x), (3, 2 * u.shape[1]), replace=False)
        lines = np.stack([np.linalg.solve(u[one].T @ u[one] + ridge, u[one].T @ x[one]) for one in some])
        return np.full(3, 1 / 3), lines, np.full(3, x.std() / 2)

    return best(step, _each(seed, start))


def chain(rows: Rows, seed: int) -> Array:
    """start (4,), move (4, 4), emit (4, 8), by scaled forward and backward recursions over all rows at once."""
    x = rows.x.astype(int).T
    hot = (x.ravel() == np.arange(8)[:, None]).astype(float)

    def step(state: State) -> tuple[float, Array, State]:
        start, move, emit = state
        seen = emit.T[x]
        forward, scale = _forward(start, move, seen)
        evidence = np.log(scale).sum((0, 2))
        backward, moved, marginal = np.ones_like(seen[0]), np.zeros_like(move), np.empty_like(seen)
        for t in range(len(x) - 1, 0, -1):
            marginal[t] = forward[t] * backward
            coming = seen[t] * backward / scale[t]
            moved += forward[t - 1].T @ coming
            backward = coming @ move.T
        marginal[0] = forward[0] * backward
        emitted = (hot @ marginal.reshape(-1, 4)).T + _TINY
        moved = move * moved + _TINY
        new = (
            marginal[0].mean(0) + _TINY,
            moved / moved.sum(1, keepdims=True),
            emitted / emitted.sum(1, keepdims=True),
        )
        return evidence.sum(), evidence, new

    def start(rng: np.random.Generator) -> State:
        return np.full(4, 0.25), rng.dirichlet([1.0] * 4, 4) * 0.5 + np.eye(4) * 0.5, rng.dirichlet([1.0] * 8, 4)

    return best(step, _each(seed, start))


def _forward(start: Array, move: Array, seen: Array) -> tuple[Array, Array]:
    """P(state at t | symbols up to t) (T, N, S), and P(symbol at t | those before) (T, N, 1)."""
    forward, scale = np.empty_like(seen), np.empty((*seen.shape[:2], 1))
    ahead: Any = start
    for t, one in enumerate(seen):
        both = ahead * one
        scale[t] = both.sum(1, keepdims=True)
        forward[t] = both / scale[t]
        ahead = forward[t] @ move
    return forward, scale


def chain_evidence(x: Array, start: Array, move: Array, emit: Array) -> Array:
    """The log-likelihood of every row, by the forward recursion."""
    return np.log(_forward(start, move, emit.T[x.astype(int).T])[1]).sum((0, 2))


def noisy_or(rows: Rows, seed: int) -> Array:
    """prior (4,), p (4, D), leak (2, D) by groups: sums over all codes, and whose entry it was that is on."""
    x, group = rows.x, rows.given["group"].astype(int)
    codes = np.array(list(np.ndindex(*[2] * 4)), float)
    parts = [np.flatnonzero(group == g) for g in range(2)]

    def step(state: State) -> tuple[float, Array, State]:
        prior, p, leak = state
        weight = codes @ np.log(prior) + (1 - codes) @ np.log1p(-prior)
        evidence = np.empty(len(x))
        number, fired, leaks = np.zeros(len(codes)), np.zeros_like(p), np.empty_like(leak)
        for g, own in enumerate(parts):
            log_off = codes @ np.log1p(-p) + np.log1p(-leak[g])
            on = -np.expm1(log_off)
            evidence[own], share = _shares(weight + x[own] @ np.log(on).T + (1 - x[own]) @ log_off.T)
            number += share.sum(0)
            each = share.T @ x[own] / on  # over the probability that anything turned it on
            fired += codes.T @ each * p
            leaks[g] = each.sum(0) * leak[g] / len(own)
        chances = fired / (codes.T @ number + _TINY)[:, None]
        new = (codes.T @ number / len(x), chances, leaks)
        return evidence.sum(), evidence, tuple(one.clip(_TINY, 1 - 1e-9) for one in new)

    def start(rng: np.random.Generator) -> State:
        leak = np.full((2, x.shape[1]), 0.1)
        return np.full(4, 0.3), x.mean(0) * (0.5 + rng.random((4, x.shape[1]))), leak

    return best(step, ((a, b.clip(0.02, 0.95), c) for a, b, c in _each(seed, start)))
