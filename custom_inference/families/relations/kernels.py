"""What a move of an entity between clusters changes, compiled. Import inside functions only: it loads the compiler.

Blocks of a relation are the tuples of clusters of its axes. Every block b holds sums s_b of what its listed cells say
and the number n_b of its observed cells, and contributes f(s_b, n_b), the log marginal likelihood of its cells:

    sum_c [log G(a_c + m_c) - log G(a_c)] - log G(a + n) + log G(a)         categories c, counts m_c; 0/1 is two of them
    a log b - log G(a) + log G(a + s) - (a + s) log(b + n)                  counts, up to - sum log x!
    log G(a_n) - log G(a) + a log b - a_n log b_n + log(k / k_n) / 2 - n log(2 pi) / 2,    normal-gamma:
    k_n = k + n,   a_n = a + n / 2,   b_n = b + (q - 2 m s + n m^2 - (s - n m)^2 / k_n) / 2,    s, q: sums of x, x^2

In a relation whose unlisted cells are 0, n_b is the product of the sizes of its clusters less the cells listed as
missing; so a move of an entity costs its listed cells and the blocks of its cluster, whatever the number of cells.

An entity may fill several axes of a relation at once: cells are told apart by the set P of the axes that it fills, a
bit each. Where it joins cluster k, blocks change whose set Q of the entity's axes with k is not empty, by the sums over
the subsets P of Q.
"""

from __future__ import annotations

import math

from custom_inference.families.blocks.gibbs_kernels import inner, log_gamma
from custom_inference.families.relations.arrays import CATEGORIES, COUNTS

_PI = math.log(2 * math.pi)


@inner
def lookup(g, at, n, shift):
    """log G(shift + n), from the table that begins at ``at``."""
    return g.table[at + int(n)] if n < g.length else log_gamma(shift + n)


@inner
def block_score(g, r, s, at, n):
    """f of a block of relation r whose sums begin at ``at`` of s."""
    kind, hyper = g.kind[r], g.hyper[r]
    if n <= 0:
        return 0.0
    if kind == CATEGORIES:
        width, found, left = g.width[r], g.constant[r], n
        for d in range(width):
            left -= s[at + d]
            found += lookup(g, g.place[r, d + 1], s[at + d], hyper[d + 1])
        return found + lookup(g, g.place[r, 0], left, hyper[0]) - lookup(g, g.place[r, width + 1], n, hyper[width + 1])
    if kind == COUNTS:
        return g.constant[r] + log_gamma(hyper[0] + s[at]) - (hyper[0] + s[at]) * math.log(hyper[1] + n)
    mean, strength = hyper[0], hyper[1]
    k, a, off = strength + n, hyper[2] + n / 2, s[at] - n * mean
    b = hyper[3] + (s[at + 1] - 2 * mean * s[at] + n * mean * mean - off * off / k) / 2
    found = log_gamma(a) - a * math.log(max(b, 1e-300)) + math.log(strength / k) / 2 - n * _PI / 2
    return g.constant[r] + found


@inner
def spread(g, w, t, j):
    """The tuples of clusters of the axes that type t does not fill: their offsets and products of sizes; how many."""
    r, number = g.within[t, j], 1
    w.offset[0], w.product[0] = 0, 1.0
    for axis in range(g.arity[r]):
        u = g.types[r, axis]
        if u == t:
            continue
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
def slow(g, w, t, j, k, q, number, offset, product, joins):
    """Of ``visit`` the blocks of one tuple of clusters of the entity's axes: any cells, and several axes with k."""
    r, total = g.within[t, j], 0.0
    base, room, width = w.base[r], w.base[r + 1] - w.base[r], g.width[r]
    for b in range(number):
        block = base + offset + w.offset[b]
        n = product * w.product[b] + w.listed[block]
        at = w.sums_at[r] + (offset + w.offset[b]) * width
        for d in range(width):
            w.now[d] = w.sums[at + d]
        if joins:
            p = q
            while p:
                there = p * room + offset + w.offset[b]
                for a in range(g.num_own[t, j]):
                    if (p >> a) & 1:
                        there -= k * w.stride[r, g.own[t, j, a]]
                n += w.new_listed[there]
                for d in range(width):
                    w.now[d] += w.new_sums[there * width + d]
                p = (p - 1) & q
        score = block_score(g, r, w.now, 0, n)
        total += score - w.score[block]
        if not joins:
            w.score[block] = score
    return total


