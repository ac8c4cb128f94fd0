"""-log(1 - e^{-a}) as a short sum of exponentials, with a known uniform error."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor


@dataclass(frozen=True)
class ExponentialSum:
    """|sum_l weights_l e^{-nodes_l a} + log(1 - e^{-a})| <= error for every a >= a_min; weights > 0."""

    nodes: Tensor
    weights: Tensor
    error: float
    a_min: float


def exponential_sum(a_min: float, tolerance: float = 1e-8) -> ExponentialSum:
    """The sum for arguments of at least ``a_min``, to the uniform error ``tolerance``.

    -log(1 - e^{-a}) = sum_m e^{-m a} / m is completely monotone, so nonnegative weights on few nodes suffice:
    nodes 1, 2, 3, ... that turn geometric, weights by nonnegative least squares, the ratio refined until the error
    is small enough. About 30 terms at a_min = 1e-3 and error 1e-8
    replace the thousands of the power series.
    ``a_min`` is rounded down to quarter decades, so that a fit builds few of these.
    """
    if not (0 < a_min < math.inf) or not 0 < tolerance < 1:
        raise ValueError(f"a_min = {a_min} and tolerance = {tolerance}: expected positive, tolerance below 1")
    return _build(10.0 ** (math.floor(4 * math.log10(a_min)) / 4), tolerance)


@lru_cache(maxsize=256)
def _build(a_min: float, tolerance: float) -> ExponentialSum:
    # Beyond the grid both sides are below e^-60 and fall further: the error there is nothing.
    last = max(60.0, 2 * a_min)
    coarse, fine = np.geomspace(a_min, last, 1500), np.geomspace(a_min, last, 20001)
    nodes, weights, error = np.ones(1), np.ones(1), math.inf
    for ratio in (0.9, 0.75, 0.65, 0.55, 0.48, 0.42, 0.37, 0.33, 0.3, 0.26, 0.22, 0.18, 0.15):
        candidates = _nodes(ratio, 1.2 * math.log(1 / tolerance) / a_min)
        fitted, _ = nnls(np.exp(-np.outer(coarse, candidates)), _target(coarse), maxiter=10000)
        nodes, weights = candidates[fitted > 0], fitted[fitted > 0]
        error = float(np.abs(np.exp(-np.outer(fine, nodes)) @ weights - _target(fine)).max())
        if error <= tolerance:
            break
    # The grid is dense, but it is a grid: allow for what lies between its points.
    return ExponentialSum(torch.tensor(nodes), torch.tensor(weights), 1.1 * error, a_min)


def _target(a: np.ndarray) -> np.ndarray:
    return -np.log(-np.expm1(-a))


def _nodes(ratio: float, last: float) -> np.ndarray:
    """1, 2, 3, ... while the steps are at least one, then geometric with the given log ratio, up to ``last``."""
    nodes = [1.0]
    while nodes[-1] < last:
        nodes.append(max(nodes[-1] + 1, nodes[-1] * math.exp(ratio)))
    return np.array(nodes)
