"""Zeros that share their blocks by node: a restriction of q under which a round is linear in nodes and edges.

Every zero (i, j) has the table phi_ia phi_jb (times q(not background) = 1 - h, one number for all zeros). With m_i the
ends of node i in zeros, L0 = E[log(1 - eta)] and entropies H, the zeros bring to the bound of ``common``

    (1 - h) { sum_i m_i [phi_i' E[log pi_i] + H(phi_i)] + sum_{zeros (i, j)} phi_i' L0 phi_j }
    + n0 { h E[log rho] + (1 - h) E[log(1 - rho)] + H(h) },

a lower bound, as phi and h stand for one choice of tables that the maximum there ranges over. With R_i = sum of phi_j
over the zeros (i, j) that i sends, which is all of them less i's own, its neighbours' and the hidden ones', and C_j
likewise over those that it receives, coordinate ascent sets node by node

    phi_ia = softmax_a(E[log pi_ia] + [L0 R_i + L0' C_i]_a / m_i),

and h = sigmoid(E[log rho] - E[log(1 - rho)] - {...} / n0). Nodes are swept one after the other: all at once, as two
that avoid each other would, phi need not climb. (Undirected: R_i = C_i over all zeros of i, counted once.) Zeros on the
diagonal keep their own tables; there are N of them at most.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from custom_inference.families.common.compiled import Ints, Reals, entry, inner
from custom_inference.families.common.intrinsics import allocate, larger
from custom_inference.families.memberships.dyads import Dyads, pair_sums
from custom_inference.families.rows.graph import Neighbours


class Shared(NamedTuple):
    """Sums like ``Collected``, over the zeros alone; ``foreground`` counts them. role (N, K): phi."""

    members: Tensor
    gaps: Tensor
    background: Tensor
    foreground: Tensor
    total: Tensor
    role: Tensor


def update_shared_zeros(
    dyads: Dyads, log_share: Tensor, log_gap: Tensor, share: Tensor, gap: Tensor, log_rho: tuple[Tensor, Tensor],
    role: Tensor | None,
) -> Shared:  # fmt: skip
    """Make one sweep of phi, then set h to its optimum; return what they add up to.

    share, gap: the exponentials of log_share and log_gap; role: phi to go on from, else softmax(E[log pi]).
    """
    role = torch.softmax(log_share, -1) if role is None else role.to(share).clone()
    graph, sent, ends = dyads.graph, np.zeros(role.shape, role.numpy().dtype), np.zeros(len(role))
    sides = ((graph.outgoing, graph.hidden_out), (graph.incoming, graph.hidden_in))[: 1 + dyads.directed]
    start, index = (np.stack(part) for part in zip(*(_join_dyads(*side) for side in sides), strict=True))
    _sweep(role.numpy(), log_share.numpy(), log_gap.numpy(), start, index, sent, ends)
    out, m = torch.as_tensor(sent), torch.as_tensor(ends).to(role)
    found = _sum_roles(dyads, log_share, log_gap, log_rho, role, out, m)
    own = _own_zeros(dyads)
    if not len(own):
        return found
    background, near = (one.exp() for one in log_rho)
    loops, table = pair_sums(own, own, share, near * gap, background), near * gap
    away = background.double() * loops.weight
    return Shared(
        found.members + loops.members(share, table),
        found.gaps + loops.cells(share, table, directed=dyads.directed),
        found.background + away,
        found.foreground + len(own) - away,
        found.total + loops.log_total,
        role,
    )


def _sum_roles(
    dyads: Dyads, log_share: Tensor, log_gap: Tensor, log_rho: tuple[Tensor, Tensor], role: Tensor, out: Tensor,
    m: Tensor,
) -> Shared:  # fmt: skip
    """Sum what phi adds up to, without the diagonal. out (N, K): R at the end of the sweep; m (N,)."""
    background, foreground = log_rho
    cells = role.mT @ out
    gaps = cells if dyads.directed else cells - torch.diag(cells.diagonal() / 2)
    count = m.sum(dtype=torch.float64) / 2
    drawn = (m[:, None] * (role * log_share + torch.special.entr(role))).sum(dtype=torch.float64)
    paid = (cells * log_gap).sum(dtype=torch.float64) * (1.0 if dyads.directed else 0.5)
    energy = drawn + paid
    odds = (background - foreground).double() - energy / count.clamp(min=1)
    h = torch.sigmoid(odds)
    # The maximum over h: n0 log(rho + (1 - rho) exp(energy / n0)).
    total = count * torch.logaddexp(background.double(), foreground.double() + energy / count.clamp(min=1))
    near = (1 - h).to(role)
    return Shared(near * m[:, None] * role, near * gaps, h * count, (1 - h) * count, total, role)


def _own_zeros(dyads: Dyads) -> Tensor:
    """Return the nodes whose self loop is an observed zero."""
    if not dyads.graph.self_loops:
        return torch.zeros(0, dtype=torch.long)
    i, j = torch.cat([torch.stack([dyads.source, dyads.target]), dyads.hidden], 1)
    free = torch.ones(len(dyads), dtype=torch.bool)
    free[i[i == j]] = False
    return free.nonzero().flatten()


def _join_dyads(edges: Neighbours, hidden: Neighbours) -> tuple[np.ndarray, np.ndarray]:
    """Return (start, index) of all dyads that are no zeros, without the diagonal."""
    size = len(edges.start) - 1
    row = np.concatenate([np.repeat(np.arange(size), np.diff(one.start)) for one in (edges, hidden)])
    column = np.concatenate([edges.index, hidden.index])
    off = row != column
    order = np.argsort(row[off], kind="stable")
    start = np.searchsorted(row[off][order], np.arange(size + 1))
    return start.astype(np.int64), column[off][order]


@entry
def _sweep(role: Reals, log_share: Reals, log_gap: Reals, start: Ints, index: Ints, sent: Reals, ends: Reals):
    """Update phi of every node in turn; then R and m of all. start (S, N + 1), index (S, M): of what is sent, and of
    directed graphs received; undirected ones have R = C, used once."""
    size, blocks = role.shape
    mass = np.zeros(blocks)
    for i in range(size):
        mass += role[i]
    rest, score = allocate(blocks), allocate(blocks)
    for i in range(size):
        score[:] = 0.0
        ends[i] = 0
        for side in range(len(start)):
            ends[i] += (size - 1) - (start[side, i + 1] - start[side, i])
            _left(role, mass, i, start[side], index[side], rest)
            for a in range(blocks):
                for b in range(blocks):
                    score[a] += (log_gap[a, b] if side == 0 else log_gap[b, a]) * rest[b]
        top = -np.inf
        for a in range(blocks):
            score[a] = log_share[i, a] + (score[a] / ends[i] if ends[i] > 0 else 0.0)
            top = larger(top, score[a])
        total = 0.0
        for a in range(blocks):
            score[a] = np.exp(score[a] - top)
            total += score[a]
        for a in range(blocks):
            mass[a] -= role[i, a]
            role[i, a] = score[a] / total
            mass[a] += role[i, a]
    for i in range(size):
        _left(role, mass, i, start[0], index[0], sent[i])


@inner
def _left(role: Reals, mass: Reals, i: int, start: Ints, index: Ints, rest: Reals):
    """Sum phi_j over the zeros (i, j)."""
    for a in range(len(mass)):
        rest[a] = mass[a] - role[i, a]
    for at in range(start[i], start[i + 1]):
        for a in range(len(mass)):
            rest[a] -= role[index[at], a]
