"""Sums over the dyads of a graph under one table of blocks a dyad, none of which is ever stored.

With e_i = exp(E[log pi_i]) and a K x K matrix T of factors (exp(E[log eta]) of an edge, exp(E[log(1 - eta)]) of a
zero), the best q(s_ij = a, r_ij = b) of a dyad is e_ia T_ab e_jb / Z_ij, Z_ij = rest + e_i' T e_j, where ``rest`` is
what else may have made the zero (the background of Murphy (2012), eq. 27.79). All that is ever needed of the tables is
linear in w_ij = 1 / Z_ij:

    sum_j q(s_ij = a)    = e_ia sum_b T_ab O_ib,        O_i = sum_j w_ij e_j    (out: i sends)
    sum_i q(r_ij = b)    = e_jb sum_a T_ab I_ja,        I_j = sum_i w_ij e_i    (into: j receives)
    sum_ij q(s, r = a, b) = T_ab sum_i e_ia O_ib

so that a dyad costs O(K) once e T is known: E K over the edges, N^2 K over the zeros; and N K^2 besides.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from custom_inference.core.process_group import ALONE, Pool
from custom_inference.core.threads import MOST_SHARDS, cut_evenly, map_in_threads
from custom_inference.families.rows.graph import GraphRows, Neighbours
from ppl_models import MethodError

#: Numbers in the largest temporary.
_CHUNK = 2**21


@dataclass(frozen=True)
class Dyads:
    """The dyads of a graph of N nodes; of undirected graphs those with i <= j.

    source, target (E,): edges. hidden (2, M): not observed. ends (N,): how often a node is an end of an observed dyad
    (a self loop counts twice). num_zeros: observed dyads without an edge. processes: those that divide the
    sums over dyads.
    """

    graph: GraphRows
    source: Tensor
    target: Tensor
    hidden: Tensor
    ends: Tensor
    num_zeros: int
    like: Tensor
    processes: Pool = ALONE

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

    @cached_property
    def nonzeros(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """What is no zero of each node's row: edges, hidden dyads, and itself where that is no dyad. The nodes j of row
        i, in order, are the second array's from the i-th place of the first (N + 1,) on."""
        size, alone = len(self), np.arange(0 if self.graph.self_loops else len(self))
        pairs = np.concatenate([torch.stack([self.source, self.target]).cpu(), self.hidden.cpu(), [alone, alone]], 1)
        i, j = pairs[:, np.lexsort(pairs[::-1])].astype(np.int64)
        return np.concatenate([[0], np.cumsum(np.bincount(i, minlength=size))]), j


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
    """Sum over all zeros, over this process's part of their rows."""
    by = _sum_zeros_compiled if share.device.type == "cpu" else _sum_zeros_by_products
    return by(dyads, share, share @ table, float(rest))


def _sum_zeros_compiled(dyads: Dyads, share: Tensor, left: Tensor, rest: float) -> Sums:
    """Sum over the zeros on a processor, the rows in parts that threads share; left (N, K): e T."""
    from custom_inference.families.memberships.kernels import add_zeros

    size, given = len(dyads), tuple(np.ascontiguousarray(one.double().numpy()) for one in (left, share, share.mT))
    lengths = np.full(size, size) if dyads.directed else size - np.arange(size)
    parts = cut_evenly(np.concatenate([[0], np.cumsum(lengths)]), MOST_SHARDS * dyads.processes.size)
    out = np.zeros(share.shape)

    def add_part(ends: tuple[int, int]) -> tuple[NDArray[np.float64], float, float]:
        into = np.zeros(share.mT.shape)
        return into, *add_zeros(ends, given, rest, dyads.nonzeros, not dyads.directed, out, into)

    found = map_in_threads(add_part, dyads.processes.shard(parts))
    into, log_total, weight = (sum(one, np.zeros(())) for one in zip(*found, strict=True))
    sums = Sums(*(torch.as_tensor(one, dtype=torch.float64) for one in (out, into.T, log_total, weight)))
    return sums._replace(out=sums.out.to(share), into=sums.into.to(share))


def _sum_zeros_by_products(dyads: Dyads, share: Tensor, left: Tensor, rest: float) -> Sums:
    """Sum over the zeros on an accelerator, by dense products of blocks of rows."""
    start, target = (torch.as_tensor(one, device=share.device) for one in dyads.nonzeros)
    out, into, sums = torch.zeros_like(share), torch.zeros_like(share), share.new_zeros(2, dtype=torch.float64)
    rows = max(1, _CHUNK // len(dyads))
    for first in dyads.processes.shard(list(range(0, len(dyads), rows))):
        own, to = slice(first, first + rows), share if dyads.directed else share[first:]
        z = left[own] @ to.mT + rest
        column, begin, end = len(share) - len(to), start[first], start[min(first + rows, len(share))]
        row = torch.repeat_interleave(
            torch.arange(len(z), device=z.device), start[own.start : first + len(z) + 1].diff()
        )
        seen = torch.ones_like(z, dtype=torch.bool)
        seen = seen if dyads.directed else seen.triu_()
        seen[row, target[begin:end] - column] = False
        w = torch.where(seen, 1 / z, 0.0)
        out[own] += w @ to
        into[column:] += w.mT @ share[own]
        sums += torch.stack([torch.where(seen, z, 1.0).log().sum(dtype=torch.float64), w.sum(dtype=torch.float64)])
    return Sums(out, into, *sums)
