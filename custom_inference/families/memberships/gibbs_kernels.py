"""Compiled Gibbs sweeps over the blocks that nodes take. Import inside functions only: it loads the compiler.

With memberships, block matrix and sparsity integrated out, and dyad (i, j) itself not counted, the blocks (s, r) that i
and j take for it have the full conditional (Murphy 2012, eqs. 27.77-27.79)

    p(s = a, r = b | rest) ~ w_0 (c_ia + alpha_a) / (c_i + A) (c_jb + alpha_b) / (c_j + A) f_ab(x)
    p(background | rest)   ~ w_1 where x = 0, and never where x = 1

with c_ia how often node i takes block a, f_ab(1) = (m_ab + g_ab) / (m_ab + e_ab + g_ab + h_ab) from m_ab edges and e_ab
other dyads under a Beta(g, h) prior, f_ab(0) = 1 - f_ab(1), and w = (1 - rho, rho), or w_0 = d + dyads with blocks, w_1
= c + background ones under rho ~ Beta(c, d). A background dyad takes no blocks and has no part in c, m and e. Of a self
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

from typing import TYPE_CHECKING

import numpy as np

from custom_inference.families.common.compiled import Reals, entry, inlined, inner
from custom_inference.families.common.intrinsics import allocate, larger, smaller
from custom_inference.families.common.random import draw_next
from custom_inference.families.memberships.gibbs_state import TILE

if TYPE_CHECKING:
    from custom_inference.families.memberships.gibbs_state import Fixed, MembershipState

#: InitialStep at other dyads of a node before its counts are read instead.
_LOOKS = 8
#: Proposals that may be rejected for a dyad without blocks before its table is used instead.
_TRIES = 16


@inlined
def _count(cells, rate, prior, a, b, x, change, mirrored):
    """Add a dyad to a cell of the block matrix, or take it away, and recompute the cell's f."""
    cells[x, a, b] += change
    linked, empty = prior[1, a, b] + cells[1, a, b], prior[0, a, b] + cells[0, a, b]
    each = 1.0 / (linked + empty)
    rate[0, a, b] = empty * each
    rate[1, a, b] = linked * each
    if mirrored and a != b:
        cells[x, b, a] += change
        rate[0, b, a] = empty * each
        rate[1, b, a] = linked * each


@inlined
def _enter(sender, receiver, member, taken, kind, cells, rate, prior, i, j, a, b, x, outer, change, mirrored):
    """Set blocks a and b for dyad (i, j), or those of the background where a < 0."""
    sender[i, j] = outer if a < 0 else a
    receiver[j, i] = outer if a < 0 else b
    if a < 0:
        kind[1] += 1
    else:
        member[i, a] += 1
        member[j, b] += 1
        taken[i] += 1
        taken[j] += 1
        kind[0] += 1
        _count(cells, rate, prior, a, b, x, change, mirrored)


@inlined
def _leave(member, taken, kind, cells, rate, prior, i, j, a, b, x, outer, change, mirrored):
    """Take blocks a and b of dyad (i, j) off the counts, or those of the background."""
    if a < member.shape[1]:
        member[i, a] -= 1
        member[j, b] -= 1
        taken[i] -= 1
        taken[j] -= 1
        kind[0] -= 1
        _count(cells, rate, prior, a, b, x, -change, mirrored)
    elif a == outer:
        kind[1] -= 1


@inlined
def _from_table(left, right, rate, x, outside, same, rows, rng):
    """Draw (a, b) with weight left_a right_b rate_xab, or (-1, -1) with weight ``outside``. same: right_b has one more
    for b = a."""
    blocks, total = left.shape[0], outside
    for a in range(blocks):
        row = 0.0
        for b in range(blocks):
            row += right[b] * rate[x, a, b]
        if same:
            row += rate[x, a, a]
        rows[a] = row * left[a]
        total += rows[a]
    rest = draw_next(rng) * total - outside
    row, column = -1, -1
    if rest >= 0:
        row, column = 0, 0
        for a in range(blocks):  # the last that is possible, should rounding lead past all of them
            if rows[a] > 0:
                row = a
                if rest < rows[a]:
                    break
                rest -= rows[a]
        rest /= left[row]
        for b in range(blocks):
            part = (right[b] + (same and row == b)) * rate[x, row, b]
            if part > 0:
                column = b
                if rest < part:
                    break
                rest -= part
    return row, column


@inner
def _by_counts(member: Reals, i: int, u: float):
    """Return the block of node i at place u of its counts, or shares, laid end to end."""
    k = 0
    while k < member.shape[1] - 1 and u >= member[i, k]:
        u -= member[i, k]
        k += 1
    return k


@inlined
def _another(sender, receiver, slots, member, taken, alpha, mass, i, rng):
    """Draw a block of node i: k with probability (c_ik + alpha_k) / (c_i + A)."""
    size, blocks = member.shape
    u = draw_next(rng) * (taken[i] + mass)
    found = -1
    if u >= taken[i]:
        u -= taken[i]
        found = 0
        while found < blocks - 1 and u >= alpha[found]:
            u -= alpha[found]
            found += 1
    else:
        u /= taken[i]
        looks = 0
        while found < 0 and looks < _LOOKS:
            slot = int(u * slots)
            k = np.int64(sender[i, slot]) if slot < size else np.int64(receiver[i, slot - size])
            if k < blocks:
                found = k
            u = draw_next(rng)
            looks += 1
        if found < 0:
            found = _by_counts(member, i, u * taken[i])
    return found


