"""Overlapping communities of the edges alone, in time linear in the edges: memberships to start from.

Ball, Karrer & Newman, *Efficient and principled method for detecting communities in networks*, Phys. Rev. E 84, 2011:
x_ij ~ Poisson(sum_z theta_iz theta_jz), whose EM divides every edge among the communities,

    q_ij(z) = theta_iz theta_jz / sum_y theta_iy theta_jy,    theta_iz = sum_j x_ij q_ij(z) / sqrt(sum_ij x_ij q_ij(z)).

k_iz = sum_j x_ij q_ij(z) is the number of node i's edges in z, and k_iz / k_i its membership. EM from random shares
finds communities but often covers one by two and two by one; it starts here with more than are asked for, and the pair
whose union costs the log-likelihood least is merged until there are as many. Directions of edges are left out.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from custom_inference.families.blocks.partitions import disjoint_pairs
from custom_inference.families.common.compiled import REORDERED, Ints, Reals, bare
from custom_inference.families.common.intrinsics import larger
from custom_inference.families.memberships.dyads import Dyads

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
