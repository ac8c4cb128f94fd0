"""Coordinate ascent over the nodes of a block model, compiled.

All nodes at once would chase each other: two that must differ swap blocks for ever. One after the other, each takes its
best shares given the others',

    phi_ia proportional to exp(log pi_a + sum_b [A_ab e_ib + B_ab w_i t_ib] + the same of incoming dyads
                               + x_ii A_aa + w_ii B_aa),
    e_ib = sum_(j != i) x_ij phi_jb,    t_ib = S_b - w'_i phi_ib - sum over hidden (i, j) of w'_j phi_jb,

with S_b = sum_j w'_j phi_jb kept up to date, so that a node costs its edges and hidden dyads times K, and K^2.
"""

from __future__ import annotations

import math

import numba
import numpy as np


@numba.njit(nogil=True, cache=True)
def sweep_nodes(
    out_start, out_node, out_count, in_start, in_node, in_count, hidden_out_start, hidden_out_node, hidden_in_start,
    hidden_in_node, directed, out_weight, in_weight, loops, loop_weight, log_proportion, lift, base, order, share,
    sweeps, threshold,
):  # fmt: skip
    """Sweeps until no share moves by more than ``threshold``; ``share`` (N, K) in place. Returns the last change.

    lift, base: A and B (K, K). loops: x_ii, loop_weight: w_ii, both (N,), 0 where there is none.
    """
    size, blocks = share.shape
    sum_out, sum_in = np.zeros(blocks), np.zeros(blocks)
    for i in range(size):
        for b in range(blocks):
            sum_out[b] += out_weight[i] * share[i, b]
            sum_in[b] += in_weight[i] * share[i, b]
    edges, rest, score = np.empty(blocks), np.empty(blocks), np.empty(blocks)
    change = 0.0
    for _ in range(sweeps):
        change = 0.0
        for i in order:
            for a in range(blocks):
                score[a] = log_proportion[a] + loops[i] * lift[a, a] + loop_weight[i] * base[a, a]
            _gather(out_start, out_node, out_count, i, share, edges)
            _remaining(hidden_out_start, hidden_out_node, i, share, in_weight, sum_in, rest)
            for a in range(blocks):
                for b in range(blocks):
                    score[a] += lift[a, b] * edges[b] + out_weight[i] * base[a, b] * rest[b]
            if directed:
                _gather(in_start, in_node, in_count, i, share, edges)
                _remaining(hidden_in_start, hidden_in_node, i, share, out_weight, sum_out, rest)
                for b in range(blocks):
                    for a in range(blocks):
                        score[a] += lift[b, a] * edges[b] + in_weight[i] * base[b, a] * rest[b]
            change = max(change, _replace(score, share[i], out_weight[i], in_weight[i], sum_out, sum_in))
        if change <= threshold:
            break
    return change


@numba.njit(nogil=True, cache=True)
def _gather(start, node, count, i, share, found):
    """sum_(j != i) x_ij phi_jb."""
    found[:] = 0.0
    for at in range(start[i], start[i + 1]):
        j = node[at]
        if j != i:
            for b in range(len(found)):
                found[b] += count[at] * share[j, b]


@numba.njit(nogil=True, cache=True)
def _remaining(start, node, i, share, weight, total, found):
    """t_ib: what is left of S_b without the node itself and the hidden dyads."""
    for b in range(len(found)):
        found[b] = total[b] - weight[i] * share[i, b]
    for at in range(start[i], start[i + 1]):
        j = node[at]
        if j != i:
            for b in range(len(found)):
                found[b] -= weight[j] * share[j, b]


@numba.njit(nogil=True, cache=True)
def _replace(score, share, out_weight, in_weight, sum_out, sum_in):
    """The shares that the scores give, in place; returns how far one moved at most."""
    top = score.max()
    total = 0.0
    for a in range(len(score)):
        score[a] = math.exp(score[a] - top)
        total += score[a]
    change = 0.0
    for a in range(len(score)):
        moved = score[a] / total - share[a]
        sum_out[a] += out_weight * moved
        sum_in[a] += in_weight * moved
        share[a] = score[a] / total
        change = max(change, abs(moved))
    return change
