"""Draws of the rows of one side given the other side, compiled: import inside functions only.

As ``kernels``, with the other side's rows in place of their moments: of row n the products of (x, t) with itself, each
rating weighed by h, are one matrix G_n (d + 1, d + 1), whose parts are sum h x x', sum h x t and sum h t^2. Rows are
factorised ``LANES`` at a time, so that each step is one of vectors. All of this is in the precision of the other side's
rows as they are given; rows, gains and ``products`` are in double precision.
"""

from __future__ import annotations

import math

import numpy as np

from custom_inference.families.common.compiled import REORDERED, Ints, Reals, entry, inner, part
from custom_inference.families.common.intrinsics import allocate, larger, smaller

LANES, CHUNK = 32, 512


@entry(fastmath=REORDERED)
def draw_rows(
    first: int, last: int, start: Ints, index: Ints, value: Reals, weight: Reals, other: Reals, root: Reals,
    pull: Reals, precision: Reals, tau: float, gain: Reals, shape: float, rate: float, noise: Reals, gammas: Reals,
    mean: Reals, products: Reals,
):  # fmt: skip
    """Draw rows first..last in place, and their gains; return their part of ``products``.

    start, index, value: the ratings by row; weight (M,): precisions of each, beside tau g h, or (0,): all 1; other (M,
    d), root (M,): rows of the other side, roots of their gains. pull (N, d): L (prior mean); precision (d, d): L. gain
    (N,): its Gamma prior has ``shape`` and ``rate``, and it is as it was where shape is 0. noise (N, d): standard
    normals; gammas (N,): standard Gammas of shape + n / 2. mean (N, d).
    products (d + 1, d + 1): sum_n g_n z_n z_n' * G_n, entry by entry, with z_n = (w_n, 1), lower half: the weighted
    squared error is e' products e at e = (1, .., 1, -1), and at (c, -1) where the entries of rows are multiplied by c.
    """
    d, kind = mean.shape[1], other.dtype
    line, square = allocate((CHUNK, d + 1), kind), allocate((d + 1, d + 1), kind)
    total, a = np.zeros((d + 1, d + 1, LANES), kind), np.zeros((d, d, LANES), kind)
    b, z = np.zeros((d + 1, LANES), kind), np.zeros((d, LANES), kind)
    scale, error = np.zeros(LANES, kind), np.zeros(LANES, kind)
    for begin in range(first, last, LANES):
        end = smaller(begin + LANES, last)
        total[:] = 0
        for n in range(begin, end):
            lane = n - begin
            scale[lane] = tau * gain[n]
            _multiply(start[n], start[n + 1], index, value, weight, other, root, line, square, total, lane)
            for i in range(d):
                b[i, lane] = pull[n, i]
                z[i, lane] = noise[n, i]
        _condition(total, precision, scale, a, b)
        _factorise(a)
        _solve(a, b, z)
        _miss(total, b, error)
        for n in range(begin, end):
            lane = n - begin
            for i in range(d):
                mean[n, i] = b[i, lane]
            if shape > 0:
                gain[n] = gammas[n] / (rate + 0.5 * tau * larger(error[lane], 0.0))
            scale[lane] = gain[n]
        scale[end - begin :] = 0
        _collect(total, b, scale, products)


@part(fastmath=REORDERED)
def _multiply(
    begin: int,
    end: int,
    index: Ints,
    value: Reals,
    weight: Reals,
    other: Reals,
    root: Reals,
    line: Reals,
    square: Reals,
    total: Reals,
    lane: int,
):
    """Sum G of the ratings begin..end into a lane of ``total``: h (x, t) (x, t)' by blocks of ratings."""
    d = line.shape[1] - 1
    for low in range(begin, end, CHUNK):
        size = smaller(CHUNK, end - low)
        for m in range(size):
            at = low + m
            row, to, s = other[index[at]], line[m], root[index[at]]
            if len(weight) > 0:
                s *= math.sqrt(weight[at])
            to[0], to[d] = s, s * (value[at] - row[0])
            for i in range(1, d):
                to[i] = s * row[i]
        block = line[:size]
        np.dot(block.T, block, square)
        for i in range(d + 1):
            for j in range(i + 1):
                total[i, j, lane] += square[i, j]


