"""Compiled E step on NOCA's cubes of codes (``truncated``). Import inside functions only: it loads the compiler.

Everything is in terms of what is on: a source k beside others that switch on feature j with probability on_j makes it

    on_j + (1 - on_j) p_kj,

so that sums have positive terms only, whatever is small. Of a row with M ones all K flips take M K products, which run
in vectors, and a cube M 2^H; logarithms are taken of the products of all ones, which are kept within numbers by powers
of ``_SCALE``.
"""

from __future__ import annotations

import math

import numpy as np

from custom_inference.families.common.compiled import REORDERED, Ints, Reals, entry, inner
from custom_inference.families.common.intrinsics import allocate, larger, smaller

#: Probabilities that a feature is on are at least this, which is what single precision has: as many as ``_TOGETHER``
#: are multiplied before the product is looked at, which is scaled where it is small.
_LEAST, _TOGETHER = 1e-37, 4
_SMALL, _SCALE, _LOG_SCALE = 1e-150, 1e150, 150 * math.log(10.0)


@inner(fastmath=REORDERED)
def _rescale(product: Reals, times: Reals):
    """Multiply small products by the scale, and count how often."""
    for c in range(product.shape[0]):
        small = product[c] < _SMALL
        product[c] *= _SCALE if small else 1.0
        times[c] += 1.0 if small else 0.0


@inner(fastmath=REORDERED)
def _score_flips(ones: Ints, active: Ints, linear: Reals, chance: Reals, leak: Reals, room: tuple[Reals, ...]):
    """Set the first of ``room`` (K,) to the log joint of every flip, up to a constant. active: the sources that are on,
    each of which is left out: what comes before it in the list and what comes after it remain."""
    product, times, flipped, before = room
    number = linear.shape[0]
    for k in range(number):
        product[k], times[k] = 1.0, 0.0
    for m in range(ones.shape[0]):
        own, on = chance[ones[m]], leak[ones[m]]
        for a in range(active.shape[0]):
            before[a] = on
            on += (1.0 - on) * own[active[a]]
        for k in range(number):
            flipped[k] = on + (1.0 - on) * own[k]
        after = 0.0
        for a in range(active.shape[0] - 1, -1, -1):
            flipped[active[a]] = before[a] + (1.0 - before[a]) * after
            after += (1.0 - after) * own[active[a]]
        for k in range(number):
            product[k] *= larger(flipped[k], _LEAST)
        if m % _TOGETHER == _TOGETHER - 1:
            _rescale(product, times)
    for k in range(number):
        product[k] = math.log(product[k]) - times[k] * _LOG_SCALE + linear[k]
    for a in range(active.shape[0]):
        product[active[a]] -= 2.0 * linear[active[a]]


@inner(fastmath=REORDERED)
def _add_links(entries: Ints, chance: Reals, level: Reals, room: tuple[Reals, ...], linear: Reals):
    """Set linear (K,) to the log odds of the sources, but for the ones: without those of the zeros among the features
    that ``entries`` are, level (K,) being what all zeros give."""
    product, times, _, _ = room
    for k in range(linear.shape[0]):
        product[k], times[k] = 1.0, 0.0
    for m in range(entries.shape[0]):
        own = chance[entries[m]]
        for k in range(linear.shape[0]):
            product[k] *= 1.0 - own[k]
        if m % _TOGETHER == _TOGETHER - 1:
            _rescale(product, times)
    for k in range(linear.shape[0]):
        linear[k] = level[k] - math.log(product[k]) + times[k] * _LOG_SCALE


@inner(fastmath=REORDERED)
def _add_some_links(entries: Ints, some: Ints, chance: Reals, level: Reals, room: tuple[Reals, ...], linear: Reals):
    """Do so for ``some`` sources alone."""
    product, times, _, _ = room
    number = some.shape[0]
    for a in range(number):
        product[a], times[a] = 1.0, 0.0
    for m in range(entries.shape[0]):
        own = chance[entries[m]]
        for a in range(number):
            product[a] *= 1.0 - own[some[a]]
        if m % _TOGETHER == _TOGETHER - 1:
            _rescale(product[:number], times[:number])
    for a in range(number):
        linear[some[a]] = level[some[a]] - math.log(product[a]) + times[a] * _LOG_SCALE


@inner(fastmath=REORDERED)
def _choose_best(score: Reals, free: Ints):
    """Set ``free`` to the sources of the highest scores, the highest first; scores that are taken fall out."""
    for h in range(free.shape[0]):
        best = 0
        for k in range(1, score.shape[0]):
            if score[k] > score[best]:
                best = k
        free[h], score[best] = best, -np.inf


