"""Data that programs of one's own are timed on, drawn with NumPy, and which of the drawn sources a fit found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

Array = NDArray[Any]


@dataclass(frozen=True)
class Rows:
    """Rows x (N, ...), what is given of them, and what they were drawn from, where that is asked for."""

    x: Array
    given: Mapping[str, Array] = field(default_factory=dict)
    truth: Mapping[str, Array] = field(default_factory=dict)

    def first(self, number: int) -> Rows:
        return Rows(self.x[:number], {name: one[:number] for name, one in self.given.items()}, self.truth)


def digits() -> Rows:
    """Handwritten digits in black and white (1797 x 64)."""
    from sklearn.datasets import load_digits

    loaded: Any = load_digits()
    return Rows((loaded.data > 7).astype(float))


def counts(number: int, seed: int) -> Rows:
    """Five classes of 20 counts."""
    rng = np.random.default_rng(seed)
    rate = rng.gamma(1.0, 3.0, (5, 20))
    return Rows(rng.poisson(rate[rng.integers(0, 5, number)]).astype(float))


def zero_inflated(number: int, seed: int) -> Rows:
    """Three classes of ten counts, three tenths of which are left out."""
    rng = np.random.default_rng(seed)
    rate = rng.gamma(1.0, 5.0, (3, 10))
    z = rng.integers(0, 3, number)
    return Rows((rng.poisson(rate[z]) * (rng.random((number, 10)) > 0.3)).astype(float))


def two_level(number: int, seed: int) -> Rows:
    """Three classes of two kinds each, of twelve bits."""
    rng = np.random.default_rng(seed)
    p = rng.beta(0.5, 0.5, (3, 2, 12))
    z, kind = rng.integers(0, 3, number), rng.integers(0, 2, number)
    return Rows((rng.random((number, 12)) < p[z, kind]).astype(float))


def regressions(number: int, seed: int) -> Rows:
    """Three lines through three covariates."""
    rng = np.random.default_rng(seed)
    u, z = rng.standard_normal((number, 3)), rng.integers(0, 3, number)
    slope, base = rng.normal(0, 3, (3, 3)), rng.normal(0, 2, 3)
    x = base[z] + (slope[z] * u).sum(1) + 0.5 * rng.standard_normal(number)
    return Rows(x, {"u": u})


def chains(number: int, steps: int, seed: int) -> Rows:
    """Chains of four states that stay with probability .85, and eight symbols."""
    rng = np.random.default_rng(seed)
    move, emit = 0.8 * np.eye(4) + 0.05, rng.dirichlet([0.3] * 8, 4)
    z, x = rng.integers(0, 4, number), np.zeros((number, steps))
    for t in range(steps):
        x[:, t] = _choose(emit[z], rng)
        z = _choose(move[z], rng)
    return Rows(x)


def _choose(chances: Array, rng: np.random.Generator) -> Array:
    """A place of each row of chances (N, S)."""
    return (chances.cumsum(1) < rng.random((len(chances), 1))).sum(1).clip(max=chances.shape[1] - 1)


def images(folder: Path, number: int, seed: int) -> Rows:
    """Images of the eight patterns of ``noisyor_bench/IMG.npz``, each on in a quarter of them and seen with probability
    .9; leak .01."""
    with np.load(folder / "noisyor_bench" / "IMG.npz") as archive:
        pattern = archive["failure"] < 0.5
    return _noisy_or(0.25, 0.9 * pattern, np.full((number, pattern.shape[1]), 0.01), np.random.default_rng(seed))


def grouped(number: int, seed: int) -> Rows:
    """Four sources of five of 16 bits each; the second of two groups has leaks on its last four bits."""
    rng = np.random.default_rng(seed)
    p, leak, group = np.zeros((4, 16)), np.full((2, 16), 0.02), rng.integers(0, 2, number)
    leak[1, 12:] = 0.4
    for own in p:
        own[rng.choice(16, 5, replace=False)] = 0.85
    rows = _noisy_or(0.3, p, leak[group], rng)
    return Rows(rows.x, {"group": group.astype(float)}, rows.truth)


def _noisy_or(prior: float, p: Array, leak: Array, rng: np.random.Generator) -> Rows:
    s = rng.random((len(leak), len(p))) < prior
    off = (1 - leak) * np.exp(s @ np.log1p(-p))
    return Rows((rng.random(off.shape) >= off).astype(float), truth={"p": p})


def sources_found(p: Array, prior: Array, truth: Array) -> int:
    """True sources matched one-to-one whose log failures are all within 1, on with a probability above .02."""
    logs, true = (np.log1p(-np.minimum(one, 1 - 1e-9)) for one in (p, truth))
    off = np.abs(logs[:, None] - true[None]).max(-1)
    failed = (off > 1) | (prior[:, None] <= 0.02)
    mine, theirs = linear_sum_assignment(failed)
    return int((~failed[mine, theirs]).sum())