@inner(fastmath=REORDERED)
def _condition(total: Reals, precision: Reals, scale: Reals, a: Reals, b: Reals):
    """Precisions, lower halves, into a; what they multiply the means to, into b, which holds the prior's part."""
    d = len(a)
    for i in range(d):
        for j in range(i + 1):
            p, to, of = precision[i, j], a[i, j], total[i, j]
            for lane in range(LANES):
                to[lane] = p + scale[lane] * of[lane]
        to, of = b[i], total[d, i]
        for lane in range(LANES):
            to[lane] += scale[lane] * of[lane]


@inner(fastmath=REORDERED)
def _factorise(a: Reals):
    """Compute the lower Cholesky factor in place of the lower half, the diagonal inverted. Two columns go at a time."""
    d = len(a)
    for j in range(d):
        for k in range(0, j - 1, 2):
            p, q = a[j, k], a[j, k + 1]
            for i in range(j, d):
                to, r, s = a[i, j], a[i, k], a[i, k + 1]
                for lane in range(LANES):
                    to[lane] -= r[lane] * p[lane] + s[lane] * q[lane]
        if j % 2:
            p = a[j, j - 1]
            for i in range(j, d):
                to, r = a[i, j], a[i, j - 1]
                for lane in range(LANES):
                    to[lane] -= r[lane] * p[lane]
        p = a[j, j]
        for lane in range(LANES):
            p[lane] = 1 / math.sqrt(p[lane])
        for i in range(j + 1, d):
            to = a[i, j]
            for lane in range(LANES):
                to[lane] *= p[lane]


@inner(fastmath=REORDERED)
def _solve(a: Reals, b: Reals, z: Reals):
    """Solve in place: b becomes a'^-1 (a^-1 b + z); its last line 1."""
    d = len(a)
    for i in range(d):
        to, p = b[i], a[i, i]
        for k in range(i):
            r, s = a[i, k], b[k]
            for lane in range(LANES):
                to[lane] -= r[lane] * s[lane]
        for lane in range(LANES):
            to[lane] *= p[lane]
    for i in range(d):
        for lane in range(LANES):
            b[i, lane] += z[i, lane]
    for i in range(d - 1, -1, -1):
        s, p = b[i], a[i, i]
        for lane in range(LANES):
            s[lane] *= p[lane]
        for k in range(i):
            r, to = a[i, k], b[k]
            for lane in range(LANES):
                to[lane] -= r[lane] * s[lane]
    b[d] = 1


@part(fastmath=REORDERED)
def _miss(total: Reals, b: Reals, error: Reals):
    """Compute (w, -1)' G (w, -1) of each lane."""
    d, part = len(b) - 1, allocate(LANES, b.dtype)
    error[:] = total[d, d]
    for i in range(d):
        w, p, q = b[i], total[i, i], total[d, i]
        for lane in range(LANES):
            part[lane] = 0.5 * p[lane] * w[lane] - q[lane]
        for j in range(i):
            p, v = total[i, j], b[j]
            for lane in range(LANES):
                part[lane] += p[lane] * v[lane]
        for lane in range(LANES):
            error[lane] += 2 * w[lane] * part[lane]


@inner(fastmath=REORDERED)
def _collect(total: Reals, b: Reals, scale: Reals, products: Reals):
    for i in range(len(b)):
        for j in range(i + 1):
            p, q, of, found = b[i], b[j], total[i, j], 0.0
            for lane in range(LANES):
                found += scale[lane] * p[lane] * q[lane] * of[lane]
            products[i, j] += found
