"""What a move of an entity between clusters changes, compiled. Import inside functions only: it loads the compiler.

Blocks of a relation are the tuples of clusters of its axes. Every block b holds sums s_b of what its listed cells say
and the number n_b of its observed cells, and contributes f(s_b, n_b), the log marginal likelihood of its cells,
see ``scores``.

In a relation whose unlisted cells are 0, n_b is the product of the sizes of its clusters less the cells listed as
missing; so a move of an entity costs its listed cells and the blocks of its cluster, whatever the number of cells.

In a symmetric relation every cell is there in both directions: f of a block off the diagonal counts half, since it is
there twice, and that of one on it is taken at half its sums and cells.

An entity may fill several axes of a relation at once: cells are told apart by the set P of the axes that it fills, a
bit each. Where it joins cluster k, blocks change whose set Q of the entity's axes with k is not empty, by the sums over
the subsets P of Q.
"""

from __future__ import annotations

import math

import numpy as np

from custom_inference.families.common.compiled import Ints, bare, inlined, inner
from custom_inference.families.common.random import draw_next
from custom_inference.families.relations.arrays import BEST, CATEGORIES, COUNTS, PAIR, PUT, Cells, Work
from custom_inference.families.relations.scores import block_score

#: What an entity does in turn.
_LEAVES, _LOOKS, _JOINS = range(3)


@inlined
def enumerate_tuples(g: Cells, w: Work, r: int, t: int):
    """List the tuples of clusters of the axes that type t does not fill: their offsets and products of sizes; return
    how many there are."""
    number = np.int64(1)  # no literal: functions that take it would be compiled for the literal as well
    w.offset[0], w.product[0] = 0, 1.0
    for axis in range(g.arity[r]):
        u = g.types[r, axis]
        if u != t:
            many, stride = w.number[u], w.stride[r, axis]
            for at in range(number - 1, -1, -1):
                offset, product = w.offset[at], w.product[at]
                for c in range(many - 1, -1, -1):
                    label = w.active[u, c]
                    w.offset[at * many + c] = offset + label * stride
                    w.product[at * many + c] = product * w.size[u, label]
            number *= many
    return number


@inner
def slow(
    g: Cells, w: Work, r: int, t: int, j: int, k: int, q: int, number: int, offset: int, product: float, joins: bool
):
    """Visit, for :func:`visit`, the blocks of one tuple of clusters of the entity's axes: any cells, and several axes
    with k."""
    total, part, share = 0.0, 1.0, 1.0
    if g.symmetric[r]:  # twice is each cell of a block on the diagonal, and each block that is not
        part, share = (0.5, 1.0) if q == 3 else (1.0, 0.5)
    base, room, width = w.base[r], w.base[r + 1] - w.base[r], g.width[r]
    for b in range(number):
        block = base + offset + w.offset[b]
        n = product * w.product[b] + w.listed[block]
        at = w.sums_at[r] + (offset + w.offset[b]) * width
        for d in range(width):
            w.now[d] = w.sums[at + d]
        p = q if joins else 0
        while p:
            there = p * room + offset + w.offset[b]
            for a in range(g.num_own[t, j]):
                if (p >> a) & 1:
                    there -= k * w.stride[r, g.own[t, j, a]]
            n += w.new_listed[there]
            for d in range(width):
                w.now[d] += w.new_sums[there * width + d]
            p = (p - 1) & q
        for d in range(width):
            w.now[d] *= part
        score = share * block_score(g, r, w.now, n * part)
        total += score - w.score[block]
        if not joins:
            w.score[block] = score
    return total