@inner(fastmath=REORDERED)
def _list_active(base: Reals, free: Ints, active: Ints):
    """List the sources that are on and not free; return how many."""
    number = 0
    for k in range(base.shape[0]):
        if base[k] > 0.0:
            own = True
            for h in range(free.shape[0]):
                own = own and free[h] != k
            if own:
                active[number] = k
                number += 1
    return number


@inner(fastmath=REORDERED)
def _list_used(base: Reals, free: Ints, used: Ints):
    """List the sources that are on in some code of the cube; return how many."""
    number = _list_active(base, free, used)
    for h in range(free.shape[0]):
        used[number + h] = free[h]
    return number + free.shape[0]


@inner(fastmath=REORDERED)
def _weigh_and_keep(
    joint: Reals, log_sum: float, free: Ints, odds: Reals, temperature: float, weight: Reals, kept: tuple[Ints, Reals]
):
    """Set weight (2^H,) to the posterior on the cube, the likelihood raised to a temperature; keep the free sources,
    and the log weights at a temperature of 1."""
    for h in range(free.shape[0]):
        kept[0][h] = free[h]
    for c in range(joint.shape[0]):
        kept[1][c] = weight[c] = joint[c] - log_sum
        if temperature != 1.0:
            weight[c] *= temperature
            for h in range(free.shape[0]):
                if c >> h & 1:
                    weight[c] += (1.0 - temperature) * odds[free[h]]
    rest = _sum_logs(weight)
    for c in range(joint.shape[0]):
        weight[c] = math.exp(weight[c] - rest)


@inner(fastmath=REORDERED)
def _tabulate(
    ones: Ints, active: Ints, free: Ints, linear: Reals, chance: Reals, leak: Reals, on: Reals, joint: Reals,
    times: Reals,
):  # fmt: skip
    """Set on (M, 2^H), the probabilities of the ones under every code of the cube, and the log joints (2^H,); return
    the logarithm of their sum."""
    width = joint.shape[0]
    for c in range(width):
        joint[c], times[c] = 1.0, 0.0
    for m in range(ones.shape[0]):
        own, here, value = chance[ones[m]], on[m], leak[ones[m]]
        for a in range(active.shape[0]):
            value += (1.0 - value) * own[active[a]]
        here[0], size = larger(value, _LEAST), 1
        for h in range(free.shape[0]):
            more, without, inside = own[free[h]], here[:size], here[size : 2 * size]
            for c in range(size):
                inside[c] = without[c] + (1.0 - without[c]) * more
            size *= 2
        for c in range(width):
            joint[c] *= here[c]
        if m % _TOGETHER == _TOGETHER - 1:
            _rescale(joint, times)
    fixed = 0.0
    for a in range(active.shape[0]):
        fixed += linear[active[a]]
    for c in range(width):
        joint[c] = math.log(joint[c]) - times[c] * _LOG_SCALE + fixed
        for h in range(free.shape[0]):
            if c >> h & 1:
                joint[c] += linear[free[h]]
    return _sum_logs(joint)


@inner(fastmath=REORDERED)
def _sum_logs(values: Reals):
    """Return log sum_c e^{values_c}."""
    top, total = values[0], 0.0
    for c in range(1, values.shape[0]):
        top = larger(top, values[c])
    for c in range(values.shape[0]):
        total += math.exp(values[c] - top)
    return top + math.log(total)


@inner(fastmath=REORDERED)
def _count(ones: Ints, active: Ints, free: Ints, weight: Reals, on: Reals, share: Reals, sent: Reals, sent_leak: Reals):
    """Add sum_c weight_c s_k / P(x_j = 1 | s) to sent (D, K), and the leak's to sent_leak (D,)."""
    width = weight.shape[0]
    for m in range(ones.shape[0]):
        own, total = sent[ones[m]], 0.0
        for c in range(width):
            share[c] = weight[c] / on[m, c]
        for c in range(width):
            total += share[c]
        sent_leak[ones[m]] += total
        for a in range(active.shape[0]):
            own[active[a]] += total
        size = width
        for h in range(free.shape[0] - 1, -1, -1):  # halves of the codes: with the last source, and without it
            size //= 2
            without, inside, some = share[:size], share[size : 2 * size], 0.0
            for c in range(size):
                some += inside[c]
                without[c] += inside[c]
            own[free[h]] += some


