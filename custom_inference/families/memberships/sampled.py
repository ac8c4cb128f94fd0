"""Unbiased estimates of what the tables of a mixed-membership block model add up to, from some nodes' dyads.

For every node of a sample S all edges are taken, and of its other dyads n0 at random: edges are few, and say most
(stratified, in the manner of Gopalan & Blei, PNAS 110, 2013). The zeros' draws are uniform over the M = N - 1 dyads
that the node could have (in each direction), those that turn out to be edges or hidden counting nothing, so that

    members_i  ~  sum over i's edges of q(i takes a)  +  (M / n0) sum over the draws that are zeros of q(i takes a)

has the right expectation for every i in S, and, each dyad having two ends, N / (2 |S|) times the sum of the tables over
all that was taken has the expectation of the sum over all dyads.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from custom_inference.families.common.graph_rows import Neighbours
from custom_inference.families.memberships.common import Factors, bounded_exp
from custom_inference.families.memberships.dyads import Dyads


@dataclass(frozen=True)
class Ends:
    """For every node where its edges begin in a list of neighbours, and sorted numbers i N + j of what is no zero."""

    start: Tensor
    index: Tensor
    taken: Tensor

    @classmethod
    def of(cls, edges: Neighbours, hidden: Neighbours, device: torch.device) -> Ends:
        size = len(edges.start) - 1
        parts = []
        for one in (edges, hidden):
            start = torch.as_tensor(one.start, device=device)
            owner = torch.repeat_interleave(torch.arange(size, device=device), start.diff())
            parts.append(owner * size + torch.as_tensor(one.index, device=device))
        start, index = (torch.as_tensor(one, device=device) for one in (edges.start, edges.index))
        return cls(start, index, torch.cat(parts).sort().values)

    def neighbours(self, nodes: Tensor) -> tuple[Tensor, Tensor]:
        """(place in ``nodes``, neighbour) of all their edges."""
        first, count = self.start[nodes], self.start[nodes + 1] - self.start[nodes]
        place = torch.repeat_interleave(torch.arange(len(nodes), device=nodes.device), count)
        within = torch.arange(len(place), device=nodes.device) - (count.cumsum(0) - count)[place]
        return place, self.index[first[place] + within]

    def is_zero(self, node: Tensor, other: Tensor, size: int) -> Tensor:
        """Whether the dyads were observed without an edge."""
        if not len(self.taken):
            return torch.ones_like(node, dtype=torch.bool)
        number = node * size + other
        at = torch.searchsorted(self.taken, number).clamp(max=len(self.taken) - 1)
        return self.taken[at] != number


def sides_of(dyads: Dyads) -> list[Ends]:
    """Where nodes send and, in directed graphs, where they receive."""
    graph, device = dyads.graph, dyads.like.device
    sides = [(graph.outgoing, graph.hidden_out), (graph.incoming, graph.hidden_in)][: 2 if graph.directed else 1]
    return [Ends.of(edges, hidden, device) for edges, hidden in sides]


def sampled_statistics(
    dyads: Dyads, sides: list[Ends], factors: Factors, nodes: Tensor, zeros: int | None, generator: torch.Generator
) -> dict[str, Tensor]:
    """members (|S|, K), links, gaps (K, K) and background (2,), estimated; without ``zeros`` all of a node's count."""
    size, blocks = factors.share.shape
    share = bounded_exp(factors.share)
    near, far = factors.foreground.exp(), factors.background.exp()
    members = share.new_zeros(len(nodes), blocks)
    found = {"links": share.new_zeros(blocks, blocks), "gaps": share.new_zeros(blocks, blocks)}
    split = share.new_zeros(2)
    half = size / (2 * len(nodes))
    for received, side in enumerate(sides):
        place, other = side.neighbours(nodes)
        edges = ("links", near * bounded_exp(factors.link), far.new_zeros(()), place, other, share.new_ones(len(place)))
        place, other = _others(len(nodes), nodes, size, zeros, generator)
        weight = side.is_zero(nodes[place], other, size).to(share)
        if zeros is not None:
            weight = weight * ((size - 1) / zeros)
        gaps = ("gaps", near * bounded_exp(factors.gap), far, place, other, weight)
        for name, table, rest, at, j, w in (edges, gaps):
            table = table.mT if received else table
            mine, theirs = share[nodes[at]], share[j]
            passed = theirs @ table.mT
            z = (mine * passed).sum(-1) + rest
            ratio = (w / z)[:, None]
            members.index_add_(0, at, ratio * mine * passed)
            cells = table * (mine.mT @ (ratio * theirs))
            found[name] = found[name] + half * (cells.mT if received else cells)
            away = half * (w * rest / z).sum()
            split = split + torch.stack([away, half * w.sum() - away])
    if not dyads.directed:
        found = {name: one + one.mT - torch.diag(one.diagonal()) for name, one in found.items()}
    return {"members": members, **found, "background": split}


def _others(
    count: int, nodes: Tensor, size: int, zeros: int | None, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """(place, other node): all others of each node, or so many at random."""
    many = size - 1 if zeros is None else zeros
    place = torch.arange(count, device=nodes.device).repeat_interleave(many)
    if zeros is None:
        other = torch.arange(size - 1, device=nodes.device).repeat(count)
    else:
        other = torch.randint(size - 1, (count * many,), generator=generator).to(nodes.device)
    return place, other + (other >= nodes[place])
