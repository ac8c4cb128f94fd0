"""Compiled moves: sweeps over single entities, and clusters divided or put together. Import inside functions only."""

from __future__ import annotations

import math

from custom_inference.families.blocks.gibbs_kernels import entry, inner, log_gamma
from custom_inference.families.mixtures.gibbs_kernels import _uniform
from custom_inference.families.relations.kernels import add_cell, change, evaluate, place_of, spread, visit


@inner
def prior_weight(w, t, k, is_new):
    """log p(z_i = k | the others) up to what all clusters share."""
    if w.fixed[t]:
        return math.log(w.size[t, k] + w.alpha[t])
    if is_new:
        return w.opening[t, w.number[t] + 1]
    return math.log(w.size[t, k]) + w.opening[t, w.number[t]]


@inner
def unused(w, t):
    """A label without entities, or -1 where all are used."""
    for k in range(w.room[t]):
        if not w.used[t, k]:
            return k
    return -1


@inner
def draw(w, greedy):
    """One of the candidates, in proportion to exp(weight), or the best; log of its probability to ``chance``."""
    highest, best, total = -math.inf, 0, 0.0
    for c in range(w.count[0]):
        if w.weight[c] > highest:
            highest, best = w.weight[c], c
    if greedy:
        return best
    for c in range(w.count[0]):
        total += math.exp(w.weight[c] - highest)
    uniform, w.rng[0] = _uniform(w.rng[0])
    left, chosen = uniform * total, best
    for c in range(w.count[0]):
        left -= math.exp(w.weight[c] - highest)
        if left < 0:
            chosen = c
            break
    w.chance[0] = w.weight[chosen] - highest - math.log(total)
    return chosen


@inner
def drawn_cluster(g, w, i, greedy):
    """A cluster for an entity without one, a new one among them, drawn given all others, or the best."""
    t = g.type_of[i]
    fresh = -1 if w.fixed[t] else unused(w, t)
    for c in range(w.number[t]):
        w.candidate[c] = w.active[t, c]
    w.count[0] = w.number[t]
    if fresh >= 0:
        w.candidate[w.count[0]] = fresh
        w.count[0] += 1
    evaluate(g, w, i)
    for c in range(w.count[0]):
        w.weight[c] += prior_weight(w, t, w.candidate[c], w.candidate[c] == fresh)
    return w.candidate[draw(w, greedy)]


@entry
def sweep(g, w, order, start, greedy):
    """A cluster for every entity of ``order`` from place ``start`` on, drawn given all others, or the best.

    The number of those that moved; -1 - the place of the next where another label was needed: make room, and go on.
    """
    moved = 0
    for place in range(start, len(order)):
        i = order[place]
        t = g.type_of[i]
        old = w.label[i]
        if not w.fixed[t] and unused(w, t) < 0 and w.room[t] < g.first[t + 1] - g.first[t]:
            return -1 - place
        k = old
        for sign in (-1, 1):  # one place where ``change`` is called: it is long, and compiled into each
            if sign > 0:
                k = drawn_cluster(g, w, i, greedy)
            if k >= 0:
                change(g, w, i, k, sign)
        moved += k != old
    return moved


@entry
def fill(g, w):
    """Everything from the labels; those without are left out."""
    w.sums[:], w.listed[:], w.score[:] = 0.0, 0.0, 0.0
    w.size[:], w.used[:], w.number[:] = 0, False, 0
    w.total[0] = 0.0
    for i in range(len(w.label)):
        if w.label[i] >= 0:
            t, k = g.type_of[i], w.label[i]
            w.size[t, k] += 1
    for t in range(len(w.number)):
        for k in range(w.room[t]):
            if w.size[t, k] > 0 or w.fixed[t]:
                w.used[t, k] = True
                w.active[t, w.number[t]] = k
                w.number[t] += 1
    for cell in range(len(g.value)):
        r = g.relation[cell]
        there = place_of(g, w, r, cell, -1, 0)
        if there >= 0:
            at = w.sums_at[r] + there * g.width[r]
            add_cell(g, r, cell, 1.0, w.sums, at, w.listed, w.base[r] + there)
    for r in range(len(g.arity)):
        t = g.types[r, 0]
        j = 0
        while g.within[t, j] != r:
            j += 1
        number = spread(g, w, t, j)
        for c in range(w.number[t]):
            w.total[0] += visit(g, w, t, j, w.active[t, c], number, False)


@inner
def side(g, w, i, x, target, forced):
    """Which of two clusters the next member goes to: drawn, or where it is ``forced``; log of its probability."""
    t = g.type_of[i]
    if x < 2:
        w.chance[0] = 0.0
        return x
    w.candidate[0], w.candidate[1], w.count[0] = target[0], target[1], 2
    evaluate(g, w, i)
    for c in range(2):
        w.weight[c] += math.log(w.size[t, target[c]])
    chosen = draw(w, False)
    if forced >= 0:
        low, high = min(w.weight[0], w.weight[1]), max(w.weight[0], w.weight[1])
        chosen = forced
        w.chance[0] = w.weight[chosen] - high - math.log1p(math.exp(low - high))
    return chosen


@entry
def split_or_merge(g, w, members, count, forced):
    """One move of Jain & Neal's kind (Dahl's sequential allocation) from the clusters of the first two members.

    members: these two, and all others of their clusters. forced (N,): -1 where they share a cluster, which is divided
    at random; else 0 or 1 as members are with the first or the second, which are put together. 1 where it was
    accepted, 0 where not; -1 where another label was needed.

    The acceptance ratio of a division is p(x, z') / p(x, z) / q, of the reverse its inverse, q the probability of the
    way that leads to this division in the order of the members.
    """
    t = g.type_of[members[0]]
    merging = forced[1] == 1
    if not merging and w.number[t] == w.room[t]:
        return -1
    target, way, apart, together, accepted = w.target, 0.0, 0.0, 0.0, False
    for phase in range(3):  # divided; all in one; divided again, if that is to be
        if phase == 2:
            ratio = together - apart + way if merging else apart - together - way
            uniform, w.rng[0] = _uniform(w.rng[0])
            accepted = math.log(max(uniform, 1e-300)) < ratio
            if accepted == merging:
                break
        for sign in (-1, 1):
            if phase == 0 and sign > 0:
                target[0] = unused(w, t)
                w.used[t, target[0]] = True
                target[1] = unused(w, t)
                w.used[t, target[0]] = False
            for x in range(count):
                i = members[x]
                k = w.label[i]
                if sign > 0:
                    k = w.kept[x] if phase == 2 else target[0]
                    if phase == 0:
                        k = target[side(g, w, i, x, target, forced[x])]
                        w.kept[x] = k
                        way += w.chance[0]
                change(g, w, i, k, sign)
        if phase == 0:
            size = float(w.size[t, target[0]])
            apart = w.total[0] + log_gamma(size) + log_gamma(count - size) + w.opening[t, w.number[t]]
        if phase == 1:
            together = w.total[0] + log_gamma(float(count)) + w.opening[t, w.number[t]]
    return int(accepted)
