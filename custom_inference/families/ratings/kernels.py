"""Rows of one side given the other side, compiled: import inside functions only.

Rating m of user u for item i is y_m = a_u + c_i + v_u'v_i + noise of precision tau g_u h_i. With w = (a, v_1..v_K) the
row of a user, d = K + 1, and x = (1, v_i), t = y - c_i, its conditional given expectations of the items' rows is

    N(A^-1 b, A^-1),   A = L + tau g_u sum_i h_i E[x x'],   b = L (prior mean) + tau g_u sum_i h_i E[x (y - c_i)],

and items are the same with users in their place. What a row lends to the other side is a line of its ``table``,

    g (1, v), g E[v v'] (lower half, column by column), g E[a (1, v)], g E[a^2]     d (d + 1) / 2 + d + 1 numbers,

so that a rating costs one addition of such a line, and the sums give the expected squared error of the whole row too:

    sum h E[(y - a - c - v_u'v_i)^2] = sum h E[(y - c)^2] - 2 w' sum h E[x (y - c)] + tr(E[w w'] sum h E[x x']).
"""

from __future__ import annotations

import math

import numpy as np

from custom_inference.families.common.compiled import REORDERED, Ints, Reals, entry, inner
from custom_inference.families.common.intrinsics import larger


def table_width(d: int) -> int:
    """Return how many numbers a row of d entries lends to the other side."""
    return d * (d + 1) // 2 + d + 1


@entry(fastmath=REORDERED)
def update_rows(
    first: int, last: int, start: Ints, index: Ints, value: Reals, weight: Reals, other: Reals, own: Reals,
    prior_mean: Reals, precision: Reals, tau: float, gain: Reals, shape: float, rate: float, mean: Reals,
    covariance: Reals, half_log_det: Reals, error: Reals,
):  # fmt: skip
    """Update the posteriors of rows first..last in place.

    start, index, value: the ratings by row; weight (M,): precisions of each, beside tau g h, or (0,): all 1; other,
    own: tables (M, width), (N, width). prior_mean (N, d), precision (d, d): L. gain (N,): E[g]; its Gamma prior has
    ``shape`` and ``rate``, and it is as it was where shape is 0. mean (N, d); covariance (N, d (d + 1) / 2), lower half
    column by column; half_log_det (N,): of the covariance; error (N,): the expected weighted squared error of the row.
    """
    d = mean.shape[1]
    half, width = d * (d + 1) // 2, other.shape[1]
    total, rhs, b = np.zeros(width), np.zeros(d), np.zeros(d)
    a, inverse = np.zeros((d, d)), np.zeros((d, d))
    for n in range(first, last):
        if len(weight) > 0:
            square = _gather_weighted(start[n], start[n + 1], index, value, weight, other, total, rhs)
        else:
            square = _gather(start[n], start[n + 1], index, value, other, total, rhs)
        for i in range(d):
            rhs[i] -= total[half + i]
        scale = tau * gain[n]
        at = 0
        for j in range(d):
            for i in range(j, d):
                a[i, j] = precision[i, j] + scale * total[at]
                at += 1
        for i in range(d):
            b[i] = scale * rhs[i]
            for j in range(d):
                b[i] += precision[i, j] * prior_mean[n, j]
        _cholesky(a)
        _solve(a, b)
        for i in range(d):
            mean[n, i] = b[i]
        half_log_det[n] = 0.0
        for i in range(d):
            half_log_det[n] -= math.log(a[i, i])
        _invert(a, inverse, covariance[n])
        square += total[half + d]
        for i in range(d):
            square -= 2 * b[i] * rhs[i]
        square += _mean_quadratic_form(total, b, covariance[n])
        error[n] = larger(square, 0.0)
        if shape > 0:
            gain[n] = (shape + 0.5 * (start[n + 1] - start[n])) / (rate + 0.5 * tau * error[n])
        lend(mean[n], covariance[n], gain[n], own[n])


@inner(fastmath=REORDERED)
def _gather(begin: int, end: int, index: Ints, value: Reals, other: Reals, total: Reals, rhs: Reals):
    """Sum over a row's ratings into total and rhs = sum h y E[x]; return sum h (y^2 - 2 y E[c])."""
    d, width = len(rhs), len(total)
    half, square = d * (d + 1) // 2, 0.0
    total[:] = 0
    rhs[:] = 0
    at = begin
    while at + 4 <= end:  # four at a time: totals are loaded and stored once for all
        p, q, r, s = other[index[at]], other[index[at + 1]], other[index[at + 2]], other[index[at + 3]]
        e, f, g, h = value[at], value[at + 1], value[at + 2], value[at + 3]
        for i in range(width):
            total[i] += (p[i] + q[i]) + (r[i] + s[i])
        for i in range(d):
            rhs[i] += (e * p[i] + f * q[i]) + (g * r[i] + h * s[i])
        square += e * (e * p[0] - 2 * p[half]) + f * (f * q[0] - 2 * q[half])
        square += g * (g * r[0] - 2 * r[half]) + h * (h * s[0] - 2 * s[half])
        at += 4
    for m in range(at, end):
        line, y = other[index[m]], value[m]
        for i in range(width):
            total[i] += line[i]
        for i in range(d):
            rhs[i] += y * line[i]
        square += y * (y * line[0] - 2 * line[half])
    return square


@inner(fastmath=REORDERED)
def _gather_weighted(
    begin: int, end: int, index: Ints, value: Reals, weight: Reals, other: Reals, total: Reals, rhs: Reals
):
    """Sum as ``_gather`` does, where each rating has a weight of its own."""
    d, width = len(rhs), len(total)
    half, square = d * (d + 1) // 2, 0.0
    total[:] = 0
    rhs[:] = 0
    for m in range(begin, end):
        line, w = other[index[m]], weight[m]
        y = w * value[m]
        for i in range(width):
            total[i] += w * line[i]
        for i in range(d):
            rhs[i] += y * line[i]
        square += y * (value[m] * line[0] - 2 * line[half])
    return square


