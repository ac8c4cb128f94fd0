"""Sums over the dyads of a graph under one table of blocks a dyad, none of which is ever stored.

With e_i = exp(E[log pi_i]) and a K x K matrix T of factors (exp(E[log eta]) of an edge, exp(E[log(1 - eta)]) of a
zero), the best q(s_ij = a, r_ij = b) of a dyad is e_ia T_ab e_jb / Z_ij, Z_ij = rest + e_i' T e_j, where ``rest`` is
what else may have made the zero (the background of Murphy (2012), eq. 27.79). All that is ever needed of the tables is
linear in w_ij = 1 / Z_ij:

    sum_j q(s_ij = a)    = e_ia sum_b T_ab O_ib,        O_i = sum_j w_ij e_j    (out: i sends)
    sum_i q(r_ij = b)    = e_jb sum_a T_ab I_ja,        I_j = sum_i w_ij e_i    (into: j receives)
    sum_ij q(s, r = a, b) = T_ab sum_i e_ia O_ib

so that a dyad costs O(K) once e T is known: E K over the edges, N^2 K by dense products, block by block of rows, over
the zeros; and N K^2 besides.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from custom_inference.core.process_group import ALONE, Pool
from custom_inference.core.threads import map_in_threads
from custom_inference.families.rows.graph import GraphRows, Neighbours
from ppl_models import MethodError

#: Numbers in the largest temporary.
_CHUNK = 2**21
#: Numbers in a block of zeros: few, so that they stay in the processor, and threads have the same to do.
_ZEROS = 2**18
#: Rows of a block of zeros, at least.
_LEAST_ROWS = 16


@dataclass(frozen=True)
class Dyads:
    """The dyads of a graph of N nodes; of undirected graphs those with i <= j.

    source, target (E,): edges. hidden (2, M): not observed. ends (N,): how often a node is an end of an observed dyad
    (a self loop counts twice). num_zeros: observed dyads without an edge. processes: those that divide the
    sums over dyads. marks: see ``mark_nonzeros``.
    """

    graph: GraphRows
    source: Tensor
    target: Tensor
    hidden: Tensor
    ends: Tensor
    num_zeros: int
    like: Tensor
    processes: Pool = ALONE
    marks: list[Tensor] = field(default_factory=list, repr=False, compare=False)

    @classmethod
    def of(cls, graph: GraphRows) -> Dyads:
        size, like = len(graph), graph.like
        edges, hidden = (_pairs(one, graph, like.device) for one in (graph.outgoing, graph.hidden_out))
        most = (size - 1) * (2 if graph.directed else 1) + (2 if graph.self_loops else 0)
        ends = torch.full((size,), most, dtype=like.dtype, device=like.device)
        for side in hidden:
            ends -= torch.bincount(side, minlength=size)
        dyads = size * (size - 1) // (1 if graph.directed else 2) + (size if graph.self_loops else 0)
        num_zeros = dyads - edges.shape[1] - hidden.shape[1]
        return cls(graph, edges[0], edges[1], hidden, ends, num_zeros, like)

    def __len__(self) -> int:
        return len(self.ends)

    @property
    def directed(self) -> bool:
        return self.graph.directed

    @property
    def num_edges(self) -> int:
        return len(self.source)

    def select(self, index: Tensor | slice) -> Dyads:
        """Refuse to select: the nodes of a graph are not independent rows."""
        raise MethodError("the nodes of a graph are one observation; use StochasticMMSB to learn from some at a time")

    def to(self, dtype: torch.dtype) -> Dyads:
        return replace(self, ends=self.ends.to(dtype), like=self.like.to(dtype))

    @property
    def blocks(self) -> list[tuple[int, int]]:
        """First and last row of each block of zeros."""
        rows = max(_LEAST_ROWS, _ZEROS // len(self))
        return [(first, min(first + rows, len(self))) for first in range(0, len(self), rows)]

    def mark_nonzeros(self) -> list[Tensor]:
        """Find, once, the places in every block of rows (counted from its first column) that are no zeros: edges,
        hidden dyads, and what is no dyad beside those left of the diagonal."""
        if self.marks:
            return self.marks
        blocks = self.blocks
        size = len(self)
        every = torch.arange(size, device=self.like.device)
        pairs = [torch.stack([self.source, self.target]), self.hidden]
        i, j = torch.cat(pairs if self.graph.self_loops else [*pairs, every.expand(2, -1)], 1)
        order = i.argsort()
        i, j = i[order], j[order]
        cuts = torch.searchsorted(i, torch.tensor([first for first, _ in blocks] + [size], device=i.device)).tolist()
        for (first, _), start, stop in zip(blocks, cuts[:-1], cuts[1:], strict=True):
            column = 0 if self.directed else first
            self.marks.append((i[start:stop] - first) * (size - column) + j[start:stop] - column)
        return self.marks


def list_observed_dyads(rows: GraphRows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """List (i, j, x) of all observed dyads, (E,) each; of undirected graphs those with i <= j. For small graphs."""
    seen = rows.hidden_out.matrix.toarray() == 0
    if not rows.self_loops:
        np.fill_diagonal(seen, False)
    i, j = (seen if rows.directed else np.triu(seen)).nonzero()
    return i, j, (rows.outgoing.matrix.toarray()[i, j] > 0).astype(np.float64)


def _pairs(neighbours: Neighbours, graph: GraphRows, device: torch.device) -> Tensor:
    """(2, E)."""
    coo = neighbours.matrix.tocoo()
    keep = slice(None) if graph.directed else coo.row <= coo.col
    pairs = [torch.as_tensor(side[keep].astype("int64"), device=device) for side in (coo.row, coo.col)]
    return torch.stack(pairs)


class Sums(NamedTuple):
    """out, into (N, K): sum_j w_ij e_j and sum_i w_ij e_i; log_total: sum log Z; weight: sum w, both double scalars."""

    out: Tensor
    into: Tensor
    log_total: Tensor
    weight: Tensor

    def members(self, share: Tensor, table: Tensor) -> Tensor:
        """How often every node takes every block, (N, K)."""
        return share * (self.out @ table.mT + self.into @ table)

    def cells(self, share: Tensor, table: Tensor, *, directed: bool) -> Tensor:
        """How many dyads take blocks (a, b), (K, K); of undirected graphs in either order."""
        return either_order(table * (share.mT @ self.out), directed)


def either_order(cells: Tensor, directed: bool) -> Tensor:
    """Return cells of dyads with blocks (a, b), (..., K, K); in undirected graphs summed over both orders."""
    return cells if directed else cells + cells.mT - torch.diag_embed(cells.diagonal(dim1=-2, dim2=-1))


def pair_sums(source: Tensor, target: Tensor, share: Tensor, table: Tensor, rest: Tensor | float = 0.0) -> Sums:
    """Sum over listed dyads (i, j)."""
    left, out, into = share @ table, torch.zeros_like(share), torch.zeros_like(share)
    log_total, weight = (torch.zeros((), dtype=torch.float64, device=share.device) for _ in range(2))
    step = max(1, _CHUNK // share.shape[1])
    for i, j in zip(source.split(step), target.split(step), strict=True):
        to = share[j]
        z = torch.einsum("ek,ek->e", left[i], to) + rest
        w = 1 / z
        log_total, weight = log_total + z.log().sum(dtype=torch.float64), weight + w.sum(dtype=torch.float64)
        out.index_add_(0, i, w[:, None] * to)
        into.index_add_(0, j, w[:, None] * share[i])
    return Sums(out, into, log_total, weight)


def zero_sums(dyads: Dyads, share: Tensor, table: Tensor, rest: Tensor | float = 0.0) -> Sums:
    """Sum over all zeros, by dense products of blocks of rows; over this process's part of the blocks."""
    left, out, into = share @ table, torch.zeros_like(share), torch.zeros_like(share)
    log_total, weight = (torch.zeros((), dtype=torch.float64, device=share.device) for _ in range(2))

    def sum_block(given: tuple[tuple[int, int], Tensor]) -> Sums:
        (first, last), marks = given
        column, size = 0 if dyads.directed else first, last - first
        z = left[first:last] @ share[column:].mT
        z += rest
        if not dyads.directed:
            z[:, :size].masked_fill_(torch.ones_like(z[:, :size], dtype=torch.bool).tril_(-1), 1.0)
        z.view(-1)[marks] = 1.0
        log = z.log().sum(dtype=torch.float64)
        w = z.reciprocal_()
        if not dyads.directed:
            w[:, :size].triu_()
        w.view(-1)[marks] = 0.0
        return Sums(w @ share[column:], w.mT @ share[first:last], log, w.sum(dtype=torch.float64))

    blocks = dyads.processes.shard(list(zip(dyads.blocks, dyads.mark_nonzeros(), strict=True)))
    for ((first, last), _), found in zip(blocks, map_in_threads(sum_block, blocks), strict=True):
        out[first:last] += found.out
        into[0 if dyads.directed else first :] += found.into
        log_total, weight = log_total + found.log_total, weight + found.weight
    return Sums(out, into, log_total, weight)
