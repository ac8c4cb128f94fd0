"""Compiled sums over the zeros of a graph. Import inside functions only: it loads the compiler."""

from __future__ import annotations

import math

import numpy as np

from custom_inference.families.common.compiled import REORDERED, Ints, Reals, entry, inner

#: Columns that are summed over at a time: what is known of them stays in the processor.
_TILE = 2048
#: Logarithms are taken of products of so many, unless these are smaller.
_MANY, _SMALLEST = 32, 1e-290


@entry(fastmath=REORDERED)
def add_zeros(
    ends: tuple[int, int], given: tuple[Reals, Reals, Reals], rest: float, nonzeros: tuple[Ints, Ints], upper: bool,
    out: Reals, into: Reals,
):  # fmt: skip
    """Add w_ij e_j to out_i (N, K) and w_ij e_i to into_j (K, N) over the zeros ij of the rows between two ``ends``,
    w_ij = 1 / Z_ij, Z_ij = rest + (e T)_i' e_j; return the sums of log Z_ij and w_ij.

    given: e T and e (N, K), and e by columns (K, N). nonzeros: where the rows begin (N + 1,), and their columns, in
    order. upper: dyads i <= j alone.
    """
    left, share, columns = given
    start, target = nonzeros
    first, last = ends
    size, blocks = left.shape
    at, w = start[first : last + 1].copy(), np.empty(_TILE)
    log_total, weight = 0.0, 0.0
    for begin in range(first // _TILE * _TILE if upper else 0, size, _TILE):
        end = min(begin + _TILE, size)
        for i in range(first, min(last, end) if upper else last):
            here, own = max(begin, i) if upper else begin, at[i - first]
            z = w[: end - here]
            z[:] = rest
            for a in range(blocks):
                _add_scaled(z, left[i, a], columns[a, here:end])
            stop = own
            while stop < start[i + 1] and target[stop] < end:
                z[target[stop] - here] = 1.0
                stop += 1
            at[i - first] = stop
            log_total += _add_logs(z)
            for c in range(len(z)):
                z[c] = 1.0 / z[c]
            for e in range(own, stop):
                z[target[e] - here] = 0.0
            weight += z.sum()
            for a in range(blocks):
                out[i, a] += _multiply(z, columns[a, here:end])
                _add_scaled(into[a, here:end], share[i, a], z)
    return log_total, weight


@inner(fastmath=REORDERED)
def _add_scaled(to: Reals, by: float, values: Reals):
    for c in range(len(to)):
        to[c] += by * values[c]


@inner(fastmath=REORDERED)
def _multiply(first: Reals, second: Reals):
    """Return the sum of products."""
    total = 0.0
    for c in range(len(first)):
        total += first[c] * second[c]
    return total


@inner(fastmath=REORDERED)
def _add_logs(values: Reals):
    """Return the sum of the logarithms."""
    total, whole = 0.0, len(values) // _MANY * _MANY
    for c in range(0, whole, _MANY):
        product = 1.0
        for k in range(c, c + _MANY):
            product *= values[k]
        if product > _SMALLEST:
            total += math.log(product)
        else:
            for k in range(c, c + _MANY):
                total += math.log(values[k])
    for c in range(whole, len(values)):
        total += math.log(values[c])
    return total
