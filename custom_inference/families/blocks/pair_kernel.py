"""Beliefs of pairs of nodes with given beliefs of the nodes, compiled: import inside functions only (``evidence``)."""

from __future__ import annotations

import math

from custom_inference.families.common.compiled import Ints, Reals, bare, inner

#: Rescalings at most, and the change of a scale at which they end.
_SCALINGS, _TOLERANCE = 100, 1e-5


@bare
def correlate(
    first: Ints,
    second: Ints,
    there: Reals,
    back: Reals,
    ends: Reals,
    lift: Reals,
    base: Reals,
    phi: Reals,
    edges: Reals,
    exposure: Reals,
    square: Reals,
    work: Reals,
):
    """Add what pairs (i, j) change in edges and exposure between blocks (K, K), in place; return the sum of I_ij.

    first, second, there, back (E,): i, j, x_ij and x_ji. ends (S, N): weights. lift, base: A and B. phi (N, K). square
    (2, K, K), work (2, K): to work in.
    """
    blocks, last, found = lift.shape[0], ends.shape[0] - 1, 0.0
    log, belief, u, v = square[0], square[1], work[0], work[1]
    for e in range(first.shape[0]):
        i, j, x, y = first[e], second[e], there[e], back[e]
        one = ends[0, i] * ends[last, j] if x > 0 else 0.0
        other = ends[0, j] * ends[last, i] if y > 0 else 0.0
        for a in range(blocks):
            for b in range(blocks):
                log[a, b] = x * lift[a, b] + one * base[a, b] + y * lift[b, a] + other * base[b, a]
        _scale(phi[i], phi[j], log, belief, u, v)
        for a in range(blocks):
            for b in range(blocks):
                alone = phi[i, a] * phi[j, b]
                more = belief[a, b] - alone
                edges[a, b] += x * more
                edges[b, a] += y * more
                exposure[a, b] += one * more
                exposure[b, a] += other * more
                if belief[a, b] > 0 and alone > 0:
                    found += belief[a, b] * math.log(belief[a, b] / alone)
    return found


@inner
def _scale(row: Reals, column: Reals, log: Reals, belief: Reals, u: Reals, v: Reals):
    """Set ``belief`` (K, K) in proportion to u_a exp(log_ab) v_b, with these sums of rows and columns (Sinkhorn)."""
    blocks, top = row.shape[0], log[0, 0]
    for a in range(blocks):
        u[a], v[a] = 0.0, 1.0
        for b in range(blocks):
            top = max(top, log[a, b])
    for a in range(blocks):
        for b in range(blocks):
            belief[a, b] = math.exp(log[a, b] - top)
    for _ in range(_SCALINGS):
        change = 0.0
        for a in range(blocks):
            total = 1e-300
            for b in range(blocks):
                total += belief[a, b] * v[b]
            change = max(change, abs(row[a] / total - u[a]) * total)
            u[a] = row[a] / total
        for b in range(blocks):
            total = 1e-300
            for a in range(blocks):
                total += belief[a, b] * u[a]
            v[b] = column[b] / total
        if change < _TOLERANCE:
            break
    for a in range(blocks):
        for b in range(blocks):
            belief[a, b] *= u[a] * v[b]
