"""What weights of rows say of how much is known, in one place.

Whole weights are counts: a row of weight 2 is two equal rows, and N = sum_n w_n. Other weights say how much a row
matters, not how often it was seen (those of a survey have no unit): the rows are worth N = (sum_n w_n)^2 / sum_n w_n^2
equal ones (Kish, *Survey sampling*, 1965), and log likelihoods are summed with weights on this scale, w_n N / sum w.
A row of weight 0 is absent. The mean over rows, sum_n w_n l_n / sum_n w_n, is the same by both.
"""

from __future__ import annotations

import torch
from torch import Tensor


def are_counts(weights: Tensor) -> bool:
    """Whether all weights are whole numbers."""
    return bool((weights == weights.round()).all())


def scale_of(weights: Tensor) -> float:
    """Return what weights are multiplied by to add up to the number of rows that they are worth."""
    return 1.0 if are_counts(weights) else float(weights.sum() / weights.square().sum())


def add_rows(each: Tensor, weights: Tensor | None) -> tuple[float, float]:
    """Sum log-probabilities (N,) over rows with weights (N,) or without; return this, and how many rows it is of."""
    if weights is None:
        return float(each.sum()), float(len(each))
    counted = weights.to(each) * scale_of(weights)
    return float(torch.where(counted > 0, counted * each, 0.0).sum()), float(counted.sum())