@inner(fastmath=REORDERED)
def _mean_quadratic_form(total: Reals, w: Reals, covariance: Reals):
    """Compute tr(E[w w'] B), B the lower half in ``total``."""
    d = len(w)
    at, found = 0, 0.0
    for j in range(d):
        part = 0.0
        for i in range(j + 1, d):
            part += total[at + i - j] * w[i]
        found += w[j] * (total[at] * w[j] + 2 * part)
        part = 0.0
        for i in range(j + 1, d):
            part += total[at + i - j] * covariance[at + i - j]
        found += total[at] * covariance[at] + 2 * part
        at += d - j
    return found


@entry(fastmath=REORDERED)
def lend(w: Reals, covariance: Reals, gain: float, line: Reals):
    """Write the line of the table for a row with this mean and covariance."""
    d = len(w)
    half = d * (d + 1) // 2
    line[0] = gain
    for i in range(1, d):
        line[i] = gain * w[i]
    at = d
    for j in range(1, d):
        for i in range(j, d):
            line[at] = gain * (w[i] * w[j] + covariance[at])
            at += 1
    line[half] = gain * w[0]
    for i in range(1, d):
        line[half + i] = gain * (w[i] * w[0] + covariance[i])
    line[half + d] = gain * (w[0] * w[0] + covariance[0])


@entry
def sort_by_row(row: Ints, other: Ints, value: Reals, place: Ints, index: Ints, sorted_value: Reals):
    """Sort ratings by their rows, stably: ``place`` is where each row begins, and ends where it ends."""
    for m in range(len(row)):
        at = place[row[m]]
        index[at] = other[m]
        sorted_value[at] = value[m]
        place[row[m]] = at + 1


@entry
def lend_all(mean: Reals, covariance: Reals, gain: Reals, own: Reals):
    """Run ``lend`` for all rows."""
    for n in range(len(mean)):
        lend(mean[n], covariance[n], gain[n], own[n])


@inner(fastmath=REORDERED)
def _cholesky(a: Reals):
    """Compute the lower factor in place of the lower half."""
    d = len(a)
    for j in range(d):
        for i in range(j, d):
            part = a[i, j]
            for k in range(j):
                part -= a[i, k] * a[j, k]
            a[i, j] = math.sqrt(part) if i == j else part / a[j, j]


@inner(fastmath=REORDERED)
def _solve(a: Reals, b: Reals):
    """Solve a a' x = b for the lower factor a, in place of b."""
    for i in range(len(b)):
        part = b[i]
        for k in range(i):
            part -= a[i, k] * b[k]
        b[i] = part / a[i, i]
    for i in range(len(b) - 1, -1, -1):
        b[i] /= a[i, i]
        for k in range(i):
            b[k] -= a[i, k] * b[i]


@inner(fastmath=REORDERED)
def _invert(a: Reals, inverse: Reals, packed: Reals):
    """(a a')^-1 for the lower factor a: its lower half, column by column. ``inverse``: room for (a^-1)'."""
    d = len(a)
    for j in range(d):
        inverse[j, j] = 1.0 / a[j, j]
        for i in range(j + 1, d):
            part = 0.0
            for k in range(j, i):
                part -= a[i, k] * inverse[j, k]
            inverse[j, i] = part / a[i, i]
    at = 0
    for j in range(d):
        for i in range(j, d):
            part = 0.0
            for k in range(i, d):
                part += inverse[i, k] * inverse[j, k]
            packed[at] = part
            at += 1


@entry(fastmath=REORDERED)
def pair_moments(
    user: Ints,
    item: Ints,
    user_mean: Reals,
    user_covariance: Reals,
    item_mean: Reals,
    item_covariance: Reals,
    mean: Reals,
    variance: Reals,
):
    """Compute mean and variance of a_u + c_i + v_u'v_i for independent Gaussian rows of pairs (user, item)."""
    d = user_mean.shape[1]
    for m in range(len(user)):
        w, z, p, q = user_mean[user[m]], item_mean[item[m]], user_covariance[user[m]], item_covariance[item[m]]
        found, at = w[0] + z[0], d
        for i in range(1, d):
            found += w[i] * z[i]
        spread = p[0] + q[0]
        for i in range(1, d):
            spread += 2 * (p[i] * z[i] + q[i] * w[i])
        for j in range(1, d):
            part = 0.0
            for i in range(j + 1, d):
                part += p[at + i - j] * (z[i] * z[j] + q[at + i - j]) + q[at + i - j] * w[i] * w[j]
            spread += p[at] * (z[j] * z[j] + q[at]) + q[at] * w[j] * w[j] + 2 * part
            at += d - j
        mean[m] = found
        variance[m] = spread


@entry(fastmath=REORDERED)
def add_draw(
    user: Ints,
    item: Ints,
    user_row: Reals,
    item_row: Reals,
    user_gain: Reals,
    item_gain: Reals,
    tau: float,
    total: Reals,
    squares: Reals,
    noise: Reals,
):
    """Add the predictions a_u + c_i + v_u'v_i of a draw for these pairs to total, their squares to squares, 1 / (tau g
    h) to noise."""
    d = user_row.shape[1]
    for m in range(len(user)):
        w, z = user_row[user[m]], item_row[item[m]]
        found = w[0] + z[0]
        for i in range(1, d):
            found += w[i] * z[i]
        total[m] += found
        squares[m] += found * found
        noise[m] += 1 / (tau * user_gain[user[m]] * item_gain[item[m]])
