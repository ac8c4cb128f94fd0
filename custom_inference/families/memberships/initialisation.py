"""Memberships to start from: hard partitions, softened, and overlapping communities of the edges.

Variational rounds end in the basin they start in. Partitions of high integrated likelihood under the unmixed block
model (``blocks.partitions``) find any pattern of blocks, overlapping communities (``overlap``) what mixing hides
from a partition. The search takes them in turn and keeps the best by its bound.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from custom_inference.core.align import match_components
from custom_inference.core.proposals import Proposals
from custom_inference.core.states import State, tensors_of
from custom_inference.families.memberships.dyads import Dyads, either_order
from ppl_models import MMSB

#: Share of a softened partition's memberships that is spread over all blocks: below about a tenth of a node's dyads its
#: rounds never leave the corner of the simplex.
_SOFT = 0.2
#: Two starts found the same where the memberships of every block have at least this cosine.
_SAME = 0.95
#: Up to so many nodes partitions are searched for; of more, spectral ones are taken as they are.
_SEARCHED = 300
#: Passes over all pairs of blocks in matching a proposal to a block matrix.
_PASSES = 10


def propose_membership(rows: Dyads, model: MMSB, generator: torch.Generator, attempt: int) -> Tensor:
    """Propose memberships (N, K): softened partitions and overlapping communities in turn, of large graphs one
    partition in three."""
    from custom_inference.families.blocks import partitions
    from custom_inference.families.memberships.overlap import overlapping_communities

    size, blocks = len(rows), model.num_blocks
    seed = int(torch.randint(2**31, (), generator=generator))
    partition = attempt % 2 == 0 if size <= _SEARCHED else attempt % 3 == 1
    if rows.num_edges and not partition:
        return torch.as_tensor(overlapping_communities(rows, blocks, seed)).to(rows.like)
    if size <= _SEARCHED:
        label = partitions.propose_partition(rows.graph, blocks, "bernoulli", seed, attempt // 2)
    else:
        graph = partitions.flat_graph(rows.graph, blocks, "bernoulli")
        label = partitions.spectral_partition(graph, blocks, np.random.default_rng(seed))
    hard = torch.nn.functional.one_hot(torch.as_tensor(label, device=rows.like.device), blocks).to(rows.like)
    return (1 - _SOFT) * hard + _SOFT / blocks


def random_membership(rows: Dyads, num_blocks: int, generator: torch.Generator) -> Tensor:
    """Draw memberships (N, K) from Dirichlet(1/2)."""
    normal = torch.randn(len(rows), num_blocks, generator=generator, dtype=torch.float64)
    weight = normal.square().to(rows.like) + 1e-6  # twice a Gamma variable of shape 1/2
    return weight / weight.sum(-1, keepdim=True)


def pair_totals(rows: Dyads, membership: Tensor) -> tuple[Tensor, Tensor]:
    """Sum (edges, zeros) (K, K) by the blocks of their ends, the two ends taking theirs independently; of undirected
    graphs in either order, and symmetric."""
    own, mass = membership.mT @ membership, membership.sum(0)
    every = torch.outer(mass, mass) - own
    if not rows.directed:
        every = every - torch.diag(every.diagonal() / 2)
    if rows.graph.self_loops:
        every = every + either_order(own, rows.directed)
    pairs = (rows.source, rows.target), tuple(rows.hidden)
    links, hidden = (either_order(membership[i].mT @ membership[j], rows.directed) for i, j in pairs)
    return links, (every - links - hidden).clamp(min=0)


def match_membership(rows: Dyads, membership: Tensor, eta: Tensor) -> Tensor:
    """Reorder the columns of a proposal so that eta explains its edges best: a greedy matching along the diagonal, then
    exchanges of two blocks while any raises sum_ab links_ab log eta_ab + gaps_ab log(1 - eta_ab)."""
    links, gaps = (one.double() for one in pair_totals(rows, membership))
    near, far = torch.log(eta).double(), torch.log1p(-eta).double()
    density = links / (links + gaps).clamp(min=1e-12)
    place = torch.empty(len(eta), dtype=torch.long)
    place[density.diagonal().argsort().cpu()] = eta.diagonal().argsort().cpu()

    def score(order: Tensor) -> float:
        at = order.to(eta.device)
        return float((links * near[at][:, at] + gaps * far[at][:, at]).sum())

    best = score(place)
    for _ in range(_PASSES):
        before = best
        for a in range(len(eta)):
            for b in range(a):
                trial = place.clone()
                trial[a], trial[b] = place[b], place[a]
                value = score(trial)
                if value > best:
                    place, best = trial, value
        if best == before:
            break
    found = torch.empty_like(membership)
    found[:, place.to(eta.device)] = membership
    return found


class MembershipProposals(Proposals):
    """Starts of the variational engines."""

    def propose(self, model: MMSB, rows: Dyads, generator: torch.Generator, attempt: int) -> Any:
        return self.engine.from_membership(model, rows, propose_membership(rows, model, generator, attempt))

    def search_size(self, model: MMSB, num_rows: int) -> tuple[int, int]:
        """Return starts of both kinds; fewer of large graphs, on all of which each has to look."""
        return (6 if num_rows <= 300 else 3 if num_rows <= 3000 else 2), num_rows

    def same_solution(self, model: MMSB, first: State, second: State) -> bool:
        """Tell whether every block has its counterpart, by the cosine of its memberships; points are not compared."""
        if not self.compares(model, first):
            return first is second
        parts = [tensors_of(state) for state in (first, second)]
        weights = (one["members"] + 1e-6 if "members" in one else one["concentration"] for one in parts)
        found = match_components(*((one / one.sum(-1, keepdim=True)).mT.contiguous() for one in weights))
        return bool((found.similarity > _SAME).all())

    def compares(self, model: MMSB, state: State) -> bool:
        """Whether the state has memberships."""
        del model
        return not {"members", "concentration"}.isdisjoint(tensors_of(state))