@inlined
def quick(g: Cells, w: Work, r: int, number: int, offset: int, shift: int, product: float, joins: bool):
    """Visit, for :func:`visit`, the blocks of one tuple of clusters of the entity's axes: 0/1 cells, one axis with
    k."""
    total, constant, share = 0.0, g.constant[r], 1.0 - 0.5 * g.symmetric[r]
    at, there, sums = w.base[r] + offset, shift, w.sums_at[r] + offset
    zeros, ones, both = g.place[r, 0], g.place[r, 1], g.place[r, 2]
    for b in range(number):
        x = w.offset[b]
        n, s = int(product * w.product[b] + w.listed[at + x]), int(w.sums[sums + x])
        if joins:
            n += int(w.new_listed[there + x])
            s += int(w.new_sums[there + x])
        score = 0.0
        if n > 0:
            score = share * (constant + g.table[ones + s] + g.table[zeros + n - s] - g.table[both + n])
        total += score - w.score[at + x]
        if not joins:
            w.score[at + x] = score
    return total


@inlined
def visit(g: Cells, w: Work, r: int, t: int, j: int, k: int, number: int, joins: bool):
    """Sum over all blocks of cluster k what f changes by if the entity of the scratch ``joins``; else bring f up to
    date.

    ``enumerate_tuples`` has to run before.
    """
    total, m, many = 0.0, g.num_own[t, j], w.number[t]
    room, grown = w.base[r + 1] - w.base[r], w.size[t, k] + (1 if joins else 0)
    for q in range(1, 1 << m):
        tuples = 1
        for a in range(m):
            tuples *= 1 if (q >> a) & 1 else many
        for c in range(tuples):
            rest, offset, shift, product, valid = c, np.int64(0), q * room, float(g.closed[r]), True
            for a in range(m):
                stride = w.stride[r, g.own[t, j, a]]
                if (q >> a) & 1:
                    offset += k * stride
                    product *= grown
                else:
                    label = w.active[t, rest % many]
                    rest //= many
                    valid = valid and label != k
                    offset += label * stride
                    shift += label * stride
                    product *= w.size[t, label]
            if valid and g.fast[r] and not q & (q - 1):
                total += quick(g, w, r, number, offset, shift, product, joins)
            elif valid:
                total += slow(g, w, r, t, j, k, q, number, offset, product, joins)
    return total


@inner
def tell(g: Cells, w: Work, r: int, t: int, j: int, i: int, k: int, sign: float, looks: bool):
    """Add what the listed cells of entity i say, times ``sign``, to the blocks of cluster k; or if it ``looks`` to the
    scratch, by the set of the axes that it fills, and with sign -1 clear it.

    Cells of entities without a cluster are left out.
    """
    room, width = w.base[r + 1] - w.base[r], g.width[r]
    sums, sums_at = (w.new_sums, 0) if looks else (w.sums, w.sums_at[r])
    listed, base = (w.new_listed, 0) if looks else (w.listed, w.base[r])
    for a in range(g.num_own[t, j]):
        begin = g.begin[r, g.own[t, j, a]] + i - g.first[t]
        for x in range(g.pointer[begin], g.pointer[begin + 1]):
            cell, there, filled, valid = g.cells[x], 0, 0, True
            for b in range(g.num_own[t, j]):
                if g.entity[cell, g.own[t, j, b]] == i:
                    filled |= 1 << b
            for axis in range(g.arity[r]):
                e = g.entity[cell, axis]
                label = (0 if looks else k) if e == i else w.label[e]
                valid = valid and label >= 0
                there += label * w.stride[r, axis]
            if not valid or filled & ((1 << a) - 1):  # met at an earlier axis
                continue
            there += filled * room if looks else 0
            at, value = sums_at + there * width, g.value[cell]
            if looks and sign < 0:  # exactly nothing: sums of real numbers and back leave roundings
                listed[there] = 0.0
                for d in range(width):
                    sums[at + d] = 0.0
                continue
            listed[base + there] += sign * g.count[cell]
            if math.isnan(value):
                continue
            if g.kind[r] == CATEGORIES:
                if value > 0:
                    sums[at + int(value) - 1] += sign
            else:
                sums[at] += sign * value
                if g.kind[r] != COUNTS:
                    sums[at + 1] += sign * value * value


