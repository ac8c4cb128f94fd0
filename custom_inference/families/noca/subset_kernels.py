"""Compiled sums over the subsets of a row's ones. Import inside functions only: it loads the compiler.

Of a row with ones J, f_i(T) is the probability that leak and sources 1..i switch on exactly T of J, and no zero. With
a_i = 1 - pi_i, b_i = pi_i prod_{zeros} (1 - p_ij), and A_i what a present source does to f, one j of J after the other,

    f'(T with j) = f(T with j) + p_ij f(T without j),      f'(T without j) = (1 - p_ij) f(T without j),

    f_0(T) = prod_{j in T} p_0j prod_{j in J - T} (1 - p_0j),    f_i = a_i f_i-1 + b_i A_i f_i-1,    p(x) = f_K(J)

(but for the leak's prod_{zeros} (1 - p_0j), a factor of all). Every term is positive. Backward, h_i(T) is the
probability that sources i+1..K make J of T, and no zero: h_K(T) = [T = J], h_i-1 = a_i h_i + b_i A_i' h_i. With
v = A_i' h_i, of which A_i' leaves what is with j as the other ones' operators made it,

    E[s_i | x] = b_i sum_T v(T) f_i-1(T) / p(x)
    E[s_i z_ij | x] = b_i p_ij sum_{T with j} v(T) (f_i-1(T) + f_i-1(T without j)) / p(x)

for z_ij: source i transmits to j (``noca.common``). Subsets are the bits of their place, j the first one at bit 0.
Everything is in double precision, and nothing is scaled: what is lost is below 1e-308 a term, so that sums above
``SMALLEST`` lose nothing that shows. Smaller ones are taken in logarithms (``subsets``).
"""

from __future__ import annotations

import numpy as np

from custom_inference.families.common.compiled import REORDERED, Ints, Reals, Words, entry, inlined, inner
from custom_inference.families.common.intrinsics import allocate, smaller
from custom_inference.families.common.random import draw_next

#: The smallest p(x) that is taken as it is.
SMALLEST = 1e-280


@inlined
def _halve(values: Reals, base: int, stride: int):
    """Return views of the subsets from ``base`` on without a one and with it: loops over these run in vectors, which
    those over one array do not."""
    return values[base : base + stride], values[base + stride : base + 2 * stride]


@inner(fastmath=REORDERED)
def _transmit(values: Reals, chance: Reals):
    """Apply A of a source with chances p_j (M,) to values (2^M,), in place.

    The first two ones together: loops over one or two neighbours take longer than all that is in them.
    """
    done = 0
    if chance.shape[0] > 1:
        done, one, two = 2, chance[0], chance[1]
        for t in range(0, values.shape[0], 4):
            none, first = (1.0 - one) * values[t], values[t + 1] + one * values[t]
            second, both = (1.0 - one) * values[t + 2], values[t + 3] + one * values[t + 2]
            values[t], values[t + 1] = (1.0 - two) * none, (1.0 - two) * first
            values[t + 2], values[t + 3] = second + two * none, both + two * first
    for j in range(done, chance.shape[0]):
        stride, on = 1 << j, chance[j]
        off = 1.0 - on
        for base in range(0, values.shape[0], 2 * stride):
            without, inside = _halve(values, base, stride)
            for t in range(stride):
                inside[t] += on * without[t]
                without[t] *= off


@inner(fastmath=REORDERED)
def _collect(values: Reals, chance: Reals):
    """Apply A' of a source with chances p_j (M,) to values (2^M,), in place."""
    done = 0
    if chance.shape[0] > 1:
        done, one, two = 2, chance[0], chance[1]
        for t in range(0, values.shape[0], 4):
            none = (1.0 - one) * values[t] + one * values[t + 1]
            second = (1.0 - one) * values[t + 2] + one * values[t + 3]
            values[t], values[t + 2] = (1.0 - two) * none + two * second, second
            values[t + 1] = (1.0 - two) * values[t + 1] + two * values[t + 3]
    for j in range(done, chance.shape[0]):
        stride, on = 1 << j, chance[j]
        off = 1.0 - on
        for base in range(0, values.shape[0], 2 * stride):
            without, inside = _halve(values, base, stride)
            for t in range(stride):
                without[t] = off * without[t] + on * inside[t]


