"""Compiled sweeps over the labels of block models. Import inside functions only: it loads the compiler.

Node i outside all blocks has k_c edges to block c, k'_c from it, and exposures e_c, e'_c (those of its observed dyads:
w_i W'_c without what is hidden). If it joins block r, the cells of row and column r change and no others, so that

    log p(z_i = r | rest, x) = log (n_r + alpha_r) + sum_{c != r} [df_rc(k_c, e_c) + df_cr(k'_c, e'_c)]
                               + df_rr(k_r + k'_r + x_ii, e_r + e'_r + e_ii) + constant,
    df_ab(k, e) = f(m_ab + k, t_ab + e) - f(m_ab, t_ab),

    f(m, t) = log G(a + m) + log G(b + t - m) - log G(a + b + t)      Bernoulli, eta ~ Beta(a, b)
    f(m, t) = log G(a + m) - (a + m) log(b + t)                       Poisson, eta ~ Gamma(a, b)

up to constants of the cell. In undirected graphs df_rc stands for df_cr too. A node of degree d costs d + O(K^2).

``DEGREES``: theta_i = n_a phi_i with phi uniform on the simplex of its block integrated out (Karrer & Newman, Phys.
Rev. E 83, 2011; Peixoto, Phys. Rev. E 95, 2017, sec. III, the uniform prior of degrees), each block adding

    g(n, d) = log G(n) - log G(n + d) + d log n,     d the degrees (the out- and the in-degrees) of its nodes.

With propensities Gamma(1, 1), phi has this very distribution, and the block's sum, for which n_a stands here, has its
mean there; exposures here include the pairs i = j. It is what partitions are searched with, not a model's own weight.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

from custom_inference.families.mixtures.gibbs_kernels import _choose, _uniform

#: Differences smaller than this are rounding: a node stays where it is.
_TIE = 1e-9
_jit: Any = njit
#: For functions that allocate nothing: without reference counts of some thirty arrays a call, three times as fast.
inner = _jit(no_cpython_wrapper=True, no_cfunc_wrapper=True, _nrt=False, error_model="numpy")
#: For those that do allocate, but are called from compiled code only.
helper = _jit(no_cpython_wrapper=True, no_cfunc_wrapper=True, error_model="numpy")
#: For those that Python calls.
entry = _jit(nogil=True, cache=True, no_cfunc_wrapper=True, error_model="numpy")


@inner
def _log_gamma(x):
    """Stirling's series from 8 on, with an error below 1e-13; the recurrence below."""
    product = 1.0
    while x < 8:
        product *= x
        x += 1
    y = 1 / (x * x)
    series = 1 / 1260 - y * (1 / 1680 - y * (1 / 1188 - y * (691 / 360360 - y / 156)))
    series = (1 / 12 - y * (1 / 360 - y * series)) / x
    found = (x - 0.5) * math.log(x) - x + 0.9189385332046728 + series
    return found if product == 1 else found - math.log(product)


@inner
def _cell(kind, first, second, edges, exposure):
    """f(m, t). Of numbers only: to hand on a graph costs more than the logarithms."""
    if kind == 0:
        return _log_gamma(first + edges) + _log_gamma(second + exposure - edges) - _log_gamma(first + second + exposure)
    return _log_gamma(first + edges) - (first + edges) * math.log(second + exposure)


@inner
def _degrees(size, degree):
    """g(n, d); 0 for a block without nodes."""
    return _log_gamma(size) - _log_gamma(size + degree) + degree * math.log(size) if size > 0 else 0.0


@inner
def _count(graph, state, i, r, sign):
    """What block r holds, with node i or without."""
    state.size[r] += sign
    state.out_weight[r] += sign * graph.out_weight[i]
    state.in_weight[r] += sign * graph.in_weight[i]
    state.out_degree[r] += sign * graph.out_degree[i]
    state.in_degree[r] += sign * graph.in_degree[i]


