"""Compiled sweeps of relational topic models. Import inside functions only: it loads the compiler."""

from __future__ import annotations

import math

import numpy as np

from custom_inference.families.common.compiled import Ints, Reals, Words, entry, inlined, part
from custom_inference.families.common.intrinsics import add_up, allocate, find_largest, larger, smaller
from custom_inference.families.common.random import draw_single

#: Factors are divided by the largest where that exceeds it. Chances are summed in blocks of so many.
_LARGE, _BLOCK = 1e100, 16


@part(fastmath={"reassoc"})
def _total(value: Reals, begin: int, end: int):
    total = 0.0
    for k in range(begin, end):
        total += value[k]
    return total


@inlined
def _additive(chance: Reals, start: Ints, end: Ints, topic: Ints, value: Reals, score: Reals, power: Ints):
    """Multiply chance_k by prod_j (1 + value_jk / score_j)^power_j: the topics that a neighbour has are listed."""
    for j in range(score.shape[0]):
        top, inverse = 0.0, 1.0 / score[j]
        for at in range(start[j], end[j]):
            k, ratio = topic[at], 1.0 + value[at] * inverse
            found = chance[k]
            for _ in range(power[j]):
                found *= ratio
            chance[k] = found
            top = larger(top, found)
        if top > _LARGE:
            for k in range(chance.shape[0]):
                chance[k] /= top


@inlined
def _dense(chance: Reals, factor: Reals, kind: int, value: Reals, score: Reals, y: Reals, e: Reals, copies: float):
    """Multiply chance_k by prod_j p(R_j | score_j + value_jk), up to a constant."""
    factor[:] = 0.0
    for j in range(score.shape[0]):
        for k in range(factor.shape[0]):
            s = score[j] + value[j, k]
            if kind == 1:
                normaliser = np.log1p(np.exp(s)) if s < 30 else s
            else:
                normaliser = np.exp(s)
            factor[k] += copies * (y[j] * s - e[j] * normaliser)
    most = find_largest(factor)
    for k in range(factor.shape[0]):
        chance[k] *= np.exp(factor[k] - most)


@inlined
def _draw(chance: Reals, sums: Reals, uniform: float):
    """Draw a place ~ chance."""
    size, total = chance.shape[0], 0.0
    for b in range(sums.shape[0]):
        sums[b] = _total(chance, b * _BLOCK, smaller((b + 1) * _BLOCK, size))
        total += sums[b]
    left, b = uniform * total, 0
    while b < sums.shape[0] - 1 and left >= sums[b]:
        left -= sums[b]
        b += 1
    new, last = b * _BLOCK, smaller((b + 1) * _BLOCK, size) - 1
    while new < last and left >= chance[new]:
        left -= chance[new]
        new += 1
    return new