@inner(fastmath=REORDERED)
def _start(values: Reals, leak: Reals):
    """Fill f_0 (2^M,) of leaks p_0j (M,)."""
    values[0] = 1.0
    for j in range(leak.shape[0]):
        stride = 1 << j
        for t in range(stride):
            values[t + stride] = leak[j] * values[t]
            values[t] *= 1.0 - leak[j]


@inner(fastmath=REORDERED)
def _mix(absent: float, values: Reals, spread: Reals, found: Reals):
    """Set ``found`` to absent * values + spread."""
    for t in range(values.shape[0]):
        found[t] = absent * values[t] + spread[t]


@inner(fastmath=REORDERED)
def _scale(factor: float, values: Reals, found: Reals):
    """Set ``found`` to factor * values."""
    for t in range(values.shape[0]):
        found[t] = factor * values[t]


@entry(fastmath=REORDERED)
def sum_evidence(
    rows: tuple[Ints, Ints, Reals, Reals], tables: tuple[Reals, Reals], evidence: Reals
):  # fmt: skip
    """Set evidence (R,) to f_K(J) of every row.

    rows: start (R + 1,) of each row's ones, their columns (E,), a and b (R, K). tables: p (K, D), p_0 (D,).
    """
    start, column, absent, present = rows
    loading, leak = tables
    number = absent.shape[1]
    for r in range(evidence.shape[0]):
        ones = column[start[r] : start[r + 1]]
        size = 1 << ones.shape[0]
        values, spread = allocate(size), allocate(size)
        chance, first = allocate((number, ones.shape[0])), allocate(ones.shape[0])
        _read_chances(ones, loading, leak, chance, first)
        _start(values, first)
        for i in range(number):
            _scale(present[r, i], values, spread)
            _transmit(spread, chance[i])
            _mix(absent[r, i], values, spread, values)
        evidence[r] = values[size - 1]


@inner(fastmath=REORDERED)
def _read_chances(ones: Ints, loading: Reals, leak: Reals, chance: Reals, first: Reals):
    """Fill p of the sources (K, M) and of the leak (M,) for a row's ones."""
    for j in range(ones.shape[0]):
        first[j] = leak[ones[j]]
        for i in range(chance.shape[0]):
            chance[i, j] = loading[i, ones[j]]


@entry(fastmath=REORDERED)
def expect_sources(
    rows: tuple[Ints, Ints, Reals, Reals], tables: tuple[Reals, Reals], weight: Reals, evidence: Reals,
    found: tuple[Reals, Reals, Reals],
):  # fmt: skip
    """Set evidence (R,) to f_K(J), and what is expected of every row given x; leave rows alone that are below SMALLEST.

    rows, tables: as those of ``sum_evidence``. weight: (R,), how often each row counts. found: E[s_i | x] (R, K), set;
    sums over the rows of E[s_i z_ij | x] (K, D) and of E[z_0j | x] (D,), added to.
    """
    start, column, absent, present = rows
    loading, leak = tables
    mean, sent, sent_leak = found
    number = absent.shape[1]
    for r in range(evidence.shape[0]):
        ones = column[start[r] : start[r + 1]]
        length = ones.shape[0]
        size = 1 << length
        forward, spread, back = allocate((number + 1, size)), allocate(size), np.zeros(size)
        chance, first = allocate((number, length)), allocate(length)
        _read_chances(ones, loading, leak, chance, first)
        _start(forward[0], first)
        for i in range(number):
            _scale(present[r, i], forward[i], spread)
            _transmit(spread, chance[i])
            _mix(absent[r, i], forward[i], spread, forward[i + 1])
        evidence[r] = forward[number, size - 1]
        if evidence[r] < SMALLEST:
            continue
        back[size - 1] = 1.0 / evidence[r]
        for i in range(number - 1, -1, -1):
            _scale(present[r, i], back, spread)
            _collect(spread, chance[i])
            total = 0.0
            for t in range(size):
                total += spread[t] * forward[i, t]
            mean[r, i] = smaller(total, 1.0)
            _add_sent(ones, chance[i], spread, forward[i], weight[r], sent[i])
            _mix(absent[r, i], back, spread, back)
        for j in range(length):
            sent_leak[ones[j]] += weight[r] * _sum_with(j, forward[0], back)