@inner
def _gather(graph, state, i):
    """Edges and exposures between node i, outside all blocks, and every block."""
    for c in range(state.size.shape[0]):
        state.out_edges[c] = 0.0
        state.out_exposure[c] = graph.out_weight[i] * state.in_weight[c]
        state.in_edges[c] = 0.0
        state.in_exposure[c] = graph.in_weight[i] * state.out_weight[c]
    for e in range(graph.out_start[i], graph.out_start[i + 1]):
        c = state.label[graph.out_node[e]]
        if c >= 0:
            state.out_edges[c] += graph.out_count[e]
    for e in range(graph.hidden_out_start[i], graph.hidden_out_start[i + 1]):
        j = graph.hidden_out_node[e]
        if state.label[j] >= 0:
            state.out_exposure[state.label[j]] -= graph.out_weight[i] * graph.in_weight[j]
    if not graph.directed:
        return
    for e in range(graph.in_start[i], graph.in_start[i + 1]):
        c = state.label[graph.in_node[e]]
        if c >= 0:
            state.in_edges[c] += graph.in_count[e]
    for e in range(graph.hidden_in_start[i], graph.hidden_in_start[i + 1]):
        j = graph.hidden_in_node[e]
        if state.label[j] >= 0:
            state.in_exposure[state.label[j]] -= graph.in_weight[i] * graph.out_weight[j]


@inner
def _diagonal(graph, state, i, r):
    """Edges and exposure that node i adds to the cell (r, r)."""
    edges, exposure = state.out_edges[r] + graph.own[i], state.out_exposure[r]
    exposure += graph.own_exposure[i] * graph.out_weight[i] * graph.in_weight[i]
    if graph.directed:
        return edges + state.in_edges[r], exposure + state.in_exposure[r]
    return edges, exposure


@inner
def _change(graph, state, i, r, sign):
    """The cells of block r, with the gathered node i or without."""
    edges, exposure, cell = state.edges, state.exposure, state.cell
    kind, first, second, directed = graph.kind, graph.first, graph.second, graph.directed
    out_edges, out_exposure, in_edges, in_exposure = (
        state.out_edges, state.out_exposure, state.in_edges, state.in_exposure
    )  # fmt: skip
    for c in range(edges.shape[0]):
        if c == r:
            continue
        edges[r, c] += sign * out_edges[c]
        exposure[r, c] += sign * out_exposure[c]
        cell[r, c] = _cell(kind, first[r, c], second[r, c], edges[r, c], exposure[r, c])
        if directed:
            edges[c, r] += sign * in_edges[c]
            exposure[c, r] += sign * in_exposure[c]
            cell[c, r] = _cell(kind, first[c, r], second[c, r], edges[c, r], exposure[c, r])
        else:
            edges[c, r], exposure[c, r], cell[c, r] = edges[r, c], exposure[r, c], cell[r, c]
    more, longer = _diagonal(graph, state, i, r)
    edges[r, r] += sign * more
    exposure[r, r] += sign * longer
    cell[r, r] = _cell(kind, first[r, r], second[r, r], edges[r, r], exposure[r, r])


@inner
def withdraw(graph, state, i):
    """Take node i out of its block, if it is in one, and gather what it has to do with the others; the old block."""
    r = state.label[i]
    state.label[i] = -1
    if r >= 0:
        _count(graph, state, i, r, -1)
    _gather(graph, state, i)
    if r >= 0:
        _change(graph, state, i, r, -1)
    return r


@inner
def enter(graph, state, i, r):
    """Put the withdrawn node i into block r."""
    _change(graph, state, i, r, 1)
    _count(graph, state, i, r, 1)
    state.label[i] = r


