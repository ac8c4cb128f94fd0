"""Compiled moves, at tempered densities, of the blocks that nodes take for their dyads. Import inside functions only:
it loads the compiler."""

from __future__ import annotations

import math

from custom_inference.families.common.compiled import Ints, Reals, Words, bare, inlined
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