@inner(fastmath=REORDERED)
def _add_sent(ones: Ints, chance: Reals, back: Reals, forward: Reals, weight: float, sent: Reals):
    """Add p_j sum_{T with j} v(T) (f(T) + f(T without j)) of every one j to its place in ``sent`` (D,)."""
    done = 0
    if ones.shape[0] > 1:
        done, one, two = 2, 0.0, 0.0
        for t in range(0, back.shape[0], 4):
            one += back[t + 1] * (forward[t] + forward[t + 1]) + back[t + 3] * (forward[t + 2] + forward[t + 3])
            two += back[t + 2] * (forward[t] + forward[t + 2]) + back[t + 3] * (forward[t + 1] + forward[t + 3])
        sent[ones[0]] += weight * chance[0] * one
        sent[ones[1]] += weight * chance[1] * two
    for j in range(done, ones.shape[0]):
        stride, total = 1 << j, 0.0
        for base in range(0, back.shape[0], 2 * stride):
            without, inside = _halve(forward, base, stride)
            _, ahead = _halve(back, base, stride)
            for t in range(stride):
                total += ahead[t] * (without[t] + inside[t])
        sent[ones[j]] += weight * chance[j] * total


@inner(fastmath=REORDERED)
def _sum_with(j: int, forward: Reals, back: Reals):
    """Return sum_{T with j} f(T) h(T)."""
    stride, total = 1 << j, 0.0
    for base in range(stride, back.shape[0], 2 * stride):
        for t in range(base, base + stride):
            total += forward[t] * back[t]
    return total


@entry(fastmath=REORDERED)
def draw_sources(
    rows: tuple[Ints, Ints, Reals, Reals], tables: tuple[Reals, Reals], rng: Words, drawn: Reals, evidence: Reals
):
    """Set drawn (S, R, K) to codes from p(s | x): of a row first what the leak switches on, then source after source,

        P(s_i = 1 | T) = b_i v(T) / h_i-1(T),    and where it is present, one j of J - T after the other.

    rows, tables: as those of ``sum_evidence``. rng: (R,), a random state for each row. evidence: (R,), set to p(x);
    rows below SMALLEST are left alone.
    """
    start, column, absent, present = rows
    loading, leak = tables
    number = absent.shape[1]
    for r in range(evidence.shape[0]):
        ones = column[start[r] : start[r + 1]]
        length = ones.shape[0]
        size = 1 << length
        back, stage = np.zeros((number + 1, size)), allocate((length + 1, size))
        chance, first = allocate((number, length)), allocate(length)
        _read_chances(ones, loading, leak, chance, first)
        back[number, size - 1] = 1.0
        for i in range(number - 1, -1, -1):
            _scale(present[r, i], back[i + 1], stage[0])
            _collect(stage[0], chance[i])
            _mix(absent[r, i], back[i + 1], stage[0], back[i])
        cumulative = stage[0]
        _start(cumulative, first)
        total = 0.0
        for t in range(size):
            total += cumulative[t] * back[0, t]
            cumulative[t] = total
        evidence[r] = total
        if total < SMALLEST:
            continue
        state, on = rng[r : r + 1], allocate(drawn.shape[0], np.int64)
        for s in range(drawn.shape[0]):
            on[s] = smaller(np.searchsorted(cumulative, draw_next(state) * total, side="right"), size - 1)
        for i in range(number):
            _fill_stages(back[i + 1], chance[i], stage)
            for s in range(drawn.shape[0]):
                joint = present[r, i] * stage[0, on[s]]
                drawn[s, r, i] = 1.0 if draw_next(state) * back[i, on[s]] < joint else 0.0
                if drawn[s, r, i] > 0:
                    on[s] = _draw_subset(on[s], chance[i], stage, state)


@inner(fastmath=REORDERED)
def _fill_stages(back: Reals, chance: Reals, stage: Reals):
    """Fill stage (M + 1, 2^M): h to which A' of the ones from j on was applied, at place j; h itself at the last."""
    length = chance.shape[0]
    _scale(1.0, back, stage[length])
    for j in range(length - 1, -1, -1):
        stride, on = 1 << j, chance[j]
        for base in range(0, back.shape[0], 2 * stride):
            without, inside = _halve(stage[j + 1], base, stride)
            before, beside = _halve(stage[j], base, stride)
            for t in range(stride):
                before[t] = (1.0 - on) * without[t] + on * inside[t]
                beside[t] = inside[t]


@inner(fastmath=REORDERED)
def _draw_subset(on: int, chance: Reals, stage: Reals, state: Words):
    """Draw what is on once a present source has had its turn, where ``on`` was before."""
    for j in range(chance.shape[0]):
        bit = 1 << j
        if not on & bit and draw_next(state) * stage[j, on] < chance[j] * stage[j + 1, on | bit]:
            on |= bit
    return on
