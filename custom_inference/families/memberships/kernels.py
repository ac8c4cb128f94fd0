"""Compiled loops over dyads: moves, at tempered densities, of the blocks that nodes take for them, refreshes of the
tables of ``cvb0``, and sums over the zeros of a graph. Import inside functions only: it loads the compiler."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from custom_inference.families.common.compiled import REORDERED, Ints, Reals, Words, bare, entry, inlined, inner
from custom_inference.families.common.random import draw_place


@inlined
def _count(pair: Ints, first: Ints, second: Ints, count: Reals):
    """Set ``count`` (N, K): how often every node takes every block."""
    count[:, :] = 0.0
    for e in range(pair.shape[0]):
        count[first[e], pair[e] // count.shape[1]] += 1.0
        count[second[e], pair[e] % count.shape[1]] += 1.0


@bare
def score_pairs(
    pair: Ints, first: Ints, second: Ints, table: Reals, begun: Reals, alpha: Reals, count: Reals, both: Reals
):  # fmt: skip
    """Set both (M, 2): log p(x, s, r), the memberships integrated out, and the log density that paths begin at.

    pair (M, E): a K + b where a dyad's nodes ``first`` and ``second`` (E,) take the blocks a and b. table, begun
    (E, K^2): log p(x_ij | a, b), and log-probabilities of the pairs where paths begin. alpha (K,). count (N, K): room.
    """
    mass = 0.0
    for k in range(alpha.shape[0]):
        mass += alpha[k]
    for m in range(pair.shape[0]):
        joint, base = 0.0, 0.0
        for e in range(pair.shape[1]):
            joint += table[e, pair[m, e]]
            base += begun[e, pair[m, e]]
        _count(pair[m], first, second, count)
        for i in range(count.shape[0]):
            total = 0.0
            for k in range(alpha.shape[0]):
                total += count[i, k]
                if count[i, k] > 0:
                    joint += math.lgamma(alpha[k] + count[i, k]) - math.lgamma(alpha[k])
            joint += math.lgamma(mass) - math.lgamma(mass + total)
        both[m, 0], both[m, 1] = joint, base


@bare
def draw_pairs(
    pair: Ints, first: Ints, second: Ints, field: Reals, alpha: Reals, power: float, count: Reals, weight: Reals,
    rng: Words,
):  # fmt: skip
    """Draw the blocks of both ends of every dyad in turn given those of all others, in place:

        p(a, b | rest) ~ exp(field_ab) [(c_ia + alpha_a) (c_jb + alpha_b)]^power,

    of a self loop with c_ib counting a too. field (E, K^2). count (N, K), weight (K^2,): room. The others are those of
    :func:`score_pairs`.
    """
    size = alpha.shape[0]
    for m in range(pair.shape[0]):
        _count(pair[m], first, second, count)
        for e in range(pair.shape[1]):
            i, j, total = first[e], second[e], 0.0
            count[i, pair[m, e] // size] -= 1.0
            count[j, pair[m, e] % size] -= 1.0
            for a in range(size):
                for b in range(size):
                    there = count[j, b] + alpha[b] + (1.0 if i == j and a == b else 0.0)
                    both = math.log((count[i, a] + alpha[a]) * there)
                    weight[a * size + b] = math.exp(field[e, a * size + b] + power * both)
                    total += weight[a * size + b]
            new = draw_place(weight, size * size, total, rng)
            pair[m, e] = new
            count[i, new // size] += 1.0
            count[j, new % size] += 1.0


class Counts(NamedTuple):
    """Expected counts, and pseudo-counts of the priors in ``alpha`` (K,), ``first`` and ``second`` (K, K): those of
    members (N, K), links and gaps (K, K); background (2,), with the prior's in ``prior``, of which ``known`` is rho, or
    -1 where it is learned."""

    members: Reals
    links: Reals
    gaps: Reals
    background: Reals
    alpha: Reals
    first: Reals
    second: Reals
    prior: Reals
    known: float


class Totals(NamedTuple):
    """What refreshed tables add up to: members (N, K), links and all dyads (K, K); sum log of predictive probabilities
    and the number of dyads in the foreground, (2,)."""

    members: Reals
    links: Reals
    every: Reals
    sums: Reals


@bare(fastmath=REORDERED)
def refresh_tables(
    i: Ints, j: Ints, x: Reals, table: Reals, at: Counts, found: Totals, room: Reals, directed: bool, afresh: bool,
    temperature: float,
):  # fmt: skip
    """Replace the tables (E, K, K) of dyads i, j (E,) with values x, in place, at the counts of all others; add up what
    they are then. afresh: the counts have nothing of the tables, which are 0. room (4, K)."""
    blocks = table.shape[1]
    for e in range(len(i)):
        own, value, loop = table[e], x[e], i[e] == j[e]
        sent, received, here, there = room[0], room[1], room[2], room[3]
        mine = 0.0
        for a in range(blocks):
            sent[a], received[a] = 0.0, 0.0
            for b in range(blocks):
                sent[a] += own[a, b]
                received[a] += own[b, a]
            mine += sent[a]
        # The ends of a self loop are left out together.
        one, other = 0.0, 0.0
        for a in range(blocks):
            both = sent[a] + received[a]
            here[a] = max(at.members[i[e], a] - (both if loop else sent[a]), 0.0) + at.alpha[a]
            there[a] = max(at.members[j[e], a] - (both if loop else received[a]), 0.0) + at.alpha[a]
            one += here[a]
            other += there[a]
        far, near = at.known, 1 - at.known
        if at.known < 0:
            far = max(at.background[0] - (0.0 if afresh else 1 - mine), 0.0) + at.prior[0]
            near = max(at.background[1] - mine, 0.0) + at.prior[1]
            far, near = far / (far + near), near / (far + near)
        for a in range(blocks):
            here[a] *= near / one
            there[a] /= other
        total = (1 - value) * far
        for a in range(blocks):
            for b in range(a, blocks):
                above, below = own[a, b], own[b, a]
                for turn in range(1 if a == b else 2):
                    c, d = (b, a) if turn else (a, b)
                    gone = (below if turn else above) if directed else (above if a == b else above + below)
                    linked = max(at.first[c, d] + at.links[c, d] - value * gone, 0.0)
                    free = max(at.second[c, d] + at.gaps[c, d] - (1 - value) * gone, 0.0)
                    chance = (linked if value > 0 else free) / (linked + free)
                    if temperature != 1.0:
                        chance = chance**temperature
                    own[c, d] = here[c] * there[d] * chance
                    total += own[c, d]
        found.sums[0] += math.log(total)
        for a in range(blocks):
            for b in range(blocks):
                own[a, b] /= total
                found.members[i[e], a] += own[a, b]
                found.members[j[e], b] += own[a, b]
                found.links[a, b] += value * own[a, b]
                found.every[a, b] += own[a, b]
                found.sums[1] += own[a, b]


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
