"""Loops over rows on a processor. Import inside functions only: it loads the compiler.

The updates of ``map``, row by row, with the loadings of its features in the nearest cache: gathered once, transposed,
so that the inner loops run along the features.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from custom_inference.families.common.compiled import REORDERED, Ints, Reals, entry, inner
from custom_inference.families.common.intrinsics import allocate, larger
from custom_inference.families.rows.documents import DocumentRows


def settle_points(
    rows: DocumentRows, words: Tensor, activation: Tensor, above: Tensor, below: Tensor, *, sweeps: int, floor: float,
    temperature: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """``activation`` (N, K) after so many updates z_k <- (z_k e_k + above_k) / below_k, in place; x / y of every stored
    cell, (nnz,), and sum_v x log y of every row, (N,). words: b (D, K); above (K,); below (N, K)."""
    counts = rows.counts
    ratio, fit = torch.empty_like(counts.values()), activation.new_empty(len(rows))
    cells = counts.crow_indices(), counts.col_indices(), counts.values()
    parts = (*cells, words, activation, above, below.contiguous(), ratio, fit)
    number, least = words.numpy().dtype.type, float(torch.finfo(words.dtype).tiny)
    given: Any = (*(part.numpy() for part in parts), sweeps, number(floor), number(temperature), number(least))
    _settle(*given)
    return ratio, fit


@entry(fastmath=REORDERED)
def _settle(
    crow: Ints,
    column: Ints,
    count: Reals,
    words: Reals,
    activation: Reals,
    above: Reals,
    below: Reals,
    ratio_out: Reals,
    fit_out: Reals,
    sweeps: int,
    floor: float,
    temperature: float,
    least: float,
):
    components, widest = words.shape[1], 1
    for i in range(len(crow) - 1):
        widest = larger(widest, crow[i + 1] - crow[i])
    seen = allocate((components, widest), words.dtype)
    mixture, ratio = allocate(widest, words.dtype), allocate(widest, words.dtype)
    for i in range(len(crow) - 1):
        start, size, z = crow[i], crow[i + 1] - crow[i], activation[i]
        for j in range(size):
            for k in range(components):
                seen[k, j] = words[column[start + j], k]
        for _ in range(sweeps):
            _ratios(seen, z, count, start, size, mixture, ratio, least)
            for k in range(components):
                total = words.dtype.type(0)
                for j in range(size):
                    total += ratio[j] * seen[k, j]
                found = (temperature * z[k] * total + above[k]) / below[i, k] if below[i, k] > 0 else floor
                z[k] = larger(found, floor)
        _ratios(seen, z, count, start, size, mixture, ratio, least)
        value = 0.0
        for j in range(size):
            ratio_out[start + j] = ratio[j]
            if count[start + j] > 0:
                value += count[start + j] * np.log(mixture[j])
        fit_out[i] = value


@inner(fastmath=REORDERED)
def _ratios(seen: Reals, z: Reals, count: Reals, start: int, size: int, mixture: Reals, ratio: Reals, least: float):
    """mixture_j = sum_k z_k seen_kj, and ratio_j = count_j / mixture_j."""
    for j in range(size):
        mixture[j] = z[0] * seen[0, j]
    for k in range(1, len(z)):
        factor = z[k]
        for j in range(size):
            mixture[j] += factor * seen[k, j]
    for j in range(size):
        mixture[j] = larger(mixture[j], least)
        ratio[j] = count[start + j] / mixture[j]
