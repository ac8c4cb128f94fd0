"""What the brute-force references of exponential-family PCA share: sums over a grid of scores. Imports no project code.

s_n ~ Normal(0, I_K),  log p(x_n | s_n) by each model's ``log_likelihood(params, x, score, mask)`` (N,)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logsumexp

from tests.references import _shared
from tests.references._shared import Array, Function, Maybe, Params


class ByGrid(NamedTuple):
    """log p(x_n) (N,), E[s_n | x_n] (N, K) and Cov (N, K, K), each of (params, x, mask=None, points=80, *more)."""

    log_evidence: Callable[..., Array]
    moments: Callable[..., tuple[Array, Array]]


def natural(params: Params, score: ArrayLike) -> Array:
    """b + s W, (N, D) or (N, D, C)."""
    return np.asarray(params["bias"]) + np.tensordot(np.asarray(score, dtype=np.float64), params["weight"], 1)


def _of_every(value: ArrayLike, size: int) -> Array:
    """A row's value for each of the scores of the grid; what all rows share as it is."""
    return np.asarray(value) if np.ndim(value) == 0 else np.repeat(value, size, 0)


def by_grid(log_likelihood: Function) -> ByGrid:
    """By a Gauss-Hermite product rule on the prior, K = 1 or 2: precise where the likelihood is moderately sharp."""

    def table(params: Params, x: ArrayLike, mask: Maybe, points: int, *more) -> tuple[Array, Array]:
        grid, log_weight = _shared.hermite(np.shape(params["weight"])[0], points)
        size, keep = len(grid), _shared.observed(x, mask)
        rows, seen, *given = [_of_every(one, size) for one in (np.asarray(x, dtype=np.float64), keep, *more)]
        each = log_likelihood(params, rows, np.tile(grid, (len(keep), 1)), seen, *given)
        return grid, each.reshape(len(keep), size) + log_weight

    def log_evidence(params: Params, x: ArrayLike, mask: Maybe = None, points: int = 80, *more) -> Array:
        return np.asarray(logsumexp(table(params, x, mask, points, *more)[1], axis=1))

    def moments(params: Params, x: ArrayLike, mask: Maybe = None, points: int = 80, *more) -> tuple[Array, Array]:
        grid, joint = table(params, x, mask, points, *more)
        weight = np.exp(joint - np.asarray(logsumexp(joint, axis=1, keepdims=True)))
        mean = weight @ grid
        return mean, np.einsum("ng,gi,gk->nik", weight, grid, grid) - np.einsum("ni,nk->nik", mean, mean)

    return ByGrid(log_evidence, moments)


def laplace(log_joint: Function, mode: Array, step: float = 1e-4) -> float:
    """Laplace's estimate of the logarithm of an integral: log f at the mode, and its Hessian by finite differences."""
    size = len(mode)
    eye, hessian = step * np.eye(size), np.empty((size, size))
    for i in range(size):
        for k in range(size):
            corners = [log_joint(mode + a * eye[i] + b * eye[k]) * a * b for a in (-1, 1) for b in (-1, 1)]
            hessian[i, k] = sum(corners) / (4 * step**2)
    return float(log_joint(mode) + 0.5 * size * np.log(2 * np.pi) - 0.5 * np.linalg.slogdet(-hessian)[1])