@inner
def join_score(graph, state, i, r):
    """log p(z_i = r | rest, x) + constant, of the withdrawn node i."""
    kind, first, second, directed = graph.kind, graph.first, graph.second, graph.directed
    edges, exposure, cell = state.edges, state.exposure, state.cell
    out_edges, out_exposure, in_edges, in_exposure = (
        state.out_edges, state.out_exposure, state.in_edges, state.in_exposure
    )  # fmt: skip
    score = math.log(state.size[r] + graph.alpha[r])
    for c in range(edges.shape[0]):
        if c == r:
            continue
        if out_exposure[c] != 0:  # else the block is empty
            m, t = edges[r, c] + out_edges[c], exposure[r, c] + out_exposure[c]
            score += _cell(kind, first[r, c], second[r, c], m, t) - cell[r, c]
        if directed and in_exposure[c] != 0:
            m, t = edges[c, r] + in_edges[c], exposure[c, r] + in_exposure[c]
            score += _cell(kind, first[c, r], second[c, r], m, t) - cell[c, r]
    more, longer = _diagonal(graph, state, i, r)
    score += _cell(kind, first[r, r], second[r, r], edges[r, r] + more, exposure[r, r] + longer) - cell[r, r]
    if kind == 2:
        size, degree = state.size[r], state.out_degree[r]
        score += _degrees(size + 1, degree + graph.out_degree[i]) - _degrees(size, degree)
        if directed:
            degree = state.in_degree[r]
            score += _degrees(size + 1, degree + graph.in_degree[i]) - _degrees(size, degree)
    return score


@entry
def total(graph, state):
    """log p(x, z) but for what does not depend on z; every cell that f is summed over counts with f(0, 0) too."""
    found, blocks = 0.0, state.size.shape[0]
    for a in range(blocks):
        found += _log_gamma(state.size[a] + graph.alpha[a])
        for b in range(0 if graph.directed else a, blocks):
            found += state.cell[a, b]
        if graph.kind == 2:
            found += _degrees(state.size[a], state.out_degree[a])
            if graph.directed:
                found += _degrees(state.size[a], state.in_degree[a])
    return found


@entry
def place(graph, state, nodes, labels):
    """Move nodes to the blocks given."""
    for at in range(nodes.shape[0]):
        if state.label[nodes[at]] != labels[at]:
            withdraw(graph, state, nodes[at])
            enter(graph, state, nodes[at], labels[at])


@entry
def fill(graph, state):
    """All sums anew from ``state.label``."""
    blocks, label = state.size.shape[0], state.label.copy()
    state.edges[:], state.exposure[:] = 0.0, 0.0
    for a in range(blocks):
        for b in range(blocks):
            state.cell[a, b] = _cell(graph.kind, graph.first[a, b], graph.second[a, b], 0.0, 0.0)
        state.size[a] = state.out_weight[a] = state.in_weight[a] = 0.0
        state.out_degree[a] = state.in_degree[a] = 0.0
    state.label[:] = -1
    for i in range(label.shape[0]):
        if label[i] >= 0:
            _gather(graph, state, i)
            enter(graph, state, i, label[i])


@inner
def shuffle(nodes, rng):
    """A random order, in place (Fisher & Yates)."""
    state = rng[0]
    for at in range(nodes.shape[0] - 1, 0, -1):
        uniform, state = _uniform(state)  # pyright: ignore[reportGeneralTypeIssues]
        other = int(uniform * (at + 1))
        nodes[at], nodes[other] = nodes[other], nodes[at]
    rng[0] = state


@entry
def sweep(graph, state, power):
    """A new label for every node, in random order; how many have changed.

    power: labels are drawn in proportion to p(z_i = r | rest, x)^power; infinity takes the most probable one.
    """
    nodes, moved, blocks = np.arange(state.label.shape[0]), 0, state.size.shape[0]
    shuffle(nodes, state.rng)
    for i in nodes:
        old = withdraw(graph, state, i)
        for r in range(blocks):
            state.score[r] = join_score(graph, state, i, r)
        if power == math.inf:
            new = int(np.argmax(state.score))
            if old >= 0 and state.score[new] < state.score[old] + _TIE:
                new = old
        else:
            state.score[:] *= power
            new, state.rng[0] = _choose(state.score, state.share, state.rng[0])  # pyright: ignore
        enter(graph, state, i, new)
        moved += new != old
    return moved