@inner
def _sweep(fixed, state, exact, left, right, rows, place):
    """Make one pass. Written in one piece: what is handed to a function costs more than what most of them do."""
    start, index, alpha, mass, prior = fixed.start, fixed.index, fixed.alpha, fixed.mass, fixed.prior
    hidden, none, outer = fixed.hidden, fixed.none, fixed.background
    change, mirrored = np.int64(fixed.learns_rate), not fixed.directed
    sender, receiver, member, taken = state.sender, state.receiver, state.member, state.taken
    kind, cells, rate, rng = state.kind, state.cells, state.rate, state.rng
    step = np.int64(fixed.learns_background)
    size, blocks = member.shape
    slots = size * fixed.layers
    for top in range(0, size, TILE):
        bottom = smaller(top + TILE, size)
        for i in range(top, bottom):
            place[i - top] = start[i]
        for begin in range(top if mirrored else 0, size, TILE):
            for i in range(top, bottom):
                at, last = place[i - top], start[i + 1]
                for j in range(larger(begin, i) if mirrored else begin, smaller(begin + TILE, size)):
                    x = 0
                    if at < last and index[at] == j:
                        x = 1
                        at += 1
                    s, r = np.int64(sender[i, j]), np.int64(receiver[j, i])
                    if s == hidden:
                        continue
                    _leave(member, taken, kind, cells, rate, prior, i, j, s, r, x, outer, change, mirrored)
                    sender[i, j] = none
                    receiver[j, i] = none
                    inside = fixed.sparsity[0] + step * kind[0]
                    outside = fixed.sparsity[1] + step * kind[1] if x == 0 else 0.0
                    a, b, left_to_do = -1, -1, True
                    if x == 0 and not exact and i != j:
                        f = rate[0, s, r] if s < blocks else 1.0
                        for _ in range(_TRIES if s == none else 1):
                            new = 1.0
                            a, b = -1, -1
                            if outside == 0 or draw_next(rng) * (inside + outside) >= outside:
                                a = _another(sender, receiver, slots, member, taken, alpha, mass, i, rng)
                                b = _another(sender, receiver, slots, member, taken, alpha, mass, j, rng)
                                new = rate[0, a, b]
                            if new >= f or draw_next(rng) * f < new:
                                left_to_do = False
                                break
                        if left_to_do and s != none:
                            a, b, left_to_do = (s, r, False) if s < blocks else (-1, -1, False)
                    if left_to_do:
                        for k in range(blocks):
                            left[k] = member[i, k] + alpha[k]
                            right[k] = member[j, k] + alpha[k]
                        outside *= (taken[i] + mass) * (taken[j] + mass + (i == j)) / inside
                        a, b = _from_table(left, right, rate, x, outside, i == j, rows, rng)
                    _enter(
                        sender, receiver, member, taken, kind, cells, rate, prior, i, j, a, b, x, outer, change,
                        mirrored,
                    )  # fmt: skip
                place[i - top] = at


@entry
def sweep(fixed, state, exact, passes):
    """Draw new blocks for every observed dyad, in place, so many times. exact: from the table of all pairs everywhere,
    else only for edges and self loops."""
    blocks = state.member.shape[1]
    left, right, rows = allocate(blocks), allocate(blocks), allocate(blocks)
    place = allocate(TILE, np.int64)
    for _ in range(passes):
        _sweep(fixed, state, exact, left, right, rows, place)


@entry
def seat(fixed: Fixed, state: MembershipState, membership: Reals, rate: Reals, sparsity: float):
    """Draw first blocks of every dyad from p(s, r | x) at given memberships (N, K), f (2, K, K) and rho."""
    sender, receiver, member, taken = state.sender, state.receiver, state.member, state.taken
    kind, cells, rng, change = state.kind, state.cells, state.rng, np.int64(fixed.learns_rate)
    size, blocks = member.shape
    rows = allocate(blocks)
    for i in range(size):
        at, last = fixed.start[i], fixed.start[i + 1]
        for j in range(0 if fixed.directed else i, size):
            x = 0
            if at < last and fixed.index[at] == j:
                x = 1
                at += 1
            if sender[i, j] == fixed.hidden:
                continue
            rho = 0.0 if x == 1 else sparsity
            a, b, found = -1, -1, False
            for _ in range(_TRIES):
                found = rho > 0 and draw_next(rng) < rho
                if found:
                    a, b = -1, -1
                    break
                a, b = _by_counts(membership, i, draw_next(rng)), _by_counts(membership, j, draw_next(rng))
                found = draw_next(rng) < rate[x, a, b]
                if found:
                    break
            if not found:
                a, b = _from_table(membership[i], membership[j], rate, x, rho / (1 - rho), False, rows, rng)
            _enter(
                sender, receiver, member, taken, kind, cells, state.rate, fixed.prior, i, j, a, b, x,
                fixed.background, change, not fixed.directed,
            )  # fmt: skip


@entry
def count(fixed, state, cells):
    """Recount ``cells`` (2, K, K) from the blocks of all dyads."""
    cells[:] = 0
    size, blocks = state.member.shape
    for i in range(size):
        at, last = fixed.start[i], fixed.start[i + 1]
        for j in range(0 if fixed.directed else i, size):
            x = 0
            if at < last and fixed.index[at] == j:
                x = 1
                at += 1
            a, b = np.int64(state.sender[i, j]), np.int64(state.receiver[j, i])
            if a < blocks:
                cells[x, a, b] += 1
                if not fixed.directed and a != b:
                    cells[x, b, a] += 1
    return cells
