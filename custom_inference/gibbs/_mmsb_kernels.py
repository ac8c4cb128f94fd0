"""Compiled Gibbs sweeps over the blocks that nodes take in a graph. Import inside functions only: it loads the compiler.

With memberships, block matrix and sparsity integrated out, and dyad (i, j) itself not counted, the blocks (s, r) that i
and j take for it have the full conditional (002, eqs. 27.77-27.79)

    p(s = a, r = b | rest) ~ w_0 (c_ia + alpha_a) / (c_i + A) (c_jb + alpha_b) / (c_j + A) f_ab(x)
    p(background | rest)   ~ w_1 where x = 0, and never where x = 1

with c_ia how often node i takes block a, f_ab(1) = (m_ab + g_ab) / (m_ab + e_ab + g_ab + h_ab) from m_ab edges and e_ab
other dyads under a Beta(g, h) prior, f_ab(0) = 1 - f_ab(1), and w = (1 - rho, rho), or w_0 = d + dyads with blocks, w_1
= c + background ones under rho ~ Beta(c, d). A background dyad takes no blocks and has no part in c, m and e. For a self
loop both blocks are of one node: c_ib of the second factor counts the first, s = b.

Edges, and all dyads where K is small, are drawn from this table: K^2 operations. Of the other dyads without an edge, by
far the most, f is close to 1 in sparse graphs. There a pair is proposed from everything but f, and accepted with
probability min(1, f' / f) (Metropolis-Hastings; f = 1 for background): the same stationary distribution at a cost that
does not grow with K. To draw from (c_ia + alpha_a), take the block that i has in another of its dyads, chosen at
random, or with the share A / (c_i + A) one from alpha.

Rows and columns are visited in tiles: of pairs (i, j) the receiver's block lies in row j, so that whole rows would read
a cache line for every single block.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from custom_inference.gibbs._mmsb_state import TILE

#: Looks at other dyads of a node before its counts are read instead.
_LOOKS = 8
#: Proposals that may be rejected for a dyad without blocks before its table is used instead.
_TRIES = 16


@njit(inline="always")
def _uniform(rng):
    """The next number in [0, 1), of 53 bits (SplitMix64; see ``_lda_kernels``)."""
    rng[0] += np.uint64(0x9E3779B97F4A7C15)
    z = rng[0]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return np.float64(z >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@njit(error_model="numpy")
def _count(fixed, state, a, b, x, change):
    """A dyad more or less in a cell of the block matrix."""
    if not fixed.learns_rate:
        return
    cells, rate, prior = state.cells, state.rate, fixed.prior
    cells[x, a, b] += change
    total = prior[0, a, b] + prior[1, a, b] + cells[0, a, b] + cells[1, a, b]
    if not fixed.directed and a != b:
        cells[x, b, a] = cells[x, a, b]
    for y in range(2):
        rate[y, a, b] = (prior[y, a, b] + cells[y, a, b]) / total
        if not fixed.directed:
            rate[y, b, a] = rate[y, a, b]


@njit(error_model="numpy")
def _leave(fixed, state, i, j, x):
    """The dyad gives up its blocks, or is no background dyad any longer."""
    blocks = state.member.shape[1]
    a, b = state.sender[i, j], state.receiver[j, i]
    if a < blocks:
        state.member[i, a] -= 1
        state.member[j, b] -= 1
        state.taken[i] -= 1
        state.taken[j] -= 1
        state.kind[0] -= 1
        _count(fixed, state, a, b, x, -1)
    elif a == fixed.background:
        state.kind[1] -= 1
    state.sender[i, j] = fixed.none
    state.receiver[j, i] = fixed.none


@njit(error_model="numpy")
def _take(fixed, state, i, j, x, a, b):
    """The dyad takes blocks a and b, or becomes a background one."""
    state.sender[i, j] = a
    state.receiver[j, i] = b
    if a == fixed.background:
        state.kind[1] += 1
        return
    state.member[i, a] += 1
    state.member[j, b] += 1
    state.taken[i] += 1
    state.taken[j] += 1
    state.kind[0] += 1
    _count(fixed, state, a, b, x, 1)


@njit(error_model="numpy")
def _from_table(fixed, left, right, rate, outside, same, rng):
    """(a, b) with weight left_a right_b rate_ab, or background with weight ``outside``. same: right_b has one more for
    b = a."""
    blocks = left.shape[0]
    rows, total = np.empty(blocks), outside
    for a in range(blocks):
        row = 0.0
        for b in range(blocks):
            row += right[b] * rate[a, b]
        if same:
            row += rate[a, a]
        rows[a] = row * left[a]
        total += rows[a]
    rest = _uniform(rng) * total - outside
    if rest < 0:
        return fixed.background, fixed.background
    row, column = 0, 0
    for a in range(blocks):  # the last that is possible, should rounding lead past all of them
        if rows[a] > 0:
            row = a
            if rest < rows[a]:
                break
            rest -= rows[a]
    rest /= left[row]
    for b in range(blocks):
        part = (right[b] + (same and row == b)) * rate[row, b]
        if part > 0:
            column = b
            if rest < part:
                break
            rest -= part
    return row, column


@njit(error_model="numpy")
def _weights(fixed, state, i, values):
    for k in range(values.shape[0]):
        values[k] = state.member[i, k] + fixed.alpha[k]


@njit(error_model="numpy")
def _exactly(fixed, state, i, j, x, left, right):
    """A draw from the full conditional; the dyad has no blocks."""
    _weights(fixed, state, i, left)
    _weights(fixed, state, j, right)
    inside, outside = _prevalence(fixed, state)
    last = state.taken[j] + fixed.mass + (i == j)
    outside *= (state.taken[i] + fixed.mass) * last / inside if x == 0 else 0.0
    return _from_table(fixed, left, right, state.rate[x], outside, i == j, state.rng)


@njit(error_model="numpy")
def _prevalence(fixed, state):
    """(w_0, w_1)."""
    if not fixed.learns_background:
        return fixed.sparsity[0], fixed.sparsity[1]
    return fixed.sparsity[0] + state.kind[0], fixed.sparsity[1] + state.kind[1]


@njit(error_model="numpy")
def _another(fixed, state, i):
    """A block of node i: k with probability (c_ik + alpha_k) / (c_i + A)."""
    blocks, size, rng = state.member.shape[1], state.member.shape[0], state.rng
    taken = state.taken[i]
    u = _uniform(rng) * (taken + fixed.mass)
    if u >= taken:
        u -= taken
        k = 0
        while k < blocks - 1 and u >= fixed.alpha[k]:
            u -= fixed.alpha[k]
            k += 1
        return k
    u /= taken
    for _ in range(_LOOKS):
        slot = int(u * (size * fixed.layers))
        k = state.sender[i, slot] if slot < size else state.receiver[i, slot - size]
        if k < blocks:
            return np.int64(k)
        u = _uniform(rng)
    u *= taken
    k = 0
    while k < blocks - 1 and u >= state.member[i, k]:
        u -= state.member[i, k]
        k += 1
    return k


@njit(error_model="numpy")
def _propose(fixed, state, i, j):
    """Blocks from everything but f, for two different nodes, and f."""
    inside, outside = _prevalence(fixed, state)
    if outside > 0 and _uniform(state.rng) * (inside + outside) < outside:
        return fixed.background, fixed.background, 1.0
    a, b = _another(fixed, state, i), _another(fixed, state, j)
    return a, b, state.rate[0, a, b]


@njit(error_model="numpy")
def _renew(fixed, state, i, j, x, exact, left, right):
    """New blocks for a dyad, or its first."""
    blocks = state.member.shape[1]
    s, r = np.int64(state.sender[i, j]), np.int64(state.receiver[j, i])
    fresh = s == fixed.none
    _leave(fixed, state, i, j, x)
    if x == 1 or exact or i == j:
        a, b = _exactly(fixed, state, i, j, x, left, right)
    elif fresh:
        f, tries = 0.0, 0
        a, b = s, r
        while tries < _TRIES and _uniform(state.rng) >= f:
            a, b, f = _propose(fixed, state, i, j)
            tries += 1
        if tries == _TRIES:
            a, b = _exactly(fixed, state, i, j, x, left, right)
    else:
        before = state.rate[0, s, r] if s < blocks else 1.0
        a, b, f = _propose(fixed, state, i, j)
        if f < before and _uniform(state.rng) * before >= f:
            a, b = s, r
    _take(fixed, state, i, j, x, a, b)


@njit(nogil=True, cache=True, error_model="numpy")
def sweep(fixed, state, exact):
    """New blocks for every observed dyad, in place. exact: from the table of all pairs everywhere, else only for edges
    and self loops."""
    size, blocks = state.member.shape
    left, right, place = np.empty(blocks), np.empty(blocks), np.empty(TILE, np.int64)
    for top in range(0, size, TILE):
        bottom = min(top + TILE, size)
        place[: bottom - top] = fixed.start[top:bottom]
        for begin in range(0 if fixed.directed else top, size, TILE):
            end = min(begin + TILE, size)
            for i in range(top, bottom):
                at, last = place[i - top], fixed.start[i + 1]
                for j in range(begin if fixed.directed else max(begin, i), end):
                    x = 0
                    if at < last and fixed.index[at] == j:
                        x = 1
                        at += 1
                    if state.sender[i, j] != fixed.hidden:
                        _renew(fixed, state, i, j, x, exact, left, right)
                place[i - top] = at


@njit(nogil=True, cache=True, error_model="numpy")
def seat(fixed, state, membership, rate, sparsity):
    """First blocks of every dyad, from p(s, r | x) at given memberships (N, K), f (2, K, K) and rho."""
    size, blocks = state.member.shape
    cumulative = np.empty((size, blocks))
    for i in range(size):
        cumulative[i] = np.cumsum(membership[i])
    for i in range(size):
        at, last = fixed.start[i], fixed.start[i + 1]
        for j in range(0 if fixed.directed else i, size):
            x = 0
            if at < last and fixed.index[at] == j:
                x = 1
                at += 1
            if state.sender[i, j] == fixed.hidden:
                continue
            _leave(fixed, state, i, j, x)
            a, b = _first(fixed, membership, cumulative, rate[x], 0.0 if x == 1 else sparsity, i, j, state.rng)
            _take(fixed, state, i, j, x, a, b)


@njit(error_model="numpy")
def _first(fixed, membership, cumulative, rate, sparsity, i, j, rng):
    for _ in range(_TRIES):
        if sparsity > 0 and _uniform(rng) < sparsity:
            return fixed.background, fixed.background
        a, b = _find(cumulative[i], rng), _find(cumulative[j], rng)
        if _uniform(rng) < rate[a, b]:
            return a, b
    return _from_table(fixed, membership[i], membership[j], rate, sparsity / (1 - sparsity), False, rng)


@njit(error_model="numpy")
def _find(cumulative, rng):
    u, k = _uniform(rng) * cumulative[-1], 0
    while k < cumulative.shape[0] - 1 and u >= cumulative[k]:
        k += 1
    return k