@inner
def visit(g, w, t, j, k, number, joins):
    """Of all blocks of cluster k: what f changes by if the entity of the scratch ``joins``; else f is brought up to
    date.

    The sum of the changes. ``spread`` goes before.
    """
    r, m, total = g.within[t, j], g.num_own[t, j], 0.0
    base, room = w.base[r], w.base[r + 1] - w.base[r]
    sums, many, grown = w.sums_at[r], w.number[t], w.size[t, k] + (1 if joins else 0)
    fast, constant = g.fast[r], g.constant[r]
    zeros, ones, both = g.place[r, 0], g.place[r, 1 % g.place.shape[1]], g.place[r, 2 % g.place.shape[1]]
    for q in range(1, 1 << m):
        tuples = 1
        for a in range(m):
            if not (q >> a) & 1:
                tuples *= many
        for c in range(tuples):
            rest, offset, product, valid = c, 0, float(g.closed[r]), True
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
                    product *= w.size[t, label]
            if not valid:
                continue
            shift = q * room + offset
            for a in range(m):
                if (q >> a) & 1:
                    shift -= k * w.stride[r, g.own[t, j, a]]
            if not fast or q & (q - 1):
                total += slow(g, w, t, j, k, q, number, offset, product, joins)
                continue
            for b in range(number):
                at = offset + w.offset[b]
                n = int(product * w.product[b] + w.listed[base + at])
                s = int(w.sums[sums + at])
                if joins:
                    n += int(w.new_listed[shift + w.offset[b]])
                    s += int(w.new_sums[shift + w.offset[b]])
                score = 0.0
                if n > 0:
                    score = constant + g.table[ones + s] + g.table[zeros + n - s] - g.table[both + n]
                total += score - w.score[base + at]
                if not joins:
                    w.score[base + at] = score
    return total


@inner
def filled(g, t, j, cell, i):
    """The set of the axes of type t that entity i fills in a cell."""
    p = 0
    for a in range(g.num_own[t, j]):
        if g.entity[cell, g.own[t, j, a]] == i:
            p |= 1 << a
    return p


@inner
def place_of(g, w, r, cell, i, k):
    """The block of a cell, with entity i in cluster k (k = 0: but for its axes); -1 where another has no cluster."""
    there = 0
    for axis in range(g.arity[r]):
        e = g.entity[cell, axis]
        label = k if e == i else w.label[e]
        if label < 0:
            return -1
        there += label * w.stride[r, axis]
    return there


@inner
def add_cell(g, r, cell, sign, sums, at, listed, there):
    """Add what a listed cell says to sums and to the number of observed cells."""
    value = g.value[cell]
    if math.isnan(value):
        listed[there] -= sign * g.closed[r]
        return
    listed[there] += sign * (1 - g.closed[r])
    if g.kind[r] == CATEGORIES:
        if value > 0:
            sums[at + int(value) - 1] += sign
    else:
        sums[at] += sign * value
        if g.kind[r] != COUNTS:
            sums[at + 1] += sign * value * value


@inner
def scatter(g, w, t, j, i, sign):
    """Write what the cells of entity i say to the scratch, by the axes that it fills; with sign -1 take it back."""
    r = g.within[t, j]
    room, width = w.base[r + 1] - w.base[r], g.width[r]
    for a in range(g.num_own[t, j]):
        begin = g.begin[r, g.own[t, j, a]] + i - g.first[t]
        for x in range(g.pointer[begin], g.pointer[begin + 1]):
            cell = g.cells[x]
            p = filled(g, t, j, cell, i)
            if p & ((1 << a) - 1):  # met at an earlier axis
                continue
            there = place_of(g, w, r, cell, i, 0)
            if there >= 0:
                there += p * room
                add_cell(g, r, cell, sign, w.new_sums, there * width, w.new_listed, there)


@inner
def evaluate(g, w, i):
    """log p(x, z_i = k | the others) of the clusters in ``candidate``, to ``weight``, without the prior."""
    t = g.type_of[i]
    for c in range(w.count[0]):
        w.weight[c] = 0.0
    for j in range(g.num_within[t]):
        number = spread(g, w, t, j)
        scatter(g, w, t, j, i, 1.0)
        for c in range(w.count[0]):
            w.weight[c] += visit(g, w, t, j, w.candidate[c], number, True)
        scatter(g, w, t, j, i, -1.0)


@inner
def change(g, w, i, k, sign):
    """Entity i joins cluster k (sign 1) or leaves it (-1)."""
    t = g.type_of[i]
    for j in range(g.num_within[t]):
        r = g.within[t, j]
        for a in range(g.num_own[t, j]):
            begin = g.begin[r, g.own[t, j, a]] + i - g.first[t]
            for x in range(g.pointer[begin], g.pointer[begin + 1]):
                cell = g.cells[x]
                if filled(g, t, j, cell, i) & ((1 << a) - 1):
                    continue
                there = place_of(g, w, r, cell, i, k)
                if there >= 0:
                    at = w.sums_at[r] + there * g.width[r]
                    add_cell(g, r, cell, sign, w.sums, at, w.listed, w.base[r] + there)
    w.size[t, k] += sign
    w.label[i] = k if sign > 0 else -1
    if sign > 0 and not w.used[t, k]:
        w.used[t, k] = True
        w.active[t, w.number[t]] = k
        w.number[t] += 1
    for j in range(g.num_within[t]):
        w.total[0] += visit(g, w, t, j, k, spread(g, w, t, j), False)
    if sign < 0 and w.size[t, k] == 0 and not w.fixed[t]:
        w.used[t, k] = False
        last = w.number[t] - 1
        for c in range(last):
            if w.active[t, c] == k:
                w.active[t, c] = w.active[t, last]
        w.number[t] = last
