"""Memberships to start from: hard partitions, softened, and overlapping communities of the edges.

Variational rounds end in the basin they start in. Partitions of high integrated likelihood under the unmixed block
model (``blocks.partitions``) find any pattern of blocks, overlapping communities what mixing hides
from a partition. The search takes them in turn and keeps the best by its bound.

The communities are of the edges alone, and take time linear in the edges (Ball, Karrer & Newman, *Efficient and
principled method for detecting communities in networks*, Phys. Rev. E 84, 2011):
x_ij ~ Poisson(sum_z theta_iz theta_jz), whose EM divides every edge among the communities,

    q_ij(z) = theta_iz theta_jz / sum_y theta_iy theta_jy,    theta_iz = sum_j x_ij q_ij(z) / sqrt(sum_ij x_ij q_ij(z)).

k_iz = sum_j x_ij q_ij(z) is the number of node i's edges in z, and k_iz / k_i its membership. EM from random shares
finds communities but often covers one by two and two by one; it starts here with more than are asked for, and the pair
whose union costs the log-likelihood least is merged until there are as many. Directions of edges are left out.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from custom_inference.core.align import match_components
from custom_inference.core.proposals import Proposals
from custom_inference.core.states import State, tensors_of
from custom_inference.families.blocks.partitions import disjoint_pairs
from custom_inference.families.common.compiled import REORDERED, Ints, Reals, bare
from custom_inference.families.common.intrinsics import larger
from custom_inference.families.memberships.dyads import Dyads, either_order
from ppl_models import MMSB

Array = NDArray[np.float64]
#: Communities to begin with, as a multiple of those asked for, and at least so many more.
_SPARE, _LEAST_SPARE = 1.5, 2
#: Share of those in excess that go in one round of merges.
_ROUND = 0.34
#: EM steps before merging, after each round, and at the end at most.
_FIRST, _BETWEEN, _LAST = 150, 10, 150
#: Ends when five steps gain less than this, in nats.
_GAIN = 1.0
#: A node with fewer edges than this in a community is not in it.
_FEW = 1e-2
#: Edges that merges are judged by, at least.
_SAMPLED = 10_000
#: Share of an even membership that the result is mixed with: no block is ruled out by the start.
_EVEN = 0.01


def overlapping_communities(rows: Dyads, num_communities: int, seed: int) -> Array:
    """Find memberships (N, K) of the nodes in as many communities."""
    source, target = rows.source.cpu().numpy(), rows.target.cpu().numpy()
    generator = np.random.default_rng(seed)
    many = max(math.ceil(_SPARE * num_communities), num_communities + _LEAST_SPARE)
    degree = np.bincount(source, minlength=len(rows)) + np.bincount(target, minlength=len(rows))
    count = generator.random((len(rows), many)) * degree[:, None]
    count = _climb(source, target, count, _FIRST)
    while count.shape[1] > num_communities:
        wanted = max(1, int(_ROUND * (count.shape[1] - num_communities)))
        count = _climb(source, target, _merge_communities(source, target, count, wanted), _BETWEEN)
    count = _climb(source, target, count, _LAST)
    total = count.sum(1, keepdims=True)
    even = 1 / num_communities
    share = np.where(total > 0, count / np.where(total > 0, total, 1), even)
    return (1 - _EVEN) * share + _EVEN * even


def _merge_communities(source: NDArray[np.int64], target: NDArray[np.int64], count: Array, wanted: int) -> Array:
    """Merge communities, in place, until there are ``wanted`` fewer; each takes part in one merge. In large graphs a
    sample of the edges says which merges lose least."""
    every = max(1, len(source) // _SAMPLED)
    gain, mass = np.zeros((count.shape[1], count.shape[1])), count.sum(0) + 1e-300
    _merge_gains(source[::every].copy(), target[::every].copy(), count, mass, gain)
    pairs = disjoint_pairs(gain, wanted)
    for a, b in pairs:
        count[:, a] += count[:, b]
    return np.delete(count, [b for _, b in pairs], 1)


def _climb(source: NDArray[np.int64], target: NDArray[np.int64], count: Array, steps: int) -> Array:
    after, reached = np.empty_like(count), [-np.inf] * 5
    for _ in range(steps):
        after[:] = 0.0
        value = _divide(source, target, count, 1.0 / np.maximum(count.sum(0), 1e-300), after)
        count, after = after, count
        if value - reached[-5] < _GAIN:
            break
        reached.append(value)
    return count


# Compiled without expressions of whole arrays and without allocations, which take most of a first call.


@bare(fastmath=REORDERED)
def _divide(source: Ints, target: Ints, count: Reals, scale: Reals, after: Reals):
    """Make one EM step from k (N, Z) to ``after``, zeros; return the log-likelihood before it, up to a constant. scale:
    1 over the sums of k (Z,)."""
    value, communities = 0.0, count.shape[1]
    for e in range(source.shape[0]):
        i, j, total = source[e], target[e], 1e-300
        for z in range(communities):
            total += count[i, z] * count[j, z] * scale[z]
        value += math.log(total)
        for z in range(communities):
            part = count[i, z] * count[j, z] * scale[z] / total
            after[i, z] += part
            after[j, z] += part
    return value


@bare
def _merge_gains(source: Ints, target: Ints, count: Reals, mass: Reals, gain: Reals):
    """Add what the log-likelihood gains (loses) by merging communities a < b, (Z, Z), their k added up. mass: the sums
    of k (Z,)."""
    communities = count.shape[1]
    for e in range(source.shape[0]):
        i, j, total = source[e], target[e], 1e-300
        for z in range(communities):
            total += count[i, z] * count[j, z] / mass[z]
        for a in range(communities):
            first = count[i, a] * count[j, a] / mass[a]
            near = count[i, a] > _FEW or count[j, a] > _FEW
            for b in range(a + 1, communities):
                if near or count[i, b] > _FEW or count[j, b] > _FEW:  # else the edge is hardly theirs
                    both = (count[i, a] + count[i, b]) * (count[j, a] + count[j, b]) / (mass[a] + mass[b])
                    more = larger((both - first - count[i, b] * count[j, b] / mass[b]) / total, -1.0 + 1e-12)
                    # A logarithm is most of the cost; the next term of its series is below 1e-5.
                    gain[a, b] += math.log1p(more) if abs(more) > 0.02 else more - 0.5 * more * more


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