@entry
def sweep_links(
    word: Ints, topic: Ints, start: Ints, alpha: Reals, gamma: Reals, word_topic: Ints, total: Ints, given: Reals,
    kind: int, copies: float, weight: Reals, bias: float, ends: Ints, other: Ints, y: Reals, e: Reals, base: float,
    share: Reals, rng: Words,
):  # fmt: skip
    """Make one pass over all tokens, in place; the conditional is LDA's times the probability of the document's links:

        p(q_il = k | rest) ~ (c_vk + gamma_v) (c_ik + alpha_k) / (c_k + sum gamma) prod_j p(R_ij | qbar_i with q_il = k)

    The first factor is b_kv where topics are ``given`` (V, K); with no rows it is as above. kind: 0 additive, 1
    sigmoid, 2 exponential. ends (N + 1,), other, y, e (2 P,): the pairs of every document (``LinkPairs``). share: qbar
    (N, K), kept up to date. word_topic: (V, padded K), total: (padded K,). Every token has a topic.
    """
    size, state, fixed, mass = alpha.shape[0], rng[0], given.shape[0] > 0, add_up(gamma)
    most = 0
    for i in range(start.shape[0] - 1):
        most = larger(most, ends[i + 1] - ends[i])
    here, chance, factor, rest = allocate(size), allocate(size), allocate(size), allocate(size)
    own = allocate(size)  # what of a topic's chance the word has no part in
    inverse, summed, sums = allocate(size), allocate(size), allocate((size + _BLOCK - 1) // _BLOCK)
    for k in range(size):  # loops: expressions of whole arrays compile for seconds
        inverse[k], summed[k] = 1.0 if fixed else 1.0 / (total[k] + mass), 0.0
        for i in range(share.shape[0]):
            summed[k] += share[i, k]
    pulls, listed, pulled = allocate((most, size)), allocate(most * size, np.int64), allocate(most * size)
    places, score = allocate((3, most), np.int64), allocate(most)
    first, last, power = places[0], places[1], places[2]
    for i in range(start.shape[0] - 1):
        length = start[i + 1] - start[i]
        if length == 0:
            continue
        here[:] = 0
        for t in range(start[i], start[i + 1]):
            here[topic[t]] += 1
        linked, at = 0, 0
        for k in range(size):
            rest[k] = base * (summed[k] - share[i, k])
        for p in range(ends[i], ends[i + 1]):
            of_other = share[other[p]]
            if kind == 0:
                for k in range(size):
                    rest[k] += e[p] * of_other[k]
                if y[p] == 0:
                    continue
            first[linked], score[linked], power[linked] = at, bias, int(copies * y[p])
            for k in range(size):
                pull = weight[k] * of_other[k] / length
                pulls[linked, k] = pull
                score[linked] += pull * here[k]
                if kind == 0 and pull > 0:
                    listed[at], pulled[at] = k, pull
                    at += 1
            last[linked] = at
            linked += 1
        for k in range(size):
            rest[k] = math.exp(-copies * weight[k] * rest[k] / length) if kind == 0 else 1.0
            own[k] = (here[k] + alpha[k]) * rest[k] * inverse[k]
        for t in range(start[i], start[i + 1]):
            old, v = topic[t], word[t]
            here[old] -= 1
            if not fixed:
                word_topic[v, old] -= 1
                total[old] -= 1
                inverse[old] = 1.0 / (total[old] + mass)
            own[old] = (here[old] + alpha[old]) * rest[old] * inverse[old]
            for j in range(linked):
                score[j] -= pulls[j, old]
                if kind == 0:
                    score[j] = larger(larger(score[j], bias), 1e-30)
            if fixed:
                for k in range(size):
                    chance[k] = given[v, k] * own[k]
            else:
                counts, prior = word_topic[v], gamma[v]
                for k in range(size):
                    chance[k] = (counts[k] + prior) * own[k]
            if kind == 0:
                _additive(chance, first, last, listed, pulled, score[:linked], power)
            elif linked > 0:
                _dense(chance, factor, kind, pulls, score[:linked], y[ends[i] :], e[ends[i] :], copies)
            uniform, state = draw_single(state)
            new = _draw(chance, sums, uniform)
            here[new] += 1
            if not fixed:
                word_topic[v, new] += 1
                total[new] += 1
                inverse[new] = 1.0 / (total[new] + mass)
            own[new] = (here[new] + alpha[new]) * rest[new] * inverse[new]
            for j in range(linked):
                score[j] += pulls[j, new]
            topic[t] = new
        for k in range(size):
            summed[k] += here[k] / length - share[i, k]
            share[i, k] = here[k] / length
    rng[0] = state


@entry
def sweep_links_of_proportions(
    first: Ints, second: Ints, label: Ints, mass: Reals, weight: Reals, bias: float, rng: Words
):
    """One pass over the topics of all links, in place, the proportions integrated out:

        p(l = k | rest) ~ w_k a_ik a_jk,    p(l = none | rest) ~ w_0 (sum a_i) (sum a_j)

    mass: a (N, K), alpha and the counts of tokens and of other links. first, second, label (L,): the documents of a
    link, and its topic, K for none.
    """
    size, state, whole, sums = weight.shape[0], rng[0], mass.sum(1), allocate(weight.shape[0])
    for p in range(first.shape[0]):
        i, j, old = first[p], second[p], label[p]
        if old < size:
            mass[i, old] -= 1.0
            mass[j, old] -= 1.0
            whole[i] -= 1.0
            whole[j] -= 1.0
        total = 0.0
        for k in range(size):
            total += weight[k] * mass[i, k] * mass[j, k]
            sums[k] = total
        uniform, state = draw_single(state)
        uniform *= total + bias * whole[i] * whole[j]
        new = 0
        while new < size and sums[new] <= uniform:
            new += 1
        label[p] = new
        if new < size:
            mass[i, new] += 1.0
            mass[j, new] += 1.0
            whole[i] += 1.0
            whole[j] += 1.0
    rng[0] = state