@inner(fastmath=REORDERED)
def _set_codes(active: Ints, free: Ints, joint: Reals, weight: Reals, base: Reals, mean: Reals):
    """Set base (K,) to the best code of the cube, and mean (K,) to the marginals."""
    best = 0
    for c in range(1, joint.shape[0]):
        if joint[c] > joint[best]:
            best = c
    for k in range(base.shape[0]):
        base[k], mean[k] = 0.0, 0.0
    for a in range(active.shape[0]):
        base[active[a]], mean[active[a]] = 1.0, 1.0
    for h in range(free.shape[0]):
        total = 0.0
        for c in range(joint.shape[0]):
            total += weight[c] if c >> h & 1 else 0.0
        base[free[h]], mean[free[h]] = float(best >> h & 1), smaller(total, 1.0)


@entry(fastmath=REORDERED)
def infer_cubes(
    span: tuple[int, int], rows: tuple[Ints, Ints, Ints, Ints, Ints], tables: tuple[Reals, ...],
    cubes: tuple[Reals, Ints], settings: tuple[bool, bool, bool, float], found: tuple[Reals, ...],
    sums: tuple[Reals, Reals],
):  # fmt: skip
    """Make the E step of the rows from the first of ``span`` to the last.

    rows: which (R,) rows of the data these are, and a source that is held off in each (R,), or -1; start (N + 1,) of
    the entries that are no zeros, where the ones among them end (N,), and their columns (E,), ones first. tables:
    p (D, K), p_0 (D,), theta_0 (D,); log odds of the priors, and with every feature a zero (K,); the log joint (1,) of
    no source and no one. cubes: base (R, K) and free (R, H). settings: whether cubes are chosen
    anew, whether there are old ones, and whether one of these stays where it has more mass; the temperature. found, all
    set: bound (R,), base (R, K), free (R, H), log weights (R, 2^H), mean (R, K). sums: sent (D, K) and sent_leak (D,),
    added to; without rows nothing is counted.
    """
    which, forbidden, start, middle, column = rows
    chance, leak, theta0, odds, level, silent = tables
    refresh, old, guard, temperature = settings
    bound, base, free, log_weight, mean = found
    number, width = chance.shape[1], log_weight.shape[1]
    longest = 1
    for r in range(span[0], span[1]):
        longest = larger(longest, middle[which[r]] - start[which[r]])
    linear, active = allocate(number), allocate(number, np.int64)
    room = (allocate(number), allocate(number), allocate(number), allocate(number))
    on, joint, tried = allocate((2, longest, width)), allocate((2, width)), allocate((2, free.shape[1]), np.int64)
    weight, share, none = allocate(width), allocate(width), tried[0, :0]
    for r in range(span[0], span[1]):
        n = which[r]
        ones, constant = column[start[n] : middle[n]], silent[0]
        for j in column[start[n] : start[n + 1]]:
            constant += theta0[j]
        if refresh:
            _add_links(column[start[n] : start[n + 1]], chance, level, room, linear)
        else:
            size = _list_used(cubes[0][r], cubes[1][r], active)
            _add_some_links(column[start[n] : start[n + 1]], active[:size], chance, level, room, linear)
        if forbidden[r] >= 0:
            linear[forbidden[r]] = -1e4
        use, log_sum = 0, -np.inf
        if refresh:
            size = _list_active(cubes[0][r], none, active)
            _score_flips(ones, active[:size], linear, chance, leak, room)
            _choose_best(room[0], tried[0])
            size = _list_active(cubes[0][r], tried[0], active)
            log_sum = _tabulate(ones, active[:size], tried[0], linear, chance, leak, on[0], joint[0], share)
        if old and (guard or not refresh):
            for h in range(free.shape[1]):
                tried[1, h] = cubes[1][r, h]
            size = _list_active(cubes[0][r], tried[1], active)
            own = _tabulate(ones, active[:size], tried[1], linear, chance, leak, on[1], joint[1], share)
            if own >= log_sum:
                use, log_sum = 1, own
        size = _list_active(cubes[0][r], tried[use], active)
        bound[r] = constant + log_sum
        _weigh_and_keep(joint[use], log_sum, tried[use], odds, temperature, weight, (free[r], log_weight[r]))
        _set_codes(active[:size], tried[use], joint[use], weight, base[r], mean[r])
        if sums[0].shape[0]:
            _count(ones, active[:size], tried[use], weight, on[use], share, sums[0], sums[1])