@inlined
def candidates(w: Work, t: int, paired: bool):
    """Clusters to choose among, a new one included, or two ``target`` ones; how many."""
    count = 0
    if paired:
        w.candidate[0], w.candidate[1], count = w.target[0], w.target[1], 2
    else:
        for c in range(w.number[t]):
            w.candidate[count] = w.active[t, c]
            count += 1
        fresh = 0
        while fresh < w.room[t] and (w.size[t, fresh] > 0 or w.fixed[t]):
            fresh += 1
        if fresh < w.room[t]:
            w.candidate[count] = fresh
            count += 1
    return count


@inlined
def choose_candidate(w: Work, t: int, count: int, how: int, forced: int):
    """Draw one of the candidates in proportion to p(z_i = k | the others) exp(weight), or take the best; of a pair also
    add the log of its probability, or of that of the one that is ``forced`` where that is not -1, to ``chance``."""
    highest, best, total = -math.inf, 0, 0.0
    for c in range(count):
        size = w.size[t, w.candidate[c]]
        if w.fixed[t]:
            w.weight[c] += math.log(size + w.alpha[t])
        elif size == 0:
            w.weight[c] += w.opening[t, w.number[t] + 1]
        else:
            w.weight[c] += math.log(size) + w.opening[t, w.number[t]]
        if w.weight[c] > highest:
            highest, best = w.weight[c], c
    found = best
    if how != BEST:
        for c in range(count):
            total += math.exp(w.weight[c] - highest)
        left = draw_next(w.rng) * total
        for c in range(count):
            left -= math.exp(w.weight[c] - highest)
            if left < 0:
                found = c
                break
    if how == PAIR:
        found = forced if forced >= 0 else found
        w.chance[0] += w.weight[found] - highest - math.log(total)
    return w.candidate[found]


@inlined
def enlist(w: Work, t: int, k: int, joins: bool):
    """Keep the list of clusters that have entities."""
    if joins and w.size[t, k] == 1:
        w.active[t, w.number[t]] = k
        w.number[t] += 1
    elif not joins and w.size[t, k] == 0:
        last = w.number[t] - 1
        for c in range(last):
            if w.active[t, c] == k:
                w.active[t, c] = w.active[t, last]
        w.number[t] = last


@bare
def run(g: Cells, w: Work, order: Ints, to: Ints, start: int, how: int):
    """A cluster for every entity of ``order`` from place ``start`` on.

    how: DRAW, from p(z_i | the others, x); BEST, the most probable; PAIR, drawn of two ``target`` ones, or where ``to``
    is 0 or 1 that one; PUT, ``to``, -1 to leave it without. Log probabilities of what PAIR chose add up in ``chance``.

    The number of those that moved; -1 - the place of the next where another label was needed: make room, and go on.
    """
    moved = 0
    for place in range(start, len(order)):
        i = order[place]
        t, old, k = g.type_of[i], w.label[i], w.label[i]
        if how < PAIR and w.number[t] == w.room[t] and not w.fixed[t] and w.room[t] < g.first[t + 1] - g.first[t]:
            return -1 - place
        for step in range(3):
            looks, joins, count = step == _LOOKS, step == _JOINS, 1
            if looks and how == PUT:
                k = to[place]
                continue
            if not looks and k < 0:
                continue
            if looks:
                count = candidates(w, t, how == PAIR)
            else:
                w.candidate[0] = k
                w.size[t, k] += step - 1
                w.label[i] = k if joins else -1
            for c in range(count):
                w.weight[c] = 0.0
            for j in range(g.num_within[t]):
                r = g.within[t, j]
                number = enumerate_tuples(g, w, r, t)
                for turn in range(2 if looks else 1):
                    tell(g, w, r, t, j, i, k, 1.0 - 2 * turn if looks else step - 1.0, looks)
                    for c in range(0 if turn else count):
                        w.weight[c] += visit(g, w, r, t, j, w.candidate[c], number, looks)
            if looks:
                k = choose_candidate(w, t, count, how, to[place])
            else:
                w.total[0] += w.weight[0]
                if not w.fixed[t]:
                    enlist(w, t, k, joins)
        moved += k != old
    return moved
