"""Sums over all states of two halves of a binary hidden layer, compiled. Import inside functions only.

With a_i = exp(b + W'h) of state i of the first half and c_j = exp(W'h) of state j of the other, exp(eta) is their
product: no exponentials in the loops, which go along j.
"""

from __future__ import annotations

import numpy as np

from custom_inference.families.common.compiled import REORDERED, Reals, bare

_ONE = np.float32(1)


@bare(fastmath=REORDERED)
def products(first: Reals, second: Reals, found: Reals):  # pragma: no cover
    """found (n1, n2) = prod_d (1 + first_id second_dj), of first (n1, D), second (D, n2)."""
    for i in range(found.shape[0]):
        row = found[i]
        row[:] = 1.0
        features = first.shape[1]
        for d in range(0, features - features % 4, 4):
            a, b, c, e = first[i, d], first[i, d + 1], first[i, d + 2], first[i, d + 3]
            for j in range(row.shape[0]):
                low = (_ONE + a * second[d, j]) * (_ONE + b * second[d + 1, j])
                high = (_ONE + c * second[d + 2, j]) * (_ONE + e * second[d + 3, j])
                row[j] *= np.float64(low) * np.float64(high)
        for d in range(features - features % 4, features):
            a = first[i, d]
            for j in range(row.shape[0]):
                row[j] *= np.float64(_ONE + a * second[d, j])


@bare(fastmath=REORDERED)
def expectations(first: Reals, second: Reals, chance: Reals, of_first: Reals, of_second: Reals):  # pragma: no cover
    """of_first (n1, D) = sum_j p_ij sigmoid(eta_ijd), of_second (D, n2) = sum_i of the same, added to what is there."""
    for i in range(chance.shape[0]):
        share = chance[i]
        for d in range(first.shape[1]):
            a, total, column, other = first[i, d], np.float32(0), of_second[d], second[d]
            for j in range(share.shape[0]):
                odds = a * other[j]
                mean = share[j] * (odds / (_ONE + odds))
                column[j] += mean
                total += mean
            of_first[i, d] = total
